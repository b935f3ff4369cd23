"""What the engine runs on the device: three pure functions over weights and a cache.

They are the transformer's own forward with a cache (rule 3: sampler and trainer run the same
forward); :mod:`model.engine` jits them and keeps the books.
"""

from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, UInt32

from model.config import ModelConfig
from model.kvcache import Cache, init_cache, put_slot, take_slot
from model.sampling import sample

log = logging.getLogger(__name__)

STEPS = 32  # tokens a device call at most; the host looks for finished slots in between


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


def decode(
    graphdef: nnx.GraphDef,
    eos_id: int,
    params: nnx.State,
    cache: Cache,
    pending_B: Int[Array, " B"],
    at_B: Int[Array, " B"],
    left_B: Int[Array, " B"],
    keys_B2: UInt32[Array, "B 2"],
    temperature: Float[Array, ""],
) -> tuple[Cache, Int[Array, "B N"], Float[Array, "B N"], Int[Array, " B"]]:
    """Up to N = STEPS tokens for each slot that has some left; ends early when none has.

    Args:
        pending_B: the last known token of each slot, not in the cache yet.
        at_B: its position.
        left_B: how many tokens the slot may still get. One at 0 feeds its pending token again and
            again, which writes the same entry.

    Returns:
        cache, tokens, their log-probabilities, and how many of them are real.
    """
    B = pending_B.shape[0]
    log.info("compiling decode of %d slots", B)
    model = nnx.merge(graphdef, params)

    def going(carry):
        step, left = carry[0], carry[4]
        return (step < STEPS) & jnp.any(left > 0)

    def body(carry):
        step, cache, pending, at, left, tokens, logprobs, counts = carry
        hidden, cache = model.decode(pending[:, None], at, cache)
        new, logp = sample(model.logits(hidden[:, 0]), keys_B2, at + 1, temperature)
        active = left > 0
        tokens, logprobs = tokens.at[:, step].set(new), logprobs.at[:, step].set(logp)
        pending, at = jnp.where(active, new, pending), at + active
        left = jnp.where(active & (new != eos_id), left - 1, 0)
        return step + 1, cache, pending, at, left, tokens, logprobs, counts + active

    zeros = jnp.zeros((B, STEPS))
    counts = jnp.zeros(B, jnp.int32)
    carry = (0, cache, pending_B, at_B, left_B, zeros.astype(jnp.int32), zeros, counts)
    _, cache, _, _, _, tokens, logprobs, counts = jax.lax.while_loop(going, body, carry)
    return cache, tokens, logprobs, counts
