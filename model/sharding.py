"""Where arrays live on a mesh: one table from logical axes to mesh axes.

A mesh has some of the axes ``data`` (copies of the weights), ``fsdp`` (weights cut, gathered when
used), ``tensor`` (heads and feed-forward cut) and ``sequence`` (time cut, and weights as by ``fsdp``).
A parameter's logical axes follow from its name. An axis that the mesh lacks, or that doesn't divide
the size, leaves the array whole there. On one device nothing here is needed.

Inside ``with on_mesh(mesh):`` the transformer also says where its activations live
(:func:`constrain`); outside, the compiler decides from the arguments alone. Results are the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

RULES: dict[str | None, tuple[str, ...]] = {
    None: (),
    # activations
    "batch": ("data", "fsdp"),
    "time": ("sequence",),
    "residual": ("sequence", "tensor"),  # time between blocks: norms and residuals aren't done twice
    # weights; heads and mlp also cut the activations that they make
    "vocab": ("tensor",),
    "embed": ("fsdp", "sequence"),  # devices that share a row's time share the weights' memory too
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

on_mesh = jax.set_mesh


def make_mesh(devices: Sequence[Any] | None = None, /, **axes: int) -> Mesh:
    """A mesh such as ``make_mesh(data=2, fsdp=4)``; the compiler places what lies between our arrays.

    Args:
        devices: to lay it on, as many as it has; None takes all there are.
    """
    kinds = (AxisType.Auto,) * len(axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=kinds, devices=devices)


def current_mesh() -> Any | None:
    """The mesh of the surrounding ``with on_mesh(...)``; None outside."""
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty else mesh


def time_is_cut() -> bool:
    """Whether the surrounding mesh cuts rows along time."""
    mesh = current_mesh()
    return mesh is not None and mesh.shape.get("sequence", 1) > 1


def logical_axes(path: tuple[Any, ...]) -> tuple[str | None, ...]:
    """Logical axes of a parameter of :class:`model.transformer.Transformer`, by its path."""
    if path[-1] == "kernel":
        axes = KERNELS[path[-2]]
    elif path[-1] == "bias":
        axes = KERNELS[path[-2]][1:]
    else:
        axes = ("vocab", "embed") if path[-1] == "embedding" else (None,)
    return (None, *axes) if is_stacked(path) else axes


def is_stacked(path: tuple[Any, ...]) -> bool:
    """True for one array over all layers (``scan_layers``)."""
    return path[0] == "layers" and not isinstance(path[1], int)


def fitting(mesh: Any, name: str | None, size: int) -> tuple[str, ...]:
    """Mesh axes that cut an array axis of this logical name and size; () leaves it whole."""
    found = tuple(axis for axis in RULES[name] if axis in mesh.shape)
    return found if size % math.prod(mesh.shape[axis] for axis in found) == 0 else ()


def place(mesh: Any, axes: tuple[str | None, ...], shape: tuple[int, ...]) -> NamedSharding:
    """Sharding of an array with these logical axes."""
    spec = (fitting(mesh, name, size) or None for name, size in zip(axes, shape, strict=True))
    return NamedSharding(mesh, PartitionSpec(*spec))


def constrain(x: Any, *axes: str | None) -> Any:
    """Say where an activation lives, inside ``with on_mesh(...)``; elsewhere nothing happens."""
    mesh = current_mesh()
    return x if mesh is None else jax.lax.with_sharding_constraint(x, place(mesh, axes, x.shape))


def constrain_layer(state: nnx.State, dtype: Any) -> nnx.State:
    """Say where one layer's weights live, inside a scan over layers, and gather them for their products.

    What is said of a weight holds for its gradient too: it is cut (reduce-scattered) layer by layer. Else
    the compiler keeps the gradients of all layers whole along ``embed`` until the scan is over. Kernels are
    rounded to ``dtype``, as their products do anyway, and then gathered along ``embed``: left to itself, the
    compiler gathers the activations of whole rows (14B on v5e:8x8 sent 6.5 times as many bytes so, by the
    TPU compiler's program).
    """
    mesh = current_mesh()
    if mesh is None:
        return state
    leaves = []
    for path, leaf in nnx.to_flat_state(state):
        x, axes = leaf[...], logical_axes(("layers", 0, *path))
        x = jax.lax.with_sharding_constraint(x, place(mesh, axes, x.shape))
        if path[-1] == "kernel":
            used = tuple(None if axis == "embed" else axis for axis in axes)
            x = jax.lax.with_sharding_constraint(x.astype(dtype), place(mesh, used, x.shape))
        leaves.append(x)
    return jax.tree.unflatten(jax.tree.structure(state), leaves)


def param_shardings(mesh: Mesh, params: nnx.State) -> nnx.State:
    """The sharding of each parameter, as a tree like ``params`` (arrays or shapes)."""
    flat = nnx.to_flat_state(params)
    tree = nnx.from_flat_state(
        [(path, leaf.replace(place(mesh, logical_axes(path), leaf.shape))) for path, leaf in flat]
    )
    # the leaves in the place of the arrays: what NNX notes about a Param depends on its value
    return jax.tree.unflatten(jax.tree.structure(params), jax.tree.leaves(tree))


def shard_params(mesh: Mesh, params: nnx.State) -> nnx.State:
    """Put parameters where they belong."""
    return jax.tree.map(_put, params, param_shardings(mesh, params))


def shard_batch(mesh: Mesh, batch: Any) -> Any:
    """Put a pytree of [B, T] arrays where they belong; each process of a run gives the same arrays."""
    return jax.tree.map(lambda x: _put(x, place(mesh, ("batch", "time"), x.shape)), batch)


def put_whole(mesh: Mesh, tree: Any) -> Any:
    """A tree whose arrays all lie on the mesh: what doesn't yet (a counter) is copied to every device."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    there = set(mesh.devices.flat)
    return jax.tree.map(lambda x: x if x.sharding.device_set == there else _put(x, everywhere), tree)


def _put(x: Any, where: NamedSharding) -> jax.Array:
    """An array onto a mesh; a process puts its devices' parts only, of an array that all processes have."""
    if where.is_fully_addressable or (isinstance(x, jax.Array) and not x.is_fully_addressable):
        return jax.device_put(x, where)
    host = np.asarray(x)
    return jax.make_array_from_callback(host.shape, where, lambda index: host[index])
