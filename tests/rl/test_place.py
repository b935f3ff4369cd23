"""One run on a mesh: of one process with eight devices or two with four; who writes; a killed process.

The processes are real ones, joined by ``jax.distributed`` over a port of this machine.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from model.checkpoint import Checkpoints
from rl.metrics import read_metrics
from rl.place import MeshAxes, Place, ProcessLost, naming_lost_process
from rl.policy import Policy
from synth.errors import CallerError

pytestmark = pytest.mark.timeout(3000)

MESH = "fsdp=4,tensor=2"
CONFIG: dict[str, Any] = {
    "steps": 3,
    "groups_per_step": 2,
    "group_size": 8,
    "slots": 16,
    "limits": {"max_turns": 3, "max_new_per_turn": 40, "max_len": 640},
    "batch": {"row_length": 640, "rows": 4, "minibatches": 2},
    "learner": {"optimizer": {"learning_rate": 3e-3}},
}


# --- words ---------------------------------------------------------------------------------------


def test_a_mesh_is_read_from_words():
    assert MeshAxes.parse("fsdp=4,tensor=2").axes() == {"fsdp": 4, "tensor": 2}
    assert MeshAxes.parse("data=1").axes() == {"fsdp": 1}


@pytest.mark.parametrize("text", ["fsdp", "fsdp=0", "rows=2", "fsdp=4;tensor=2", ""])
def test_other_words_are_refused(text):
    with pytest.raises(CallerError, match="write AXIS=N"):
        MeshAxes.parse(text)


def test_a_mesh_must_be_the_devices_there_are():
    devices = jax.device_count()
    with pytest.raises(CallerError, match=f"is {devices + 1} devices, this run has {devices}"):
        Place(MeshAxes(data=devices + 1))


def test_one_device_needs_no_exchange():
    place, jobs = Place(), [object()]
    assert place.first
    assert place.whole(jobs) is jobs
    assert place.episodes(jobs, lambda jobs: list(jobs)) == jobs


def test_the_error_of_a_lost_process_names_the_checkpoint():
    place = Place()
    place.processes = 2
    whole = "the checkpoint of step 7 is whole; start all 2 processes again"
    with pytest.raises(ProcessLost, match=whole), naming_lost_process(place, lambda: 7):
        raise jax.errors.JaxRuntimeError("Gloo AllGather failed: Connection reset by peer")
    with pytest.raises(ValueError, match="a shape"), naming_lost_process(place, lambda: 7):
        raise ValueError("a shape that does not fit")


# --- processes -------------------------------------------------------------------------------------


class Run:
    """A run folder on a mesh, and processes that work on it."""

    def __init__(self, home: Path, name: str):
        self.folder, self.spec = home / name, home / f"{name}.json"
        spec = {
            "policy": str(home / "policy"),
            "tasks": str(home / "tasks.jsonl"),
            "bundle": str(home / "bundle"),
            "compiled": str(home / "compiled"),
            "run": str(self.folder),
            "config": CONFIG,
            "mesh": MESH,
        }
        self.spec.write_text(json.dumps(spec))

    def start(self, processes: int) -> list[subprocess.Popen[str]]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        devices = f"--xla_force_host_platform_device_count={8 // processes}"
        root = str(Path(__file__).parents[2])
        environment = os.environ | {"XLA_FLAGS": devices, "JAX_PLATFORMS": "cpu", "PYTHONPATH": root}
        script = [sys.executable, str(Path(__file__).with_name("one_run.py")), str(self.spec)]
        return [
            subprocess.Popen(
                script if processes == 1 else [*script, f"127.0.0.1:{port},{processes},{index}"],
                env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for index in range(processes)
        ]  # fmt: skip

    def finish(self, processes: int) -> list[str]:
        """What each process printed."""
        started = self.start(processes)
        said = [process.communicate() for process in started]
        for process, (_, errors) in zip(started, said, strict=True):
            assert process.returncode == 0, errors[-3000:]
        return [printed for printed, _ in said]

    def curve(self, *names: str) -> list[float]:
        return [row[name] for row in read_metrics(self.folder / "train.jsonl") for name in names]

    def trajectories(self) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in (self.folder / "trajectories").iterdir()}

    def params(self) -> list[np.ndarray]:
        return [np.asarray(leaf) for leaf in jax.tree.leaves(Policy.load(self.folder / "policy").params)]


@pytest.fixture(scope="module")
def alone(home) -> Run:
    """One process, eight devices."""
    run = Run(home, "alone")
    run.finish(1)
    return run


def assert_same(run: Run, other: Run) -> None:
    """Losses and what was sampled first; later episodes may differ where a draw was on the edge."""
    first = "step-00000.jsonl"
    assert run.trajectories()[first] == other.trajectories()[first]
    losses = ("policy_loss", "loss", "grad_norm", "kl", "reward")
    np.testing.assert_allclose(run.curve(*losses), other.curve(*losses), atol=1e-5)
    for a, b in zip(run.params(), other.params(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.slow
def test_two_processes_with_four_devices_are_one_with_eight(home, alone):
    two = Run(home, "two")
    printed = two.finish(2)
    assert len(two.curve("loss")) == CONFIG["steps"]
    assert_same(alone, two)
    writes = [re.findall("^wrote ", each, re.M) for each in printed]
    assert len(writes[0]) > CONFIG["steps"]
    assert not writes[1], "process 0 alone writes"


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_ends_the_other_and_the_run_goes_on(home, alone, victim):
    run = Run(home, f"killed-{victim}")
    processes = run.start(2)
    for line in processes[victim].stdout or ():
        if line.startswith("step 0"):
            break
    processes[victim].send_signal(signal.SIGKILL)
    other = processes[1 - victim]
    errors = other.communicate()[1]
    processes[victim].communicate()
    assert other.returncode not in (0, None)
    assert re.search("another process of this run ended|another task died", errors), errors[-3000:]
    with Checkpoints(run.folder / "checkpoints") as checkpoints:
        assert checkpoints.latest_step() in (1, 2)
    run.finish(2)
    assert_same(alone, run)
