"""Token losses as pure functions: the clipped policy loss, the KL to a reference, cross-entropy.

In: per-token arrays of one micro-batch, R rows of T positions, aligned to the token that each
position predicts. Out: *sums* over the masked tokens. The caller divides by the token count of the
whole (global) minibatch, so that accumulated micro-batches equal one big batch and every token
weighs the same, whatever the length of its episode (DAPO's token-level loss).

Numbers stay finite by construction (rule 7): masked positions are set to a harmless value with
``jnp.where`` *before* ``exp``, and log-ratios are clamped to +-``MAX_LOG_RATIO``.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

MAX_LOG_RATIO = 20.0  # exp(20) = 5e8: far outside any clip range, far inside float32 (verl uses the same)

TokenArray = Float[Array, "R T"]
Scalar = Float[Array, ""]


class PolicySums(NamedTuple):
    """Sums over masked tokens (the maxima are maxima); divide by ``tokens`` for means."""

    loss: Scalar
    tokens: Scalar
    ratio: Scalar
    ratio_max: Scalar
    gap_max: Scalar  # largest |log p - log p_old|
    clipped_high: Scalar  # tokens whose ratio is above 1 + high while the advantage is positive
    clipped_low: Scalar  # tokens whose ratio is below 1 - low while the advantage is negative


def masked_log_ratio(logp_RT: TokenArray, other_RT: TokenArray, mask_RT: TokenArray) -> TokenArray:
    """``logp - other`` on masked tokens, clamped; exactly 0 elsewhere, whatever lies there."""
    on = mask_RT > 0
    difference = jnp.where(on, logp_RT, 0.0) - jnp.where(on, other_RT, 0.0)
    return jnp.clip(difference, -MAX_LOG_RATIO, MAX_LOG_RATIO)


def clipped_policy_sums(
    logp_RT: TokenArray,
    old_logp_RT: TokenArray,
    advantage_RT: TokenArray,
    mask_RT: TokenArray,
    *,
    low: float,
    high: float,
) -> PolicySums:
    """PPO's clipped surrogate with separate bounds ("clip higher"), summed over masked tokens.

    ``-min(r A, clip(r, 1 - low, 1 + high) A)`` with ``r = p / p_old``.

    Args:
        logp_RT: log-probabilities under the policy being trained.
        old_logp_RT: log-probabilities of the sampler; no gradient flows into them.
        advantage_RT: advantage of each token.
        mask_RT: 1 on tokens that count, 0 elsewhere.
        low: lower clip range (0.2 in the paper).
        high: upper clip range (0.28 in the paper).
    """
    log_ratio = masked_log_ratio(logp_RT, jax.lax.stop_gradient(old_logp_RT), mask_RT)
    ratio = jnp.exp(log_ratio)
    advantage = jnp.where(mask_RT > 0, advantage_RT, 0.0)
    surrogate = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - low, 1.0 + high) * advantage)
    return PolicySums(
        loss=-jnp.sum(surrogate * mask_RT),
        tokens=jnp.sum(mask_RT),
        ratio=jnp.sum(ratio * mask_RT),
        ratio_max=jnp.max(jnp.where(mask_RT > 0, ratio, 0.0)),
        gap_max=jnp.max(jnp.abs(log_ratio)),
        clipped_high=jnp.sum(mask_RT * ((ratio > 1.0 + high) & (advantage > 0))),
        clipped_low=jnp.sum(mask_RT * ((ratio < 1.0 - low) & (advantage < 0))),
    )


def k3_sum(logp_RT: TokenArray, reference_RT: TokenArray, mask_RT: TokenArray) -> Scalar:
    """Schulman's k3 estimate of KL(policy || reference), summed over masked tokens.

    ``exp(d) - d - 1`` with ``d = log p_ref - log p``: never negative, and 0 only where both agree.
    """
    d = masked_log_ratio(jax.lax.stop_gradient(reference_RT), logp_RT, mask_RT)
    return jnp.sum((jnp.exp(d) - d - 1.0) * mask_RT)


def cross_entropy_sum(logp_RT: TokenArray, weight_RT: TokenArray) -> Scalar:
    """Weighted negative log-likelihood, summed; tokens of weight 0 never matter, even when infinite."""
    return -jnp.sum(jnp.where(weight_RT > 0, logp_RT, 0.0) * weight_RT)
