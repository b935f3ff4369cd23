"""Taxonomy: declared names win, others are placed by their words, agreement is measured."""

import numpy as np
import pytest

from synth import mining, taxonomy, themes
from synth.errors import CallerError
from synth.types import Theme


def bare(theme_id: str, description: str, **spec) -> Theme:
    return Theme(id=theme_id, source="mcp", name=theme_id, description=description, spec=spec, license="MIT")


TWO_WORLDS = [
    bare("a", "airport runway flight airline passenger"),
    bare("b", "flight airline passenger gate airport"),
    bare("c", "molecule atom chemistry laboratory element"),
    bare("d", "element chemistry atom reaction laboratory"),
]


def test_declared_names_are_used():
    demo = themes.builtin("demo")
    placed = taxonomy.place(demo, [mining.mine(t, 0) for t in demo[:3]])
    assert placed == {t.id: (t.spec["first_level"], t.spec["second_level"]) for t in demo}


def test_undeclared_themes_meet_their_like():
    placed = taxonomy.place(TWO_WORLDS)
    assert placed["a"][0] == placed["b"][0] != placed["c"][0] == placed["d"][0]
    assert "airport" in placed["a"][0]
    assert "chemistry" in placed["c"][0]


def test_an_undeclared_theme_joins_the_class_of_its_declared_neighbours():
    known = [
        t.model_copy(update={"spec": {"first_level": "Travel" if t.id in "ab" else "Science"}})
        for t in TWO_WORLDS
    ]
    known[1] = TWO_WORLDS[1]
    assert taxonomy.place(known)["b"][0] == "Travel"


def test_agreement_is_one_for_clear_classes_and_absent_without_declarations():
    known = [
        t.model_copy(update={"spec": {"first_level": "Travel" if t.id in "ab" else "Science"}})
        for t in TWO_WORLDS
    ]
    assert taxonomy.report(known)["adjusted_rand_index"] == {"first_level": 1.0}
    assert taxonomy.report(TWO_WORLDS) == {"themes": 4, "declared": 0, "adjusted_rand_index": {}}


def test_agreement_on_our_themes_is_reported_and_above_chance():
    demo = themes.builtin("demo")
    found = taxonomy.report(demo, [mining.mine(t, 0) for t in demo])
    assert found["declared"] == 18
    assert 0.0 < found["adjusted_rand_index"]["first_level"] <= 1.0


def test_adjusted_rand_index_against_hand_counts():
    assert taxonomy.adjusted_rand_index([("x", 1), ("x", 1), ("y", 2), ("y", 2)]) == 1.0
    assert taxonomy.adjusted_rand_index([("x", 1), ("x", 2), ("y", 1), ("y", 2)]) == pytest.approx(-0.5)
    assert taxonomy.adjusted_rand_index([(0, 0), (0, 0), (1, 0), (1, 1)]) == pytest.approx(0.0)


def test_tfidf_rows_have_unit_length_and_plurals_count_as_one_word():
    weights, terms = taxonomy.tfidf(["city cities airports", "airport glass"])
    assert terms == ["airport", "city", "glass"]
    assert np.linalg.norm(weights, axis=1) == pytest.approx([1.0, 1.0])
    assert weights[0, 1] > weights[0, 0]  # twice, and rarer


def test_one_theme_is_a_class_of_its_own_and_none_is_refused():
    assert set(taxonomy.place(TWO_WORLDS[:1])) == {"a"}
    with pytest.raises(CallerError, match="no themes"):
        taxonomy.place([])


def test_places_are_deterministic():
    assert taxonomy.place(TWO_WORLDS) == taxonomy.place(TWO_WORLDS)
