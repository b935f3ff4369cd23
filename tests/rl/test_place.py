"""One run on a mesh: of one process with eight devices or two with four, or with a rollout slice of its own;
who writes; a killed process, SIGTERM.

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
from jax.sharding import AbstractMesh

from model.checkpoint import Checkpoints
from model.transformer import TokenBatch, token_logprobs
from rl.copies import rounded
from rl.faults import Preempted, Preemption
from rl.metrics import read_metrics
from rl.place import MeshAxes, Place, ProcessLost, local_mesh, naming_lost_process
from rl.policy import Policy
from rl.train import GRPOConfig, train_grpo
from synth.errors import CallerError
from synth.types import Trajectory

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


def test_a_mesh_of_one_machine_has_its_devices():
    assert local_mesh("data=1").size == 1
    devices = jax.local_device_count()
    with pytest.raises(CallerError, match=f"tensor {devices + 1} is .* this machine has {devices}"):
        local_mesh(f"tensor={devices + 1}")


def test_rows_are_as_many_on_each_device_of_the_data_axes():
    place = Place()
    assert place.rows(3) == 3
    place.mesh = AbstractMesh((2, 4, 3), ("data", "fsdp", "tensor"))  # pyright: ignore[reportAttributeAccessIssue]
    assert [place.rows(n) for n in (1, 8, 9)] == [8, 8, 16]


def test_a_signal_that_comes_during_the_exchange_counts_at_the_next_one():
    """Neither forgotten nor acted upon alone: the others were told before it came."""
    place, preemption = Place(), Preemption()

    def exchange(flag: bool) -> bool:
        preemption.came = True  # the handler runs while the others are waited for
        return flag

    place.anywhere = exchange
    check = place.agreed(preemption)
    check()
    with pytest.raises(Preempted):
        check()


def test_a_signal_to_another_process_ends_this_one_too():
    place, preemption = Place(), Preemption()
    place.anywhere = lambda flag: True
    with pytest.raises(Preempted):
        place.agreed(preemption)()


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

    def __init__(self, home: Path, name: str, devices: int = 8, **changed: Any):
        self.folder, self.spec, self.devices = home / name, home / f"{name}.json", devices
        spec = {
            "policy": str(home / "policy"),
            "tasks": str(home / "tasks.jsonl"),
            "bundle": str(home / "bundle"),
            "compiled": str(home / "compiled"),
            "run": str(self.folder),
            "config": CONFIG,
            "mesh": MESH,
        } | changed
        self.spec.write_text(json.dumps(spec))

    def start(self, processes: int) -> list[subprocess.Popen[str]]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        devices = f"--xla_force_host_platform_device_count={self.devices // processes}"
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


FIRST = "step-00000.jsonl"


def assert_same(run: Run, other: Run) -> None:
    """Losses and what was sampled first; later episodes may differ where a draw was on the edge."""
    assert run.trajectories()[FIRST] == other.trajectories()[FIRST]
    assert_near(run, other)


def assert_near(run: Run, other: Run, weights: float = 1e-5) -> None:
    """Losses, weights, and the first tokens that were sampled, with their log-probabilities."""
    ours, theirs = (
        [Trajectory.from_json(line) for line in each.trajectories()[FIRST].decode().splitlines()]
        for each in (run, other)
    )
    for a, b in zip(ours, theirs, strict=True):
        assert a.token_ids == b.token_ids
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)
    losses = ("policy_loss", "loss", "grad_norm", "kl", "reward")
    np.testing.assert_allclose(run.curve(*losses), other.curve(*losses), atol=1e-5)
    for a, b in zip(run.params(), other.params(), strict=True):
        np.testing.assert_allclose(a, b, atol=weights)


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
        if line.startswith("step 1"):  # by then the checkpoint of the step before is on disk
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


@pytest.mark.slow
def test_sigterm_to_one_process_saves_the_last_whole_step_and_ends_both(home):
    run = Run(home, "preempted", config=CONFIG | {"steps": 50, "checkpoint_every": 50})
    processes = run.start(2)
    for line in processes[1].stdout or ():
        if line.startswith("step 1"):
            break
    processes[1].send_signal(signal.SIGTERM)
    said = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [Preempted.exit_code] * 2, said
    assert all("stopped by SIGTERM; the last whole step is saved" in errors for errors in said)
    with Checkpoints(run.folder / "checkpoints") as checkpoints:
        saved = checkpoints.latest_step()
    assert saved == len(run.curve("loss")) >= 2


# --- a rollout slice ---------------------------------------------------------------------------------


def test_a_rollout_slice_must_be_there_too():
    devices = jax.device_count()
    with pytest.raises(CallerError, match=f"fsdp {devices} and tensor 2 is {devices + 2} devices"):
        Place(MeshAxes(fsdp=devices), MeshAxes(tensor=2))


def test_what_overlaps_with_training_needs_devices_beside_the_mesh(home):
    devices = jax.device_count()
    place = Place(MeshAxes(fsdp=devices), MeshAxes(tensor=devices))
    assert place.shared
    config = GRPOConfig.model_validate(CONFIG | {"sampling": "in_flight"})
    with pytest.raises(CallerError, match="the rollout slice is the mesh; give it devices beside"):
        train_grpo(config, Policy.load(home / "policy"), ["a task"], None, home / "x", place=place)  # pyright: ignore


def test_weights_are_rounded_to_the_models_dtype_before_they_are_sent(home):
    """As the model rounds them itself: what it computes is the same to the last bit."""
    policy = Policy.load(home / "policy", compute_dtype="bfloat16")
    sent = rounded(policy.params, policy.config.dtype)
    assert sum(x.nbytes for x in jax.tree.leaves(sent)) < 0.51 * sum(
        x.nbytes for x in jax.tree.leaves(policy.params)
    )
    tokens = np.arange(12, dtype=np.int32)[None]
    batch = TokenBatch(tokens, tokens, np.ones_like(tokens))
    for a, b in zip(*(token_logprobs(policy.graphdef, each, batch) for each in (sent, policy.params))):  # noqa: B905
        np.testing.assert_array_equal(a, b)


def test_a_run_that_samples_on_a_slice_of_its_own_is_the_same_run(home):
    """Four devices train, a fifth samples: to the last bit what four devices do that also sample."""
    unsplit, split = (
        Run(home, "unsplit", 4, mesh="fsdp=4"),
        Run(home, "split", 5, mesh="fsdp=4", rollout="data=1"),
    )
    for run in (unsplit, split):
        run.finish(1)
    names = ("policy_loss", "loss", "grad_norm", "kl", "reward", "sampler_trainer_gap")
    assert split.trajectories() == unsplit.trajectories()
    assert split.curve(*names) == unsplit.curve(*names)
    for a, b in zip(split.params(), unsplit.params(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "processes", "rollout"),
    [
        (12, 1, "tensor=4"),  # beside the mesh
        (12, 2, "tensor=2"),  # in each process
        (8, 1, "data=4,tensor=2"),  # the mesh's own devices, in turn
        (8, 2, "tensor=4"),
    ],
)
def test_devices_can_sample_together(home, alone, devices, processes, rollout):
    """Cut over a tensor axis the sampler adds in another order: equal but for rounding."""
    run = Run(home, f"{devices}-{processes}", devices, rollout=rollout)
    run.finish(processes)
    assert_near(alone, run, weights=1e-4)  # AdamW magnifies the last digits of small gradients


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["one_ahead", "in_flight"])
@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_asynchronous_sampling_works_on_a_split_mesh(home, sampling, lora):
    batch = CONFIG["batch"] | {"max_staleness": 2}
    changed = {"sampling": sampling, "batch": batch, "lora": lora, "steps": 4}
    run = Run(
        home, f"{sampling}-{lora is not None}", 8, mesh="fsdp=4", rollout="tensor=4", config=CONFIG | changed
    )
    run.finish(1)
    assert len(run.curve("loss")) == 4
    assert max(run.curve("staleness_max")) <= 2
    assert run.params()
