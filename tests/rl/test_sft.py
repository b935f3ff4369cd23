"""Supervised training: what it minimises, that it resumes exactly, and what it refuses."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from rl.batch import text_sample
from rl.learner import OptimizerConfig
from rl.metrics import read_metrics
from rl.sft import SFTConfig, batches_of, heldout_loss, plan_epoch, train_sft
from synth.errors import CallerError


def texts(count: int, seed: int = 0) -> list:
    """Counting sequences: the next id follows from this one."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        ids = (rng.integers(0, 50) + np.arange(rng.integers(5, 30))) % 60 + 3
        made.append(text_sample(ids, [0.2] * 3 + [1.0] * (len(ids) - 3)))
    return made


CONFIG = SFTConfig(
    epochs=3,
    rows=2,
    row_length=64,
    checkpoint_every=2,
    optimizer=OptimizerConfig(learning_rate=1e-2, schedule="cosine", warmup_steps=2),
)


@pytest.fixture(scope="module")
def whole(policy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sft")
    return train_sft(CONFIG, policy, texts(40), folder, heldout=texts(8, seed=1)), folder


def test_the_loss_falls_on_what_was_seen_and_what_was_not(whole):
    rows = read_metrics(whole[1] / "sft.jsonl")
    assert rows[-1]["loss"] < 0.7 * rows[0]["loss"]
    held = [row["heldout_loss"] for row in rows if "heldout_loss" in row]
    assert len(held) == CONFIG.epochs
    assert held[-1] < held[0] < rows[0]["before_heldout_loss"]


@pytest.mark.parametrize("stop", [1, 5, 8])
def test_a_killed_run_goes_on_to_the_same_end(stop, whole, policy, run_dir):
    class Killed(Exception):
        pass

    def progress(step, total, numbers):
        if step == stop:
            raise Killed

    with pytest.raises(Killed):
        train_sft(CONFIG, policy, texts(40), run_dir, heldout=texts(8, seed=1), progress=progress)
    again = train_sft(CONFIG, policy, texts(40), run_dir, heldout=texts(8, seed=1))
    jax.tree.map(np.testing.assert_array_equal, again.params, whole[0].params)
    assert read_metrics(run_dir / "sft.jsonl") == read_metrics(whole[1] / "sft.jsonl")


def test_an_epoch_holds_every_sample_once_in_an_order_of_its_own():
    samples = texts(50)
    first, second = (plan_epoch(samples, 64, 0, epoch) for epoch in (0, 1))
    for rows in (first, second):
        seen = [piece.sample for row in rows for segment in row for piece in segment]
        assert sorted(map(id, seen)) == sorted(map(id, samples))
    tokens = [np.concatenate([b.tokens for b in batches_of(rows, 4, 64)]) for rows in (first, second)]
    assert tokens[0].shape != tokens[1].shape or (tokens[0] != tokens[1]).any()
    assert {batch.tokens.shape for batch in batches_of(first, 4, 64)} == {(4, 64)}


def test_held_out_loss_is_a_mean_over_tokens_not_over_batches(policy):
    samples = texts(9)
    rows = plan_epoch(samples, 64, 0, 0)
    few = heldout_loss(policy.score, policy.params, list(batches_of(rows, 1, 64)))
    one = heldout_loss(policy.score, policy.params, list(batches_of(rows, len(rows), 64)))
    assert few == pytest.approx(one, rel=1e-5)
    assert few["loss"] == pytest.approx(np.log(policy.config.vocab_size), rel=0.05)  # untrained: uniform


def test_examples_that_share_their_beginning_cost_fewer_columns_and_the_same_loss(policy):
    """Rule 4, for an environment's tool list: once a row instead of once an example."""
    rng = np.random.default_rng(3)
    tools = rng.integers(3, 60, 30).tolist()
    ids = [[*tools, *rng.integers(3, 60, 6).tolist()] for _ in range(12)]
    samples = [
        dataclasses.replace(text_sample(x, [0.0] * 30 + [1.0] * 6), prompt_length=30, group="library")
        for x in ids
    ]
    alone, shared = (plan_epoch(samples, 96, 0, 0, share_prompts=share) for share in (False, True))
    assert len(shared) * 2 <= len(alone)
    losses = [heldout_loss(policy.score, policy.params, list(batches_of(r, 1, 96))) for r in (alone, shared)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_what_cannot_be_trained_on_is_refused(policy, run_dir):
    with pytest.raises(CallerError, match="at least one example"):
        train_sft(CONFIG, policy, [], run_dir)
    with pytest.raises(CallerError, match="an example has 90 tokens"):
        train_sft(CONFIG, policy, [text_sample([4] * 90, [1.0] * 90)], run_dir)
