"""``agent-world judge``: a model judges sentences only after its errors on known cases were counted."""

import json
import os
import subprocess
import sys

import lake_views
import pytest
import scripted_llm as scripted

from arena.evaluate import score
from arena.folder import RunFolder, write_records
from synth.judging import read_cases
from synth.types import Check, Criterion, Difficulty, Rubric, Task, ToolStep, Trajectory, Verdict

STATEMENT = "Lake Baikal is the deepest of all lakes in the list."


@pytest.fixture
def settings(server, tmp_path):
    path = tmp_path / "llm.toml"
    path.write_text(
        f'model = "scripted-8b"\napi_base = "{server.url}"\n'
        'key_env = "AGENT_WORLD_TEST_KEY"\nbackoff_s = 0.01\n'
    )
    return path


@pytest.fixture(autouse=True)
def accepts():
    lake_views.ACCEPTS.clear()
    yield lake_views.ACCEPTS
    lake_views.ACCEPTS.clear()


def judge(*words):
    command = [sys.executable, "-m", "arena.cli", "judge", *map(str, words)]
    env = {**os.environ, "AGENT_WORLD_TEST_KEY": scripted.KEY}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=env)


def test_a_judge_without_errors_counts_and_the_interval_says_how_sure_that_is(server, settings):
    done = judge("--llm", settings, "--json")
    told = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, told["met"], told["judge"]) == (0, True, "llm:scripted-8b")
    assert (told["cases"], told["error_rate"], told["low"]) == (len(read_cases()), 0.0, 0.0)
    assert 0.05 < told["high"] < 0.1
    assert told["by_kind"]["reworded"] == [0, 8]
    assert server.prompts["judge"] == 64 + 16, "quotes that do not stand in the answer were told back"


def test_a_judge_that_errs_is_shown_by_kind_and_does_not_count(settings, accepts, tmp_path):
    accepts.add("half")
    done = judge("--llm", settings)
    assert done.returncode == 1
    assert "12.5% errors" in done.stdout
    assert "8 of 40 wrong ones accepted, 0 of 24 right ones refused" in done.stdout
    assert "errs too often to count" in done.stdout


def made_run(root):
    """A round with one task that wants a value and a sentence, and three episodes of it."""
    root.mkdir()
    criteria = (
        Criterion(field="answer[0]", check="number", expected=1642),
        Criterion(field="answer[1]", check="text", expected=STATEMENT, how="judge"),
    )
    task = Task(
        id="lakes.1", env_id="lakes", env_digest="d", route="graph",
        instruction="How deep is the deepest lake, and which one is it? Say it in a sentence.",
        reference_answer=[1642, STATEMENT], verifier=Rubric(criteria=criteria),
        chain=(ToolStep(tool="find", arguments={}),), difficulty=Difficulty(steps=1, tools=1),
        changes_state=False, pattern="find", seed=0,
    )  # fmt: skip
    answers = ([1642, f"It is this: {STATEMENT}"], [1642, "I don't know."], [3, STATEMENT])
    episodes = [
        Trajectory(
            task_id=task.id, env_id="lakes", sample=n, seed=0, turns=(), token_ids=(), logprobs=(),
            loss_mask=(), finish_reason="answer", answer=answer,
            verdict=Verdict(passed=n < 2, checks=(Check(name="answer[0] number", passed=n < 2),)),
        )
        for n, answer in enumerate(answers)
    ]  # fmt: skip
    write_records(root / "tasks" / "lakes.heldout.jsonl", [task])
    RunFolder(root).round(0, "before").save(score(episodes, [task], 3, "before", {}), episodes)


def test_a_calibrated_judge_reads_the_episodes_that_pass_the_programs(settings, tmp_path):
    made_run(tmp_path / "run")
    report = next((tmp_path / "run").glob("arena/*/report.json")).read_bytes()
    done = judge(tmp_path / "run", "--llm", settings, "--json")
    told = json.loads(done.stdout.splitlines()[-1])["run"]
    assert told == {"round": "before", "tasks": 1, "episodes": 3, "by_program": 2, "with_judge": 1}
    assert next((tmp_path / "run").glob("arena/*/report.json")).read_bytes() == report, "rates stay"


def test_a_caller_mistake_is_one_line(settings, tmp_path):
    cases = tmp_path / "cases.jsonl"
    cases.write_text('{"instruction": "x"}\n')
    done = judge("--llm", settings, "--cases", cases)
    assert done.returncode == 2
    assert "cases.jsonl:1: write" in done.stderr
    assert judge().returncode == 2
