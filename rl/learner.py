"""The learner: gradients over micro-batches, one optimizer step a minibatch, and its metrics.

In: :class:`rl.batch.Batch` micro-batches and a ``score`` function (the model's log-probability and
entropy of each target). Out: a new :class:`TrainState` and a dictionary of numbers. It knows nothing
of tasks, groups or GRPO: all of that rides on the batch.

One minibatch is one optimizer step. Its gradient is accumulated over micro-batches of one compiled
shape, each divided by the token count of the *whole* minibatch, so the cut into micro-batches
changes nothing. A minibatch whose loss or gradient isn't finite leaves the state as it was and is
counted (rule 7).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float
from pydantic import BaseModel, ConfigDict

from rl.batch import Batch
from rl.losses import clipped_policy_sums, k3_sum

Params = Any  # a pytree of arrays
Score = Callable[[Params, Batch], tuple[Float[Array, "R T"], Float[Array, "R T"]]]  # logp, entropy


class Config(BaseModel):
    """Base of the configs in rl/: frozen, and strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class OptimizerConfig(Config):
    """AdamW with clipped gradients."""

    learning_rate: float = 5e-4  # ours, for models of 1 to 2 million parameters
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_steps: int = 0
    final_fraction: float = 0.1  # cosine ends at this fraction of the peak (Chinchilla)
    b1: float = 0.9
    b2: float = 0.95  # usual for language models (GPT-3, Llama)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0  # usual for GRPO (verl, TRL)


class LearnerConfig(Config):
    """The GRPO loss."""

    optimizer: OptimizerConfig = OptimizerConfig()
    clip_low: float = 0.2  # paper
    clip_high: float = 0.28  # paper ("clip higher")
    # Ours, measured (rl/README.md): the paper has a KL term but states no weight. At 0.001 malformed, cut-off
    # turns crept in, which are masked and so never punished; at 0.03 they stayed away.
    kl_weight: float = 0.03


class TrainState(NamedTuple):
    """What an optimizer step changes; a pytree, saved whole in checkpoints."""

    params: Params
    opt_state: Any
    updates: Array  # optimizer steps done
    skipped: Array  # optimizer steps refused because a number wasn't finite


def make_optimizer(config: OptimizerConfig, total_steps: int | None = None) -> optax.GradientTransformation:
    """AdamW behind a global-norm clip.

    Args:
        config: rates and schedule.
        total_steps: length of the cosine; unused by the constant schedule.
    """
    peak = config.learning_rate
    if config.schedule == "cosine":
        if total_steps is None:
            raise ValueError("a cosine schedule needs total_steps")
        rate = optax.warmup_cosine_decay_schedule(
            0.0 if config.warmup_steps else peak,
            peak,
            config.warmup_steps,
            max(total_steps, config.warmup_steps + 1),
            peak * config.final_fraction,
        )
    elif config.warmup_steps:
        rate = optax.linear_schedule(peak / config.warmup_steps, peak, config.warmup_steps - 1)
    else:
        rate = peak
    return optax.chain(
        optax.clip_by_global_norm(config.max_grad_norm),
        optax.adamw(rate, b1=config.b1, b2=config.b2, weight_decay=config.weight_decay),
    )


def init_state(params: Params, optimizer: optax.GradientTransformation) -> TrainState:
    """A fresh state around ``params``."""
    return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))


def apply_gradients(
    optimizer: optax.GradientTransformation, state: TrainState, gradients: Params, loss: Array
) -> tuple[TrainState, Array]:
    """One optimizer step, or none when ``loss`` or the gradient isn't finite. Traceable by jit.

    Returns:
        The new state, and the gradient's global norm before clipping.
    """
    norm = optax.tree.norm(gradients)
    finite = jnp.isfinite(norm) & jnp.isfinite(loss)
    safe = jax.tree.map(lambda g: jnp.where(finite, g, 0.0), gradients)
    updates, opt_state = optimizer.update(safe, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    keep = lambda new, old: jnp.where(finite, new, old)  # noqa: E731
    done = finite.astype(jnp.int32)
    return TrainState(
        jax.tree.map(keep, params, state.params),
        jax.tree.map(keep, opt_state, state.opt_state),
        state.updates + done,
        state.skipped + (1 - done),
    ), norm


class Learner:
    """The jitted GRPO update.

    Args:
        score: ``score(params, batch) -> (logp, entropy)``, each [R, T], of the batch's targets.
        config: loss and optimizer.
        total_steps: optimizer steps in all, for a cosine schedule.
    """

    def __init__(self, score: Score, config: LearnerConfig, total_steps: int | None = None):
        self.config = config
        self.optimizer = make_optimizer(config.optimizer, total_steps)
        self._score = score
        self._accumulate = jax.jit(self._accumulate_fn, donate_argnums=(2,))
        self._apply = jax.jit(
            lambda state, gradients, loss: apply_gradients(self.optimizer, state, gradients, loss)
        )

    def init(self, params: Params) -> TrainState:
        return init_state(params, self.optimizer)

    def update(
        self, state: TrainState, minibatches: Sequence[Sequence[Batch]], reference: Params
    ) -> tuple[TrainState, dict[str, float]]:
        """Run one optimizer step for each minibatch, in order.

        Args:
            state: the state that sampled the batch (its policy is the "old" one).
            minibatches: each a list of micro-batches of one shape, see :func:`rl.batch.micro_batches`.
            reference: parameters of the KL reference.

        Returns:
            The new state, and metrics as means over tokens, averaged over minibatches.
            ``sampler_trainer_gap`` is the largest |log p_trainer - log p_sampler| of the first
            minibatch, where both have the same parameters (rule 3).
        """
        results = []
        for micro in minibatches:
            state, metrics = self._minibatch(state, micro, reference)
            results.append(metrics)
        means = {name: sum(r[name] for r in results) / len(results) for name in results[0]}
        means["ratio_max"] = max(r["ratio_max"] for r in results)
        means["tokens"] = sum(r["tokens"] for r in results)
        means["sampler_trainer_gap"] = results[0]["gap_max"]
        del means["gap_max"]
        means["updates"], means["skipped"] = int(state.updates), int(state.skipped)
        return state, means

    def _minibatch(
        self, state: TrainState, micro: Sequence[Batch], reference: Params
    ) -> tuple[TrainState, dict[str, float]]:
        tokens = max(sum(batch.token_count for batch in micro), 1.0)
        gradients = jax.tree.map(jnp.zeros_like, state.params)
        sums: dict[str, Any] = {}
        for batch in micro:
            gradients, part = self._accumulate(state.params, reference, gradients, batch, tokens)
            for name, value in part.items():
                old = sums.get(name, 0.0)
                sums[name] = jnp.maximum(old, value) if name.endswith("_max") else old + value
        loss = (sums["policy_loss"] + self.config.kl_weight * sums["kl"]) / tokens
        state, norm = self._apply(state, gradients, loss)
        kept = ("ratio_max", "gap_max", "tokens")
        metrics = {name: float(v if name in kept else v / tokens) for name, v in sums.items()}
        return state, {"loss": float(loss), "grad_norm": float(norm), **metrics}

    def _accumulate_fn(
        self, params: Params, reference: Params, gradients: Params, batch: Batch, tokens: float
    ) -> tuple[Params, dict[str, Array]]:
        """Add one micro-batch's share of the minibatch's gradient; also return its metric sums."""
        config, mask = self.config, batch.weights
        if config.kl_weight:
            reference_logp = self._score(reference, batch)[0]
        else:
            reference_logp = None

        def loss_fn(params: Params) -> tuple[Array, dict[str, Array]]:
            logp, entropy = self._score(params, batch)
            policy = clipped_policy_sums(
                logp, batch.logprobs, batch.advantages, mask, low=config.clip_low, high=config.clip_high
            )
            kl = jnp.zeros(()) if reference_logp is None else k3_sum(logp, reference_logp, mask)
            sums = {
                "policy_loss": policy.loss,
                "kl": kl,
                "entropy": jnp.sum(mask * jnp.where(mask > 0, entropy, 0.0)),
                "tokens": policy.tokens,
                "ratio_mean": policy.ratio,
                "ratio_max": policy.ratio_max,
                "gap_max": policy.gap_max,
                "clip_high": policy.clipped_high,
                "clip_low": policy.clipped_low,
            }
            return (policy.loss + config.kl_weight * kl) / tokens, sums

        (_, sums), gradient = jax.value_and_grad(loss_fn, has_aux=True)(params)
        return jax.tree.map(jnp.add, gradients, gradient), sums
