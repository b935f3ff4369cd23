"""What the engine runs on the device: pure functions over weights and caches.

They are the transformer's own forward with a cache (rule 3: sampler and trainer run the same
forward); :mod:`model.engine` jits them.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, UInt32

from model.config import ModelConfig
from model.kvcache import Cache, init_cache, put_slot, take_slot
from model.sampling import sample

log = logging.getLogger(__name__)

STEPS = 32  # tokens a device call at most; the host looks for finished slots in between


Host = Array | np.ndarray


class Rows(NamedTuple):
    """What a decode call is told of each slot; small arrays that live on the host.

    A slot with n known tokens has n - 1 of them in the cache; the n-th, pending, is fed next.
    """

    pending: Int[Host, " B"]  # the last known token
    length: Int[Host, " B"]  # n; 0: free
    left: Int[Host, " B"]  # tokens that the turn may still get
    keys: UInt32[Host, "B 2"]  # of the seed
    temperature: Float[Host, " B"]
    top_k: Int[Host, " B"]
    top_p: Float[Host, " B"]
    stops: Int[Host, "B E"]  # ids that end a turn; -1: none
    forced: Int[Host, "B N"]  # tokens to take instead of a draw, in this call; -1: draw


class Sampled(NamedTuple):
    """What a decode call gives: the first ``counts[b]`` columns of row b are real."""

    tokens: Int[Host, "B N"]
    logprobs: Float[Host, "B N"]
    counts: Int[Host, " B"]


def prefill(
    graphdef: nnx.GraphDef, config: ModelConfig, length: int, params: nnx.State, tokens_1T: Int[Array, "1 T"]
) -> Cache:
    """Cache of one sequence of T tokens, as long as a slot's (``length``)."""
    size = tokens_1T.shape[1]
    log.info("compiling prefill of %d tokens", size)
    model = nnx.merge(graphdef, params)
    cache = model.prefill(tokens_1T)
    whole = init_cache(config, 1, length)
    return jax.tree.map(lambda x, new: jax.lax.dynamic_update_slice(x, new, (0,) * 4), whole, cache)


def extend(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    cache: Cache,
    tokens_1T: Int[Array, "1 T"],
    at_1: Int[Array, "1"],
    row: Int[Array, ""],
) -> Cache:
    """Feed T tokens to one slot. Entries of padding tokens are overwritten before they are seen."""
    log.info("compiling append of %d tokens", tokens_1T.shape[1])
    model = nnx.merge(graphdef, params)
    _, one = model.decode(tokens_1T, at_1, take_slot(cache, row))
    return put_slot(cache, one, row)


def first_tokens(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    cache: Cache,
    pending: Int[Array, ""],
    length: Int[Array, ""],
    keys_N2: UInt32[Array, "N 2"],
    temperature: Float[Array, ""],
    top_k: Int[Array, ""],
    top_p: Float[Array, ""],
) -> tuple[Cache, Int[Array, " N"], Float[Array, " N"]]:
    """The next token of one sequence, drawn with N keys.

    Returns:
        the cache with the pending token, tokens, log-probabilities.
    """
    N = keys_N2.shape[0]
    log.info("compiling first tokens of %d samples", N)
    model = nnx.merge(graphdef, params)
    hidden, cache = model.decode(pending.reshape(1, 1), length.reshape(1) - 1, cache)
    logits = jnp.broadcast_to(model.logits(hidden[:, 0]), (N, model.config.vocab_size))
    at, exact = jnp.broadcast_to(length, (N,)), model.config.batch_invariant
    tokens, logp = sample(logits, keys_N2, at, temperature, top_k, top_p, exact)
    return cache, tokens, jnp.take_along_axis(logp, tokens[:, None], axis=-1)[:, 0]


def decode(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    cache: Cache,
    rows_B: Rows,
    limit: Int[Array, ""],
) -> tuple[Cache, Sampled]:
    """Up to ``limit`` (at most N = STEPS) tokens for each slot that has some left; ends early when none has.

    A slot with nothing left feeds its pending token again and again, which writes the same entry.
    """
    rows: Any = jax.tree.map(jnp.asarray, rows_B)
    B = rows.pending.shape[0]
    log.info("compiling decode of %d slots", B)
    model = nnx.merge(graphdef, params)

    def going(carry):
        step, left = carry[0], carry[4]
        return (step < limit) & jnp.any(left > 0)

    def body(carry):
        step, cache, pending, at, left, tokens, logprobs, counts = carry
        hidden, cache = model.decode(pending[:, None], at, cache)
        logits = model.logits(hidden[:, 0])
        how = (rows.temperature, rows.top_k, rows.top_p, model.config.batch_invariant)
        new, logp = sample(logits, rows.keys, at + 1, *how)
        forced = jax.lax.dynamic_index_in_dim(rows.forced, step, 1, keepdims=False)
        new = jnp.where(forced >= 0, forced, new)
        active = left > 0
        tokens = tokens.at[:, step].set(new)
        logprobs = logprobs.at[:, step].set(jnp.take_along_axis(logp, new[:, None], axis=-1)[:, 0])
        pending, at = jnp.where(active, new, pending), at + active
        ended = jnp.any(new[:, None] == rows.stops, axis=-1)
        left = jnp.where(active & ~ended, left - 1, 0)
        return step + 1, cache, pending, at, left, tokens, logprobs, counts + active

    zeros = jnp.zeros((B, STEPS))
    at = jnp.maximum(rows.length - 1, 0)  # a free slot writes at 0, which nobody reads
    carry = (0, cache, rows.pending, at, rows.left, zeros.astype(jnp.int32), zeros, jnp.zeros(B, jnp.int32))
    _, cache, _, _, _, *sampled = jax.lax.while_loop(going, body, carry)
    return cache, Sampled(*sampled)
