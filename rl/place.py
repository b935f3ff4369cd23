"""Where a run's arrays lie, and which of its processes does what.

In: the axes of a mesh, such as ``[mesh]`` of a file in ``tpu_configs/``, and the processes that JAX knows of
(one for each host of a TPU slice). Out: a :class:`Place`, which the trainer asks.

    weights, moments, gradients   cut over the mesh, over all processes (model/sharding.py)
    batches                       rows over data and fsdp, as many on each device; time over sequence
    episodes                      each process samples its share of the groups, with a copy of the weights on
                                  its first device; then all of them exchange what they sampled
    a rollout slice               devices of a process that sample together, a copy of the weights cut over
                                  them (rl/copies.py). Beside the mesh they only sample, so that sampling in
                                  flight and training have none in common; or all devices of the process
                                  train and sample in turn, and forget the copy in between
    files                         process 0 alone writes the run folder; checkpoints are written by all, each
                                  process the parts of its devices, so the folder must be shared
    the end                       a killed process takes the others with it, and the same commands go on
                                  from the last step; SIGTERM to any of them ends all (:meth:`Place.agreed`)

Sampling is deterministic and exchanged in the order of the jobs, so a run of two processes with four devices
each sees the episodes of one process with eight.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from pydantic import Field

from model.sharding import RULES, make_mesh, shard_params
from rl.copies import Copies
from rl.faults import Preempted, Preemption
from rl.optimizer import Config, Params
from synth.errors import CallerError, InfrastructureError
from synth.types import Trajectory

Run = Callable[[Sequence[Any]], list[Trajectory]]  # samples the episodes of jobs

STOPPED = "stopped"  # in the place of a process's trajectories: SIGTERM came while it sampled
HEARTBEAT = 30  # seconds of silence after which a process counts as dead; ours (JAX's own is 100)


class MeshAxes(Config):
    """Devices along each axis, see :mod:`model.sharding`. Their product is the number of chips."""

    data: int = Field(1, ge=1)
    fsdp: int = Field(1, ge=1)
    sequence: int = Field(1, ge=1)
    tensor: int = Field(1, ge=1)

    def axes(self) -> dict[str, int]:
        """Those with more than one device, in the order in which they are laid out."""
        return {name: n for name, n in self.model_dump().items() if n > 1} or {"fsdp": 1}

    @property
    def size(self) -> int:
        """Devices in all."""
        return math.prod(self.axes().values())

    @property
    def words(self) -> str:
        return " x ".join(f"{name} {n}" for name, n in self.axes().items())

    @classmethod
    def parse(cls, text: str) -> MeshAxes:
        """``fsdp=4,tensor=2``.

        Raises:
            CallerError: another form, or an axis that doesn't exist.
        """
        parts = [part.partition("=") for part in text.split(",")]
        if any(name not in cls.model_fields or not re.fullmatch("[1-9][0-9]*", n) for name, _, n in parts):
            raise CallerError(f"mesh {text!r}: write AXIS=N,... with axes of {', '.join(cls.model_fields)}")
        return cls(**{name: int(n) for name, _, n in parts})


def local_mesh(text: str) -> Mesh:
    """A mesh over the first devices of this process, from :meth:`MeshAxes.parse`'s words.

    Raises:
        CallerError: other words, or more devices than there are.
    """
    axes, devices = MeshAxes.parse(text), jax.local_devices()
    if axes.size > len(devices):
        raise CallerError(f"mesh {axes.words} is {axes.size} devices, this machine has {len(devices)}")
    return make_mesh(devices[: axes.size], **axes.axes())


class Unwritten:
    """Metrics of a process that doesn't write, see :class:`rl.metrics.Metrics`."""

    def truncate(self, step: int) -> None: ...

    def write(self, step: int, values: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class ProcessLost(InfrastructureError):
    """Another process of the run ended."""


class Place:
    """See the module.

    Args:
        axes: of the mesh; None for one device of one process.
        rollout: of the devices that sample in each process: those after its part of the mesh, or all that it
            has where the mesh takes all. None samples on the first.

    :attr:`shared` says that the same devices train and sample.

    Raises:
        CallerError: the axes don't make up the devices there are.
    """

    def __init__(self, axes: MeshAxes | None = None, rollout: MeshAxes | None = None):
        self.processes, self.index = jax.process_count(), jax.process_index()
        if axes is None and self.processes > 1:
            raise CallerError(
                f"{self.processes} processes need a mesh over their {jax.device_count()} devices"
            )
        if rollout is not None and axes is None:
            axes = MeshAxes.parse("fsdp=1")
        devices = [[d for d in jax.devices() if d.process_index == n] for n in range(self.processes)]
        own = devices[self.index]
        self.shared = rollout is not None and axes is not None and self._takes_all(axes, rollout)
        beside = 0 if rollout is None or self.shared else rollout.size
        if axes is not None:
            self._check(axes, beside, rollout)
        part = 0 if axes is None else axes.size // self.processes  # of the mesh, in each process
        trainers = [each[:part] for each in devices]
        self.mesh = None if axes is None else make_mesh([d for each in trainers for d in each], **axes.axes())
        self.rollout = self._copies = None
        if rollout is not None:
            self.rollout = make_mesh(own if self.shared else own[part:], **rollout.axes())
            cut = rollout.axes() if self.shared else {"fsdp": part}
            self._copies = Copies(trainers, self.index, cut, self.rollout)

    def _takes_all(self, axes: MeshAxes, rollout: MeshAxes) -> bool:
        """Whether both the mesh and the slice are all devices there are."""
        return axes.size == jax.device_count() and rollout.size == jax.local_device_count()

    def _check(self, axes: MeshAxes, beside: int, rollout: MeshAxes | None) -> None:
        count, asked = jax.device_count(), axes.size + beside * self.processes
        if asked == count and axes.size % self.processes == 0:
            return
        each = f" in each of {self.processes} processes" if self.processes > 1 else ""
        sampling = f" and {rollout.words}{each}" if rollout else ""
        raise CallerError(f"mesh {axes.words}{sampling} is {asked} devices, this run has {count}")

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.index == 0

    def cut(self, params: Params) -> Params:
        """Parameters, which every process has, cut over the mesh."""
        return params if self.mesh is None else shard_params(self.mesh, params)

    def rows(self, wanted: int) -> int:
        """Rows of a micro-batch: so many more than wanted that all devices along data and fsdp get as many.

        Rows have one length, so each device then computes the same; a number that the axes don't divide would
        have every device compute all of them.
        """
        if self.mesh is None:
            return wanted
        parts = math.prod(self.mesh.shape[axis] for axis in RULES["batch"] if axis in self.mesh.shape)
        return -(-wanted // parts) * parts

    def to_sampler(self, params: Params, dtype: Any) -> Params:
        """Parameters where this process samples: on the rollout slice, or all on its first device.

        To be called by all processes, and by the thread that trains (it runs a program on the mesh).

        Args:
            dtype: of the model's products; a slice gets the weights in it.
        """
        return self.whole(params) if self._copies is None else self._copies.make(params, dtype)

    def whole(self, params: Params) -> Params:
        """All of them on this process's first device; to be called by all processes."""
        if self.mesh is None:
            return params
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        copies = jax.jit(lambda tree: tree, out_shardings=everywhere)(params)
        return jax.tree.map(lambda x: x.addressable_data(0), copies)

    def episodes(self, jobs: Sequence[Any], run: Run) -> list[Trajectory]:
        """``run(jobs)``, each process its share; all trajectories in the order of the jobs.

        Raises:
            Preempted: by ``run``, here or in another process.
        """
        if self.processes == 1:
            return run(jobs)
        ends = [len(jobs) * n // self.processes for n in range(self.processes + 1)]
        mine, ended = jobs[ends[self.index] : ends[self.index + 1]], None
        try:
            lines = "\n".join(trajectory.to_json() for trajectory in run(mine)) if mine else ""
        except Preempted as err:  # the others wait for this share: they get the news in its place
            lines, ended = STOPPED, err
        parts = exchange(lines.encode())
        if STOPPED.encode() in parts:
            raise ended or Preempted()
        return [Trajectory.from_json(line) for part in parts for line in part.decode().split("\n") if line]

    def first_then_others(self, work: Callable[[], None]) -> None:
        """Process 0 does it alone, then all others do."""
        if self.first:
            work()
        if self.processes > 1:
            multihost_utils.sync_global_devices("first")
        if not self.first:
            work()

    def agreed(self, preemption: Preemption) -> Callable[[], None]:
        """A check that all processes make at the same places: ends the run if SIGTERM came to any of them."""

        def check() -> None:
            # the signal may come during the exchange: then it counts at the next one, when the others know
            if self.anywhere(preemption.came):
                preemption.came = True
                preemption.check()

        return check

    def anywhere(self, flag: bool) -> bool:
        """Whether it holds in any process."""
        return flag if self.processes == 1 else any(exchange(b"1" if flag else b""))


def exchange(mine: bytes) -> list[bytes]:
    """What each process gives, in their order; all of them must call it."""
    sizes = multihost_utils.process_allgather(np.array([len(mine)], np.int32)).reshape(-1)
    padded = np.zeros(max(int(sizes.max()), 1), np.uint8)
    padded[: len(mine)] = np.frombuffer(mine, np.uint8)
    rows = multihost_utils.process_allgather(padded).reshape(len(sizes), -1)
    return [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]


def join(processes: str) -> None:
    """Make this process one of several. Before JAX is used.

    Args:
        processes: ``auto`` where JAX finds the others by itself (TPU slices, SLURM, Kubernetes); else
            ``ADDRESS:PORT,COUNT,INDEX``, the address being that of process 0.

    Raises:
        CallerError: another form, or nothing to be found.
        ProcessLost: the others didn't come.
    """
    found = re.fullmatch(r"([^,\s]+:\d+),(\d+),(\d+)", processes)
    if processes != "auto" and (found is None or not int(found[3]) < int(found[2])):
        raise CallerError(
            f"processes {processes!r}: write auto, or ADDRESS:PORT,COUNT,INDEX with INDEX below COUNT"
        )
    named = {} if found is None else {
        "coordinator_address": found[1], "num_processes": int(found[2]), "process_id": int(found[3]),
    }  # fmt: skip
    try:
        jax.distributed.initialize(**named, heartbeat_timeout_seconds=HEARTBEAT)
    except ValueError as err:
        raise CallerError(f"processes {processes!r}: {err}") from None
    except RuntimeError as err:
        raise ProcessLost(f"processes {processes!r}: {str(err).splitlines()[0]}") from None


@contextmanager
def naming_lost_process(place: Place, last_good: Callable[[], int | None]) -> Iterator[None]:
    """Turn the error of an exchange whose other side is gone into a :class:`ProcessLost`."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as err:
        if place.processes == 1 or not _is_lost(err):
            raise
        step = last_good()
        safe = "no step was saved yet" if step is None else f"the checkpoint of step {step} is whole"
        reason = " ".join(str(err).split())[:200]
        raise ProcessLost(
            f"another process of this run ended or can't be reached; {safe}; start all "
            f"{place.processes} processes again with the same commands ({reason})"
        ) from err


def _is_lost(err: Exception) -> bool:
    words = ("gloo", "connection", "heartbeat", "unavailable", "coordination service", "deadline")
    return any(word in str(err).lower() for word in words)


def leave(exit_code: int) -> NoReturn:
    """End this process after a :class:`ProcessLost`. JAX's own end would wait for the others, and abort."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
