"""The whole loop, small: it ends with a table and a report, and a killed run ends with the same one."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from arena.folder import RunFolder
from arena.sample import split_environments

SCRIPT = Path(__file__).with_name("demo_run.py")
TIMEOUT = 900  # seconds


def start(folder: Path, seed: int) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(folder), str(seed)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def outcome(folder: Path) -> list[dict]:
    """The reports of all rounds: what the final table is made of."""
    return [json.loads(r.report().to_json()) for r in RunFolder(folder).rounds()]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """(run folder, printed text, seconds) of a run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("demo") / "run"
    began = time.monotonic()
    process = start(folder, 0)
    text, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, text
    return folder, text, time.monotonic() - began


@pytest.mark.timeout(TIMEOUT)
def test_the_demo_runs_every_stage_and_prints_a_table(unbroken):
    folder, text, _ = unbroken
    assert [line[:7] for line in text.splitlines() if line.startswith("[")] == [
        f"[{i:2d}/15]" for i in range(1, 16)
    ]
    for word in ("before training", "after GRPO", "after evolution", "report:"):
        assert word in text
    page = (folder / "report.html").read_text()
    assert page.lower().startswith("<!doctype html>")
    assert len(outcome(folder)) == 3


@pytest.mark.timeout(TIMEOUT)
def test_what_is_measured_is_never_trained_on(unbroken):
    folder, _, _ = unbroken
    run = RunFolder(folder)
    split = split_environments(run.manifests(), 0)
    trained = {json.loads(line)["env_id"] for p in folder.glob("train/*/trajectories/*") for line in p.open()}
    measured = {e.env_id for r in run.rounds() for e in r.episodes()}
    assert trained <= set(split.train)
    assert measured <= set(split.arena)
    assert trained
    assert measured
    assert not trained & measured


@pytest.mark.timeout(TIMEOUT)
def test_the_same_seed_killed_at_a_random_point_ends_with_the_same_table(unbroken, tmp_path):
    _killed(unbroken, tmp_path / "run", kills=1)


@pytest.mark.slow
@pytest.mark.timeout(8 * TIMEOUT)
def test_five_kills_end_with_the_same_table(unbroken, tmp_path):
    _killed(unbroken, tmp_path / "run", kills=5)


def _killed(unbroken, folder: Path, kills: int) -> None:
    reference, _, seconds = unbroken
    rng = random.Random(os.environ.get("KILL_SEED", "1"))
    for _ in range(kills):
        process = start(folder, 0)
        time.sleep(rng.uniform(0.1, 0.9) * seconds * (1 if kills == 1 else 0.5))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    last = start(folder, 0)
    text, _ = last.communicate(timeout=TIMEOUT)
    assert last.returncode == 0, text
    assert outcome(folder) == outcome(reference)
    for name in ("grpo", "grpo-evolved"):
        one, other = (f / "train" / name / "train.jsonl" for f in (folder, reference))
        assert [_learning(line) for line in one.open()] == [_learning(line) for line in other.open()]


def _learning(line: str) -> dict:
    """A step's metrics without what a clock or a memory meter says."""
    measured = ("second", "per_s", "memory", "mfu")
    return {k: v for k, v in json.loads(line).items() if not any(word in k for word in measured)}
