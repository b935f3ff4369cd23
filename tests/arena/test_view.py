"""What ``agent-world view`` prints, over a run folder on disk."""

import json

import pytest
from arena_run import make_run

from arena.view import run_view
from synth.errors import CallerError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("run"), tasks_each=4, samples=2)


def test_the_summary_counts_tasks_steps_and_rounds(run, capsys):
    run_view(run.root)
    text = capsys.readouterr().out
    assert "tasks: 20 (graph 20, 20 change the state)" in text
    assert "training 1-grpo: 40 steps" in text
    assert "after evolution" in text
    assert "--episode" in text  # the way on is shown


def test_the_summary_as_json_is_one_object(run, capsys):
    run_view(run.root, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["tasks"] == 20
    assert [r["round"] for r in found["rounds"]] == ["before training", "after GRPO", "after evolution"]


def test_an_episode_is_shown_turn_by_turn_with_its_verdict(run, capsys):
    failed = run.rounds()[-1].report().failures[0]
    run_view(run.root, episode=failed)
    text = capsys.readouterr().out
    assert failed in text
    assert "failed" in text
    assert "policy version 3" in text
    assert "<tool_call>" in text
    assert '"<DPS & co>"' in text


def test_a_task_is_shown_with_its_gold_calls_and_episodes(run, capsys):
    run_view(run.root, task="songs-00")
    text = capsys.readouterr().out
    assert '1. find_airport {"city": "Praya"}' in text
    assert 'answer: "LOP"' in text
    assert "02-after-evolution" in text


def test_what_is_not_there_is_said(run, tmp_path):
    with pytest.raises(CallerError, match="no task nope"):
        run_view(run.root, task="nope")
    with pytest.raises(CallerError, match="not both"):
        run_view(run.root, task="a", episode="a#0")
    with pytest.raises(CallerError, match="no such run folder"):
        run_view(tmp_path / "gone")


def test_text_that_looks_like_markup_is_printed_as_it_is(tmp_path, capsys):
    from arena_samples import episode, said, task

    from arena.evaluate import score
    from arena.folder import RunFolder, write_records

    run = RunFolder(tmp_path)
    t = task(instruction="[bold]Which[/] [/wrong]?")
    write_records(tmp_path / "tasks" / "a.train.jsonl", [t])
    trajectory = episode(said("[red]x[/blue]", error="[/no]"))
    run.round(0, "r").save(score([trajectory], [t], 1, "r", {}), [trajectory])
    run_view(tmp_path, episode="t1#0")
    text = capsys.readouterr().out
    assert "[bold]Which[/] [/wrong]?" in text
    assert "[red]x[/blue]" in text
