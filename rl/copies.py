"""A copy of the weights for each process that samples, cut over its own devices.

In: the trainer's weights, cut over a mesh of all processes. Out: the same weights on the devices of this
process that sample (:class:`rl.place.Place`). No device ever holds all of them, and what the model rounds
before it uses it (kernels and embeddings, to its compute dtype) is rounded before it is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from model.sharding import param_shardings, shard_params
from rl.optimizer import Params


class Copies:
    """See the module.

    Args:
        trainers: for each process those of its devices that train, as many in each.
        index: of this process.
        axes: over which a copy is cut on the trainers' devices of a process; their product is their number.
        sampler: this process's devices that sample: the same ones with the same axes, or others.
    """

    def __init__(self, trainers: Sequence[Sequence[Any]], index: int, axes: Mapping[str, int], sampler: Mesh):
        devices = np.array(trainers).reshape(-1, *axes.values())
        kinds = (AxisType.Auto,) * len(axes)
        self._all = Mesh(devices, ("process", *axes), axis_types=(AxisType.Auto, *kinds))
        self._own, self._sampler = Mesh(devices[index], tuple(axes), axis_types=kinds), sampler

    def make(self, params: Params, dtype: Any) -> Params:
        """To be called by all processes.

        Args:
            dtype: of the model's products, see :func:`rounded`.
        """
        params = rounded(params, dtype)
        if self._all.shape["process"] > 1:
            spread = jax.device_put(params, param_shardings(self._all, params))
            params = jax.tree.map(self._part, spread)
        return shard_params(self._sampler, params)

    def _part(self, x: jax.Array) -> jax.Array:
        """An array of which each process has a copy, as one of this process alone."""
        where = NamedSharding(self._own, x.sharding.spec)  # pyright: ignore[reportAttributeAccessIssue]
        parts = [shard.data for shard in x.addressable_shards]
        return jax.make_array_from_single_device_arrays(x.shape, where, parts)


def rounded(params: Params, dtype: Any) -> Params:
    """Kernels and embeddings in the dtype to which the model rounds them where it uses them."""
    flat = nnx.to_flat_state(params)
    return nnx.from_flat_state([
        (path, leaf.replace(leaf[...].astype(dtype)) if path[-1] in ("kernel", "embedding") else leaf)
        for path, leaf in flat
    ])  # fmt: skip


def on_host(params: Params) -> Iterator[np.ndarray]:
    """Each array in turn, whole, in the memory of every process; to be called by all of them.

    One layer of one array at a time passes over the devices, however large the model is.
    """
    for leaf in jax.tree.leaves(params):
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
            yield np.asarray(leaf)
            continue
        assert isinstance(leaf.sharding, NamedSharding)
        everywhere = NamedSharding(leaf.sharding.mesh, PartitionSpec())
        row = jax.jit(lambda x, n: x[n], out_shardings=everywhere)
        if leaf.ndim < 3:  # else a stack of layers
            yield np.asarray(jax.jit(lambda x: x, out_shardings=everywhere)(leaf).addressable_data(0))
        else:
            yield np.stack([np.asarray(row(leaf, n).addressable_data(0)) for n in range(len(leaf))])
