"""The key/value cache: what a decoding policy remembers of the tokens before.

A pair of arrays a layer, so that an update touches one layer's memory only and a donated cache is
changed in place. Slot b holds one sequence; its token at position p lies at index p, so that
"which keys may be seen" is simply ``index <= position``.

Keys lie as [B, K, h, S] and values as [B, K, S, h]: the products of one query with all keys, and
of all weights with the values, then read memory in order (ours, measured: 0.4 ms against 0.9 ms
a layer for 64 slots of 640 tokens on one core).
"""

from __future__ import annotations

from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from model.config import ModelConfig
from model.sharding import place


class LayerCache(NamedTuple):
    """Keys and values of one layer."""

    k: Float[Array, "B K h S"]
    v: Float[Array, "B K S h"]

    def write(self, k: Float[Array, "B T K h"], v: Float[Array, "B T K h"], at: Int[Array, " B"]) -> Self:
        """Put T new entries of each slot at ``at[b]`` and after; those past the end are lost."""
        index = at[:, None] + jnp.arange(k.shape[1])

        def put(k_row: Array, v_row: Array, k_new: Array, v_new: Array, where: Array) -> tuple[Array, Array]:
            k_row = k_row.at[:, :, where].set(k_new.transpose(1, 2, 0), mode="drop")
            return k_row, v_row.at[:, where].set(v_new.transpose(1, 0, 2), mode="drop")

        return type(self)(*jax.vmap(put)(self.k, self.v, k, v, index))


Cache = tuple[LayerCache, ...]


AXES = ("batch", "heads", None, None)  # logical axes of keys and values, see :mod:`model.sharding`


def init_cache(config: ModelConfig, slots: int, length: int, mesh: Mesh | None = None) -> Cache:
    """An empty cache of ``slots`` sequences of at most ``length`` tokens, cut over a mesh as weights are."""
    K, h = config.n_kv_heads, config.head_dim

    def empty(*shape: int) -> Array:
        device = None if mesh is None else place(mesh, AXES, shape)
        return jnp.zeros(shape, config.dtype, device=device)

    return tuple(
        LayerCache(empty(slots, K, h, length), empty(slots, K, length, h)) for _ in range(config.n_layers)
    )


def take_slot(cache: Cache, slot: Int[Array, ""]) -> Cache:
    """The cache of one slot, B = 1."""
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, slot, 1), cache)


def put_slot(cache: Cache, one: Cache, slot: Int[Array, ""]) -> Cache:
    """Replace one slot by a cache of B = 1 and the same length."""
    return jax.tree.map(lambda x, new: jax.lax.dynamic_update_slice_in_dim(x, new, slot, 0), cache, one)
