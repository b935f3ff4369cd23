"""Attention of packed rows that costs what is seen, not the row: blocks of queries and of keys.

A row of many short segments, or of a short prompt and its branches, is mostly masked. Here a block of 64
queries looks only at the blocks of 64 keys that hold something for it: the host lists them
(:func:`key_blocks`), the device gathers them and attends as ever (:func:`attend_blocks`).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

BLOCK = 64  # queries, and keys, of a block; ours, measured (tests/bench/bench_attention.py)
MASKED = -1e30  # finite: a query with nothing to see gives a mean, not NaN (its result is never used)


class Blocks(NamedTuple):
    """Who may see whom: query block i looks at blocks ``keys[b, i]``, at what ``see`` shows of them."""

    keys: Int[Array, "B n m"]
    see: Bool[Array, "B n block m*block"]


def key_blocks(
    segment_ids: Int[np.ndarray, "B T"], branch_ids: Int[np.ndarray, "B T"]
) -> Int[np.ndarray, "B n m"] | None:
    """The blocks of keys that each block of queries may see, in order; -1 where there are fewer than m.

    m is 1, 2, 3, 4, 6, 8, 12 and so on, so that few shapes are compiled. None: over a third of a row would
    have to be looked at, and :func:`model.attention.attend`, which looks at all before a query, is as fast
    (ours, measured: tests/bench/bench_attention.py).
    """
    lists = [_of_row(*ids) for ids in zip(np.asarray(segment_ids), np.asarray(branch_ids), strict=True)]
    most = max((len(seen) for row in lists for seen in row), default=0)
    octave = 1 << max(most - 1, 0).bit_length()
    m = octave * 3 // 4 if 0 < most <= octave * 3 // 4 else octave
    if 3 * m > len(lists[0]):
        return None
    return np.array([[seen + [-1] * (m - len(seen)) for seen in row] for row in lists], np.int32)


def _of_row(segments: np.ndarray, branches: np.ndarray) -> list[list[int]]:
    """For each block of queries the blocks it may see."""
    edges = np.flatnonzero((np.diff(segments) != 0) | (np.diff(branches) != 0)) + 1
    seen: list[set[int]] = [set() for _ in range(-(-len(segments) // BLOCK))]
    begun: dict[tuple[int, int], set[int]] = {}  # (segment, branch) -> blocks that hold tokens of it so far
    for start, stop in zip([0, *edges], [*edges, len(segments)], strict=True):
        segment, branch = int(segments[start]), int(branches[start])
        if segment == 0:  # padding
            continue
        own = begun.setdefault((segment, branch), set())
        for block in range(start // BLOCK, -(-stop // BLOCK)):
            own.add(block)
            seen[block] |= own | begun.get((segment, 0), set())
    return [sorted(blocks) for blocks in seen]


def see_blocks(
    segment_ids: Int[Array, "B T"], branch_ids: Int[Array, "B T"] | None, keys: Int[Array, "B n m"]
) -> Blocks:
    """What :func:`model.attention.see_segments` says of the gathered keys; no array of T x T exists."""
    branch_ids = jnp.zeros_like(segment_ids) if branch_ids is None else branch_ids
    B, n, m = keys.shape
    columns = jnp.broadcast_to(jnp.arange(n * BLOCK), (B, n * BLOCK))
    of_rows = jnp.stack([_padded(segment_ids), _padded(branch_ids), columns], axis=-1).reshape(B, n, BLOCK, 3)
    of_keys = jax.vmap(lambda row, index: row[index])(of_rows, jnp.maximum(keys, 0))
    of_keys = jnp.where(keys[..., None, None] >= 0, of_keys, -1).reshape(B, n, 1, m * BLOCK, 3)
    (segment, branch, column), (key_segment, key_branch, key_column) = (
        jnp.moveaxis(ids, -1, 0) for ids in (of_rows[:, :, :, None], of_keys)
    )
    same = (segment == key_segment) & (key_column <= column)
    return Blocks(keys, same & ((key_branch == 0) | (key_branch == branch)))


def attend_blocks(
    q: Float[Array, "B T H h"], k: Float[Array, "B T K h"], v: Float[Array, "B T K h"], blocks: Blocks
) -> Float[Array, "B T H h"]:
    """Softmax attention, float32 inside; each of the K key/value heads serves H/K query heads."""
    B, T, H, h = q.shape
    K, G = k.shape[2], H // k.shape[2]
    n, m = blocks.keys.shape[1:]
    dtype = jnp.promote_types(v.dtype, jnp.float32)
    queries = _padded(q * h**-0.5).reshape(B, n, BLOCK, K, G, h).transpose(0, 3, 1, 2, 4, 5)
    keys, values = (_gathered(x, blocks.keys) for x in (k, v))
    scores = jnp.matmul(
        queries.reshape(B * K, n, BLOCK * G, h), keys.swapaxes(-1, -2), preferred_element_type=dtype
    ).reshape(B, K, n, BLOCK, G, m * BLOCK)
    scores = jnp.where(blocks.see[:, None, :, :, None], scores, MASKED)
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True)))
    flat = weights.reshape(B * K, n, BLOCK * G, m * BLOCK).astype(v.dtype)
    out = jnp.matmul(flat, values, preferred_element_type=dtype).reshape(B, K, n, BLOCK, G, h)
    out = out / weights.sum(axis=-1)[..., None]
    return out.transpose(0, 2, 3, 1, 4, 5).reshape(B, n * BLOCK, H, h)[:, :T].astype(q.dtype)


def _padded(x: Array) -> Array:
    """Whole blocks along time."""
    return jnp.pad(x, ((0, 0), (0, -x.shape[1] % BLOCK), *((0, 0),) * (x.ndim - 2)))


def _gathered(x: Float[Array, "B T K h"], keys: Int[Array, "B n m"]) -> Float[Array, "B*K n m*block h"]:
    """The blocks that each block of queries looks at, side by side."""
    B, _, K, h = x.shape
    n, m = keys.shape[1:]
    blocks = _padded(x).reshape(B, n, BLOCK, K, h).transpose(0, 3, 1, 2, 4).reshape(B * K, n, BLOCK * h)
    index = jnp.broadcast_to(jnp.maximum(keys, 0).reshape(B, 1, n * m), (B, K, n * m)).reshape(B * K, n * m)
    return _take(blocks, index).reshape(B * K, n, m * BLOCK, h)


@jax.custom_vjp
def _take(blocks: Float[Array, "B n size"], index: Int[Array, "B c"]) -> Float[Array, "B c size"]:
    """``blocks[b, index[b]]``; the gradient as a matrix product, as a scatter walks the blocks one by one."""
    return jnp.take_along_axis(blocks, index[..., None], axis=1, mode="promise_in_bounds")


def _take_forward(blocks: Array, index: Array) -> tuple[Array, tuple[Array, Array]]:
    return _take(blocks, index), (index, jnp.zeros((blocks.shape[1], 0)))


def _take_backward(kept: tuple[Array, Array], cotangent: Array) -> tuple[Array, None]:
    index, size = kept
    places = jax.nn.one_hot(index, size.shape[0], axis=1, dtype=cotangent.dtype)
    return jnp.matmul(places, cotangent), None


_take.defvjp(_take_forward, _take_backward)
