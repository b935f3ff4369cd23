"""The learner on a bigram table: accumulation, refused updates, and that it learns a bandit by GRPO."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl.advantages import group_advantages, informative
from rl.batch import Batch, Sample, micro_batches, pack
from rl.learner import Learner, LearnerConfig, OptimizerConfig, make_optimizer

VOCAB = 12


def score(params, batch: Batch):
    """The smallest language model: the next token depends on this one only."""
    logp = jax.nn.log_softmax(params["table"][batch.tokens])
    chosen = jnp.take_along_axis(logp, batch.targets[..., None], axis=-1)[..., 0]
    return chosen, -jnp.sum(jnp.exp(logp) * logp, axis=-1)


def table(seed: int = 0):
    return {"table": jax.random.normal(jax.random.key(seed), (VOCAB, VOCAB))}


def samples(count: int, seed: int = 0, params=None) -> list[Sample]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        ids = rng.integers(0, VOCAB, rng.integers(4, 20)).astype(np.int32)
        weights = (np.arange(len(ids)) >= 2).astype(np.float32)
        if params is None:
            logprobs = -rng.exponential(1.0, len(ids))
        else:
            rows = np.asarray(jax.nn.log_softmax(params["table"]))
            logprobs = np.array([0.0, *(rows[a, b] for a, b in itertools.pairwise(ids))])
        made.append(Sample(ids, weights, logprobs, np.full(len(ids), rng.normal())))
    return made


def close(a, b, tolerance):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=tolerance), a, b)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_accumulated_micro_batches_equal_one_whole_batch(rows):
    batch = pack(samples(30), 32)
    learner = Learner(score, LearnerConfig())
    whole, a = learner.update(learner.init(table()), [[batch]], table(1))
    cut, b = learner.update(learner.init(table()), [micro_batches(batch, rows)], table(1))
    close(whole.params, cut.params, 1e-6)
    assert a == pytest.approx(b, rel=1e-5)


def test_every_token_weighs_the_same_whatever_the_length_of_its_episode():
    """Token-level aggregation: on policy, the loss is minus the mean advantage over tokens."""
    params = table()
    data = samples(10, params=params)
    learner = Learner(score, LearnerConfig(kl_weight=0.0))
    _, metrics = learner.update(learner.init(params), [[pack(data, 40)]], params)
    tokens = np.concatenate([s.advantages[s.weights > 0] for s in data])
    assert metrics["loss"] == pytest.approx(-tokens.mean(), rel=1e-4)
    assert metrics["tokens"] == len(tokens)
    assert metrics["sampler_trainer_gap"] < 1e-5
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)


def test_rule_7_a_non_finite_update_is_skipped_and_counted():
    learner = Learner(score, LearnerConfig(kl_weight=0.0))
    state = learner.init(table())
    batch = pack(samples(4), 32)
    broken = batch._replace(advantages=np.where(batch.weights > 0, np.inf, 0).astype(np.float32))
    after, metrics = learner.update(state, [[broken]], state.params)
    close(after.params, state.params, 0)
    close(after.opt_state, state.opt_state, 0)
    assert (metrics["skipped"], metrics["updates"]) == (1, 0)
    after, metrics = learner.update(after, [[batch]], state.params)
    assert (metrics["skipped"], metrics["updates"]) == (1, 1)
    assert np.abs(after.params["table"] - state.params["table"]).max() > 0


def test_the_kl_term_pulls_towards_the_reference():
    reference, start = table(1), table(0)
    data = [Sample(s.ids, s.weights, s.logprobs, np.zeros(len(s.ids))) for s in samples(40, params=start)]
    optimizer = OptimizerConfig(learning_rate=0.05)
    learner = Learner(score, LearnerConfig(kl_weight=1.0, optimizer=optimizer))
    state, kls = learner.init(start), []
    for _ in range(30):
        state, metrics = learner.update(state, [[pack(data, 64)]], reference)
        kls.append(metrics["kl"])
    assert kls[0] > 0
    assert kls[-1] < 0.2 * kls[0]


def test_schedules_start_peak_and_end_where_they_say():
    def step_size(config, total, count):
        optimizer = make_optimizer(config, total)
        params = {"w": jnp.ones(())}
        state, sizes = optimizer.init(params), []
        for _ in range(count):
            updates, state = optimizer.update({"w": jnp.ones(())}, state, params)
            sizes.append(-float(updates["w"]))
        return sizes

    cosine = step_size(OptimizerConfig(learning_rate=0.1, schedule="cosine", warmup_steps=2), 10, 11)
    assert cosine[0] == 0
    assert cosine[2] == pytest.approx(0.1, rel=1e-3)
    assert cosine[10] == pytest.approx(0.01, rel=1e-3)
    constant = step_size(OptimizerConfig(learning_rate=0.1, warmup_steps=4), None, 6)
    assert constant == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1], rel=1e-3)


def test_grpo_learns_a_bandit_from_below_a_fifth_to_above_four_fifths():
    """Real sampling, groups of 8, 0/1 reward, the same losses and learner as the agent's training."""
    contexts, group, rng = 6, 8, np.random.default_rng(0)
    right = rng.integers(0, VOCAB, contexts)
    config = LearnerConfig(optimizer=OptimizerConfig(learning_rate=0.1))
    learner = Learner(score, config)
    state, curve = learner.init({"table": jnp.zeros((VOCAB, VOCAB))}), []
    start = state.params
    for _ in range(60):
        logp = np.asarray(jax.nn.log_softmax(state.params["table"]), np.float64)
        data, rewards = [], []
        for context in range(contexts):
            actions = rng.choice(VOCAB, group, p=np.exp(logp[context]) / np.exp(logp[context]).sum())
            reward = (actions == right[context]).astype(float)
            rewards.extend(reward)
            if informative(reward):
                for action, advantage in zip(actions, group_advantages(reward), strict=True):
                    data.append(
                        Sample(
                            np.array([context, action], np.int32),
                            np.array([0.0, 1.0]),
                            np.array([0.0, logp[context, action]]),
                            np.full(2, advantage),
                        )
                    )
        curve.append(float(np.mean(rewards)))
        if data:
            state, metrics = learner.update(state, [micro_batches(pack(data, 16), 8)], start)
            assert metrics["sampler_trainer_gap"] < 1e-5
    assert np.mean(curve[:5]) < 0.2
    assert np.mean(curve[-5:]) > 0.8
    assert math.isfinite(metrics["kl"])
