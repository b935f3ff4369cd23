"""From real themes to validated bundles to verified tasks, through the three pipelines."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from fixtures.make import write_library
from fixtures.rollouts import make_task

from beam_jobs import io, mine, synthesize, validate
from beam_jobs.stage import Summary
from beam_jobs.store import LocalStore, fingerprint
from synth.admission import check_bundle
from synth.difficulty import LEVELS
from synth.env.bundle import read_bundle
from synth.env.episode import EnvServer, VerifierServer
from synth.errors import CallerError
from synth.replay import replay
from synth.themes import builtin
from synth.types import Guide, SynthesisRequest, Task, ToolStep
from synth.verify import verify

THEMES = builtin("demo")[:2]
ENVS = [theme.id for theme in THEMES]
COUNT = 6
TWO_WORKERS = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]

Built = tuple[Path, Summary, Summary]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A run folder with two environments and their tasks; the summaries of its last two stages."""
    run = tmp_path_factory.mktemp("run")
    mine.run(run, THEMES, seed=0)
    validated = validate.run(run, THEMES, seed=0)
    orders = [synthesize.Order(env_id, COUNT, seed=0) for env_id in ENVS]
    return run, validated, synthesize.run(run, orders, tag="train")


def tasks(run: Path, name: str) -> list[Task]:
    return [Task.from_json(line) for line in (run / f"tasks/{name}.jsonl").read_text().splitlines()]


def test_every_theme_becomes_a_bundle_that_passes_the_gates(built: Built) -> None:
    run, validated, _ = built
    assert (validated.done, validated.dead) == (2, 0)
    assert validated.counters["tools_kept"] >= 2 * 8
    for env_id in ENVS:
        report = check_bundle(run / "bundles" / env_id)
        assert report.failed == 0, report.faults
        written = json.loads((run / f"checks/{env_id}.json").read_text())
        assert written["tools"] == report.tools
    assert validated.counters["tools_perfect"] >= 0.95 * validated.counters["tools_kept"]


def test_a_bundle_knows_its_place_in_the_taxonomy(built: Built) -> None:
    for theme in THEMES:
        place = read_bundle(built[0] / "bundles" / theme.id).manifest.taxonomy
        assert place == (theme.spec["first_level"], theme.spec["second_level"])


def test_tasks_of_both_routes_pass_the_gates_and_the_filter(built: Built) -> None:
    run, _, summary = built
    assert (summary.done, summary.dead) == (2, 0)
    for env_id in ENVS:
        kept = tasks(run, f"{env_id}.train")
        assert {task.route for task in kept} == {"graph", "program"}
        assert all(task.solve_rate is not None and task.solve_rate >= 0.4 for task in kept)
        assert all((task.solver or "").startswith("scripted:error_rate=") for task in kept)
        assert check_bundle(run / "bundles" / env_id, kept).failed == 0
    counters = summary.counters
    assert counters["asked"] == 2 * COUNT
    dropped = sum(count for name, count in counters.items() if name.startswith("dropped_"))
    assert counters["drafted"] == counters["kept"] + dropped


def test_every_solution_solves_its_task_when_it_is_done_again(built: Built) -> None:
    run, env_id = built[0], ENVS[0]
    path = run / "bundles" / env_id
    bundle, kept = read_bundle(path), {task.id: task for task in tasks(run, f"{env_id}.train")}
    lines = (run / f"solutions/{env_id}.train.jsonl").read_text().splitlines()
    assert len(set(lines)) == len(lines)
    solutions = [json.loads(line) for line in lines]
    assert {solution["task_id"] for solution in solutions} == set(kept)
    with EnvServer(path) as server, VerifierServer() as judge:
        for solution in solutions:
            task = kept[solution["task_id"]]
            steps = [ToolStep(**call) for call in solution["calls"]]
            final = replay(server, steps, task.seed).final
            assert final is not None
            assert verify(task, bundle, bundle.state, final, solution["answer"], judge).passed


def test_targeted_synthesis_obeys_the_guide_and_leaves_other_tasks_alone(
    built: Built,
) -> None:
    run, env_id = built[0], ENVS[0]
    before = fingerprint(run / f"tasks/{env_id}.train.jsonl")
    guides = [
        Guide(id="writes", text="change something", changes_state=True),
        Guide(id="reads", text="only look", changes_state=False),
    ]
    asked = [SynthesisRequest(env_id=env_id, because_of="x", guide=guide, count=2) for guide in guides]
    summary = synthesize.run(run, synthesize.orders(asked, seed=50), tag="evolve1")
    assert (summary.total, summary.done) == (1, 1), "the orders of one environment are one element"
    made = tasks(run, f"{env_id}.evolve1")
    assert {task.guide_id for task in made} == {"writes", "reads"}
    assert all(task.changes_state == (task.guide_id == "writes") for task in made)
    assert fingerprint(run / f"tasks/{env_id}.train.jsonl") == before


def test_orders_of_one_environment_never_ask_the_same_twice_in_other_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = read_bundle(write_library(tmp_path / "library"))

    def asked(book: int, words: str, **more: str) -> Task:
        return make_task(bundle, book, id=f"library-{words}", instruction=words, **more)

    first = [asked(1, "How many of B-1?"), asked(2, "How many of B-2?")]
    second = [asked(1, "Count B-1."), asked(3, "Count B-3."), asked(2, "How many of B-2?")]
    drawn = iter([first, second])
    same_by_program = asked(1, "B-1, how many?", route="program")
    monkeypatch.setattr("synth.tasks_graph.make_tasks", lambda *given, **more: next(drawn))
    monkeypatch.setattr("synth.tasks_program.make_tasks", lambda *given, **more: [same_by_program])
    orders = [synthesize.Order("library", 3, seed) for seed in (0, 1)]
    payload = {"orders": [synthesize._plain(order) for order in orders]}
    counters: Counter[str] = Counter()
    made = synthesize._draft(bundle, None, None, None, payload, counters)
    assert [task.instruction for task in made] == [
        "How many of B-1?", "How many of B-2?", "B-1, how many?", "Count B-3."
    ]  # fmt: skip
    assert (counters["drafted"], counters["dropped_duplicate"]) == (7, 3)


def test_the_same_orders_give_the_same_files_in_other_processes(built: Built, tmp_path: Path) -> None:
    run, env_id = built[0], ENVS[1]  # worker processes have their own hash seed: no set order may show
    mine.run(tmp_path, THEMES[1:], seed=0, options=TWO_WORKERS)
    validate.run(tmp_path, THEMES[1:], seed=0, options=TWO_WORKERS)
    orders = [synthesize.Order(env_id, COUNT, seed=0)]
    assert synthesize.run(tmp_path, orders, tag="train", options=TWO_WORKERS).done == 1
    for part in (f"tasks/{env_id}.train.jsonl", f"solutions/{env_id}.train.jsonl"):
        assert (run / part).read_text() == (tmp_path / part).read_text()
    digests = [read_bundle(folder / "bundles" / env_id).manifest.digest for folder in (run, tmp_path)]
    assert digests[0] == digests[1]


def test_finished_stages_are_skipped_and_a_new_database_renews_what_follows(
    built: Built, tmp_path: Path
) -> None:
    run = shutil.copytree(built[0], tmp_path / "run")
    orders = [synthesize.Order(env_id, COUNT, seed=0) for env_id in ENVS]
    assert validate.run(run, THEMES, seed=0).skipped == 2
    assert synthesize.run(run, orders, tag="train").skipped == 2
    mine.run(run, THEMES[:1], seed=1)
    validated = validate.run(run, THEMES, seed=0)
    assert (validated.done, validated.skipped) == (1, 1)
    again = synthesize.elements(LocalStore(run), orders, tag="train", author="offline", error_rate=0.3)
    current = [e.name for e in again if io.finished(LocalStore(run), "synthesize", e.name, e.key)]
    assert current == [f"{ENVS[1]}.train"]


def test_a_damaged_database_is_a_dead_letter_and_the_other_goes_on(built: Built, tmp_path: Path) -> None:
    (tmp_path / "databases").mkdir()
    for env_id in ENVS:
        shutil.copy(built[0] / f"databases/{env_id}.json", tmp_path / "databases")
    (tmp_path / f"databases/{ENVS[0]}.json").write_text('{"theme_id": 3}')
    summary = validate.run(tmp_path, THEMES, seed=0)
    assert (summary.done, summary.dead) == (1, 1)
    (letter,) = io.read_dead_letters(LocalStore(tmp_path), "validate")
    assert (letter.name, letter.input, letter.fault) == (ENVS[0], f"databases/{ENVS[0]}.json", "caller")
    assert "not a valid Database" in letter.message


def test_an_order_for_an_environment_that_is_not_there_is_the_callers_mistake(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="no bundle of environment nowhere"):
        synthesize.run(tmp_path, [synthesize.Order("nowhere", 3, seed=0)], tag="train")


def test_a_level_and_a_bound_shape_the_tasks_and_enter_the_key_only_when_set(
    built: Built, tmp_path: Path
) -> None:
    run = shutil.copytree(built[0], tmp_path / "run")
    store, order = LocalStore(run), synthesize.Order(ENVS[0], 8, seed=3)
    levelled = [synthesize.at_level(order, "medium")]
    assert synthesize.run(run, levelled, tag="medium", most=0.8).done == 1
    made = tasks(run, f"{ENVS[0]}.medium")
    level = LEVELS["medium"]
    for task in made:
        low, high = level.steps if task.route == "graph" else level.calls
        assert low <= task.difficulty.steps <= high
        assert task.solve_rate is not None
        assert 0.4 <= task.solve_rate <= 0.8
    assert {task.route for task in made} == {"graph", "program"}
    (plain,), (bound,) = (
        synthesize.elements(store, [order], tag="t", author="offline", error_rate=0.3, most=most)
        for most in (None, 0.8)
    )
    assert "most" not in plain.payload
    assert plain.key != bound.key
    with pytest.raises(CallerError, match="must be solved 2 of 5 times"):
        synthesize.run(run, [order], tag="t", most=0.2)
