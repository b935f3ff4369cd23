"""Token losses against plain NumPy loops, and the numbers that must stay finite."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl.losses import clipped_policy_sums, cross_entropy_sum, k3_sum, masked_log_ratio

LOW, HIGH = 0.2, 0.28


def arrays(seed: int, rows: int = 3, length: int = 17):
    rng = np.random.default_rng(seed)
    logp = -rng.exponential(1.0, (rows, length)).astype(np.float32)
    old = (logp + rng.normal(0, 0.4, logp.shape)).astype(np.float32)
    advantage = rng.normal(0, 1, logp.shape).astype(np.float32)
    mask = (rng.random(logp.shape) < 0.6).astype(np.float32)
    return logp, old, advantage, mask


def reference(logp, old, advantage, mask):
    """The clipped surrogate one token at a time."""
    loss = tokens = ratio_sum = high = low = 0.0
    for lp, o, a, m in zip(*(x.ravel().tolist() for x in (logp, old, advantage, mask)), strict=True):
        if not m:
            continue
        r = math.exp(lp - o)
        clipped = min(max(r, 1 - LOW), 1 + HIGH)
        loss += -min(r * a, clipped * a)
        tokens, ratio_sum = tokens + 1, ratio_sum + r
        high += r > 1 + HIGH and a > 0
        low += r < 1 - LOW and a < 0
    return loss, tokens, ratio_sum, high, low


@pytest.mark.parametrize("seed", range(5))
def test_the_policy_loss_equals_a_loop_over_tokens(seed):
    data = arrays(seed)
    sums = clipped_policy_sums(*map(jnp.asarray, data), low=LOW, high=HIGH)
    got = (sums.loss, sums.tokens, sums.ratio, sums.clipped_high, sums.clipped_low)
    np.testing.assert_allclose(got, reference(*data), rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("advantage", "ratio", "flows"),
    [(1.0, 1.27, True), (1.0, 1.29, False), (1.0, 0.5, True), (-1.0, 0.81, True), (-1.0, 0.79, False)],
)
def test_the_gradient_stops_beyond_the_clip_range_and_only_on_its_side(advantage, ratio, flows):
    def loss(logp):
        one = jnp.ones((1, 1))
        old = jnp.full((1, 1), -1.0)
        return clipped_policy_sums(logp * one, old, advantage * one, one, low=LOW, high=HIGH).loss

    assert bool(jax.grad(loss)(-1.0 + math.log(ratio)) != 0) == flows


def test_on_policy_the_gradient_is_the_plain_policy_gradient():
    logp, _, advantage, mask = map(jnp.asarray, arrays(1))
    gradient = jax.grad(lambda lp: clipped_policy_sums(lp, logp, advantage, mask, low=LOW, high=HIGH).loss)(
        logp
    )
    np.testing.assert_allclose(gradient, -advantage * mask, rtol=1e-6)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_rule_7_what_lies_under_the_mask_reaches_neither_loss_nor_gradient(poison):
    logp, old, advantage, mask = arrays(2)
    clean = clipped_policy_sums(*map(jnp.asarray, (logp, old, advantage, mask)), low=LOW, high=HIGH)
    off = mask == 0
    bad = [np.where(off, poison, x).astype(np.float32) for x in (logp, old, advantage)]

    def loss(lp):
        sums = clipped_policy_sums(lp, bad[1], bad[2], jnp.asarray(mask), low=LOW, high=HIGH)
        return sums.loss + k3_sum(lp, bad[1], jnp.asarray(mask)) + cross_entropy_sum(lp, jnp.asarray(mask))

    dirty = clipped_policy_sums(*map(jnp.asarray, (*bad, mask)), low=LOW, high=HIGH)
    np.testing.assert_array_equal(dirty.loss, clean.loss)
    assert np.isfinite(jax.grad(loss)(jnp.asarray(bad[0]))).all()


def test_rule_7_log_ratios_are_clamped_before_exp():
    one = jnp.ones((1, 1))
    assert masked_log_ratio(one * 500.0, one * -500.0, one).item() == 20.0
    sums = clipped_policy_sums(one * 0.0, one * -1e4, -one, one, low=LOW, high=HIGH)
    assert np.isfinite(sums.loss)
    assert np.isfinite(k3_sum(one * -1e4, one * 0.0, one))


def test_k3_is_never_negative_zero_when_equal_and_an_unbiased_kl():
    logp, old, _, mask = map(jnp.asarray, arrays(3))
    assert k3_sum(logp, logp, mask).item() == 0.0
    assert k3_sum(logp, old, mask).item() > 0
    # expectation over samples of p equals KL(p || q) for a small categorical
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.3])
    one = jnp.ones((1, 1))
    each = np.array([k3_sum(one * math.log(p[i]), one * math.log(q[i]), one) for i in range(3)])
    assert float(p @ each) == pytest.approx(float(np.sum(p * np.log(p / q))), rel=1e-5)


def test_cross_entropy_weighs_tokens():
    logp = jnp.log(jnp.array([[0.5, 0.25, 0.1]]))
    got = cross_entropy_sum(logp, jnp.array([[1.0, 0.2, 0.0]]))
    assert got.item() == pytest.approx(-math.log(0.5) - 0.2 * math.log(0.25), rel=1e-6)
