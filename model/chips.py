"""TPU chips and slices: what a chip can do, where its neighbours are, how long an exchange takes at best.

In: a topology's name (``v5p:4x4x4``). Out: the devices of that slice as the TPU compiler knows them (no TPU
is needed, ``libtpu`` compiles on any Linux machine), a mesh over them, and lower bounds of the time that
collectives take on the slice's links. The numbers of :data:`CHIPS` are published ones, not measured here.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from model.hlo import Collective, device_groups


@dataclasses.dataclass(frozen=True)
class Chip:
    """One kind of TPU.

    Attributes:
        hbm: bytes that the compiler lets a program use ("Used ... of ... hbm" in its own error).
        flops: bfloat16 products a second.
        bandwidth: HBM bytes a second.
        link: bytes a second of one link in one direction.
        closes: an axis of the torus whose length is a multiple of this is a ring; others are lines.
        cores: of a chip; cloud names such as v5p-128 count them.
    """

    name: str
    hbm: int
    flops: float
    bandwidth: float
    link: float
    closes: int
    cores: int = 1


# FLOPs and HBM: Google Cloud's pages "TPU v5e", "v5p", "v6e". Links and rings: "How to scale your model"
# (jax-ml.github.io/scaling-book), table of chips; its link rates are a tenth below the cloud pages'.
CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v5e", int(15.75 * 2**30), 197e12, 0.81e12, 4.5e10, 16),
        Chip("v5p", int(95.74 * 2**30), 459e12, 2.765e12, 9e10, 4, cores=2),
        Chip("v6e", int(31.25 * 2**30), 918e12, 1.6e12, 9e10, 16),
    )
}


class TopologyError(ValueError):
    """The slice can't be described here: an unknown name, or no TPU compiler. One line for the caller."""


@dataclasses.dataclass(frozen=True)
class Slice:
    """The devices of a slice and where they sit."""

    name: str
    chip: Chip
    shape: tuple[int, ...]
    devices: tuple[Any, ...] = dataclasses.field(repr=False)

    def mesh(self, axes: dict[str, int]) -> Mesh:
        """A mesh with neighbours on the torus beside each other; an axis may span several torus axes.

        Raises:
            TopologyError: the axes don't multiply to the number of chips.
        """
        from jax.experimental import mesh_utils

        if math.prod(axes.values()) != len(self.devices):
            sizes = " x ".join(f"{name} {n}" for name, n in axes.items())
            raise TopologyError(f"mesh {sizes} is not the {len(self.devices)} chips of {self.name}")
        laid = mesh_utils.create_device_mesh(
            tuple(axes.values()), list(self.devices), allow_split_physical_axes=True
        )
        return Mesh(laid, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def parse_topology(name: str) -> tuple[Chip, tuple[int, ...]]:
    """``v5p:2x4x4`` as chip and shape.

    Raises:
        TopologyError: another form, or a chip that isn't in :data:`CHIPS`.
    """
    kind, _, dims = name.partition(":")
    if kind not in CHIPS or not all(part.isdigit() and int(part) for part in dims.split("x")):
        known = ", ".join(CHIPS)
        raise TopologyError(f"topology {name!r}: write CHIP:AxB or CHIP:AxBxC with a chip of {known}")
    return CHIPS[kind], tuple(map(int, dims.split("x")))


def load_slice(name: str) -> Slice:
    """Ask the TPU compiler for a slice.

    Raises:
        TopologyError: see :func:`parse_topology`; or ``libtpu`` isn't installed, or knows no such slice.
    """
    chip, shape = parse_topology(name)
    # libtpu would otherwise ask a metadata server, which only a TPU machine has
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # compilers don't fight over a device
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5p-8")  # any: the topology's name decides
    from importlib.util import find_spec

    from jax.experimental import topologies

    if find_spec("libtpu") is None:
        raise TopologyError("the TPU compiler is not installed: pip install 'agent-world[plan]'")
    try:
        found = topologies.get_topology_desc(platform="tpu", topology_name=name)
    except Exception as err:  # XLA's own kinds
        raise TopologyError(f"topology {name!r}: {str(err).splitlines()[0]}") from None
    return Slice(name, chip, shape, tuple(found.devices))


# --- the time of an exchange -------------------------------------------------------------------------


def exchange_seconds(collectives: Sequence[Collective], slice_: Slice, mesh: Mesh) -> float:
    """A lower bound: every link used in both directions, nothing waits for anything but the links.

    A group that spans several axes of the torus may use the links of all of them. Exchanges run one after
    the other, but neighbours' permutes in opposite directions, which use different links, side by side.
    """
    order = list(mesh.devices.flat)
    forward = backward = other = 0.0
    for each in collectives:
        if each.kind == "collective-permute":
            hops, ahead = _hops(device_groups(each.groups), order, slice_)
            seconds = each.sent * hops / slice_.chip.link
            forward, backward = (forward + seconds, backward) if ahead else (forward, backward + seconds)
        else:
            groups = device_groups(each.groups)
            members = groups[0] if groups else range(len(order))
            other += each.sent / group_bandwidth([order[n].coords for n in members], slice_)
    return other + max(forward, backward)


def group_bandwidth(coords: Sequence[Sequence[int]], slice_: Slice) -> float:
    """Bytes a second into each of the chips at these places: two links an axis that is a ring, else one."""
    links = 0
    for axis, length in enumerate(slice_.shape):
        span = len({place[axis] for place in coords})
        if span > 1:
            links += 2 if span == length and length % slice_.chip.closes == 0 else 1
    return max(links, 1) * slice_.chip.link


def _hops(pairs: list[list[int]], order: list[Any], slice_: Slice) -> tuple[int, bool]:
    """Links on the longest way of a permute, and whether it goes up in the devices' order."""
    most, ahead = 0, 0
    for source, target in pairs:
        there, here = np.array(order[target].coords), np.array(order[source].coords)
        far = 0
        for axis, length in enumerate(slice_.shape):
            step = abs(int(there[axis] - here[axis]))
            far += min(step, length - step) if length % slice_.chip.closes == 0 else step
        most, ahead = max(most, far), ahead + (target > source) - (target < source)
    return most, ahead > 0


def use_cpu() -> None:
    """Keep JAX itself on the CPU: with libtpu installed it would look for a TPU first."""
    jax.config.update("jax_platforms", "cpu")
