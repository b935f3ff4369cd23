"""Mistakes on purpose: real errors, no loss on the wrong turn, and what was due after it."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.tokens import ChatTemplate
from rl.corpus import Record, environment_records
from rl.mistakes import Blunderer, broken_error, garble
from rl.pretrain import corpus_texts, sample_of, train_tokenizer
from rl.renaming import Renamer
from synth.themes import builtin

TOOLS = [
    {"name": "find_ship", "inputSchema": {"properties": {"name": {"type": "string"}}}},
    {"name": "list_ports", "inputSchema": {"properties": {"country": {"type": "string"}}}},
]
GOLD = {"tool": "find_ship", "arguments": {"name": "Star of Bengal"}}


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """Episodes of two real environments: with one alone the renaming would know no shared words."""
    themes = {t.id: t for t in builtin("pretrain")}
    return [r for name in ("glass_lab", "sprint_museum") for r in environment_records(themes[name], 1, 16, 4)]


@given(st.integers(0, 10_000))
def test_a_drawn_mistake_is_never_the_gold_call(seed):
    wrong = Blunderer(TOOLS, [GOLD]).draw(GOLD, random.Random(seed))
    assert wrong["wrong"]
    if "raw" not in wrong:
        assert set(wrong) == {"tool", "arguments", "wrong"}


@given(st.text("abc ", min_size=3).filter(lambda t: t.strip()), st.integers(0, 1000))
def test_garbling_is_drawn_from_its_seed_alone(text, seed):
    assert garble(text, random.Random(seed)) == garble(text, random.Random(seed))


def test_a_turn_that_breaks_off_gets_the_error_of_a_rollout():
    raw = '<tool_call>\n{"name": "find_ship", "arguments": {"name": "Star'
    error = json.loads(broken_error(raw) or "null")["error"]
    assert error["code"] == "malformed_call"
    assert broken_error(raw + '"}}\n</tool_call>') is None


def test_mistakes_are_answered_by_the_sandbox_and_followed_by_what_was_due(records):
    wrong = [(r, i) for r in records for i, c in enumerate(r.calls) if c.get("wrong")]
    assert len(wrong) > 5
    errors = [r.observations[i] for r, i in wrong if '"error"' in r.observations[i]]
    assert len(errors) > len(wrong) / 3
    for r, i in wrong:
        rest = r.calls[i + 1 :]
        assert all(c.get("wrong") for c in rest) or any(not c.get("wrong") for c in rest)
        assert any(not c.get("wrong") for c in r.calls)


def test_a_mistake_carries_no_loss_but_what_follows_does(records, tmp_path):
    record = next(r for r in records if any(c.get("wrong") and "raw" not in c for c in r.calls))
    template = ChatTemplate(train_tokenizer(corpus_texts(records), 1024, tmp_path))
    clean = Record(**{**record.__dict__, "calls": [{**c, "wrong": False} for c in record.calls]})
    with_loss = sample_of(record, record.tools, template)
    all_loss = sample_of(clean, record.tools, template)
    assert np.array_equal(with_loss.ids, all_loss.ids)
    assert np.sum(with_loss.weights >= 1.0) < np.sum(all_loss.weights >= 1.0)
    assert np.sum(with_loss.weights == 0.0) > np.sum(all_loss.weights == 0.0)


def test_renaming_keeps_the_marks_of_mistakes(records):
    renamer, rng = Renamer(records), random.Random(1)
    marks = lambda r: [(bool(c.get("wrong")), "raw" in c) for c in r.calls]  # noqa: E731
    for record in records:
        assert marks(renamer.rename([record], rng)[0]) == marks(record)


def test_renaming_gives_tools_other_verbs_in_list_and_calls_alike(records):
    renamer = Renamer(records)
    changed = 0
    for seed in range(40):
        renamed = renamer.rename([records[0]], random.Random(seed))[0]
        listed = {t["name"] for t in renamed.tools}
        gold = [c for c in renamed.calls if not c.get("wrong")]
        assert gold
        assert {c["tool"] for c in gold} <= listed
        first = {t["name"].split("_")[0] for t in renamed.tools}
        changed += not first & {t["name"].split("_")[0] for t in records[0].tools}
    assert 5 < changed < 35
