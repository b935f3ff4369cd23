"""Scoring with the real transformer: packed, shared and unpacked rows give the same numbers."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from model.transformer import TokenBatch, token_logprobs
from rl.batch import Sample, micro_batches, pack
from rl.learner import Learner, LearnerConfig
from rl.policy import Policy


def group(prompt_length: int, members: int, seed: int, vocabulary: int) -> list[Sample]:
    rng = np.random.default_rng(seed)
    prompt = rng.integers(3, vocabulary, prompt_length)
    made = []
    for _ in range(members):
        ids = np.concatenate([prompt, rng.integers(3, vocabulary, rng.integers(2, 40))]).astype(np.int32)
        weights = (np.arange(len(ids)) >= prompt_length).astype(np.float32)
        noise = rng.normal(0, 0.1, len(ids))
        advantages = np.full(len(ids), rng.normal())
        made.append(Sample(ids, weights, -5 + noise, advantages, prompt_length, seed))
    return made


@pytest.fixture(scope="module")
def samples(policy):
    return [s for g in range(3) for s in group(30 + 20 * g, 4, g, policy.config.vocab_size)]


def scored(policy, batch) -> dict[tuple, np.ndarray]:
    """context and target -> log-probability and entropy, for tokens that carry weight."""
    logp, entropy = jax.jit(policy.score)(policy.params, batch)
    found = {}
    for r, t in zip(*np.nonzero(batch.weights), strict=True):
        key = (batch.positions[r, t], batch.targets[r, t], float(batch.logprobs[r, t]))
        found[key] = np.array([logp[r, t], entropy[r, t]])
    return found


@pytest.mark.parametrize("share", [False, True])
def test_rule_4_packed_equals_unpacked(policy, samples, share):
    """Each sample alone in a row, against all in rows of 256 with and without shared prompts."""
    alone = {}
    for sample in samples:
        alone |= scored(policy, pack([sample], 160))
    packed = scored(policy, pack(samples, 256, share_prompts=share))
    assert packed.keys() == alone.keys()
    for key, value in alone.items():
        np.testing.assert_allclose(packed[key], value, atol=1e-5)


def test_rule_4_gradients_too(policy, samples):
    """One update from shared, packed rows equals the update from one sample a row."""
    learner = Learner(policy.score, LearnerConfig())
    reference = Policy.fresh(policy.config, policy.tokenizer, seed=1).params

    def update(batch, rows):
        state, metrics = learner.update(learner.init(policy.params), [micro_batches(batch, rows)], reference)
        return state.opt_state, metrics

    one_a_row = update(pack(samples, 160), 4)
    shared = update(pack(samples, 256, share_prompts=True), 1)
    assert shared[1] == pytest.approx(one_a_row[1], rel=1e-4, abs=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), one_a_row[0], shared[0])


def test_scoring_agrees_with_the_models_own(policy, samples):
    sample = samples[0]
    tokens = sample.ids[None]
    row = TokenBatch(tokens, np.arange(tokens.shape[1])[None], np.ones_like(tokens))
    logp, entropy = token_logprobs(policy.graphdef, policy.params, row)
    mine = jax.jit(policy.score)(policy.params, pack([sample], tokens.shape[1] - 1))
    np.testing.assert_allclose(mine[0][0], logp[0, :-1], atol=1e-5)
    np.testing.assert_allclose(mine[1][0], entropy[0, :-1], atol=1e-5)


def test_a_policy_survives_its_folder(policy, tmp_path):
    policy.save(tmp_path / "policy")
    again = Policy.load(tmp_path / "policy", version=4)
    assert (again.config, again.version) == (policy.config, 4)
    jax.tree.map(np.testing.assert_array_equal, again.params, policy.params)
    assert again.tokenizer.encode("B-1") == policy.tokenizer.encode("B-1")
