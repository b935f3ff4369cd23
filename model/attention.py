"""Grouped-query attention: one function of (queries, keys, values, who may see whom).

Training, scoring and decoding all come through :class:`Attention`. Without a cache the keys are
the row itself and a token sees the earlier tokens of its own segment (segment 0 is padding). With
a cache the new keys are written to the slot and a token sees the slot's entries up to its position.

Three ways to the same numbers, see :func:`choose`. Softmax is float32 in all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from model.block_attention import MASKED, Blocks, attend_blocks, see_blocks
from model.config import ModelConfig
from model.exact import in_float64
from model.kvcache import LayerCache
from model.layers import Linear, RMSNorm, rotate
from model.sharding import constrain

LANES = 128  # splash attention's tiles: it takes rows whose length is a multiple
CHUNK = 128  # queries at a time against the keys before them; ours, measured: halves the gradient's time


class Segments(NamedTuple):
    """Who may see whom in rows, without an array of T x T: causal within a segment."""

    ids: Int[Array, "B T"]


See = Bool[Array, "B T S"] | Segments | Blocks


def choose(config: ModelConfig) -> str:
    """How rows attend: ``config.attention``, or what ``auto`` means on this backend.

    ``chunked`` (CPU): chunks of queries against the keys before them, see :func:`attend`.
    ``dot_product`` (GPU): :func:`jax.nn.dot_product_attention`.
    ``splash`` (TPU): JAX's Pallas kernel, see :mod:`model.splash`; no array of T x T exists, so it is the
    one for long rows. ``splash_interpret`` runs the same kernel on any machine, slowly, for tests.
    """
    if config.batch_invariant:
        return "chunked"
    if config.attention != "auto":
        return config.attention
    return {"tpu": "splash", "gpu": "dot_product"}.get(jax.default_backend(), "chunked")


def visibility(
    config: ModelConfig,
    segment_ids: Int[Array, "B T"],
    branch_ids: Int[Array, "B T"] | None = None,
    key_blocks: Int[Array, "B n m"] | None = None,
) -> See:
    """Who may see whom in rows; splash takes the segments, everything else a mask.

    Rows with branches, and rows whose length the kernel's tiles don't divide, take the mask. On a CPU with
    ``key_blocks`` (:func:`model.block_attention.key_blocks`) only these are looked at.
    """
    if key_blocks is not None and choose(config) == "chunked" and not config.batch_invariant:
        return see_blocks(segment_ids, branch_ids, key_blocks)
    whole_tiles = segment_ids.shape[1] % LANES == 0
    if choose(config).startswith("splash") and branch_ids is None and whole_tiles:
        return Segments(segment_ids)
    return see_segments(segment_ids, branch_ids)


def attend_rows(
    q: Float[Array, "B T H h"],
    k: Float[Array, "B T K h"],
    v: Float[Array, "B T K h"],
    see: See,
    how: str,
    exact: bool = False,
) -> Float[Array, "B T H h"]:
    """Rows attend to themselves; ``how`` as in :func:`choose`, ``exact`` as in :func:`attend`."""
    if isinstance(see, Blocks):
        return jax.checkpoint(attend_blocks)(q, k, v, see)  # made again going back, as in attend
    if isinstance(see, Segments):
        from model.splash import splash  # Pallas takes a second to import, and only this needs it

        return splash(q, k, v, see.ids, interpret=how == "splash_interpret")
    if how != "chunked":
        return jax.nn.dot_product_attention(q, k, v, mask=see[:, None])
    return attend(q, k.transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3), see, exact)


def attend(
    q: Float[Array, "B T H h"],
    k: Float[Array, "B K h S"],
    v: Float[Array, "B K S h"],
    see: Bool[Array, "B T S"],
    exact: bool = False,
) -> Float[Array, "B T H h"]:
    """Softmax attention; each of the K key/value heads serves H/K query heads.

    ``exact``: in float64 from queries, keys and values to the result, see :mod:`model.exact`.

    When S = T the keys are the row itself, no query sees a later one, and the queries are taken in
    chunks against the keys up to their own: the masked half is never computed.
    """
    T, S = see.shape[1:]
    if S != T or T <= CHUNK:
        return in_float64(_attend, exact)(q, k, v, see)
    # made again in the backward pass: as fast, far less memory
    part = in_float64(jax.checkpoint(_attend), exact)
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
    dtype = jnp.promote_types(v.dtype, jnp.float32)
    scores = jnp.matmul(q, k, preferred_element_type=dtype).reshape(B, K, T, G, -1)
    scores = jnp.where(see[:, None, :, None], scores, MASKED)
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True)))
    flat = weights.reshape(B, K, T * G, -1).astype(v.dtype)
    out = jnp.matmul(flat, v, preferred_element_type=dtype).reshape(B, K, T, G, h)
    out = out / weights.sum(axis=-1)[..., None]  # divided here: S times fewer divisions
    return out.transpose(0, 2, 1, 3, 4).reshape(B, T, H, h).astype(q.dtype)


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
        self.head_dim, self.how, self.exact = c.head_dim, choose(c), c.batch_invariant
        more = {"bias": c.qkv_bias, "exact": self.exact}
        self.q = Linear(c.d_model, c.n_heads * c.head_dim, rngs, **more)
        self.k = Linear(c.d_model, c.n_kv_heads * c.head_dim, rngs, **more)
        self.v = Linear(c.d_model, c.n_kv_heads * c.head_dim, rngs, **more)
        self.o = Linear(c.n_heads * c.head_dim, c.d_model, rngs, out_scale, exact=self.exact)
        self.q_norm = RMSNorm(c.head_dim, c.rms_eps, self.exact) if c.qk_norm else None
        self.k_norm = RMSNorm(c.head_dim, c.rms_eps, self.exact) if c.qk_norm else None

    def __call__(
        self,
        x: Float[Array, "B T D"],
        angles: tuple[Array, Array],
        see: See,
        cache: LayerCache | None = None,
        at: Int[Array, " B"] | None = None,
    ) -> tuple[Float[Array, "B T D"], LayerCache]:
        """``cache`` with ``at`` (index of the first new token of each slot): decode; else the row itself.

        Returns:
            what the layer adds, and the keys and values seen: the cache, or those of the row.
        """
        heads = (*x.shape[:2], -1, self.head_dim)
        q, k, v = (project(x).reshape(heads) for project in (self.q, self.k, self.v))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        turn = in_float64(rotate, self.exact)
        q, k = turn(q, *angles), turn(k, *angles)
        q, k, v = (checkpoint_name(constrain(y, "batch", "time", "heads", None), "qkv") for y in (q, k, v))
        if cache is None:
            out = attend_rows(q, k, v, see, self.how, self.exact)
            cache = LayerCache(k.transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3))
        else:
            assert at is not None
            assert not isinstance(see, (Segments, Blocks))
            cache = cache.write(k, v, at)
            out = attend(q, cache.k, cache.v, see, self.exact)
        out = checkpoint_name(out, "attention")
        return self.o(out.reshape(*x.shape[:2], -1)), cache
