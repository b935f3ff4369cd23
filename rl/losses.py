"""Token losses as pure functions: policy losses, KL estimates, sampler corrections, cross-entropy.

In: per-token arrays of one micro-batch, R rows of T positions, aligned to the token that each
position predicts. Out: arrays over tokens, or *sums* over the masked ones. The caller divides by a
count over the whole (global) minibatch, so that accumulated micro-batches equal one big batch.

What tells GRPO, DAPO, Dr. GRPO, GSPO, CISPO and RLOO apart are three knobs: the ``ratio`` that is
clipped, the ``surrogate`` it goes into, and how tokens are ``aggregate``d (:mod:`rl.algorithms` names
the combinations, with their papers). Where a whole sequence matters, ``sequences_RT`` numbers the
sequences of a row (:func:`number_sequences`); a sequence never spans two rows.

Numbers stay finite by construction (rule 7): masked positions are set to a harmless value with
``jnp.where`` *before* ``exp``, and log-ratios are clamped to +-``MAX_LOG_RATIO``.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

MAX_LOG_RATIO = 20.0  # exp(20) = 5e8: far outside any clip range, far inside float32 (verl uses the same)

TokenArray = Float[Array, "R T"]
Scalar = Float[Array, ""]

Ratio = Literal["token", "sequence", "sequence_token", "trajectory"]
Level = Literal["token", "sequence", "trajectory"]
Surrogate = Literal["clip", "cispo"]
Aggregate = Literal["token", "sequence", "constant"]
Estimator = Literal["k1", "k2", "k3"]


class PolicySums(NamedTuple):
    """Sums over masked tokens (the maxima are maxima); divide all but ``loss`` by ``tokens`` for means."""

    loss: Scalar  # weighted as ``aggregate`` says
    tokens: Scalar
    ratio: Scalar
    ratio_max: Scalar
    gap: Scalar  # |log p - log p_old|
    gap_max: Scalar
    clipped_high: Scalar  # tokens whose ratio is above 1 + high while the advantage is positive
    clipped_low: Scalar  # tokens whose ratio is below 1 - low while the advantage is negative


# --- sequences within rows ----------------------------------------------------------------------


def number_sequences(
    segment_ids_RT: Int[Array, "R T"], branch_ids_RT: Int[Array, "R T"]
) -> Int[Array, "R T"]:
    """Numbers from 0 in each row: a new one wherever the segment or the branch changes.

    A packed sample is one segment, or one branch of a segment with a shared prompt (:mod:`rl.batch`);
    either way its weighted tokens lie side by side. The shared prompt and padding get numbers of
    their own, on which no weight lies.
    """
    starts = (jnp.diff(segment_ids_RT, axis=1) != 0) | (jnp.diff(branch_ids_RT, axis=1) != 0)
    return jnp.pad(jnp.cumsum(starts, axis=1), ((0, 0), (1, 0)))


def sequence_sum(values_RT: TokenArray, sequences_RT: Int[Array, "R T"]) -> TokenArray:
    """The sum over each sequence, written on each of its tokens."""
    length = values_RT.shape[1]
    add = lambda values, ids: jax.ops.segment_sum(values, ids, length)[ids]  # noqa: E731
    return jax.vmap(add)(values_RT, sequences_RT)


def aggregation_weights(
    mask_RT: TokenArray, sequences_RT: Int[Array, "R T"], aggregate: Aggregate
) -> TokenArray:
    """What each token weighs in the loss, before the division by the minibatch's denominator.

    ``token`` (DAPO): every token the same; divide by the number of tokens.
    ``sequence`` (GRPO of DeepSeekMath; GSPO): one over the tokens of its sequence; divide
    by the number of sequences.
    ``constant`` (Dr. GRPO): every token the same; divide by sequences times a constant length, so that a
    long sequence isn't weakened by its own length.
    """
    if aggregate != "sequence":
        return mask_RT
    return mask_RT / jnp.where(mask_RT > 0, sequence_sum(mask_RT, sequences_RT), 1.0)


# --- ratios and surrogates ------------------------------------------------------------------------


def masked_log_ratio(logp_RT: TokenArray, other_RT: TokenArray, mask_RT: TokenArray) -> TokenArray:
    """``logp - other`` on masked tokens, clamped; exactly 0 elsewhere, whatever lies there."""
    on = mask_RT > 0
    difference = jnp.where(on, logp_RT, 0.0) - jnp.where(on, other_RT, 0.0)
    return jnp.clip(difference, -MAX_LOG_RATIO, MAX_LOG_RATIO)


def level_log_ratio(
    log_ratio_RT: TokenArray, mask_RT: TokenArray, sequences_RT: Int[Array, "R T"], level: Ratio
) -> TokenArray:
    """Token log-ratios (:func:`masked_log_ratio`) at another level, written on each token of a sequence.

    ``token``: as they are. ``sequence``: their mean over the sequence, the log of the geometric mean
    (GSPO). ``sequence_token``: the same number, but the gradient flows through the token's
    own log-probability (GSPO-token). ``trajectory``: their sum, the log-ratio of the whole
    sequence as one action (RLOO), clamped once more.
    """
    if level == "token":
        return log_ratio_RT
    total = sequence_sum(log_ratio_RT * mask_RT, sequences_RT)
    if level == "trajectory":
        return jnp.clip(total, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    mean = total / jnp.where(mask_RT > 0, sequence_sum(mask_RT, sequences_RT), 1.0)
    if level == "sequence":
        return mean
    return jax.lax.stop_gradient(mean - log_ratio_RT) + log_ratio_RT


def policy_sums(
    logp_RT: TokenArray,
    old_logp_RT: TokenArray,
    advantage_RT: TokenArray,
    mask_RT: TokenArray,
    sequences_RT: Int[Array, "R T"],
    *,
    low: float,
    high: float,
    ratio: Ratio = "token",
    surrogate: Surrogate = "clip",
    aggregate: Aggregate = "token",
) -> PolicySums:
    """The policy loss, summed over masked tokens, and what became of the ratio ``r = p / p_old``.

    ``clip``: ``-min(r A, clip(r, 1 - low, 1 + high) A)``, PPO's surrogate with separate bounds ("clip
    higher", DAPO). ``cispo``: ``-stop_gradient(clip(r, 1 - low, 1 + high)) A log p``: the weight is cut,
    no token loses its gradient (MiniMax-M1).

    Args:
        logp_RT: log-probabilities under the policy being trained.
        old_logp_RT: log-probabilities of the sampler; no gradient flows into them.
        advantage_RT: advantage of each token.
        mask_RT: 1 on tokens that count, 0 elsewhere.
        sequences_RT: see :func:`number_sequences`.
        low: lower clip range (0.2 in the paper).
        high: upper clip range (0.28 in the paper).
        ratio: which ratio is clipped, see :func:`level_log_ratio`.
        surrogate: what it goes into.
        aggregate: what a token weighs, see :func:`aggregation_weights`.
    """
    on = mask_RT > 0
    token_log_ratio = masked_log_ratio(logp_RT, jax.lax.stop_gradient(old_logp_RT), mask_RT)
    r = jnp.exp(level_log_ratio(token_log_ratio, mask_RT, sequences_RT, ratio))
    advantage = jnp.where(on, advantage_RT, 0.0)
    clipped = jnp.clip(r, 1.0 - low, 1.0 + high)
    if surrogate == "clip":
        gain = jnp.minimum(r * advantage, clipped * advantage)
    else:
        gain = jax.lax.stop_gradient(clipped) * advantage * jnp.where(on, logp_RT, 0.0)
    return PolicySums(
        loss=-jnp.sum(gain * aggregation_weights(mask_RT, sequences_RT, aggregate)),
        tokens=jnp.sum(mask_RT),
        ratio=jnp.sum(r * mask_RT),
        ratio_max=jnp.max(jnp.where(on, r, 0.0)),
        gap=jnp.sum(jnp.abs(token_log_ratio) * mask_RT),
        gap_max=jnp.max(jnp.abs(token_log_ratio)),
        clipped_high=jnp.sum(mask_RT * ((r > 1.0 + high) & (advantage > 0))),
        clipped_low=jnp.sum(mask_RT * ((r < 1.0 - low) & (advantage < 0))),
    )


# --- sampler and trainer apart --------------------------------------------------------------------
# The sampler may not give quite the trainer's probabilities (another kernel, another precision, an
# older version). That is another ratio, p_trainer / p_sampler *before* the update, than the one that
# the surrogate clips, and it is put right on its own: by a truncated weight, by rejection, or both.


def truncated_weights(log_ratio_RT: TokenArray, cap: float) -> TokenArray:
    """Truncated importance sampling: ``min(p_trainer / p_sampler, cap)``; no gradient flows."""
    return jnp.minimum(jnp.exp(jax.lax.stop_gradient(log_ratio_RT)), cap)


def accepted(log_ratio_RT: TokenArray, low: float, high: float) -> TokenArray:
    """1 where ``low <= p_trainer / p_sampler <= high``, else 0: what lies outside isn't learnt from.

    Rejected tokens stay in the denominator: rejection never makes the others weigh more.
    """
    ratio = jnp.exp(jax.lax.stop_gradient(log_ratio_RT))
    return ((ratio >= low) & (ratio <= high)).astype(log_ratio_RT.dtype)


# --- the KL to the reference, and supervised losses -----------------------------------------------


def kl_estimates(
    logp_RT: TokenArray, reference_RT: TokenArray, mask_RT: TokenArray, estimator: Estimator = "k3"
) -> TokenArray:
    """An estimate of KL(policy || reference) from each sampled token; 0 off the mask. (Schulman, 2020.)

    With ``d = log p_ref - log p``:

    ``k1``: ``-d``. Unbiased, noisy, of either sign. As a loss term its gradient is ``grad log p``, which is
    0 in expectation: on policy it only adds noise. Good for watching, not for training.
    ``k2``: ``d^2 / 2``. Biased as a number; on policy its gradient is the KL's, without bias.
    ``k3``: ``exp(d) - d - 1``. Unbiased, never negative, 0 only where both agree (GRPO). Its gradient is on
    policy that of KL(reference || policy).
    """
    d = masked_log_ratio(jax.lax.stop_gradient(reference_RT), logp_RT, mask_RT)
    if estimator == "k1":
        return -d
    return d * d / 2.0 if estimator == "k2" else jnp.exp(d) - d - 1.0


def cross_entropy_sum(logp_RT: TokenArray, weight_RT: TokenArray) -> Scalar:
    """Weighted negative log-likelihood, summed; tokens of weight 0 never matter, even when infinite."""
    return -jnp.sum(jnp.where(weight_RT > 0, logp_RT, 0.0) * weight_RT)
