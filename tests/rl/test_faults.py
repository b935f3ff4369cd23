"""Real faults against whole training processes: kill -9, SIGTERM, a full disk, dead and hung sandboxes."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from model.checkpoint import Checkpoints
from rl.faults import is_full_disk
from rl.metrics import read_metrics
from rl.policy import Policy

pytestmark = pytest.mark.timeout(1200)  # processes that start JAX, wherever they have to share

CONFIG: dict[str, Any] = {
    "steps": 4,
    "groups_per_step": 2,
    "group_size": 8,
    "slots": 16,
    "limits": {"max_turns": 3, "max_new_per_turn": 40, "max_len": 640},
    "batch": {"row_length": 640, "rows": 1, "minibatches": 1},
    "learner": {"optimizer": {"learning_rate": 3e-3}},
}
AHEAD = CONFIG | {"sampling": "one_ahead", "batch": CONFIG["batch"] | {"max_staleness": 1}}


class Run:
    """One run folder and the processes that work on it, one after the other."""

    def __init__(self, home: Path, name: str, config: dict[str, Any], run: Path | None = None):
        self.folder = run or home / name
        spec = {
            "policy": str(home / "policy"),
            "tasks": str(home / "tasks.jsonl"),
            "bundle": str(home / "bundle"),
            "compiled": str(home / "compiled"),
            "run": str(self.folder),
            "config": config,
        }
        self.spec = home / f"{name}.json"
        self.spec.write_text(json.dumps(spec))

    def start(self, *before: str) -> subprocess.Popen[str]:
        """A process, given back when its training begins."""
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "JAX_PLATFORMS": "cpu"}
        command = [*before, sys.executable, str(Path(__file__).with_name("one_run.py")), str(self.spec)]
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "training", process.communicate()[1][-2000:]
        return process

    def finish(self) -> float:
        """Run to the end; seconds from the beginning of training."""
        process, started = self.start(), time.monotonic()
        errors = process.communicate()[1]
        assert process.returncode == 0, errors[-2000:]
        return time.monotonic() - started

    def curve(self) -> list[dict[str, Any]]:
        """The metrics without what a clock or a memory meter says."""
        rows = read_metrics(self.folder / "train.jsonl")
        return [{name: value for name, value in row.items() if not measured(name)} for row in rows]

    def trajectories(self) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in (self.folder / "trajectories").iterdir()}


def measured(name: str) -> bool:
    return any(word in name for word in ("second", "memory", "mfu"))


def assert_same(run: Run, other: Run) -> None:
    assert run.curve() == other.curve()
    assert run.trajectories() == other.trajectories()
    one, two = (jax.tree.leaves(Policy.load(r.folder / "policy").params) for r in (run, other))
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.fixture(scope="module")
def unbroken(home) -> tuple[Run, float]:
    run = Run(home, "unbroken", CONFIG)
    return run, run.finish()


# --- kill -9 ----------------------------------------------------------------------------------


def killed_at_random(run: Run, kills: int, seconds: float, seed: int) -> int:
    """Kill processes of a run ``kills`` times at random moments, then finish it; how many were killed."""
    rng, done = random.Random(seed), 0
    for _ in range(kills):
        process = run.start()
        time.sleep(rng.uniform(0.0, seconds))
        done += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
    run.finish()
    return done


@pytest.mark.slow
@pytest.mark.parametrize("config", [CONFIG, AHEAD], ids=["on_policy", "one_ahead"])
def test_a_run_that_is_killed_at_five_random_moments_equals_the_unbroken_one(home, config):
    config = config | {"steps": 8}
    name = config.get("sampling", "on_policy")
    plain, killed = Run(home, f"{name}-plain", config), Run(home, f"{name}-killed", config)
    plain.finish()
    assert killed_at_random(killed, 5, plain_seconds(plain) / 4, seed=5) == 5
    assert len(killed.curve()) == 8
    assert_same(killed, plain)


def plain_seconds(run: Run) -> float:
    """Seconds that the steps of a run took."""
    rows = read_metrics(run.folder / "train.jsonl")
    return sum(value for row in rows for name, value in row.items() if name.startswith("seconds_"))


def test_a_run_that_is_killed_at_a_random_moment_equals_the_unbroken_one(home, unbroken):
    plain, _ = unbroken
    run = Run(home, "killed", CONFIG)
    killed_at_random(run, 1, plain_seconds(plain), seed=1)
    assert_same(run, plain)


# --- SIGTERM ----------------------------------------------------------------------------------


def test_sigterm_saves_the_last_whole_step_and_the_run_goes_on_to_the_same_end(home, unbroken):
    """Even where checkpoints are rare: without the signal the first one would come at the end."""
    run = Run(home, "preempted", CONFIG | {"checkpoint_every": 1000})
    process = run.start()
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == "step 1":
            break
    process.send_signal(signal.SIGTERM)
    errors = process.communicate()[1]
    assert process.returncode == 128 + signal.SIGTERM
    assert "stopped by SIGTERM; the last whole step is saved" in errors
    with Checkpoints(run.folder / "checkpoints") as checkpoints:
        assert checkpoints.latest_step() >= 2
    run.finish()
    assert_same(run, unbroken[0])


# --- a full disk ------------------------------------------------------------------------------


def small_disk(folder: Path, size: int) -> list[str]:
    """Words before a command that give it a file system of ``size`` bytes at ``folder``, for itself alone."""
    script = f'mount -t tmpfs -o size={size} none "{folder}" && exec "$@"'
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]


@pytest.mark.slow
def test_a_full_disk_is_named_and_the_last_good_checkpoint_stays(home, tmp_path):
    """The disk holds two checkpoints and is full at the third."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run([*small_disk(disk, 1 << 20), "true"], capture_output=True).returncode:
        pytest.skip("no user namespace in which a file system may be mounted")
    keep = tmp_path / "kept"
    inside = f'"$@"; code=$?; cp -r "{disk}/run" "{keep}"; exit $code'
    run = Run(home, "full", CONFIG, disk / "run")
    process = run.start(*small_disk(disk, 1_300_000), "sh", "-c", inside, "sh")
    errors = process.communicate()[1]
    assert process.returncode == 1, errors[-2000:]
    assert "DiskFull" in errors
    assert "no space left on the disk; its checkpoint of step" in errors
    shutil.copytree(keep, home / "resumed")
    resumed = Run(home, "resumed", CONFIG)  # on a disk with room, the same command goes on
    with Checkpoints(resumed.folder / "checkpoints") as checkpoints:
        assert 1 <= (checkpoints.latest_step() or 0) < CONFIG["steps"]
    resumed.finish()
    assert len(resumed.curve()) == CONFIG["steps"]


def test_a_full_disk_is_known_by_its_number_or_its_words():
    assert is_full_disk(OSError(28, "No space left on device"))
    wrapped = ValueError("failed to write")
    wrapped.__cause__ = RuntimeError("RESOURCE_EXHAUSTED: pwrite: No space left on device")
    assert is_full_disk(wrapped)
    assert not is_full_disk(OSError(13, "Permission denied"))
