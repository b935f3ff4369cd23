"""The leak check finds 50 of 50 planted leaks, and flags none of the tasks that stand.

CI plants them into tasks of one demo environment. ``AGENT_WORLD_RUN=RUN pytest -m slow -s -k planted`` plants
them into the tasks of a whole run and prints how many were found, and how many clean tasks are flagged.
"""

import os
from pathlib import Path

import pytest
from leak_plants import ANSWERS, NAMES, Names

from synth import mining, themes
from synth.author.offline import OfflineAuthor
from synth.complexify import complexify
from synth.env.bundle import read_bundle
from synth.leaks import find_leaks, task_leaks
from synth.tools import make_environment
from synth.types import Task

CLEAN = "Among the open requests of the largest one, call off the smallest. How many are left there then?"


@pytest.fixture(scope="module")
def env():
    theme = next(t for t in themes.builtin("demo") if t.id == "airport_slots")
    author = OfflineAuthor()
    db = complexify(mining.mine(theme, 0), theme, author, 0)
    return make_environment(db, theme, author, 0)


def found(sentence, answer, tools, tables, before=CLEAN):
    return find_leaks(f"{before} {sentence}", tools, tables, answer)


def test_the_carrier_is_clean(env):
    for _, answer in ANSWERS.values():
        assert find_leaks(CLEAN, env.tools, env.database.tables, answer) == []


@pytest.mark.parametrize("means", NAMES)
def test_a_planted_name_is_found(env, means):
    tables = env.database.tables
    sentence = NAMES[means](Names(env.tools, tables))
    assert found(sentence, None, env.tools, tables), sentence


@pytest.mark.parametrize("means", ANSWERS)
def test_a_planted_answer_is_found(env, means):
    sentence, answer = ANSWERS[means]
    assert found(sentence, answer, env.tools, env.database.tables), sentence


@pytest.mark.parametrize(
    ("sentence", "answer"),
    [
        ("Take the first one of 3.", 3),
        ("One hundred and twelve people asked.", 212),
        ("It opened on 6 January 2026.", "2026-01-05"),
        ("Some 163.4 degrees.", 163.17),
        ("Ada asked for it, and Brandt said no.", "Ada Brandt"),
        ("I paid 12.5% more.", 0.25),
        ("Which one answers first?", "first"[:3]),
        ("Is it a check-in, a follow-up or a no-show?", None),
        ("PER 1040 is another.", "PER-104"),
        ("In the year 2026 alone.", 26),
    ],
)
def test_what_only_looks_like_a_leak_is_none(env, sentence, answer):
    assert found(sentence, answer, env.tools, env.database.tables) == []


@pytest.mark.slow
@pytest.mark.skipif("AGENT_WORLD_RUN" not in os.environ, reason="needs a run folder in AGENT_WORLD_RUN")
def test_planted_leaks_in_the_tasks_of_a_whole_run():
    root = Path(os.environ["AGENT_WORLD_RUN"])
    bundles = {p.name: read_bundle(p) for p in sorted(root.glob("bundles/*"))}
    lines = [line for p in sorted(root.glob("tasks/*.jsonl")) for line in p.read_text().splitlines()]
    tasks = [Task.from_json(line) for line in lines]
    missed, flagged, planted = [], [], 0
    for number, task in enumerate(tasks):
        bundle = bundles[task.env_id]
        tables = bundle.manifest.tables
        if task_leaks(task, bundle.tools, tables):
            flagged.append(task.instruction)
        plants = {m: (make(Names(bundle.tools, tables)), None) for m, make in NAMES.items()} | ANSWERS
        means = list(plants)[number % len(plants)]
        sentence, answer = plants[means]
        planted += 1
        if not found(sentence, answer, bundle.tools, tables, task.instruction):
            missed.append((task.id, means, sentence))
    print(f"{planted - len(missed)} of {planted} planted leaks found; {len(flagged)} of {len(tasks)} flagged")
    assert not missed, missed[:5]
    assert len(flagged) <= 0.01 * len(tasks), flagged[:5]
