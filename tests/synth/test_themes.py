"""Themes: ours are complete and split cleanly; files of others are read with clear refusals."""

from collections import Counter

import pytest

from synth import themes
from synth.author import corpus
from synth.errors import CallerError

GOOD = '{"id": "a", "source": "prd", "name": "A", "description": "d", "license": "MIT"}'


def files_of(theme) -> set[tuple[str, str]]:
    return {(corpus.source(s).package, corpus.source(s).path) for s in theme.spec["sources"]}


def test_there_are_enough_themes_of_all_kinds():
    assert len(themes.builtin("demo")) == 18
    assert len(themes.builtin("pretrain")) >= 16
    kinds = Counter(t.source for t in themes.builtin())
    assert kinds["prd"] > len(themes.builtin()) / 2
    assert kinds["mcp"] >= 2
    assert kinds["tool_doc"] >= 2


def test_demo_classes_hold_three_themes_of_which_one_is_held_out():
    classes = Counter(t.spec["first_level"] for t in themes.builtin("demo"))
    assert len(classes) >= 6
    assert set(classes.values()) == {3}
    held_out = Counter(t.spec["first_level"] for t in themes.builtin("demo") if t.spec.get("arena"))
    assert held_out == dict.fromkeys(classes, 1)


def test_demo_and_pretrain_share_no_source_file():
    demo = set().union(*(files_of(t) for t in themes.builtin("demo")))
    pretrain = set().union(*(files_of(t) for t in themes.builtin("pretrain")))
    assert demo
    assert pretrain
    assert not demo & pretrain


def test_held_out_themes_share_no_file_with_the_others():
    every = themes.builtin()
    for theme in every:
        if theme.spec.get("arena"):
            others = set().union(*(files_of(t) for t in every if t.id != theme.id))
            assert not files_of(theme) & others, theme.id


def test_every_theme_states_its_business_in_words():
    units = []
    for theme in themes.builtin():
        business = theme.spec["operations"]
        for field in ("unit", "unit_plural", "actor", "actor_plural", "quantity", "account"):
            assert business[field], (theme.id, field)
            assert "_" not in business[field]
        assert business["action_words"]
        assert business["undo_words"]
        assert theme.license == "Apache-2.0"
        units.append(business["unit"])
    assert len(set(units)) == len(units), "every theme has a business of its own"


def test_a_json_list_reads_like_lines(tmp_path):
    lines, listed = tmp_path / "t.jsonl", tmp_path / "t.json"
    lines.write_text(GOOD + "\n\n" + GOOD.replace('"a"', '"b"') + "\n", "utf-8")
    listed.write_text("[" + GOOD + "," + GOOD.replace('"a"', '"b"') + "]", "utf-8")
    assert themes.read_themes(lines) == themes.read_themes(listed)
    assert [t.id for t in themes.read_themes(lines)] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "\n" + GOOD.replace("prd", "rumour"), r"t\.jsonl:2: .*field source"),
        (GOOD + "\n" + GOOD.replace('"name"', '"nom"'), r"t\.jsonl:2: .*field name"),
        (GOOD + "\n" + GOOD, r"t\.jsonl:2: field id: a occurs twice"),
        (GOOD + "\n{", r"t\.jsonl:2: "),
        ("[" + GOOD, r"t\.jsonl:1: not JSON"),
        ("", r"t\.jsonl: holds no themes"),
        (GOOD.replace("{", '{"schema_version": 99, ', 1), r"t\.jsonl:1: .*schema_version 99"),
    ],
)
def test_damage_is_named_by_file_line_and_field(tmp_path, text, message):
    path = tmp_path / "t.jsonl"
    path.write_text(text, "utf-8")
    with pytest.raises(CallerError, match=message):
        themes.read_themes(path)


def test_a_missing_or_binary_file_is_named(tmp_path):
    with pytest.raises(CallerError, match=r"none\.jsonl: cannot be read"):
        themes.read_themes(tmp_path / "none.jsonl")
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CallerError, match=r"b\.jsonl: not UTF-8"):
        themes.read_themes(tmp_path / "b.jsonl")
