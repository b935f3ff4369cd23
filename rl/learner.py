"""The learner: gradients over micro-batches, one optimizer step a minibatch, and its metrics.

In: :class:`rl.batch.Batch` micro-batches and a ``score`` function (the model's log-probability and
entropy of each target). Out: a new :class:`TrainState` and a dictionary of numbers. It knows nothing
of tasks, groups or GRPO: weights, old log-probabilities and advantages ride on the batch, and the
knobs of :class:`LearnerConfig` say which loss is made of them (:mod:`rl.losses`).

One minibatch is one optimizer step. Its gradient is accumulated over micro-batches of one shape (on a
CPU of a few: :mod:`model.block_attention`), each divided by a count over the *whole* minibatch, so the cut
into micro-batches changes nothing. A minibatch whose loss or gradient isn't finite leaves the state as it
was and is counted (rule 7); too many in a row end the run (:mod:`rl.refused`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float
from pydantic import Field

from model.sharding import on_mesh, put_whole, shard_batch
from rl.batch import Batch, with_key_blocks
from rl.losses import (
    Aggregate,
    Estimator,
    Level,
    Ratio,
    Surrogate,
    accepted,
    aggregation_weights,
    kl_estimates,
    level_log_ratio,
    masked_log_ratio,
    number_sequences,
    policy_sums,
    truncated_weights,
)
from rl.optimizer import (
    Config,
    OptimizerConfig,
    Params,
    TrainState,
    apply_gradients,
    init_state,
    make_optimizer,
)
from rl.refused import Refusals

Score = Callable[[Params, Batch], tuple[Float[Array, "R T"], Float[Array, "R T"]]]  # logp, entropy


class MismatchConfig(Config):
    """What to do where sampler and trainer disagree about what was sampled; off by default.

    On, the trainer scores every batch once more *before* the first update. That score is the "old"
    policy of the clipped ratio, and its ratio to the sampler's goes into weights of its own.
    """

    # cap of the importance weight; 2 in Yao et al. (2025), "Your efficient RL framework secretly brings you
    # off-policy RL training", who named it TIS
    truncate: float | None = Field(default=None, gt=0)
    truncate_level: Level = "token"
    reject_below: float = 0.0
    reject_above: float | None = None  # 0.5 and 5 for tokens in IcePop (Ling team, 2025)
    reject_level: Level = "token"

    @property
    def on(self) -> bool:
        return self.truncate is not None or self.reject_above is not None or self.reject_below > 0


class LearnerConfig(Config):
    """The loss and the optimizer. Names for sets of these knobs: :mod:`rl.algorithms`."""

    optimizer: OptimizerConfig = OptimizerConfig()
    clip_low: float = 0.2  # paper
    clip_high: float = 0.28  # paper ("clip higher")
    # Ours, measured (rl/README.md): the paper has a KL term but states no weight. At 0.001 malformed, cut-off
    # turns crept in, which are masked and so never punished; at 0.03 they stayed away.
    kl_weight: float = 0.03
    kl_estimator: Estimator = "k3"  # GRPO (DeepSeekMath)
    ratio: Ratio = "token"  # GRPO
    surrogate: Surrogate = "clip"  # GRPO
    aggregate: Aggregate = "token"  # DAPO; the paper doesn't state it
    # tokens, for aggregate = "constant"; ours: the longest episode of the demo
    constant_length: int = Field(default=1024, gt=0)
    mismatch: MismatchConfig = MismatchConfig()
    max_refused: int = Field(default=5, ge=0)  # refused updates in a row that end the run (ours); 0: never


class Learner:
    """The jitted update.

    Args:
        score: ``score(params, batch) -> (logp, entropy)``, each [R, T], of the batch's targets.
        config: loss and optimizer.
        total_steps: optimizer steps in all, for a cosine schedule.
        dump_to: folder for the last batch when updates are refused too often.
        check: called before each micro-batch; may raise, which leaves the caller's state as it was.
        donate: :meth:`update` uses the caller's state up, so that its memory holds the next one (12 bytes a
            parameter less). From the first optimizer step of an update on ``check`` isn't called any more:
            there would be no state to go back to.
        mesh: where the state lives, if not on one device: batches are put there too (:mod:`model.sharding`).
        full: ``full(params, reference)`` are the weights to score with, when the state holds an adapter of
            the reference instead of all weights (:mod:`rl.adapters`).

    :attr:`accumulate` and :attr:`apply` are the two compiled programs of an update; ``agent-world plan``
    compiles them for a TPU slice.
    """

    def __init__(
        self,
        score: Score,
        config: LearnerConfig,
        total_steps: int | None = None,
        dump_to: Path | None = None,
        check: Callable[[], None] = lambda: None,
        donate: bool = False,
        mesh: Mesh | None = None,
        full: Callable[[Params, Params], Params] | None = None,
    ):
        self.config, self._check, self._donate, self._mesh = config, check, donate, mesh
        self.optimizer = make_optimizer(config.optimizer, total_steps)
        self._refusals = Refusals(config.max_refused, dump_to)
        self._score, self._full = score, full or (lambda params, reference: params)
        self._logp = jax.jit(
            lambda params, reference, batch: score(self._full(params, reference), batch)[0],
            out_shardings=None if mesh is None else NamedSharding(mesh, PartitionSpec()),
        )
        self.accumulate = jax.jit(self._accumulate_fn, donate_argnums=(2,))
        self._weigh = jax.jit(self._weigh_fn)
        self.apply = jax.jit(
            lambda state, gradients, loss: apply_gradients(self.optimizer, state, gradients, loss),
            donate_argnums=(0,) if donate else (),
        )

    def init(self, params: Params) -> TrainState:
        """A fresh state. One that will be donated gets parameters of its own: ``params`` stay usable."""
        state = init_state(jax.tree.map(jnp.copy, params) if self._donate else params, self.optimizer)
        return state if self._mesh is None else put_whole(self._mesh, state)

    def update(
        self, state: TrainState, minibatches: Sequence[Sequence[Batch]], reference: Params
    ) -> tuple[TrainState, dict[str, float]]:
        """Run one optimizer step for each minibatch, in order.

        Args:
            state: the state that sampled the batch (its policy is the "old" one); used up with ``donate``.
            minibatches: each a list of micro-batches of one shape, see :func:`rl.batch.micro_batches`.
            reference: parameters of the KL reference.

        Returns:
            The new state, and metrics as means over tokens, averaged over the minibatches that were
            applied (over all when none was). ``sampler_trainer_gap`` is the largest
            |log p_trainer - log p_sampler| of the first minibatch, where both have the same parameters
            (rule 3), ``sampler_trainer_gap_mean`` its mean; with a mismatch correction they are over
            all minibatches, with ``mismatch_weight`` (mean) and ``rejected`` (share of tokens).

        Raises:
            UpdatesRefused: ``max_refused`` updates in a row were refused.
        """
        corrected: dict[str, float] = {}
        if self.config.mismatch.on:
            minibatches, corrected = self.correct(self._full(state.params, reference), minibatches)
        results = []
        for micro in minibatches:
            check = _never if self._donate and results else self._check
            with self._on_mesh():
                state, metrics = self._minibatch(state, micro, reference, check)
            results.append(metrics)
        applied = [r for r in results if _finite(r)] or results
        means = {name: sum(r[name] for r in applied) / len(applied) for name in results[0]}
        means["ratio_max"] = max(r["ratio_max"] for r in applied)
        means["tokens"] = sum(r["tokens"] for r in results)
        means["sampler_trainer_gap"] = results[0]["gap_max"]
        means["sampler_trainer_gap_mean"] = results[0]["gap"]
        del means["gap_max"], means["gap"]
        means["updates"], means["skipped"] = int(state.updates), int(state.skipped)
        return state, means | corrected

    def gradients(
        self,
        params: Params,
        micro: Sequence[Batch],
        reference: Params,
        check: Callable[[], None] | None = None,
    ) -> tuple[Params, Array, dict[str, float]]:
        """The gradient of one minibatch, accumulated over its micro-batches; ``check`` as in the class.

        Returns:
            The gradient, the loss, and metrics (means over tokens, but ``*_max`` and ``tokens``).
        """
        count = self._denominator(micro)
        gradients = jax.tree.map(jnp.zeros_like, params)
        sums: dict[str, Any] = {}
        for batch in micro:
            (check or self._check)()
            with self._on_mesh():
                gradients, part = self.accumulate(params, reference, gradients, self._put(batch), count)
            for name, value in part.items():
                old = sums.get(name, 0.0)
                sums[name] = jnp.maximum(old, value) if name.endswith("_max") else old + value
        loss = (sums["policy_loss"] + self.config.kl_weight * sums.pop("kl_loss")) / count
        tokens = max(sum(batch.token_count for batch in micro), 1.0)
        divide = {"ratio_max": 1.0, "gap_max": 1.0, "tokens": 1.0, "policy_loss": count}
        return gradients, loss, {name: float(v / divide.get(name, tokens)) for name, v in sums.items()}

    def _minibatch(
        self, state: TrainState, micro: Sequence[Batch], reference: Params, check: Callable[[], None]
    ) -> tuple[TrainState, dict[str, float]]:
        gradients, loss, metrics = self.gradients(state.params, micro, reference, check)
        state, norm = self.apply(state, gradients, loss)
        metrics = {"loss": float(loss), "grad_norm": float(norm), **metrics}
        applied = _finite(metrics)
        score = lambda batch: np.asarray(self._logp(state.params, reference, self._put(batch)))  # noqa: E731
        logp = [] if applied else [score(batch) for batch in micro]
        self._refusals.saw(applied, metrics, micro, logp)
        return state, metrics

    def _on_mesh(self) -> Any:
        return nullcontext() if self._mesh is None else on_mesh(self._mesh)

    def _put(self, batch: Batch) -> Batch:
        return with_key_blocks(batch) if self._mesh is None else shard_batch(self._mesh, batch)

    def _denominator(self, micro: Sequence[Batch]) -> float:
        """What the summed loss of a whole minibatch is divided by: tokens, or sequences (times a length)."""
        if self.config.aggregate == "token":
            return max(sum(batch.token_count for batch in micro), 1.0)
        sequences = float(max(sum(map(count_sequences, micro)), 1))
        return sequences * (self.config.constant_length if self.config.aggregate == "constant" else 1)

    def _accumulate_fn(
        self, params: Params, reference: Params, gradients: Params, batch: Batch, count: float
    ) -> tuple[Params, dict[str, Array]]:
        """Add one micro-batch's share of the minibatch's gradient; also return its metric sums."""
        config, mask = self.config, batch.weights
        sequences = number_sequences(batch.segment_ids, batch.branch_ids)
        weights = aggregation_weights(mask, sequences, config.aggregate)
        if config.kl_weight:
            reference_logp = self._score(reference, batch)[0]
        else:
            reference_logp = None

        def loss_fn(params: Params) -> tuple[Array, dict[str, Array]]:
            logp, entropy = self._score(self._full(params, reference), batch)
            policy = policy_sums(
                logp, batch.logprobs, batch.advantages, mask, sequences,
                low=config.clip_low, high=config.clip_high,
                ratio=config.ratio, surrogate=config.surrogate, aggregate=config.aggregate,
            )  # fmt: skip
            if reference_logp is None:
                kl = jnp.zeros_like(logp)
            else:
                kl = kl_estimates(logp, reference_logp, mask, config.kl_estimator)
            kl_loss = jnp.sum(kl * weights)
            sums = {
                "policy_loss": policy.loss,
                "kl_loss": kl_loss,
                "kl": jnp.sum(kl * mask),
                "entropy": jnp.sum(mask * jnp.where(mask > 0, entropy, 0.0)),
                "tokens": policy.tokens,
                "ratio_mean": policy.ratio,
                "ratio_max": policy.ratio_max,
                "gap": policy.gap,
                "gap_max": policy.gap_max,
                "clip_high": policy.clipped_high,
                "clip_low": policy.clipped_low,
            }
            return (policy.loss + config.kl_weight * kl_loss) / count, sums

        (_, sums), gradient = jax.value_and_grad(loss_fn, has_aux=True)(params)
        return jax.tree.map(jnp.add, gradients, gradient), sums

    # --- sampler and trainer apart ----------------------------------------------------------------

    def correct(
        self, params: Params, minibatches: Sequence[Sequence[Batch]]
    ) -> tuple[list[list[Batch]], dict[str, float]]:
        """Minibatches with the trainer's own log-probabilities as the old ones, and advantages weighted.

        Returns:
            The minibatches, and the metrics that :meth:`update` describes.
        """
        done, parts = [], []
        for micro in minibatches:
            with self._on_mesh():
                pairs = [self._weigh(params, self._put(batch)) for batch in micro]
            done.append([batch._replace(**changed) for batch, (changed, _) in zip(micro, pairs, strict=True)])
            parts += [sums for _, sums in pairs]
        tokens = max(sum(batch.token_count for micro in minibatches for batch in micro), 1.0)
        mean = lambda name: float(sum(part[name] for part in parts)) / tokens  # noqa: E731
        return done, {
            "sampler_trainer_gap": max(float(part["gap_max"]) for part in parts),
            "sampler_trainer_gap_mean": mean("gap"),
            "mismatch_weight": mean("weight"),
            "rejected": mean("rejected"),
        }

    def _weigh_fn(self, params: Params, batch: Batch) -> tuple[dict[str, Array], dict[str, Array]]:
        """One micro-batch. A weight on a token's policy loss is a weight on its advantage: it rides along.

        The KL term isn't weighted (nor is it in TRL).
        """
        config, mask = self.config.mismatch, batch.weights
        logp = self._score(params, batch)[0]
        sequences = number_sequences(batch.segment_ids, batch.branch_ids)
        gap = masked_log_ratio(logp, batch.logprobs, mask)
        weight = kept = jnp.ones_like(logp)
        if config.truncate is not None:
            at_level = level_log_ratio(gap, mask, sequences, config.truncate_level)
            weight = truncated_weights(at_level, config.truncate)
        if config.reject_above is not None or config.reject_below > 0:
            at_level = level_log_ratio(gap, mask, sequences, config.reject_level)
            high = math.inf if config.reject_above is None else config.reject_above
            kept = accepted(at_level, config.reject_below, high)
        sums = {
            "gap": jnp.sum(jnp.abs(gap) * mask),
            "gap_max": jnp.max(jnp.abs(gap)),
            "weight": jnp.sum(weight * kept * mask),
            "rejected": jnp.sum((1.0 - kept) * mask),
        }
        return {"logprobs": logp, "advantages": batch.advantages * weight * kept}, sums


def _never() -> None:
    """The check of an update that can't be taken back."""


def count_sequences(batch: Batch) -> int:
    """Sequences of a micro-batch that carry weight: segments, or branches of one."""
    rows, columns = np.nonzero(np.asarray(batch.weights))
    segments, branches = (np.asarray(ids)[rows, columns] for ids in (batch.segment_ids, batch.branch_ids))
    return len(np.unique(np.stack([rows, segments, branches]), axis=1).T)


def _finite(metrics: dict[str, float]) -> bool:
    """Whether an update was applied, as :func:`apply_gradients` decides it."""
    return math.isfinite(metrics["loss"]) and math.isfinite(metrics["grad_norm"])
