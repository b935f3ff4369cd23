"""A taxonomy of thousands of themes: fitted once, reviewed by people, and open to newcomers.

:func:`fit` embeds all texts, cuts a Ward tree at the second level (50 classes, the paper's number) and
names each class by its distinctive terms. A first draft of the first level merges each class into that of
``first_level.json`` (ours, reviewed: a name and its words) to which its centre lies closest. Both names
lie in a mapping file that people edit; :func:`Taxonomy.place` puts new texts into the nearest class
without refitting. :mod:`synth.taxonomy` does the same for a handful of themes with declared classes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage

from synth import embedding, naming
from synth.embedding import Embedding
from synth.errors import CallerError
from synth.sentences import SentenceModel

SECOND_LEVEL = 50  # classes (paper, section on the taxonomy)
MOST = 10_000  # texts in one Ward tree: its distances take 8 * n * n / 2 bytes, 400 MB for 10,000
EXAMPLES = 5
FIRST_LEVEL = Path(__file__).with_name("first_level.json")


class Namer(Protocol):
    """A better writer of names than :mod:`synth.naming`, such as a language model."""

    @property
    def label(self) -> str: ...

    def names(self, mapping: Sequence[dict[str, Any]], first: Sequence[str]) -> Sequence[dict[str, Any]]:
        """The drafted mapping with other ``second_level`` and ``first_level`` names.

        Args:
            first: the names of the first level to choose from.
        """
        ...


@dataclass(frozen=True)
class Place:
    """Where a text belongs; ``likeness`` is the cosine to the centre of its class (0: no known word)."""

    cluster: int
    first_level: str
    second_level: str
    likeness: float


@dataclass(frozen=True)
class Taxonomy:
    """A fitted taxonomy.

    Attributes:
        embedding: gives new texts their vectors.
        centres: of the classes, unit length, [classes, dimensions].
        mapping: one record a class: ``cluster``, ``second_level``, ``first_level``, ``terms``,
            ``examples``, ``themes``, ``first_level_score``, ``runner_up``, ``runner_up_score``; where a
            namer gave the names, ``named_by``.
    """

    embedding: Embedding | SentenceModel
    centres: np.ndarray
    mapping: tuple[dict[str, Any], ...]

    def place(self, texts: Sequence[str]) -> list[Place]:
        """The nearest class of each text, without refitting."""
        likeness = self.embedding.transform(texts) @ self.centres.T
        best = likeness.argmax(axis=1) if len(texts) else np.zeros(0, dtype=int)
        return [self._place(int(c), float(likeness[i, c])) for i, c in enumerate(best)]

    def _place(self, cluster: int, likeness: float) -> Place:
        names = self.mapping[cluster]
        return Place(cluster, names["first_level"], names["second_level"], round(likeness, 3))

    def save(self, folder: Path) -> None:
        """Write ``embedding.npz``, ``centres.npy`` and ``mapping.json`` (the file to review and edit)."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("embedding.npz", "embedding.json"):
            (folder / name).unlink(missing_ok=True)
        fitted = isinstance(self.embedding, Embedding)
        self.embedding.save(folder / ("embedding.npz" if fitted else "embedding.json"))
        np.save(folder / "centres.npy", self.centres, allow_pickle=False)
        write_mapping(folder / "mapping.json", self.mapping)

    @classmethod
    def load(cls, folder: Path) -> Taxonomy:
        """Read a folder that :meth:`save` wrote, with the names that people gave in ``mapping.json``.

        Raises:
            CallerError: a file is absent or damaged, or the mapping is not of these classes.
        """
        named = folder / "embedding.json"
        fitted = SentenceModel.load(named) if named.exists() else Embedding.load(folder / "embedding.npz")
        try:
            centres = np.load(folder / "centres.npy", allow_pickle=False)
        except (OSError, ValueError) as err:
            raise CallerError(
                f"{folder}/centres.npy: not readable ({type(err).__name__}); build anew"
            ) from None
        return cls(fitted, centres, read_mapping(folder / "mapping.json", len(centres)))


def fit(
    texts: Sequence[str],
    titles: Sequence[str],
    sources: Sequence[str] = (),
    *,
    classes: int = SECOND_LEVEL,
    namer: Namer | None = None,
    model: str | None = None,
) -> tuple[Taxonomy, list[Place]]:
    """Learn the classes of texts, and place each text.

    Args:
        texts: what is embedded; names of tools included.
        titles: "name. description" of each, for names and examples.
        sources: where each text comes from (:func:`synth.embedding.fit`).
        classes: of the second level; fewer where there are fewer texts.
        namer: gives better names to the drafted classes; without one terms are joined.
        model: a sentence model (:mod:`synth.sentences`) instead of TF-IDF.

    Raises:
        CallerError: no texts, or the model is not installed.
    """
    fitted = embedding.fit(texts, sources) if model is None else SentenceModel(model)
    points = fitted.transform(texts)
    labels = _ward(points, classes)
    labels, centres = _settle(points, labels)
    terms = naming.distinctive(titles, labels)
    forms = naming.surface_forms(titles)
    first = json.loads(FIRST_LEVEL.read_text("utf-8"))
    mapping = _draft(fitted, points, labels, centres, terms, forms, titles, first)
    if namer is not None:
        mapping = tuple(namer.names(mapping, list(first)))
    taxonomy = Taxonomy(fitted, centres, mapping)
    likeness = np.einsum("nd,nd->n", points, centres[labels])
    return taxonomy, [taxonomy._place(int(c), float(x)) for c, x in zip(labels, likeness, strict=True)]


def read_mapping(path: Path, classes: int) -> tuple[dict[str, Any], ...]:
    """The reviewed names of the classes.

    Raises:
        CallerError: no such file, no JSON, a class is missing, or a name is empty.
    """
    try:
        mapping = json.loads(path.read_text("utf-8"))
    except OSError:
        raise CallerError(f"{path}: no such file; build the taxonomy first") from None
    except ValueError as err:
        raise CallerError(f"{path}: not JSON ({err}); mend the last edit") from None
    if not isinstance(mapping, list) or [m.get("cluster") for m in mapping] != list(range(classes)):
        raise CallerError(
            f"{path}: field cluster: names must be there for classes 0 to {classes - 1}, in order"
        )
    for record in mapping:
        for level in ("first_level", "second_level"):
            if not isinstance(record.get(level), str) or not record[level].strip():
                raise CallerError(f"{path}: class {record['cluster']}: field {level}: empty; give it a name")
    return tuple(mapping)


def write_mapping(path: Path, mapping: Sequence[dict[str, Any]]) -> None:
    """Write the mapping so that a person can read and edit it: one class a line, names first."""
    lines = ",\n".join(" " + json.dumps(record, ensure_ascii=False) for record in mapping)
    path.write_text(f"[\n{lines}\n]\n", "utf-8")


def _ward(points: np.ndarray, classes: int) -> np.ndarray:
    """Class numbers from 0 of all points; beyond :data:`MOST` those of an even sample, spread to the rest."""
    if len(points) <= classes:
        return np.arange(len(points))
    step = -(-len(points) // MOST)
    sample = points[::step]
    labels = fcluster(linkage(sample, method="ward"), classes, criterion="maxclust") - 1
    if step == 1:
        return labels
    return (points @ _centres(sample, labels).T).argmax(axis=1)


def _settle(points: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Largest class first, no gaps; every point then goes to its nearest centre, as newcomers do."""
    for _ in range(2):
        numbers, sizes = np.unique(labels, return_counts=True)
        order = numbers[np.argsort(-sizes, kind="stable")]
        labels = np.searchsorted(order, labels, sorter=np.argsort(order))
        labels = np.argsort(order, kind="stable")[labels]
        centres = _centres(points, labels)
        labels = (points @ centres.T).argmax(axis=1)
    used = np.unique(labels)
    return np.searchsorted(used, labels), centres[used]


def _centres(points: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Mean of each class, unit length."""
    return embedding.unit(np.stack([points[labels == c].mean(axis=0) for c in range(labels.max() + 1)]))


def _draft(
    fitted: Embedding | SentenceModel,
    points: np.ndarray,
    labels: np.ndarray,
    centres: np.ndarray,
    terms: list[list[str]],
    forms: dict[str, str],
    titles: Sequence[str],
    first: dict[str, str],
) -> tuple[dict[str, Any], ...]:
    """The first draft of the mapping, for people to review."""
    anchors = fitted.transform([f"{name} {words}".replace(" ", "\n") for name, words in first.items()])
    scores = centres @ anchors.T
    taken: set[str] = set()
    mapping = []
    for c in range(len(centres)):
        members = np.flatnonzero(labels == c)
        nearest = members[np.argsort(-(points[members] @ centres[c]), kind="stable")][:EXAMPLES]
        best, second = np.argsort(-scores[c], kind="stable")[:2]
        examples = [titles[int(i)] for i in nearest]
        name = naming.join(terms[c], forms, taken)
        taken.add(name)
        mapping.append(
            {
                "cluster": c,
                "second_level": name,
                "first_level": list(first)[int(best)],
                "themes": len(members),
                "first_level_score": round(float(scores[c, best]), 3),
                "runner_up": list(first)[int(second)],
                "runner_up_score": round(float(scores[c, second]), 3),
                "terms": terms[c][:8],
                "examples": [text.split(". ")[0][:60] for text in examples],
            }
        )
    return tuple(mapping)
