"""Group-relative advantages: the formula, the groups that give nothing, and samples without a reward."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.advantages import group_advantages, informative

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
