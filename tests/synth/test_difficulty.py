"""Levels of difficulty by name fill in knobs that exist, and change nothing where no level is asked for."""

from itertools import pairwise

import pytest

from beam_jobs import synthesize
from synth.difficulty import LEVELS, guide_of, level_of
from synth.errors import CallerError
from synth.tasks_program import MAX_CALLS


def test_levels_rise_and_stay_within_what_a_solution_may_call():
    for lower, higher in pairwise(LEVELS.values()):
        assert lower.steps < higher.steps
        assert lower.calls < higher.calls
        assert lower.program_share < higher.program_share
    assert max(level.calls[1] for level in LEVELS.values()) <= MAX_CALLS


def test_a_level_fills_the_order_and_an_order_without_one_keeps_its_key():
    plain = synthesize.Order("e", 4, seed=0)
    hard = synthesize.at_level(plain, "hard")
    assert (hard.guide, hard.max_steps) == (guide_of("hard"), guide_of("hard").max_steps)
    assert (hard.calls, hard.program_share) == (LEVELS["hard"].calls, LEVELS["hard"].program_share)
    before = {"count", "seed", "guide", "program_share", "max_steps"}  # what receipts of old folders hash
    assert set(synthesize._plain(plain)) == before
    assert set(synthesize._plain(hard)) == before | {"calls"}


def test_an_unknown_level_is_the_callers_mistake():
    with pytest.raises(CallerError, match="'brutal'; take one of easy, medium, hard"):
        level_of("brutal")
