"""Verifiers against wrong outcomes: strong ones refuse all, weak ones are told by what they take."""

import json
import os
import random

import library
import pytest
from typer.testing import CliRunner

from arena.cli import app
from synth.env.bundle import write_bundle
from synth.mutants import Mutator, shifted
from synth.mutation import GOAL, KINDS, Score, score
from synth.types import Criterion, Program, Rubric
from synth.verify import canonical


def read_task(bundle, **changes):
    """The library's reading task, held to have changed nothing too."""
    task = library.read_task(bundle, **changes)
    if "verifier" in changes:
        return task
    untouched = Criterion(field="state", check="diff", expected={})
    return task.model_copy(update={"verifier": Rubric(criteria=(*task.verifier.criteria, untouched))})


MAKERS = {"read": read_task, "write": library.write_task, "program": library.program_task}


@pytest.fixture(scope="module")
def lib(tmp_path_factory):
    with library.opened(tmp_path_factory.mktemp("mutation")) as opened:
        yield opened


def scored(lib, task):
    return score(lib.server, lib.bundle, task, lib.verifier)


def mutants(lib, task):
    return list(Mutator(lib.server, lib.bundle, task, random.Random(0)).mutants())


@pytest.mark.parametrize("make", MAKERS)
def test_a_sound_verifier_refuses_every_wrong_outcome(lib, make):
    found = scored(lib, MAKERS[make](lib.bundle))
    assert found.survivors == []
    assert (found.value, found.gold_fails) == (1.0, [])
    assert found.made.total() >= 15


@pytest.mark.parametrize("make", MAKERS)
def test_every_mutant_differs_from_the_gold_outcome_and_from_the_others(lib, make):
    task = MAKERS[make](lib.bundle)
    bench = Mutator(lib.server, lib.bundle, task, random.Random(0))
    keys = [bench._key(final, answer) for _, _, final, answer in bench.mutants()]
    assert bench.wanted not in keys
    assert len(set(keys)) == len(keys)


def test_all_kinds_are_made(lib):
    kinds = {kind for make in MAKERS.values() for kind, *_ in mutants(lib, make(lib.bundle))}
    assert kinds == set(KINDS)


def test_the_same_task_gives_the_same_mutants(lib):
    task = library.write_task(lib.bundle)
    assert [m[1] for m in mutants(lib, task)] == [m[1] for m in mutants(lib, task)]


def weak(code):
    return Program(code=f"def verify(initial, final, answer):\n    return [('it', {code}, '')]\n")


@pytest.mark.parametrize(
    ("verifier", "takes"),
    [
        (weak("answer is not None"), {"no-op", "wrong-entity", "off-by-one", "injected-text", "side-effect"}),
        (weak("bool(initial.diff(final))"), {"wrong-entity", "off-by-one", "injected-text", "side-effect"}),
        (weak("'1960' in str(answer)"), {"injected-text", "side-effect"}),
        (Rubric(criteria=(Criterion(field="answer", check="number", expected=1960),)), {"side-effect"}),
    ],
    ids=["any answer", "any change", "answer is in it", "answer only"],
)
def test_a_weak_verifier_is_told_by_what_it_takes(lib, verifier, takes):
    task = library.write_task(lib.bundle)
    expected = canonical(task.reference_answer)
    if isinstance(verifier, Program):
        verifier = Program(code=verifier.code.replace("1960", expected))
    else:
        verifier = Rubric(
            criteria=(Criterion(field="answer", check="equals", expected=task.reference_answer),)
        )
    found = scored(lib, task.model_copy(update={"verifier": verifier}))
    assert found.value < GOAL
    assert {kind for _, kind, _ in found.survivors} >= takes
    assert found.refused.total() + len(found.survivors) == found.made.total()


def test_a_verifier_that_fails_the_gold_outcome_is_named_and_scores_nothing(lib):
    task = library.read_task(lib.bundle, verifier=weak("False"))
    found = scored(lib, task)
    assert found.gold_fails == [task.id]
    assert found.made.total() == 0


def test_an_order_that_does_not_matter_is_no_mistake(lib):
    task = library.read_task(lib.bundle, reference_answer=["a", "b"])
    by_set = Rubric(criteria=(Criterion(field="answer", check="set", expected=["a", "b"]),))
    kinds = [m[0] for m in mutants(lib, task.model_copy(update={"verifier": by_set})) if m[3] == ["b", "a"]]
    assert kinds == []


@pytest.mark.parametrize(
    ("value", "moved"),
    [
        (7, 8),
        (1.5, 2.5),
        ("PER-104", "PER-105"),
        ("2025-11-03", "2025-11-04"),
        ("A099", "A100"),
        ("Oslo", None),
    ],
)
def test_one_off(value, moved):
    assert shifted(value, 1) == moved


def test_scores_add_up():
    one, two = Score(tasks=1), Score(tasks=2)
    one.made["no-op"], one.refused["no-op"] = 4, 4
    two.made["no-op"], two.refused["no-op"] = 6, 5
    one += two
    assert (one.tasks, one.value) == (3, 0.9)


def test_the_command_prints_score_kinds_and_survivors(lib, tmp_path):
    write_bundle(library.environment(), tmp_path / "bundles" / "library")
    tasks = [make(lib.bundle) for make in MAKERS.values()]
    weak_one = tasks[0].model_copy(update={"id": "weak", "verifier": weak("answer is not None")})
    old = tasks[0].model_copy(update={"id": "old", "env_digest": "0" * 64})
    (tmp_path / "tasks").mkdir()
    file = tmp_path / "tasks" / "library.train.jsonl"
    file.write_text("".join(t.to_json() + "\n" for t in [*tasks, old]))
    done = CliRunner().invoke(app, ["mutate", str(tmp_path)], standalone_mode=False)
    assert done.return_value == 0
    assert "mutation score 1.0000" in done.stdout
    assert "1 tasks are of another version" in done.stdout
    file.write_text("".join(t.to_json() + "\n" for t in [*tasks, weak_one]))
    done = CliRunner().invoke(app, ["mutate", str(tmp_path), "--json"], standalone_mode=False)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert done.return_value == 1
    assert figures["met"] is False
    assert {s["task"] for s in figures["survivors"]} == {"weak"}


@pytest.mark.slow
@pytest.mark.skipif("AGENT_WORLD_RUN" not in os.environ, reason="needs a run folder in AGENT_WORLD_RUN")
def test_the_tasks_of_a_whole_run():
    """``AGENT_WORLD_RUN=RUN pytest -m slow -s tests/synth/test_mutation.py`` prints the figures."""
    done = CliRunner().invoke(app, ["mutate", os.environ["AGENT_WORLD_RUN"]], standalone_mode=False)
    print(done.stdout)
    assert done.return_value == 0
