"""Group-relative advantages: the formula, the groups that give nothing, and samples without a reward."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.advantages import group_advantages, informative, overlong_penalty

bits = st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=16)


def test_the_formula_on_a_group_worked_by_hand():
    # mean 0.25, population standard deviation sqrt(3)/4
    advantages = group_advantages(np.array([1.0, 0.0, 0.0, 0.0]))
    np.testing.assert_allclose(advantages, [math.sqrt(3), *[-1 / math.sqrt(3)] * 3], rtol=1e-4)


def test_without_normalisation_only_the_mean_is_taken_off():
    np.testing.assert_allclose(group_advantages(np.array([1.0, 0.0]), normalise=False), [0.5, -0.5])


@given(bits)
def test_rule_5_equal_rewards_give_no_gradient_and_unequal_ones_do(rewards):
    rewards_G = np.array(rewards)
    differ = len(set(rewards)) > 1
    assert informative(rewards_G) == differ
    assert bool(np.any(group_advantages(rewards_G) != 0)) == differ


@given(bits)
def test_advantages_are_centred_scaled_and_ordered_as_the_rewards(rewards):
    rewards_G = np.array(rewards)
    advantages = group_advantages(rewards_G)
    assert abs(advantages.sum()) < 1e-6
    if informative(rewards_G):
        assert advantages.std() == pytest.approx(1.0, abs=1e-4)
        assert advantages[rewards_G == 1].min() > 0 > advantages[rewards_G == 0].max()


@given(bits, st.integers(0, 5))
def test_a_sample_without_reward_changes_nothing_for_the_others(rewards, place):
    place = min(place, len(rewards))
    with_gap = np.insert(np.array(rewards), place, math.nan)
    advantages = group_advantages(with_gap)
    assert advantages[place] == 0.0
    np.testing.assert_allclose(np.delete(advantages, place), group_advantages(np.array(rewards)))


def test_one_known_reward_is_no_group():
    assert not informative(np.array([1.0, math.nan, math.nan]))
    assert not informative(np.array([]))


known = st.lists(st.one_of(st.floats(-1, 1, width=32), st.just(math.nan)), min_size=2, max_size=12)


@given(known, st.booleans())
def test_leaving_one_out_takes_off_the_mean_of_the_others(rewards, normalise):
    rewards_G = np.array(rewards)
    advantages = group_advantages(rewards_G, normalise=normalise, baseline="leave_one_out")
    if not informative(rewards_G):
        assert not advantages.any()
        return
    scale = np.nanstd(rewards_G) + 1e-6 if normalise else 1.0
    for i, (reward, advantage) in enumerate(zip(rewards, advantages, strict=True)):
        others = [r for j, r in enumerate(rewards) if j != i and not math.isnan(r)]
        expected = 0.0 if math.isnan(reward) else (reward - sum(others) / len(others)) / scale
        assert advantage == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_length_is_punished_from_the_buffer_on():
    lengths = np.array([0, 80, 85, 90, 100, 130])
    np.testing.assert_allclose(overlong_penalty(lengths, limit=100, buffer=20), [0, 0, -0.25, -0.5, -1, -1])
    assert not overlong_penalty(lengths, limit=100, buffer=0).any()
    with pytest.raises(ValueError, match="buffer 101 must lie between 0 and the limit 100"):
        overlong_penalty(lengths, limit=100, buffer=101)


@given(st.lists(st.integers(0, 3000), min_size=1), st.integers(1, 1000), st.integers(0, 1000))
def test_a_longer_answer_is_never_punished_less(lengths, buffer, more):
    limit = buffer + more
    penalties = overlong_penalty(np.array(sorted(lengths)), limit, buffer)
    assert (np.diff(penalties) <= 0).all()
    assert (penalties >= -1).all()
    assert all(p == -1 for n, p in zip(sorted(lengths), penalties, strict=True) if n >= limit)
