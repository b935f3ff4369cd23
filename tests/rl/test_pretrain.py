"""Pretraining: scripted records, a renaming that forces copying, a curriculum, and a model that learns."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest

from model.tokens import ChatTemplate
from rl.batch import pack, text_sample
from rl.copying import copying_start
from rl.corpus import Record, environment_records, read_corpus, thin_tools
from rl.policy import Policy
from rl.pretrain import (
    LEVELS,
    PASSED,
    SHAPES,
    STAY,
    TOGETHER_FROM,
    Curriculum,
    Feed,
    base_config,
    corpus_texts,
    sample_of,
    split_records,
    train_tokenizer,
)
from rl.renaming import Renamer
from synth.themes import builtin


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """Episodes of two real environments of the pretrain split."""
    themes = {t.id: t for t in builtin("pretrain")}
    return [r for name in ("glass_lab", "sprint_museum") for r in environment_records(themes[name], 1, 8, 4)]


@pytest.fixture(scope="module")
def template(records, tmp_path_factory) -> ChatTemplate:
    return ChatTemplate(train_tokenizer(corpus_texts(records), 1024, tmp_path_factory.mktemp("tokenizer")))


def test_records_replay_real_results(records):
    for r in records:
        assert len(r.calls) == len(r.observations) >= 1
        assert all(isinstance(json.loads(o), dict) for o in r.observations)
        listed = {t["name"] for t in r.tools}
        assert {c["tool"] for c in r.calls if not c.get("wrong")} <= set(r.needed) <= listed


def test_only_themes_that_are_never_measured_on_are_in_the_corpus():
    demo = {t.id for t in builtin("demo")}
    assert not demo & {t.id for t in builtin("pretrain")}


def test_renaming_is_consistent_between_question_calls_results_and_answer(records):
    renamer, rng = Renamer(records), random.Random(0)
    for record in records:
        renamed = renamer.rename([record], rng)[0]
        gold = [c for c in renamed.calls if not c.get("wrong")]
        assert {c["tool"] for c in gold} <= {t["name"] for t in renamed.tools}
        for call in gold:
            schema = next(t for t in renamed.tools if t["name"] == call["tool"])["inputSchema"]
            assert set(call["arguments"]) <= set(schema["properties"])
        if isinstance(record.answer, str) and record.answer in record.observations[-1]:
            assert renamed.answer in renamed.observations[-1]


def test_renaming_leaves_numbers_and_shared_words_alone(records):
    renamer = Renamer(records)
    text = "".join(records[0].observations)
    renamed = "".join(renamer.rename([records[0]], random.Random(3))[0].observations)
    assert re.findall(r"\d+", text) == re.findall(r"\d+", renamed)
    assert "status" in renamer.shared
    assert "find" in renamer.shared


def test_renaming_changes_most_nouns(records):
    renamer, rng = Renamer(records), random.Random(1)
    names = {r.tools[0]["name"] for r in records}
    renamed = {renamer.rename([r], rng)[0].tools[0]["name"] for r in records}
    assert len(renamed - names) > len(names)


def test_thinned_tool_lists_keep_what_is_needed(records):
    rng = random.Random(0)
    for record in records:
        for most in (1, 4, 12):
            names = {t["name"] for t in thin_tools(record.tools, record.needed, most, rng)}
            assert set(record.needed) <= names
            assert len(names) <= max(most, len(record.needed))


def test_the_assistants_tokens_carry_full_weight_and_nothing_else_does(records, template):
    sample = sample_of(records[0], records[0].tools, template)
    said = template.tokenizer.decode(sample.ids[sample.weights >= 1.0].tolist())
    for call in records[0].calls:
        assert call["tool"] in said
    assert records[0].instruction not in said


@pytest.mark.parametrize("level", [1, 3, TOGETHER_FROM, LEVELS])
def test_batches_have_two_shapes_and_depend_on_seed_step_and_level_only(records, template, level):
    feed = Feed(records, template, seed=0)
    batch, again = feed.batch(3, level), Feed(records, template, seed=0).batch(3, level)
    assert batch.tokens.shape == SHAPES[level >= TOGETHER_FROM]
    assert all(np.array_equal(a, b) for a, b in zip(batch, again, strict=True))
    assert (batch.weights >= 1.0).any()


def test_a_level_is_passed_by_its_loss_and_not_before_its_time():
    curriculum = Curriculum()
    for _ in range(10 * STAY):
        curriculum.saw(PASSED + 1.0)
    assert curriculum.level == 1
    while curriculum.level == 1:
        curriculum.saw(0.0)
    assert curriculum.loss < PASSED
    for _ in range(STAY - 1):
        curriculum.saw(0.0)
    assert curriculum.level == 2  # however low the loss
    curriculum.saw(0.0)
    assert curriculum.level == 3


def test_the_copying_start_continues_a_repeated_sequence_before_any_training(template):
    """Random ids and a part of them again: a plain start is at chance, ours is not."""
    policy = Policy.fresh(base_config(1024), template.tokenizer, seed=0)
    rng = np.random.default_rng(0)
    samples = []
    for _ in range(24):
        ids = rng.integers(0, 1024, 40).tolist()
        samples.append(text_sample([*ids, *ids[5:25]], [0.0] * 41 + [1.0] * 19))
    batch = pack(samples, 256)
    losses = []
    for params in (policy.params, copying_start(policy.params, policy.config, seed=0)):
        logp, _ = policy.score(params, batch)
        losses.append(-float((np.asarray(logp) * batch.weights).sum() / batch.weights.sum()))
    assert losses[0] > 6.0
    assert losses[1] < 2.0


def test_held_out_records_are_of_other_themes(records):
    inside, held = split_records(records)
    theme = lambda r: r.env_id.rsplit("-", 1)[0]  # noqa: E731
    assert held
    assert not {theme(r) for r in inside} & {theme(r) for r in held}


def test_a_corpus_is_read_back_as_it_was_written(records, tmp_path):
    from dataclasses import asdict

    (tmp_path / "a.jsonl").write_text("".join(json.dumps(asdict(r)) + "\n" for r in records))
    assert read_corpus(tmp_path) == records
