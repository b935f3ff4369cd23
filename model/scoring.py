"""Log-probability and entropy of the next token, whole or in parts of the vocabulary.

With ``chunks`` > 1 no array of all tokens times the whole vocabulary exists, forward or backward: a
loop takes one part of the vocabulary after the other and keeps four numbers a token (the maximum so
far, the sum of exponentials, the sum weighted by the logits, and the target's logit). The backward
pass makes each part's logits again.

Part c holds the tokens whose id is c modulo ``chunks``: with the vocabulary cut over ``tensor`` into
runs of ids, every device then has its share of every part, and nothing moves.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from model.exact import in_float64, to_float32, wide
from model.layers import product
from model.sharding import constrain


def logits_of(
    hidden: Float[Array, "*batch D"], table: Float[Array, "V D"], exact: bool = False
) -> Float[Array, "*batch V"]:
    """Scores over the vocabulary, float32 whatever the dtype of ``hidden``."""
    return in_float64(_logits, exact)(hidden, table)


def _logits(hidden: Array, table: Array) -> Array:
    dtype = jnp.promote_types(hidden.dtype, jnp.float32)
    if hidden.dtype == dtype:
        return product(hidden, table.astype(dtype).T)
    return jnp.matmul(hidden, table.astype(hidden.dtype).T, preferred_element_type=dtype)


def score_targets(
    hidden: Float[Array, "B T D"],
    table: Float[Array, "V D"],
    targets: Int[Array, "B T"],
    chunks: int = 1,
    exact: bool = False,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Log-probability of each target and the entropy of its distribution (nats, temperature 1).

    Args:
        hidden: after the last norm.
        table: a row for each token: the embeddings when they are tied, else the head.
        targets: ids in [0, V).
        chunks: parts of the vocabulary, one at a time; 1 makes the whole [B, T, V].
        exact: sums in float64, see :mod:`model.exact`.
    """
    hidden = constrain(hidden, "batch", "time", None)
    if chunks == 1:
        return in_float64(_whole, exact)(logits_of(hidden, table, exact), targets)
    return in_float64(functools.partial(_in_parts, chunks=chunks), exact)(hidden, table, targets)


def _whole(logits: Array, targets: Array) -> tuple[Array, Array]:
    logp = jax.nn.log_softmax(logits, axis=-1)
    # compared, not gathered: a gather's gradient is a scatter, which costs a pass over [B, T, V]
    mine = jnp.arange(logits.shape[-1]) == targets[..., None]
    chosen = jnp.where(mine, logp, 0.0).sum(axis=-1)
    return chosen, -jnp.sum(jnp.exp(logp) * logp, axis=-1)


def _in_parts(hidden: Array, table: Array, targets: Array, *, chunks: int) -> tuple[Array, Array]:
    vocab, width = table.shape
    rows = -(-vocab // chunks)
    padded = jnp.pad(table.astype(hidden.dtype), ((0, rows * chunks - vocab), (0, 0)))
    parts = constrain(jnp.moveaxis(padded.reshape(rows, chunks, width), 1, 0), None, "vocab", None)
    whole = wide(hidden)  # its gradient is summed over the parts in this dtype

    def body(carry, part):
        top, total, weighted, chosen = carry
        which, rows_of_part = part
        # float32 also where sums are float64: the numbers that a sampler has
        logits = to_float32(_logits(whole.astype(hidden.dtype), rows_of_part))
        logits = constrain(logits, "batch", "time", "vocab")
        real = jnp.arange(rows) * chunks + which < vocab
        new_top = jnp.maximum(top, jax.lax.stop_gradient(jnp.where(real, logits, -jnp.inf).max(axis=-1)))
        # where before exp (rule 7): a row of padding is 0 times a finite number
        share = jnp.where(real, jnp.exp(jnp.where(real, logits - new_top[..., None], 0.0)), 0.0)
        shrink = jnp.exp(top - new_top)
        total = total * shrink + share.sum(axis=-1)
        weighted = weighted * shrink + (share * logits).sum(axis=-1)
        # compared, not gathered: each device looks at its own share of the part
        mine = jnp.arange(rows) * chunks + which == targets[..., None]
        return (new_top, total, weighted, chosen + jnp.where(mine, logits, 0.0).sum(axis=-1)), None

    zero = jnp.zeros(targets.shape, whole.dtype)
    start = (jnp.full(targets.shape, -jnp.inf, whole.dtype), zero, zero, zero)
    # prevent_cse is for code outside of loops
    body = jax.checkpoint(body, prevent_cse=False)
    (top, total, weighted, chosen), _ = jax.lax.scan(body, start, (jnp.arange(chunks), parts))
    normaliser = top + jnp.log(total)
    return chosen - normaliser, normaliser - weighted / total
