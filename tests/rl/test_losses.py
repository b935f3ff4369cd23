"""Every named algorithm against NumPy loops written from its paper, and against TRL's own numbers.

A batch is scored by a table of log-probabilities that *is* the parameters, so that the learner's
gradient is the loss's gradient by each log-probability.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.algorithms import ALGORITHMS
from rl.batch import empty
from rl.learner import Learner, LearnerConfig
from rl.losses import (
    accepted,
    aggregation_weights,
    cross_entropy_sum,
    kl_estimates,
    level_log_ratio,
    masked_log_ratio,
    number_sequences,
    policy_sums,
    truncated_weights,
)

ROWS, LENGTH, CONSTANT = 3, 12, 16
TRL = json.loads((Path(__file__).parent / "trl_numbers.json").read_text())


# --- a few sequences, in loops and in rows ----------------------------------------------------------


@dataclass
class Sequence:
    """Tokens of one sample; ``frozen`` is where a stop-gradient reads ``logp``."""

    logp: np.ndarray
    old: np.ndarray
    reference: np.ndarray
    mask: np.ndarray
    advantage: float
    frozen: np.ndarray = field(init=False)

    def __post_init__(self):
        self.frozen = self.logp.copy()

    @property
    def on(self) -> list[int]:
        return [t for t in range(len(self.mask)) if self.mask[t]]


def draw_sequences(seed: int, lengths: list[int]) -> list[Sequence]:
    rng = np.random.default_rng(seed)
    made = []
    for n in lengths:
        logp = -rng.exponential(1.0, n)
        mask = rng.random(n) < 0.7  # tool results in between
        mask[rng.integers(n)] = True
        near = lambda scale, logp=logp: logp + rng.normal(0, scale, len(logp))  # noqa: E731
        made.append(Sequence(logp, near(0.3), near(0.5), mask, float(rng.normal())))
    return made


def in_rows(sequences: list[Sequence], branched: bool):
    """A batch, the log-probabilities and the reference's; places[i][t] is (row, column)."""
    batch, logp, reference = empty(ROWS, LENGTH), np.zeros((ROWS, LENGTH)), np.zeros((ROWS, LENGTH))
    places, row, column = [], 0, 0
    for number, s in enumerate(sequences, start=1):
        if column + len(s.logp) > LENGTH:
            row, column = row + 1, 0
        here = np.s_[row, column : column + len(s.logp)]
        logp[here], reference[here], batch.logprobs[here] = s.logp, s.reference, s.old
        batch.weights[here], batch.advantages[here] = s.mask, s.advantage
        batch.segment_ids[here] = 1 if branched else number
        batch.branch_ids[here] = number if branched else 0
        places.append([(row, column + t) for t in range(len(s.logp))])
        column += len(s.logp)
    return batch, jnp.asarray(logp, jnp.float32), jnp.asarray(reference, jnp.float32), places


LEARNERS: dict[str, Learner] = {}


def learner(name: str, **changes) -> Learner:
    """One compiled learner a name; the parameters are the log-probabilities."""
    if name not in LEARNERS:
        config = LearnerConfig(**(ALGORITHMS[name]["learner"] | {"constant_length": CONSTANT} | changes))
        LEARNERS[name] = Learner(lambda params, batch: (params, jnp.zeros_like(params)), config)
    return LEARNERS[name]


# --- the papers, one loop each ------------------------------------------------------------------------


def clipped(r: float, a: float, low: float, high: float) -> float:
    return -min(r * a, min(max(r, 1 - low), 1 + high) * a)


def k3(s: Sequence, t: int) -> float:
    d = s.reference[t] - s.logp[t]
    return math.exp(d) - d - 1


def token_ratio(s: Sequence, t: int) -> float:
    return math.exp(s.logp[t] - s.old[t])


def geometric(s: Sequence, logp) -> float:
    return math.exp(sum(logp[t] - s.old[t] for t in s.on) / len(s.on))


def grpo(S):
    terms = [clipped(token_ratio(s, t), s.advantage, 0.2, 0.28) + 0.03 * k3(s, t) for s in S for t in s.on]
    return sum(terms) / len(terms)


def deepseekmath(S):
    loss = 0.0
    for s in S:
        terms = [clipped(token_ratio(s, t), s.advantage, 0.2, 0.2) + 0.04 * k3(s, t) for t in s.on]
        loss += sum(terms) / len(terms)
    return loss / len(S)


def dapo(S):
    terms = [clipped(token_ratio(s, t), s.advantage, 0.2, 0.28) for s in S for t in s.on]
    return sum(terms) / len(terms)


def dr_grpo(S):
    terms = [clipped(token_ratio(s, t), s.advantage, 0.2, 0.2) for s in S for t in s.on]
    return sum(terms) / (len(S) * CONSTANT)


def gspo(S):
    return sum(clipped(geometric(s, s.logp), s.advantage, 3e-4, 4e-4) for s in S) / len(S)


def gspo_token(S):
    loss = 0.0
    for s in S:
        ratios = [geometric(s, s.frozen) * math.exp(s.logp[t] - s.frozen[t]) for t in s.on]
        loss += sum(clipped(r, s.advantage, 3e-4, 4e-4) for r in ratios) / len(ratios)
    return loss / len(S)


def cispo(S):
    terms = [-min(math.exp(s.frozen[t] - s.old[t]), 5.0) * s.advantage * s.logp[t] for s in S for t in s.on]
    return sum(terms) / len(terms)


def rloo(S):
    ratios = [math.exp(sum(s.logp[t] - s.old[t] for t in s.on)) for s in S]
    return sum(clipped(r, s.advantage, 0.2, 0.2) for r, s in zip(ratios, S, strict=True)) / len(S)


PAPERS = {f.__name__: f for f in (grpo, deepseekmath, dapo, dr_grpo, gspo, gspo_token, cispo, rloo)}


def slope(loss, sequences: list[Sequence], s: Sequence, t: int, h: float = 1e-6) -> float | None:
    """The derivative by one log-probability; None where a clip makes a corner there."""
    at, values = s.logp[t], {}
    for step in (-h, -h / 2, h / 2, h):
        s.logp[t] = at + step
        values[step] = loss(sequences)
    s.logp[t] = at
    left, right = (values[-h / 2] - values[-h]) / (h / 2), (values[h] - values[h / 2]) / (h / 2)
    return None if abs(left - right) > 1e-3 * (1 + abs(left)) else (values[h] - values[-h]) / (2 * h)


lengths = st.lists(st.integers(1, 6), min_size=1, max_size=5)


@pytest.mark.parametrize("name", PAPERS)
@given(seed=st.integers(0, 2**20), lengths=lengths, branched=st.booleans())
@settings(max_examples=8, deadline=None)
def test_loss_and_gradient_are_the_papers(name, seed, lengths, branched):
    sequences = draw_sequences(seed, lengths)
    batch, logp, reference, places = in_rows(sequences, branched)
    gradient, loss, _ = learner(name).gradients(logp, [batch], reference)
    assert float(loss) == pytest.approx(PAPERS[name](sequences), rel=1e-4, abs=1e-5)
    for s, where in zip(sequences, places, strict=True):
        for t, place in enumerate(where):
            expected = slope(PAPERS[name], sequences, s, t)
            if expected is not None:
                assert float(gradient[place]) == pytest.approx(expected, rel=2e-3, abs=2e-5)


def test_every_name_has_a_paper_and_grpo_is_the_default():
    assert PAPERS.keys() == ALGORITHMS.keys()
    assert LearnerConfig(**ALGORITHMS["grpo"]["learner"]) == LearnerConfig()


# --- TRL ----------------------------------------------------------------------------------------------

LIKE_TRL = {  # a case of trl_numbers.py -> our algorithm, and the knobs that its name doesn't set
    "grpo": ("grpo", {}),
    "deepseekmath": ("deepseekmath", {}),
    "dapo": ("dapo", {}),
    "dr_grpo": ("dr_grpo", {}),
    "gspo": ("gspo", {}),
    "gspo_wide": ("gspo", {"clip_low": 0.2, "clip_high": 0.28, "kl_weight": 0.03}),
    "cispo": ("cispo", {}),
    "cispo_tight": ("cispo", {"clip_high": 0.2}),
    "weighted": ("grpo", {}),
    "rloo": ("rloo", {}),
    "rloo_wide": ("rloo", {"clip_low": 0.9, "clip_high": 4.0}),
}


@pytest.mark.parametrize("case", TRL["cases"])
def test_loss_and_gradient_are_trls(case):
    name, knobs = LIKE_TRL[case]
    inputs = {key: np.array(value) for key, value in TRL["inputs"].items()}
    batch = empty(*inputs["logp"].shape)
    mask = np.arange(batch.tokens.shape[1]) < inputs["lengths"][:, None]
    batch.segment_ids[:], batch.weights[:], batch.logprobs[:] = mask, mask, inputs["old"]
    batch.advantages[:] = inputs["advantages"][:, None]
    if case == "weighted":  # importance weights ride on the advantages
        batch.advantages[:] *= inputs["importance_weights"]
    config = ALGORITHMS[name]["learner"] | {"constant_length": TRL["constant"]} | knobs
    ours = Learner(lambda params, batch: (params, jnp.zeros_like(params)), LearnerConfig(**config))
    as_params = jnp.asarray(inputs["logp"], jnp.float32)
    gradient, loss, _ = ours.gradients(as_params, [batch], jnp.asarray(inputs["reference"], jnp.float32))
    theirs = TRL["cases"][case]
    assert float(loss) == pytest.approx(theirs["loss"], rel=2e-5)
    np.testing.assert_allclose(gradient, theirs["gradient"], rtol=1e-4, atol=2e-6)
    assert np.abs(gradient).max() > 0


# --- parts --------------------------------------------------------------------------------------------

LOW, HIGH = 0.2, 0.28
ONE_EACH = jnp.arange(17)[None].repeat(3, axis=0)  # every token its own sequence


def arrays(seed: int, rows: int = 3, length: int = 17):
    rng = np.random.default_rng(seed)
    logp = -rng.exponential(1.0, (rows, length)).astype(np.float32)
    old = (logp + rng.normal(0, 0.4, logp.shape)).astype(np.float32)
    advantage = rng.normal(0, 1, logp.shape).astype(np.float32)
    mask = (rng.random(logp.shape) < 0.6).astype(np.float32)
    return logp, old, advantage, mask


def clip_sums(logp, old, advantage, mask, **knobs):
    sequences = jnp.zeros(logp.shape, int)
    return policy_sums(logp, old, advantage, mask, sequences, low=LOW, high=HIGH, **knobs)


@pytest.mark.parametrize("seed", range(5))
def test_the_metrics_equal_a_loop_over_tokens(seed):
    data = arrays(seed)
    tokens = ratio_sum = gap = high = low = 0.0
    for lp, o, a, m in zip(*(x.ravel().tolist() for x in data), strict=True):
        if m:
            r = math.exp(lp - o)
            tokens, ratio_sum, gap = tokens + 1, ratio_sum + r, gap + abs(lp - o)
            high += r > 1 + HIGH and a > 0
            low += r < 1 - LOW and a < 0
    sums = clip_sums(*map(jnp.asarray, data))
    got = (sums.tokens, sums.ratio, sums.gap, sums.clipped_high, sums.clipped_low)
    np.testing.assert_allclose(got, (tokens, ratio_sum, gap, high, low), rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("advantage", "ratio", "flows"),
    [(1.0, 1.27, True), (1.0, 1.29, False), (1.0, 0.5, True), (-1.0, 0.81, True), (-1.0, 0.79, False)],
)
def test_the_gradient_stops_beyond_the_clip_range_and_only_on_its_side(advantage, ratio, flows):
    one = jnp.ones((1, 1))
    slope = lambda how: jax.grad(  # noqa: E731
        lambda logp: clip_sums(logp * one, -one, advantage * one, one, surrogate=how).loss
    )(-1.0 + math.log(ratio))
    assert bool(slope("clip") != 0) == flows
    assert slope("cispo") != 0  # whose gradient never stops


@pytest.mark.parametrize("knobs", [{}, {"surrogate": "cispo"}, {"ratio": "trajectory"}])
def test_on_policy_the_gradient_is_the_plain_policy_gradient(knobs):
    logp, _, advantage, mask = map(jnp.asarray, arrays(1))
    sequences = ONE_EACH if "ratio" in knobs else jnp.zeros(logp.shape, int)

    def loss(lp):
        return policy_sums(lp, logp, advantage, mask, sequences, low=LOW, high=HIGH, **knobs).loss

    np.testing.assert_allclose(jax.grad(loss)(logp), -advantage * mask, rtol=1e-6)


def test_sequences_are_numbered_by_segment_and_branch():
    #                     prompt  branches   another  padding
    segments = jnp.array([[1, 1, 1, 1, 1, 1, 2, 2, 0, 0], [3] * 10])
    branches = jnp.array([[0, 0, 1, 1, 2, 2, 0, 0, 0, 0], [0] * 10])
    numbers = number_sequences(segments, branches)
    assert numbers.tolist() == [[0, 0, 1, 1, 2, 2, 3, 3, 4, 4], [0] * 10]


@given(seed=st.integers(0, 2**20), lengths=lengths)
@settings(max_examples=10, deadline=None)
def test_by_sequence_every_sequence_weighs_one_and_its_tokens_alike(seed, lengths):
    sequences = draw_sequences(seed, lengths)
    batch, _, _, places = in_rows(sequences, branched=False)
    numbers = number_sequences(jnp.asarray(batch.segment_ids), jnp.asarray(batch.branch_ids))
    weights = np.asarray(aggregation_weights(jnp.asarray(batch.weights), numbers, "sequence"))
    assert weights.sum() == pytest.approx(len(sequences), rel=1e-5)
    for s, where in zip(sequences, places, strict=True):
        expected = s.mask / s.mask.sum()
        np.testing.assert_allclose([weights[p] for p in where], expected, rtol=1e-5)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("ratio", ["token", "sequence", "sequence_token", "trajectory"])
def test_rule_7_what_lies_under_the_mask_reaches_neither_loss_nor_gradient(poison, ratio):
    logp, old, advantage, mask = arrays(2)
    knobs = {"ratio": ratio, "aggregate": "sequence"}
    clean = clip_sums(*map(jnp.asarray, (logp, old, advantage, mask)), **knobs)
    off = mask == 0
    bad = [np.where(off, poison, x).astype(np.float32) for x in (logp, old, advantage)]

    def loss(lp):
        sums = clip_sums(lp, bad[1], bad[2], jnp.asarray(mask), **knobs)
        cispo = clip_sums(lp, bad[1], bad[2], jnp.asarray(mask), surrogate="cispo")
        kl = jnp.sum(kl_estimates(lp, bad[1], jnp.asarray(mask)))
        return sums.loss + cispo.loss + kl + cross_entropy_sum(lp, jnp.asarray(mask))

    dirty = clip_sums(*map(jnp.asarray, (*bad, mask)), **knobs)
    np.testing.assert_array_equal(dirty.loss, clean.loss)
    assert np.isfinite(jax.grad(loss)(jnp.asarray(bad[0]))).all()


def test_rule_7_log_ratios_are_clamped_before_exp():
    one = jnp.ones((1, 40))
    assert masked_log_ratio(one * 500.0, one * -500.0, one)[0, 0] == 20.0
    for ratio in ("token", "sequence", "trajectory"):
        assert np.isfinite(clip_sums(one * 0.0, one * -1e4, -one, one, ratio=ratio).loss)
    assert np.isfinite(kl_estimates(one * -1e4, one * 0.0, one)).all()


def test_rule_7_a_row_of_padding_is_worth_nothing():
    nothing = jnp.zeros((2, 5))
    for ratio in ("token", "sequence", "sequence_token", "trajectory"):

        def grow(lp, ratio=ratio):
            return clip_sums(lp, nothing, nothing, nothing, ratio=ratio, aggregate="sequence").loss

        assert grow(nothing) == 0
        assert not np.any(jax.grad(grow)(nothing))


# --- estimators of the KL -------------------------------------------------------------------------------

P, Q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.3])
KL = float(np.sum(P * np.log(P / Q)))


def expected(estimator: str, logits):
    """Mean of an estimator over samples of softmax(logits), the samples' own probability held fixed."""
    logp = jax.nn.log_softmax(logits)[None]
    each = kl_estimates(logp, jnp.log(jnp.asarray(Q))[None], jnp.ones((1, 3)), estimator)
    return jnp.sum(jax.lax.stop_gradient(jnp.exp(logp)) * each)


def test_k1_and_k3_are_unbiased_and_k3_is_never_negative():
    logits = jnp.log(jnp.asarray(P))
    assert float(expected("k1", logits)) == pytest.approx(KL, rel=1e-5)
    assert float(expected("k3", logits)) == pytest.approx(KL, rel=1e-5)
    assert float(expected("k2", logits)) == pytest.approx(KL, rel=0.2)
    logp, old, _, mask = map(jnp.asarray, arrays(3))
    assert jnp.sum(kl_estimates(logp, logp, mask)).item() == 0.0
    assert kl_estimates(logp, old, mask).min() >= 0
    assert kl_estimates(logp, old, mask, "k1").min() < 0


def test_as_losses_k2_has_the_kls_gradient_and_k1_has_none():
    logits = jnp.log(jnp.asarray(P))
    kl = lambda x: jnp.sum(jax.nn.softmax(x) * (jax.nn.log_softmax(x) - jnp.log(jnp.asarray(Q))))  # noqa: E731
    true = jax.grad(kl)(logits)
    slope = {k: jax.grad(lambda x, k=k: expected(k, x))(logits) for k in ("k1", "k2", "k3")}
    np.testing.assert_allclose(slope["k2"], true, atol=1e-6)
    np.testing.assert_allclose(slope["k1"], 0, atol=1e-6)
    np.testing.assert_allclose(slope["k3"], P - Q, atol=1e-6)  # the KL the other way round


# --- sampler and trainer apart ----------------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**20), lengths=lengths, level=st.sampled_from(["token", "sequence", "trajectory"])
)
@settings(max_examples=15, deadline=None)
def test_truncation_and_rejection_at_each_level(level, seed, lengths):
    sequences = draw_sequences(seed, lengths)
    batch, logp, _, places = in_rows(sequences, branched=True)
    mask = jnp.asarray(batch.weights)
    numbers = number_sequences(jnp.asarray(batch.segment_ids), jnp.asarray(batch.branch_ids))
    gap = masked_log_ratio(logp, jnp.asarray(batch.logprobs), mask)
    at_level = level_log_ratio(gap, mask, numbers, level)
    weights, kept = np.asarray(truncated_weights(at_level, 1.1)), np.asarray(accepted(at_level, 0.8, 1.2))
    for s, where in zip(sequences, places, strict=True):
        gaps = {t: s.logp[t] - s.old[t] for t in s.on}
        for t in s.on:
            total = sum(gaps.values())
            r = math.exp({"token": gaps[t], "sequence": total / len(gaps), "trajectory": total}[level])
            assert weights[where[t]] == pytest.approx(min(r, 1.1), rel=1e-4)
            if min(abs(r - 0.8), abs(r - 1.2)) > 1e-4:
                assert kept[where[t]] == (0.8 <= r <= 1.2)


def test_neither_lets_a_gradient_through():
    x = jnp.array([[0.1, -0.3]])
    loss = lambda x: jnp.sum(truncated_weights(x, 2.0) + accepted(x, 0.5, 2.0))  # noqa: E731
    assert not np.any(jax.grad(loss)(x))


def test_cross_entropy_weighs_tokens():
    logp = jnp.log(jnp.array([[0.5, 0.25, 0.1]]))
    got = cross_entropy_sum(logp, jnp.array([[1.0, 0.2, 0.0]]))
    assert got.item() == pytest.approx(-math.log(0.5) - 0.2 * math.log(0.25), rel=1e-6)
