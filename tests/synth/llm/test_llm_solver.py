"""The 2-of-5 filter with any model: tasks of the procedural author, tried by a model over HTTP."""

import json
import subprocess
import sys

import pytest
import scripted_llm as scripted

from synth.admission import validate_environment
from synth.author import make_author
from synth.complexify import complexify
from synth.env.bundle import write_bundle
from synth.mining import mine
from synth.themes import builtin
from synth.tools import make_environment
from synth.types import Task


@pytest.fixture
def run_folder(tmp_path):
    """A run with one environment of the procedural author."""
    theme = next(theme for theme in builtin("demo") if theme.id == "penguin_survey")
    author = make_author("offline")
    db = complexify(mine(theme, 0, author), theme, author, 0)
    env, _ = validate_environment(make_environment(db, theme, author, 0), tmp_path)
    write_bundle(env, tmp_path / "run" / "bundles" / theme.id)
    return tmp_path / "run"


def tasks(run, tag, *more):
    """What ``agent-world tasks`` wrote and printed."""
    command = [sys.executable, "-m", "arena.cli", "tasks", run, "--tag", tag, "--count", "2", "--json", *more]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    path = run / "tasks" / f"penguin_survey.{tag}.jsonl"
    return [Task.from_json(line, where=str(path)) for line in path.read_text().splitlines()], done.stdout


def test_the_models_tries_decide_and_its_name_stands_in_the_task(server, run_folder, tmp_path):
    written, _ = tasks(run_folder, "scripted")
    assert written
    assert all(task.solver.startswith("scripted:") for task in written)
    server.gold = {t.instruction: (t.chain, t.reference_answer) for t in written}
    path = tmp_path / "solver.toml"
    settings = ['model = "scripted-8b"', f'api_base = "{server.url}"', 'key_env = "AGENT_WORLD_TEST_KEY"']
    path.write_text("\n".join(settings))
    tried, printed = tasks(run_folder, "model", "--solver", path)
    known = {t.id for t in written}
    assert {t.id for t in tried} == known, "what it can solve 3 of 5 times; the rest it never solves"
    assert {(t.solver, t.solve_rate) for t in tried} == {("llm:scripted-8b", 0.6)}
    counters = json.loads(printed.splitlines()[-1])["counters"]
    assert counters["llm_exchanges"] == server.paid.total() > 0
    bounded, _ = tasks(run_folder, "bounded", "--solver", path, "--most", 0.4)
    assert bounded == [], "an upper bound: solved in 3 of 5 is too often"
    assert scripted.KEY not in "".join(p.read_text() for p in run_folder.rglob("*.json*") if p.is_file())
