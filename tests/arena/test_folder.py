"""The run folder: what is written is found again, and the funnel is counted from receipts."""

import pytest
from arena_run import make_run
from arena_samples import episode, task

from arena.evaluate import score
from arena.folder import Funnel, RunFolder, write_records
from synth.errors import CallerError


def test_the_funnel_adds_receipts_up_and_says_why_things_were_dropped(tmp_path):
    run = make_run(tmp_path / "run", tasks_each=2, samples=1)
    assert run.funnel() == [
        Funnel("databases", 5, {"CallerError: source <gone> is not installed": 1}),
        Funnel("environments", 5),
        Funnel("tools", 55, {"half of its tests or more fail": 5}),
        Funnel("tasks (heldout)", 60, {"not solved twice in five tries": 15}),
        Funnel("tasks (train)", 200, {"not solved twice in five tries": 45, "fails the gate no-leak": 10}),
    ]


def test_rounds_come_back_in_order_and_only_when_finished(tmp_path):
    run = RunFolder(tmp_path)
    report = score([episode()], [task()], 1, "after GRPO", {})
    run.round(10, "after GRPO").save(report, [episode()])
    run.round(2, "Before  training!").save(report, [episode()])
    write_records(run.round(11, "unfinished").folder / "episodes.jsonl", [episode()])
    assert [r.folder.name for r in run.rounds()] == ["02-before-training", "10-after-grpo"]
    assert run.rounds()[0].report() == report
    assert run.rounds()[0].episodes() == [episode()]
    assert run.rounds()[0].diagnosis() is None


def test_tasks_are_found_by_tag(tmp_path):
    run = RunFolder(tmp_path)
    write_records(tmp_path / "tasks" / "airports.train.jsonl", [task("a")])
    write_records(tmp_path / "tasks" / "airports.heldout.jsonl", [task("b")])
    assert list(run.tasks()) == ["b", "a"]
    assert list(run.tasks("train")) == ["a"]


def test_the_newest_arena_round_answers_first_for_an_episode(tmp_path):
    run = RunFolder(tmp_path)
    report = score([episode()], [task()], 1, "r", {})
    run.round(0, "old").save(report, [episode(), episode(sample=1)])
    run.round(1, "new").save(report, [episode(passed=True)])
    assert run.find_episode("t1#0").verdict.passed
    assert not run.find_episode("t1#1").verdict.passed


@pytest.mark.parametrize(
    ("name", "message"),
    [("t1", "write it as TASK#SAMPLE"), ("t1#x", "TASK#SAMPLE"), ("t9#0", "no episode t9#0")],
)
def test_an_episode_that_is_not_there_is_said(tmp_path, name, message):
    with pytest.raises(CallerError, match=message):
        RunFolder(tmp_path).find_episode(name)


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "tasks" / "a.train.jsonl"
    path.parent.mkdir()
    path.write_text(task("a").to_json() + "\n{}\n")
    with pytest.raises(CallerError, match=r"a.train.jsonl:2: not a valid Task: field id"):
        RunFolder(tmp_path).tasks()
