"""Where arrays live on a mesh: one table from logical axes to mesh axes.

A mesh has some of the axes ``data`` (copies of the weights), ``fsdp`` (weights cut, gathered when
used), ``tensor`` (heads and feed-forward cut) and ``sequence`` (time cut). A parameter's logical
axes follow from its name. An axis that the mesh lacks, or that doesn't divide the size, leaves the
array whole there. On one device nothing here is needed.
"""

from __future__ import annotations

import math
from typing import Any

import jax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

RULES: dict[str | None, tuple[str, ...]] = {
    None: (),
    "batch": ("data", "fsdp"),
    "time": ("sequence",),
    "vocab": ("tensor",),
    "embed": ("fsdp",),
    "heads": ("tensor",),
    "mlp": ("tensor",),
}
# name of the module that holds a kernel -> logical axes of [in, out]
KERNELS = {
    "q": ("embed", "heads"),
    "k": ("embed", "heads"),
    "v": ("embed", "heads"),
    "o": ("heads", "embed"),
    "gate": ("embed", "mlp"),
    "up": ("embed", "mlp"),
    "down": ("mlp", "embed"),
    "head": ("embed", "vocab"),
}


def make_mesh(**axes: int) -> Mesh:
    """A mesh such as ``make_mesh(data=2, fsdp=4)``; the compiler places what lies between our arrays."""
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def logical_axes(path: tuple[Any, ...]) -> tuple[str | None, ...]:
    """Logical axes of a parameter of :class:`model.transformer.Transformer`, by its path."""
    if path[-1] == "kernel":
        return KERNELS[path[-2]]
    return ("vocab", "embed") if path[-1] == "embedding" else (None,)


def place(mesh: Mesh, axes: tuple[str | None, ...], shape: tuple[int, ...]) -> NamedSharding:
    """Sharding of an array with these logical axes."""
    spec = []
    for name, size in zip(axes, shape, strict=True):
        found = tuple(axis for axis in RULES[name] if axis in mesh.shape)
        fits = found and size % math.prod(mesh.shape[axis] for axis in found) == 0
        spec.append(found if fits else None)
    return NamedSharding(mesh, PartitionSpec(*spec))


def shard_params(mesh: Mesh, params: nnx.State) -> nnx.State:
    """Put parameters where they belong."""
    flat = [
        (path, leaf.replace(jax.device_put(leaf[...], place(mesh, logical_axes(path), leaf.shape))))
        for path, leaf in nnx.to_flat_state(params)
    ]
    return nnx.from_flat_state(flat)


def shard_batch(mesh: Mesh, batch: Any) -> Any:
    """Put a pytree of [B, T] arrays where they belong."""
    return jax.tree.map(lambda x: jax.device_put(x, place(mesh, ("batch", "time"), x.shape)), batch)
