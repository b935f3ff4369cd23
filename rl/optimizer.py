"""The optimizer: AdamW behind a clip of the gradient's norm, and the state that it changes.

In: gradients. Out: a new :class:`TrainState`, or the same one where a number wasn't finite (rule 7).
Supervised training and GRPO share it.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array
from pydantic import BaseModel, ConfigDict, Field

Params = Any  # a pytree of arrays


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
    first_moment: Literal["float32", "bfloat16"] = "float32"  # what AdamW keeps it in: 2 bytes a weight saved
    max_grad_norm: float = 1.0  # usual for GRPO (verl, TRL)
    # Above 0: the last norm's gain learns its length alone, at this rate of its logarithm (see logit_scale).
    logit_scale_rate: float = Field(default=0.0, ge=0)


class TrainState(NamedTuple):
    """What an optimizer step changes; a pytree, saved whole in checkpoints."""

    params: Params
    opt_state: Any
    updates: Array  # optimizer steps done
    skipped: Array  # optimizer steps refused because a number wasn't finite


def make_optimizer(config: OptimizerConfig, total_steps: int | None = None) -> optax.GradientTransformation:
    """AdamW behind a global-norm clip; the logit scale apart from it when it has a rate of its own.

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
    adamw = optax.chain(
        optax.clip_by_global_norm(config.max_grad_norm),
        optax.adamw(
            rate,
            b1=config.b1,
            b2=config.b2,
            weight_decay=config.weight_decay,
            mu_dtype=None if config.first_moment == "float32" else config.first_moment,
        ),
    )
    if not config.logit_scale_rate:
        return adamw
    return optax.partition({"weights": adamw, "scale": logit_scale(config)}, _parts)


def logit_scale(config: OptimizerConfig) -> optax.GradientTransformation:
    """Adam on the logarithm of a gain's length, its direction left as it is.

    The length of the last norm's gain is a factor on all logits: one over the temperature at which the
    policy samples. It is learned as CLIP learns its temperature (Radford et al., 2021: one scalar, in
    logarithms) and like a length in weight normalisation (Salimans and Kingma, 2016), so the model keeps its
    shape. One scalar sums up what all tokens say about being surer; AdamW on the gain would scatter it.
    """
    adam = optax.chain(optax.scale_by_adam(config.b1, config.b2), optax.scale(-config.logit_scale_rate))

    def init(params: Params) -> Any:
        return adam.init(jax.tree.map(lambda gain: jnp.zeros(()), params))

    def update(updates: Params, state: Any, params: Params | None = None) -> tuple[Params, Any]:
        # d loss / d log length = gradient . gain
        pull = jax.tree.map(lambda gradient, gain: jnp.sum(gradient * gain), updates, params)
        steps, state = adam.update(pull, state)
        return jax.tree.map(lambda step, gain: jnp.expm1(step) * gain, steps, params), state

    return optax.GradientTransformation(init, update)


def _parts(params: Params) -> Params:
    """The label of every leaf: "scale" for the gain of the last norm, ``norm/weight``; else "weights".

    Raises:
        ValueError: there is no such gain, so nothing that ``logit_scale_rate`` could be the rate of.
    """

    def part(path: tuple[Any, ...], _: Any) -> str:
        return (
            "scale"
            if jax.tree_util.keystr(path[:2], simple=True, separator="/") == "norm/weight"
            else "weights"
        )

    labels = jax.tree_util.tree_map_with_path(part, params)
    if "scale" not in jax.tree.leaves(labels):
        raise ValueError(
            "logit_scale_rate needs the gain of the last norm (norm/weight) among the parameters"
        )
    return labels


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
