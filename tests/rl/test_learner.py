"""The learner on a bigram table: accumulation, refused updates, corrections, and that it learns a bandit."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl.advantages import group_advantages, informative
from rl.algorithms import ALGORITHMS, with_algorithm
from rl.batch import Batch, Sample, micro_batches, pack
from rl.learner import (
    Learner,
    LearnerConfig,
    MismatchConfig,
    OptimizerConfig,
    count_sequences,
    make_optimizer,
)
from rl.refused import UpdatesRefused
from synth.errors import InfrastructureError

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


CORRECTED = {"mismatch": MismatchConfig(truncate=1.5, reject_below=0.2, reject_level="sequence")}


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_accumulated_micro_batches_equal_one_whole_batch(rows):
    batch = pack(samples(30), 32)
    learner = Learner(score, LearnerConfig())
    whole, a = learner.update(learner.init(table()), [[batch]], table(1))
    cut, b = learner.update(learner.init(table()), [micro_batches(batch, rows)], table(1))
    close(whole.params, cut.params, 1e-6)
    assert a == pytest.approx(b, rel=1e-5)


@pytest.mark.parametrize("knobs", [*({"name": name} for name in ALGORITHMS), CORRECTED], ids=str)
def test_whatever_the_algorithm_the_cut_and_the_packing_change_nothing(knobs):
    """All packed in one batch; each sample a batch of its own."""
    learner_knobs = ALGORITHMS[knobs["name"]]["learner"] if "name" in knobs else knobs
    learner = Learner(score, LearnerConfig(**learner_knobs, max_refused=0))
    data = samples(12)
    results = []
    for micro in ([pack(data, 32)], [pack([sample], 32) for sample in data]):
        if learner.config.mismatch.on:
            (micro,), numbers = learner.correct(table(), [micro])
            assert 0 < numbers["rejected"] < 1
        results.append(learner.gradients(table(), micro, table(1)))
    (gradient, loss, metrics), (other, other_loss, other_metrics) = results
    assert np.abs(gradient["table"]).max() > 0
    close(gradient, other, 1e-6)
    assert float(other_loss) == pytest.approx(float(loss), abs=1e-6)
    assert other_metrics == pytest.approx(metrics, rel=1e-4, abs=1e-6)


def test_sequences_are_counted_across_shared_prompts_packing_and_padding():
    ids = np.arange(6, dtype=np.int32)
    weights = np.array([0, 0, 1, 0, 1, 1.0])
    data = [Sample(ids, weights, ids * 0.0, ids * 0.0, prompt_length=2, group=g) for g in (1, 1, 1, 2)]
    unlearnt = Sample(ids, weights * 0, ids * 0.0, ids * 0.0)
    for share in (False, True):
        parts = micro_batches(pack([*data, unlearnt], 17, share_prompts=share), 2)
        assert sum(map(count_sequences, parts)) == len(data)


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


def broken_batch(where: str = "advantages") -> Batch:
    batch = pack(samples(4), 32)
    return batch._replace(**{where: np.where(batch.weights > 0, np.nan, 0).astype(np.float32)})


def test_rule_7_a_refused_minibatch_does_not_spoil_the_others_numbers():
    learner = Learner(score, LearnerConfig())
    state = learner.init(table())
    good = pack(samples(4), 32)
    alone = learner.update(state, [[good]], table(1))[1]
    _, both = learner.update(state, [[broken_batch()], [good]], table(1))
    assert both["loss"] == alone["loss"]
    assert both["entropy"] == alone["entropy"]
    assert (both["skipped"], both["updates"]) == (1, 1)


def test_rule_7_too_many_refusals_in_a_row_end_the_run_and_leave_the_batch(tmp_path):
    learner = Learner(score, LearnerConfig(max_refused=3), dump_to=tmp_path / "refused")
    state = learner.init(table())
    good, bad = [pack(samples(4), 32)], micro_batches(broken_batch(), 1)
    for micro in (bad, bad, good, bad, bad):  # never three in a row
        state, metrics = learner.update(state, [micro], state.params)
    assert (metrics["skipped"], metrics["updates"]) == (4, 1)
    assert not (tmp_path / "refused").exists()
    with pytest.raises(UpdatesRefused, match=r"3 updates in a row .* advantages \((\d+) of \1\)") as raised:
        learner.update(state, [bad], state.params)
    assert isinstance(raised.value, InfrastructureError)  # one line and exit 1, not the caller's mistake
    (path,) = (tmp_path / "refused").iterdir()
    assert str(path) in str(raised.value)
    dumped = np.load(path)
    np.testing.assert_array_equal(dumped["tokens"], np.concatenate([part.tokens for part in bad]))
    assert np.isnan(dumped["advantages"]).any()
    assert np.isfinite(dumped["trainer_logprobs"]).all()


def test_rule_7_a_broken_weight_is_named_too():
    learner = Learner(score, LearnerConfig(max_refused=1))
    with pytest.raises(UpdatesRefused, match=r"weights \("):
        learner.update(learner.init(table()), [[broken_batch("weights")]], table(1))


# --- sampler and trainer apart ------------------------------------------------------------------------


def by_hand(data: list[Sample], params, weight) -> np.ndarray:
    """The on-policy gradient in float64, each token times ``weight(gaps of its sequence, place)``."""
    logp = np.asarray(jax.nn.log_softmax(params["table"]), np.float64)
    gradient, tokens = np.zeros_like(logp), 0
    for s in data:
        on = np.flatnonzero(s.weights)
        gaps = np.array([logp[s.ids[i - 1], s.ids[i]] - np.float32(s.logprobs[i]) for i in on])
        for place, i in enumerate(on):
            before, token = s.ids[i - 1], s.ids[i]
            slope = (np.arange(VOCAB) == token) - np.exp(logp[before])
            gradient[before] -= s.advantages[i] * weight(gaps, place) * slope
            tokens += 1
    return gradient / tokens


@pytest.mark.parametrize(
    ("mismatch", "weight"),
    [
        ({"truncate": 2.0}, lambda gaps, t: min(np.exp(gaps[t]), 2.0)),
        (
            {"truncate": 0.5, "truncate_level": "sequence"},
            lambda gaps, t: min(np.exp(gaps.mean()), 0.5),
        ),
        ({"reject_below": 0.5, "reject_above": 2.0}, lambda gaps, t: 0.5 <= np.exp(gaps[t]) <= 2.0),
        (
            {"truncate": 5.0, "reject_below": 0.2, "reject_above": 5.0, "reject_level": "trajectory"},
            lambda gaps, t: min(np.exp(gaps[t]), 5.0) * (0.2 <= np.exp(gaps.sum()) <= 5.0),
        ),
    ],
)
def test_a_mismatch_is_corrected_apart_from_the_clip(mismatch, weight):
    params, rng = table(), np.random.default_rng(1)
    data = samples(20, seed=3, params=params)
    for sample in data:  # the sampler's numbers are a little off
        sample.logprobs[:] += rng.normal(0, 0.4, len(sample.logprobs))
    learner = Learner(score, LearnerConfig(kl_weight=0.0, mismatch=MismatchConfig(**mismatch)))
    (micro,), numbers = learner.correct(params, [micro_batches(pack(data, 32), 2)])
    gradient, _, metrics = learner.gradients(params, micro, params)
    expected, uncorrected = by_hand(data, params, weight), by_hand(data, params, lambda gaps, t: 1.0)
    np.testing.assert_allclose(gradient["table"], expected, atol=1e-6)
    assert np.abs(expected).max() > 1e-3
    assert np.abs(expected - uncorrected).max() > 1e-3
    assert metrics["clip_high"] == metrics["clip_low"] == 0  # the old policy is the trainer's own
    assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-6)
    assert numbers["sampler_trainer_gap"] > 0.5


def test_a_correction_uses_the_policy_before_the_first_update_and_shows_in_the_metrics():
    data = [micro_batches(pack(samples(10, seed=s), 32), 2) for s in (0, 1)]
    optimizer = OptimizerConfig(learning_rate=0.3)
    config = LearnerConfig(optimizer=optimizer, mismatch=MismatchConfig(truncate=2.0, reject_above=4.0))
    learner = Learner(score, config)
    _, metrics = learner.update(learner.init(table()), data, table(1))
    assert (
        metrics["ratio_max"] > 1.1
    )  # the second minibatch: the first moved the policy away from the old one
    assert 0 < metrics["rejected"] < 1
    assert 0 < metrics["mismatch_weight"] < 2
    assert metrics["sampler_trainer_gap"] > metrics["sampler_trainer_gap_mean"] > 0


def test_without_a_mismatch_a_correction_changes_nothing():
    params = table()
    data = [micro_batches(pack(samples(10, params=params), 32), 2)]
    plain, corrected = (
        Learner(score, LearnerConfig(mismatch=mismatch))
        for mismatch in (MismatchConfig(), MismatchConfig(truncate=2.0, reject_below=0.5, reject_above=2.0))
    )
    a, _ = plain.update(plain.init(params), data, table(1))
    b, metrics = corrected.update(corrected.init(params), data, table(1))
    close(a.params, b.params, 1e-6)
    assert metrics["rejected"] == 0
    assert metrics["mismatch_weight"] == pytest.approx(1.0, abs=1e-5)


# --- names ----------------------------------------------------------------------------------------------


def test_a_name_fills_in_what_the_config_leaves_open():
    filled = with_algorithm({"algorithm": "dr_grpo", "learner": {"clip_high": 0.3}, "steps": 5})
    assert filled["learner"] | {"clip_high": 0.2} == ALGORITHMS["dr_grpo"]["learner"]
    assert filled["learner"]["clip_high"] == 0.3
    assert filled["batch"] == {"normalise": False, "baseline": "mean"}
    assert (filled["steps"], filled["algorithm"]) == (5, "dr_grpo")
    optimizer = OptimizerConfig(learning_rate=0.1)
    given = with_algorithm({"algorithm": "dapo", "learner": LearnerConfig(optimizer=optimizer)})
    assert LearnerConfig(**given["learner"]) == LearnerConfig(kl_weight=0.0, optimizer=optimizer)
    assert LearnerConfig(**with_algorithm({})["learner"]) == LearnerConfig()
    with pytest.raises(ValueError, match="algorithm 'ppo' is none of grpo, "):
        with_algorithm({"algorithm": "ppo"})


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
