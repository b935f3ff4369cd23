"""The logit scale: one scalar beside AdamW, which makes a policy surer or less sure of all that it does."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from model.scoring import logits_of
from rl.optimizer import OptimizerConfig, make_optimizer
from rl.policy import Policy

GAIN = ("norm", "weight")


def stepped(config: OptimizerConfig, params, gradients, times: int = 1):
    optimizer = make_optimizer(config)
    state = optimizer.init(params)
    for _ in range(times):
        updates, state = optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
    return params


@pytest.fixture
def toy():
    rng = np.random.default_rng(0)
    make = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    return {"norm": {"weight": make(6)}, "map": make(3, 4)}, {"norm": {"weight": make(6)}, "map": make(3, 4)}


def test_the_last_gain_keeps_its_direction_and_its_length_goes_by_the_rate(toy):
    params, gradients = toy
    after = stepped(OptimizerConfig(logit_scale_rate=0.05), params, gradients)
    ratio = after["norm"]["weight"] / params["norm"]["weight"]
    slope = float(jnp.sum(gradients["norm"]["weight"] * params["norm"]["weight"]))
    np.testing.assert_allclose(
        ratio, np.exp(-np.sign(slope) * 0.05), rtol=1e-5
    )  # Adam's first step: the rate


def test_all_other_weights_move_as_without_it(toy):
    params, gradients = toy
    quiet = {
        "norm": {"weight": jnp.zeros(6)},
        "map": gradients["map"],
    }  # the clip sees no norm gain either way
    plain = stepped(OptimizerConfig(), params, quiet, times=3)
    beside = stepped(OptimizerConfig(logit_scale_rate=0.05), params, gradients, times=3)
    np.testing.assert_array_equal(beside["map"], plain["map"])


def test_a_longer_gain_is_a_lower_temperature(policy: Policy):
    """What the learned scalar means: the whole model's log-probabilities at temperature 1 / 1.7."""
    ids = np.random.default_rng(0).integers(3, policy.config.vocab_size, (2, 24))
    at, rows = np.broadcast_to(np.arange(24), ids.shape), np.ones_like(ids)

    def logits(params):
        model = nnx.merge(policy.graphdef, params)
        return logits_of(model(ids, at, rows), model.embedding[...])

    scale = lambda path, x: x * (1.7 if _names(path)[:2] == GAIN else 1.0)  # noqa: E731
    longer = jax.tree_util.tree_map_with_path(scale, policy.params)
    np.testing.assert_allclose(logits(longer), 1.7 * logits(policy.params), rtol=1e-4, atol=1e-5)


def test_parameters_without_a_last_norm_are_refused():
    with pytest.raises(ValueError, match="norm/weight"):
        make_optimizer(OptimizerConfig(logit_scale_rate=0.1)).init({"table": jnp.zeros(3)})


def _names(path) -> tuple[str, ...]:
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)
