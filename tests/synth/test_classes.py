"""The taxonomy of many themes: topics are found, named in people's words, reviewed, and open to newcomers."""

import json
import random

import numpy as np
import pytest

from synth import classes, embedding, naming
from synth.errors import CallerError

TOPICS = {
    "flights": "flight airport airline passenger gate luggage runway departure boarding pilot",
    "recipes": "recipe ingredient kitchen oven dinner flour spice cook bake dish",
    "chess": "chess pawn knight bishop tournament opening checkmate rook board castle",
    "hospital": "patient doctor nurse hospital surgery medicine clinic symptom therapy ward",
}


def collection(each: int = 30) -> tuple[list[str], list[str]]:
    """(texts, topics), words drawn by topic."""
    rng = random.Random(0)
    texts, topics = [], []
    for topic, vocabulary in TOPICS.items():
        for _ in range(each):
            texts.append(" and ".join(rng.sample(vocabulary.split(), 6)))
            topics.append(topic)
    return texts, topics


@pytest.fixture(scope="module")
def fitted():
    texts, topics = collection()
    taxonomy, places = classes.fit(
        texts, [f"{t}. {x}" for t, x in zip(topics, texts, strict=True)], classes=4
    )
    return taxonomy, places, topics


def test_topics_become_classes(fitted):
    _, places, topics = fitted
    assert {(t, p.cluster) for t, p in zip(topics, places, strict=True)} == {
        (t, next(p.cluster for p, u in zip(places, topics, strict=True) if u == t)) for t in TOPICS
    }
    assert len({p.cluster for p in places}) == 4


def test_classes_are_merged_into_the_first_level_by_their_words(fitted):
    _, places, topics = fitted
    first = {t: p.first_level for t, p in zip(topics, places, strict=True)}
    assert first == {
        "flights": "Travel and Transport",
        "recipes": "Food, Home and Property",
        "chess": "Games",
        "hospital": "Health and Medicine",
    }


def test_newcomers_are_placed_without_refitting(fitted):
    taxonomy, _, _ = fitted
    before = taxonomy.centres.copy()
    new = taxonomy.place(["a nurse and a doctor", "boarding at the gate", "zzz qqq"])
    assert [p.first_level for p in new[:2]] == ["Health and Medicine", "Travel and Transport"]
    assert new[0].likeness > 0.3
    assert new[2].likeness == 0.0
    assert (taxonomy.centres == before).all()


def test_members_lie_where_newcomers_with_their_text_would(fitted):
    taxonomy, places, _ = fitted
    assert [p.cluster for p in taxonomy.place(collection()[0])] == [p.cluster for p in places]


def test_the_mapping_is_reviewed_by_editing_a_file(fitted, tmp_path):
    taxonomy, _, _ = fitted
    taxonomy.save(tmp_path)
    path = tmp_path / "mapping.json"
    rows = json.loads(path.read_text("utf-8"))
    assert {"cluster", "second_level", "first_level", "terms", "examples", "runner_up", "themes"} <= set(
        rows[0]
    )
    rows[0] |= {"second_level": "Reviewed", "first_level": "By hand"}
    path.write_text(json.dumps(rows), "utf-8")
    again = classes.Taxonomy.load(tmp_path)
    assert {(p.first_level, p.second_level) for p in again.place(collection()[0]) if p.cluster == 0} == {
        ("By hand", "Reviewed")
    }


@pytest.mark.parametrize(
    ("edit", "line"),
    [
        (lambda rows: rows[:-1], "field cluster"),
        (lambda rows: [rows[0] | {"second_level": " "}, *rows[1:]], "class 0: field second_level: empty"),
        (lambda rows: {"a": 1}, "field cluster"),
    ],
)
def test_a_damaged_mapping_is_named(fitted, tmp_path, edit, line):
    fitted[0].save(tmp_path)
    path = tmp_path / "mapping.json"
    path.write_text(json.dumps(edit(json.loads(path.read_text("utf-8")))), "utf-8")
    with pytest.raises(CallerError, match=line):
        classes.Taxonomy.load(tmp_path)


def test_absent_and_damaged_files_are_named(fitted, tmp_path):
    with pytest.raises(CallerError, match=r"embedding\.npz"):
        classes.Taxonomy.load(tmp_path)
    fitted[0].save(tmp_path)
    (tmp_path / "mapping.json").write_text("[1,", "utf-8")
    with pytest.raises(CallerError, match=r"mapping\.json: not JSON"):
        classes.Taxonomy.load(tmp_path)
    (tmp_path / "centres.npy").write_bytes(b"x")
    with pytest.raises(CallerError, match=r"centres\.npy"):
        classes.Taxonomy.load(tmp_path)


def test_the_same_texts_give_the_same_taxonomy():
    texts, topics = collection(8)
    one, other = (classes.fit(texts, topics, classes=4) for _ in range(2))
    assert one[1] == other[1]
    assert one[0].mapping == other[0].mapping


def test_a_better_namer_may_write_the_names():
    class Numbers:
        label = "numbers"

        def names(self, mapping, first):
            assert "Games" in first
            return [m | {"second_level": f"Class {m['cluster']}", "first_level": first[0]} for m in mapping]

    texts, topics = collection(5)
    taxonomy, places = classes.fit(texts, topics, classes=4, namer=Numbers())
    assert [m["second_level"] for m in taxonomy.mapping] == [f"Class {n}" for n in range(4)]
    assert {p.second_level for p in places} == {f"Class {n}" for n in range(4)}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_tiny_collections_have_a_class_a_text(count):
    texts, topics = collection(1)
    assert len({p.cluster for p in classes.fit(texts[:count], topics[:count])[1]}) == count


def test_large_collections_are_fitted_on_a_sample(monkeypatch):
    monkeypatch.setattr(classes, "MOST", 40)
    texts, topics = collection(25)
    _, places = classes.fit(texts, topics, classes=4)
    pairs = {(t, p.cluster) for t, p in zip(topics, places, strict=True)}
    assert len(pairs) == 4


# --- names


def test_names_are_distinctive_terms_in_peoples_spelling():
    texts = ["Manage GitHub issues. With GitHub you close issues."] * 4 + [
        "Plan flights and book flights to an airport."
    ] * 4
    labels = np.array([0] * 4 + [1] * 4)
    terms = naming.distinctive(texts, labels)
    forms = naming.surface_forms(texts)
    assert set(terms[0]) & set(terms[1]) == set()
    assert naming.join(["github", "issue", "github issue"], forms, set()) == "GitHub and Issues"
    assert naming.join(["flight", "airport"], forms, set()) == "Flights and Airport"


def test_names_are_unlike_those_that_are_taken():
    forms: dict[str, str] = {}
    first = naming.join(["chess", "pawn", "rook", "knight"], forms, set())
    second = naming.join(["chess", "pawn", "rook", "knight"], forms, {first})
    assert first == "Chess, Pawn and Rook"
    assert second not in ("", first)


# --- embedding


def test_vectors_have_unit_length_and_unknown_words_have_none(tmp_path):
    texts, _ = collection(10)
    fitted = embedding.fit(texts, dimensions=8)
    vectors = fitted.transform([*texts, "zzz"])
    assert np.linalg.norm(vectors[:-1], axis=1) == pytest.approx(1.0)
    assert not vectors[-1].any()
    fitted.save(tmp_path / "e.npz")
    assert (embedding.Embedding.load(tmp_path / "e.npz").transform(texts) == fitted.transform(texts)).all()


def test_the_axes_are_those_of_a_full_decomposition():
    texts, _ = collection(10)
    fitted = embedding.fit(texts, dimensions=5)
    weights = fitted.weights(texts).toarray()
    left, size, _ = np.linalg.svd(weights, full_matrices=False)
    best = np.linalg.norm(weights - (left[:, :5] * size[:5]) @ (left[:, :5].T @ weights / size[:5, None]))
    ours = np.linalg.norm(weights - weights @ fitted.axes @ fitted.axes.T)
    assert ours == pytest.approx(best, rel=1e-3)


def test_a_sources_manner_of_speaking_does_not_count():
    texts = [f"requirement stakeholder {w}" for w in TOPICS["chess"].split() * 3]
    texts += [f"unit {w}" for w in TOPICS["recipes"].split() * 3]
    fitted = embedding.fit(texts, ["prd"] * 30 + ["mcp"] * 30)
    assert "stakeholder" not in fitted.terms
    assert "pawn" in fitted.terms


def test_no_words_are_refused():
    with pytest.raises(CallerError, match="no words to embed"):
        embedding.fit(["the and", ""])
