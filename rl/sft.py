"""Supervised training: next-token prediction on weighted tokens, the cold start before GRPO.

In: a policy and examples (token ids with a loss weight each; :mod:`rl.data` makes them from scripted
episodes). Out: a policy. The run folder holds ``sft.jsonl`` and ``tensorboard/`` (metrics),
``checkpoints/`` (Orbax) and, at the end, ``policy/``. A killed run goes on from its last checkpoint
with the same outcome: the batches depend on (seed, epoch) only.

:func:`make_lm_step` is the one update that all next-token training shares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from model.checkpoint import Checkpoints
from rl.batch import Batch, Row, Sample, fill, plan, with_key_blocks
from rl.data import MAX_OBSERVATION
from rl.learner import (
    Config,
    OptimizerConfig,
    Params,
    Score,
    TrainState,
    apply_gradients,
    init_state,
    make_optimizer,
)
from rl.losses import cross_entropy_sum
from rl.metrics import Metrics
from rl.policy import Policy
from rl.trackers import Tracker
from rl.trackers import check as check_tracker
from synth.errors import CallerError

WINDOW = 1024  # samples packed together: enough for full rows, few enough to stay fast

LMStep = Callable[[TrainState, Batch], tuple[TrainState, dict[str, Array]]]


class SFTConfig(Config):
    """One supervised run. The figures are ours, for models of 1 to 2 million parameters.

    ``renamed`` and ``max_observation`` say how ``agent-world sft`` makes its examples.
    """

    seed: int = 0
    epochs: int = 2
    rows: int = 8
    row_length: int = 1024
    # examples of one group show their common beginning (an environment's tools) once a row: the same losses,
    # fewer columns (rl/batch.py). Off: the shipped demo's batches stay as they are.
    share_prompts: bool = False
    # each example this many times more with other words (rl/renaming.py), so that names are copied, not
    # learnt by heart: where a few environments share their tools, as the states of one MCP server do
    renamed: int = 0
    max_observation: int = MAX_OBSERVATION  # characters of a tool's result; as in the limits of sampling
    checkpoint_every: int = 50
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-3, schedule="cosine", warmup_steps=10)


def make_lm_step(score: Score, optimizer: optax.GradientTransformation) -> LMStep:
    """A jitted update ``step(state, batch) -> (state, metrics)``.

    ``metrics``: ``loss`` (mean of -log p by weight), ``target_loss`` (mean over the tokens of weight 1:
    what the policy is to say), ``tokens`` (sum of weights), ``grad_norm``.
    """

    @jax.jit
    def step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
        def loss_fn(params: Any) -> tuple[Array, dict[str, Array]]:
            sums = loss_sums(score(params, batch)[0], batch)
            return sums["loss"] / jnp.maximum(sums["tokens"], 1.0), sums

        (loss, sums), gradients = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        state, norm = apply_gradients(optimizer, state, gradients, loss)
        return state, means(sums) | {"grad_norm": norm}

    return step


def loss_sums(logp_RT: Array, batch: Batch) -> dict[str, Array]:
    """Sums over one batch; see :func:`means`."""
    target = jnp.asarray(batch.weights >= 1.0, jnp.float32)
    return {
        "loss": cross_entropy_sum(logp_RT, batch.weights),
        "tokens": jnp.sum(batch.weights),
        "target_loss": cross_entropy_sum(logp_RT, target),
        "targets": jnp.sum(target),
    }


def means(sums: dict[str, Array]) -> dict[str, Array]:
    """Losses as means; ``tokens`` stays a sum."""
    return {
        "loss": sums["loss"] / jnp.maximum(sums["tokens"], 1.0),
        "target_loss": sums["target_loss"] / jnp.maximum(sums["targets"], 1.0),
        "tokens": sums["tokens"],
    }


def heldout_loss(score: Score, params: Any, batches: Sequence[Batch]) -> dict[str, float]:
    """``loss`` and ``target_loss`` over batches that aren't trained on."""
    measure = jax.jit(lambda params, batch: loss_sums(score(params, batch)[0], batch))
    parts = [measure(params, batch) for batch in batches]
    total = jax.tree.map(lambda *values: sum(values), *parts)
    values = means(total)
    return {"loss": float(values["loss"]), "target_loss": float(values["target_loss"])}


def plan_epoch(
    samples: Sequence[Sample], length: int, seed: int, epoch: int, *, share_prompts: bool = False
) -> list[Row]:
    """Rows of one epoch in shuffled order; every sample once, the same for the same arguments."""
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(samples))
    rows: list[Row] = []
    for start in range(0, len(order), WINDOW):
        window = [samples[i] for i in order[start : start + WINDOW]]
        rows += plan(window, length, share_prompts=share_prompts)
    return [rows[i] for i in rng.permutation(len(rows))]


def batches_of(rows: Sequence[Row], count: int, length: int) -> Iterator[Batch]:
    """Batches of exactly ``count`` rows; the last is filled up with padding."""
    for start in range(0, len(rows), count):
        yield fill(rows[start : start + count], length, at_least=count)


def train_sft(
    config: SFTConfig,
    policy: Policy,
    examples: Sequence[Sample],
    run_dir: str | Path,
    *,
    heldout: Sequence[Sample] = (),
    progress: Callable[[int, int, dict[str, float]], None] | None = None,
    tracker: Tracker | None = None,
) -> Policy:
    """Train on every example ``epochs`` times.

    Args:
        examples: see :func:`rl.batch.text_sample`; none longer than ``row_length + 1``.
        heldout: examples to measure the loss on, before the first step (``before_heldout_...`` of its
            metrics) and at each epoch's end (``heldout_...``).
        progress: called after each step with (step, steps in all, metrics).
        tracker: shows the metrics besides TensorBoard (:mod:`rl.trackers`).

    Returns:
        The trained policy, its ``version`` unchanged: versions count from the start of GRPO.

    Raises:
        CallerError: no examples, or one that is too long for a row.
    """
    _check(config, [*examples, *heldout])
    check_tracker(tracker)
    share = config.share_prompts
    epochs = [
        plan_epoch(examples, config.row_length, config.seed, e, share_prompts=share)
        for e in range(config.epochs)
    ]
    sizes = [-(-len(rows) // config.rows) for rows in epochs]
    total = sum(sizes)
    optimizer = make_optimizer(config.optimizer, total)
    score = partial(policy.score, branches=share)
    lm_step, state, first = make_lm_step(score, optimizer), init_state(policy.params, optimizer), 0
    kept_out = plan(heldout, config.row_length, share_prompts=share)
    held = [with_key_blocks(batch) for batch in batches_of(kept_out, config.rows, config.row_length)]

    def measured(when: str, params: Params) -> dict[str, float]:
        found = heldout_loss(score, params, held) if held else {}
        return {f"{when}heldout_{name}": value for name, value in found.items()}

    with Checkpoints(Path(run_dir) / "checkpoints") as checkpoints:
        saved = checkpoints.restore_latest(state)
        if saved is not None:
            first, state = saved.step, saved.state
        before = {} if first else measured("before_", state.params)
        metrics = Metrics(Path(run_dir), "sft", tracker=tracker)
        metrics.truncate(first)
        step = 0
        for rows, size in zip(epochs, sizes, strict=True):
            end = step + size
            done = max(first - step, 0)  # batches of this epoch that an earlier run did
            step += min(done, size)
            for batch in batches_of(rows[done * config.rows :], config.rows, config.row_length):
                state, numbers = lm_step(state, with_key_blocks(batch))
                numbers = {name: float(value) for name, value in numbers.items()} | before
                step, before = step + 1, {}
                if step == end:
                    numbers |= measured("", state.params)
                metrics.write(step - 1, numbers | {"skipped": int(state.skipped)})
                if step % config.checkpoint_every == 0 or step == total:
                    checkpoints.save(step, state)
                if progress:
                    progress(step, total, numbers)
        metrics.close()
    trained = policy.with_params(state.params, policy.version)
    trained.save(Path(run_dir) / "policy")
    return trained


def _check(config: SFTConfig, samples: Sequence[Sample]) -> None:
    if not samples:
        raise CallerError("supervised training needs at least one example")
    longest = max(len(sample.ids) for sample in samples)
    if longest > config.row_length + 1:
        raise CallerError(
            f"row_length is {config.row_length}, but an example has {longest} tokens; "
            "raise row_length or leave such examples out"
        )
