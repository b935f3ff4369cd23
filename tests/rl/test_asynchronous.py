"""Which weights sample which step, and when: on policy and one step ahead, with a stand-in for sampling."""

from __future__ import annotations

import threading

import pytest

from rl.asynchronous import OneAhead, OnPolicy


class Recorder:
    """Samples nothing, and remembers with what it was asked to."""

    def __init__(self):
        self.asked: list[tuple] = []

    def __call__(self, step, position, params, version, check):
        check()
        self.asked.append((step, position, params, version))
        return [f"groups of step {step}"], position + 2


def never(*_: object) -> None:
    """A check that never ends anything."""


def run(sampler, first: int, steps: int, position: int):
    """What a trainer does: weights of step s are called ``w{s}``."""
    taken = []
    with sampler:
        for step in range(first, steps):
            groups, position = sampler.groups(step, position, f"w{step}")
            taken.append((groups, position))
    return taken


def test_on_policy_samples_each_step_with_its_own_weights():
    sample = Recorder()
    run(OnPolicy(sample, never), 0, 3, 0)
    assert sample.asked == [(0, 0, "w0", 0), (1, 2, "w1", 1), (2, 4, "w2", 2)]


def test_one_ahead_samples_each_step_but_the_first_with_the_weights_before():
    sample = Recorder()
    taken = run(OneAhead(sample, never, steps=4), 0, 4, 0)
    assert sample.asked == [(0, 0, "w0", 0), (1, 2, "w0", 0), (2, 4, "w1", 1), (3, 6, "w2", 2)]
    assert taken == [([f"groups of step {s}"], 2 * s + 2) for s in range(4)]


@pytest.mark.parametrize("first", [1, 2, 3])
def test_a_run_that_goes_on_samples_the_same_with_the_same_weights(first):
    """A checkpoint before step ``first`` keeps the weights of the step before as ``behind``."""
    whole, resumed = Recorder(), Recorder()
    run(OneAhead(whole, never, steps=4), 0, 4, 0)
    run(OneAhead(resumed, never, steps=4, behind=f"w{first - 1}"), first, 4, 2 * first)
    assert resumed.asked == whole.asked[first:]


def test_the_next_step_is_sampled_while_this_one_is_trained():
    begun = threading.Event()

    def sample(step, position, params, version, check):
        if step == 1:
            begun.set()
        return [], position

    with OneAhead(sample, never, steps=3) as sampler:
        sampler.groups(0, 0, "w0")
        assert begun.wait(30)  # nobody has asked for step 1 yet


def test_leaving_ends_a_sampling_that_nobody_waits_for():
    begun = threading.Event()

    def sample(step, position, params, version, check):
        while step == 1:
            begun.set()
            check()
        return [], position

    with OneAhead(sample, never, steps=3) as sampler:
        sampler.groups(0, 0, "w0")
        assert begun.wait(30)


def test_what_goes_wrong_in_the_thread_reaches_the_trainer():
    def sample(step, position, params, version, check):
        raise ValueError("no sandbox")

    with OneAhead(sample, never, steps=3) as sampler, pytest.raises(ValueError, match="no sandbox"):
        sampler.groups(0, 0, "w0")
