"""Grouped-query attention: one function of (queries, keys, values, who may see whom).

Training, scoring and decoding all come through :class:`Attention`. Without a cache the keys are
the row itself and a token sees the earlier tokens of its own segment (segment 0 is padding). With
a cache the new keys are written to the slot and a token sees the slot's entries up to its position.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from model.config import ModelConfig
from model.kvcache import LayerCache
from model.layers import Linear, RMSNorm, rotate

MASKED = -1e30  # finite: a row with nothing to see gives a mean, not NaN (its result is never used)
CHUNK = 128  # queries at a time against the keys before them; ours, measured: halves the gradient's time


def attend(
    q: Float[Array, "B T H h"],
    k: Float[Array, "B K h S"],
    v: Float[Array, "B K S h"],
    see: Bool[Array, "B T S"],
) -> Float[Array, "B T H h"]:
    """Softmax attention; each of the K key/value heads serves H/K query heads.

    When S = T the keys are the row itself, no query sees a later one, and the queries are taken in
    chunks against the keys up to their own: the masked half is never computed.
    """
    T, S = see.shape[1:]
    if S != T or T <= CHUNK:
        return _attend(q, k, v, see)
    part = jax.checkpoint(_attend)  # made again in the backward pass: as fast, far less memory
    parts = []
    for start in range(0, T, CHUNK):
        end = min(T, start + CHUNK)
        rows = slice(start, end)
        parts.append(part(q[:, rows], k[..., :end], v[:, :, :end], see[:, rows, :end]))
    return jnp.concatenate(parts, axis=1)


def _attend(q: Array, k: Array, v: Array, see: Array) -> Array:
    """All queries of a key/value head in one matrix product (ours, measured: 3 times faster on a CPU)."""
    B, T, H, h = q.shape
    K, G = k.shape[1], H // k.shape[1]
    q = (q * h**-0.5).reshape(B, T, K, G, h).transpose(0, 2, 1, 3, 4).reshape(B, K, T * G, h)
    scores = (q @ k).reshape(B, K, T, G, -1)
    scores = jnp.where(see[:, None, :, None], scores, MASKED)
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True)))
    out = (weights.reshape(B, K, T * G, -1) @ v).reshape(B, K, T, G, h)
    out = out / weights.sum(axis=-1)[..., None]  # divided here: S times fewer divisions
    return out.transpose(0, 2, 1, 3, 4).reshape(B, T, H, h)


def see_segments(
    segment_ids: Int[Array, "B T"], branch_ids: Int[Array, "B T"] | None = None
) -> Bool[Array, "B T T"]:
    """Causal within a segment.

    With ``branch_ids`` a segment is one shared beginning (branch 0) and several continuations, each
    of which sees the beginning and itself only.
    """
    same = segment_ids[:, :, None] == segment_ids[:, None, :]
    see = same & jnp.tril(jnp.ones((segment_ids.shape[1],) * 2, bool))
    if branch_ids is None:
        return see
    keys = branch_ids[:, None, :]
    return see & ((keys == 0) | (keys == branch_ids[:, :, None]))


class Attention(nnx.Module):
    """Projections, query/key norm, rotary positions, attention and the way out."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs, out_scale: float):
        c = config
        self.head_dim = c.head_dim
        self.q = Linear(c.d_model, c.n_heads * c.head_dim, rngs)
        self.k = Linear(c.d_model, c.n_kv_heads * c.head_dim, rngs)
        self.v = Linear(c.d_model, c.n_kv_heads * c.head_dim, rngs)
        self.o = Linear(c.n_heads * c.head_dim, c.d_model, rngs, out_scale)
        self.q_norm = RMSNorm(c.head_dim, c.rms_eps) if c.qk_norm else None
        self.k_norm = RMSNorm(c.head_dim, c.rms_eps) if c.qk_norm else None

    def __call__(
        self,
        x: Float[Array, "B T D"],
        angles: tuple[Array, Array],
        see: Bool[Array, "B T S"],
        cache: LayerCache | None = None,
        at: Int[Array, " B"] | None = None,
    ) -> tuple[Float[Array, "B T D"], LayerCache | None]:
        """``cache`` with ``at`` (index of the first new token of each slot): decode; else the row itself."""
        heads = (*x.shape[:2], -1, self.head_dim)
        q, k, v = (project(x).reshape(heads) for project in (self.q, self.k, self.v))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, *angles), rotate(k, *angles)
        if cache is not None:
            assert at is not None
            cache = cache.write(k, v, at)
            k, v = cache.k, cache.v
        else:
            k, v = k.transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3)
        out = attend(q, k, v, see)
        return self.o(out.reshape(*x.shape[:2], -1)), cache
