"""Packing: nothing is lost or doubled, segments and branches are laid out as documented."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.batch import Sample, empty, micro_batches, pack


def sample(ids, prompt=1, group=None, seed=0) -> Sample:
    ids = np.asarray(ids, np.int32)
    rng = np.random.default_rng([seed, *ids.tolist()])
    weights = np.where(np.arange(len(ids)) < prompt, 0.0, 1.0)
    return Sample(ids, weights, -rng.random(len(ids)), rng.normal(size=len(ids)), prompt, group)


def facts(sample: Sample) -> list[tuple]:
    """Every prediction of a sample that carries weight, with its full context."""
    n = len(sample.ids)
    return [
        (tuple(sample.ids[:i].tolist()), int(sample.ids[i]), np.float32(sample.weights[i]),
         np.float32(sample.logprobs[i]), np.float32(sample.advantages[i]))
        for i in range(1, n) if sample.weights[i] > 0
    ]  # fmt: skip


def facts_of_batch(batch) -> list[tuple]:
    """The same read from packed rows by the rule of attention: same segment, earlier, branch 0 or mine."""
    found = []
    for r, t in zip(*np.nonzero(batch.weights), strict=True):
        seen = (batch.segment_ids[r] == batch.segment_ids[r, t]) & (np.arange(batch.tokens.shape[1]) <= t)
        seen &= (batch.branch_ids[r] == 0) | (batch.branch_ids[r] == batch.branch_ids[r, t])
        assert batch.positions[r][seen].tolist() == list(range(seen.sum()))
        found.append((tuple(batch.tokens[r][seen].tolist()), int(batch.targets[r, t]), batch.weights[r, t],
                      batch.logprobs[r, t], batch.advantages[r, t]))  # fmt: skip
    return found


groups = st.lists(
    st.tuples(st.lists(st.integers(1, 9), min_size=1, max_size=6),
              st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=7), min_size=1, max_size=5)),
    min_size=1, max_size=6,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(groups, st.integers(13, 30), st.booleans())
def test_rule_4_every_prediction_keeps_its_context_and_none_is_lost_or_doubled(drawn, length, share):
    samples = [
        sample(prompt + tail, len(prompt), group=(g if g % 3 else None), seed=s)
        for g, (prompt, tails) in enumerate(drawn)
        for s, tail in enumerate(tails)
    ]
    batch = pack(samples, length, share_prompts=share)
    assert sorted(facts_of_batch(batch)) == sorted(f for s in samples for f in facts(s))
    assert batch.token_count == sum(s.weights.sum() for s in samples)


def test_the_layout_of_a_shared_prompt():
    batch = pack(
        [sample([5, 6, 7, 8, 1, 2, 3], 4, "g"), sample([5, 6, 7, 8, 4], 4, "g")], 10, share_prompts=True
    )
    assert batch.tokens.tolist() == [[5, 6, 7, 8, 1, 2, 8, 0, 0, 0]]
    assert batch.targets.tolist() == [[6, 7, 8, 1, 2, 3, 4, 0, 0, 0]]
    assert batch.segment_ids.tolist() == [[1, 1, 1, 1, 1, 1, 1, 0, 0, 0]]
    assert batch.branch_ids.tolist() == [[0, 0, 0, 1, 1, 1, 2, 0, 0, 0]]
    assert batch.positions.tolist() == [[0, 1, 2, 3, 4, 5, 3, 0, 0, 0]]
    assert batch.weights.tolist() == [[0, 0, 0, 1, 1, 1, 1, 0, 0, 0]]


def test_sharing_a_long_prompt_saves_most_of_the_columns():
    members = [sample([*range(1, 401), 500 + g, 600], 400, "g") for g in range(8)]
    assert pack(members, 512).rows == 8
    assert pack(members, 512, share_prompts=True).rows == 1


def test_a_group_wider_than_a_row_is_split_and_repeats_its_prompt():
    members = [sample([1, 2, 3, 4, 5, 10 + g, 20 + g, 30 + g], 5, "g", seed=g) for g in range(5)]
    batch = pack(members, 12, share_prompts=True)
    assert batch.rows == 3  # 4 shared columns and two branches of 3; a third would need 13 columns
    assert sorted(facts_of_batch(batch)) == sorted(f for s in members for f in facts(s))


def test_what_cannot_be_packed_is_refused():
    with pytest.raises(ValueError, match="doesn't fit in a row of 4"):
        pack([sample([1, 2, 3, 4, 5, 6])], 4)
    with pytest.raises(ValueError, match="different prompts"):
        pack([sample([1, 2, 3], 2, "g"), sample([1, 9, 3], 2, "g")], 8, share_prompts=True)
    carrying = Sample(*(np.ones(3) for _ in range(4)), prompt_length=2, group="g")
    with pytest.raises(ValueError, match="can't carry loss"):
        pack([carrying], 8, share_prompts=True)


def test_micro_batches_have_one_shape_and_keep_the_token_count():
    batch = pack([sample(list(range(1, 9)), seed=i) for i in range(5)], 8)
    parts = micro_batches(batch, 2)
    assert {part.tokens.shape for part in parts} == {(2, 8)}
    assert len(parts) == 3
    assert sum(part.token_count for part in parts) == batch.token_count
    np.testing.assert_array_equal(np.concatenate([p.tokens for p in parts])[:5], batch.tokens)
    assert empty(2, 8).token_count == 0
