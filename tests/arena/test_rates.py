"""Rates: known values of intervals, pass@k against counting, tasks (not episodes) as the unit."""

import itertools

import numpy as np
import pytest
from scipy.stats import binomtest

from arena.rates import bootstrap, mean_pass_at_k, pass_at_k, rate, rise, wilson


@pytest.mark.parametrize(("successes", "n"), [(5, 10), (0, 10), (10, 10), (3, 20), (1, 1), (400, 1000)])
def test_wilson_agrees_with_scipy(successes, n):
    expected = binomtest(successes, n).proportion_ci(method="wilson")
    assert wilson(successes / n, n) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_wilson_of_nothing_is_all():
    assert wilson(0.0, 0) == (0.0, 1.0)


def test_bootstrap_of_independent_tasks_is_near_the_normal_interval():
    means = [1.0] * 40 + [0.0] * 60
    low, high = bootstrap(means, seed=0)
    spread = 1.96 * (0.4 * 0.6 / 100) ** 0.5
    assert (low, high) == pytest.approx((0.4 - spread, 0.4 + spread), abs=0.015)


def test_bootstrap_depends_on_the_seed_only():
    means = list(np.linspace(0, 1, 23))
    assert bootstrap(means, 5) == bootstrap(means, 5)
    assert bootstrap(means, 5) != bootstrap(means, 6)


def test_more_samples_of_the_same_tasks_do_not_narrow_the_interval():
    few = {f"t{i}": [float(i % 2)] for i in range(20)}
    many = {f"t{i}": [float(i % 2)] * 50 for i in range(20)}
    assert rate(few, 0).low == rate(many, 0).low
    assert rate(many, 0).episodes == 1000
    assert rate(many, 0).tasks == 20


def test_a_task_weighs_the_same_however_many_episodes_are_left():
    assert rate({"a": [1.0], "b": [0.0, 0.0, 0.0], "c": []}, 0).passed == 0.5


def test_an_interval_never_claims_certainty_when_all_tasks_fail():
    found = rate({f"t{i}": [0.0, 0.0] for i in range(10)}, 0)
    assert (found.passed, found.low) == (0.0, 0.0)
    assert found.high == pytest.approx(0.2775, abs=1e-3)  # ten tasks, not twenty episodes


def test_rise_is_paired_over_the_tasks_that_both_rounds_have():
    before = {f"t{i}": [0.0, float(i % 2)] for i in range(30)}
    after = {task: [1.0, values[1]] for task, values in before.items()} | {"new": [1.0]}
    assert rise(before, after, 0) == pytest.approx((0.5, 0.5, 0.5))
    assert rise({"a": [1.0]}, {"b": [1.0]}, 0) == (0.0, -1.0, 1.0)


@pytest.mark.parametrize("n", [1, 4, 6])
def test_pass_at_k_equals_counting_all_choices_of_k_samples(n):
    for c in range(n + 1):
        outcomes = [1] * c + [0] * (n - c)
        for k in range(1, n + 1):
            choices = list(itertools.combinations(outcomes, k))
            counted = sum(any(choice) for choice in choices) / len(choices)
            assert pass_at_k(n, c, k) == pytest.approx(counted)


def test_pass_at_k_refuses_what_it_cannot_estimate():
    with pytest.raises(ValueError, match="1 <= k <= n"):
        pass_at_k(3, 1, 4)


def test_mean_pass_at_k_leaves_out_tasks_with_too_few_episodes():
    found = mean_pass_at_k({"a": [1.0, 0.0], "b": [0.0]}, samples=2)
    assert found == {"1": pytest.approx(0.25), "2": pytest.approx(1.0)}
