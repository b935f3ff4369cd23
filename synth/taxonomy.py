"""A two-level taxonomy of environments, from the words of their themes and tables.

Texts (theme, table and column words) become TF-IDF vectors, truncated SVD makes them dense, and one
Ward tree over them is cut twice: low for second-level clusters, higher for the first-level classes
that merge them. A theme whose spec declares ``first_level`` and ``second_level`` (a reviewed mapping)
keeps those names, and :func:`report` says how well the clustering agrees with them; the others take
the name of their cluster: that of its declared members, else its top terms. NumPy and SciPy only.
Thousands of themes, and newcomers without refitting: :mod:`synth.classes`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from math import comb
from typing import Any

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage

from synth.embedding import words
from synth.errors import CallerError
from synth.types import Database, Theme

LEVELS = ("first_level", "second_level")
DIMENSIONS = 12  # of the SVD; ours: of 8 to 32 none is clearly better on our own themes (see DATA.md)
TERMS = 3  # top terms in the name of a cluster without declared members
STOP = frozenset(
    re.findall(
        r"\w+",
        "a about all an and another any are as at be beyond but by can each ever every for from has have how "
        "in into is it its keep keeps left many moved much never number of on one only or other over read "
        "see server that the their them they to up what which who with within",
    )
)


def place(themes: Sequence[Theme], databases: Sequence[Database] = ()) -> dict[str, tuple[str, str]]:
    """(first level, second level) of every theme id.

    Args:
        themes: at least one.
        databases: mined or complexified databases; each adds its words to its theme's text.

    Raises:
        CallerError: no themes.
    """
    weights, terms = tfidf(_texts(themes, databases))
    first, second = (
        _names(themes, level, labels, weights, terms)
        for level, labels in zip(LEVELS, _clusters(themes, weights), strict=True)
    )
    return {theme.id: (first[i], second[i]) for i, theme in enumerate(themes)}


def report(themes: Sequence[Theme], databases: Sequence[Database] = ()) -> dict[str, Any]:
    """Agreement of the clustering with the declared classes.

    Returns:
        ``themes``, ``declared`` (counts) and, where at least two themes declare a level,
        ``adjusted_rand_index`` {level: 1.0 for the same partition, about 0.0 for chance}.

    Raises:
        CallerError: no themes.
    """
    weights, _ = tfidf(_texts(themes, databases))
    agreement = {}
    for level, labels in zip(LEVELS, _clusters(themes, weights), strict=True):
        pairs = [(t.spec[level], int(c)) for t, c in zip(themes, labels, strict=True) if t.spec.get(level)]
        if len(pairs) >= 2:
            agreement[level] = round(adjusted_rand_index(pairs), 3)
    declared = sum(1 for t in themes if t.spec.get(LEVELS[0]))
    return {"themes": len(themes), "declared": declared, "adjusted_rand_index": agreement}


def tfidf(texts: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """Rows of unit length, [texts, terms], and the terms: (1 + log count) * smoothed inverse frequency."""
    counts = [Counter(w for w in words(text) if w not in STOP) for text in texts]
    seen = Counter(word for count in counts for word in count)
    terms = sorted(seen)
    column = {word: i for i, word in enumerate(terms)}
    weights = np.zeros((len(texts), len(terms)))
    for row, count in enumerate(counts):
        for word, n in count.items():
            rarity = np.log((1 + len(texts)) / (1 + seen[word])) + 1
            weights[row, column[word]] = (1 + np.log(n)) * rarity
    return weights / np.maximum(np.linalg.norm(weights, axis=1, keepdims=True), 1e-12), terms


def adjusted_rand_index(pairs: Sequence[tuple[Any, Any]]) -> float:
    """Agreement of two partitions, given as (class, cluster) of every item; Hubert and Arabie (1985)."""
    both, rows, columns = (
        sum(comb(n, 2) for n in Counter(group).values())
        for group in (pairs, [a for a, _ in pairs], [b for _, b in pairs])
    )
    expected = rows * columns / comb(len(pairs), 2)
    largest = (rows + columns) / 2
    return 1.0 if largest == expected else (both - expected) / (largest - expected)


def _texts(themes: Sequence[Theme], databases: Sequence[Database]) -> list[str]:
    """The words of every environment: theme, business unit, and tables and columns where known."""
    if not themes:
        raise CallerError("no themes to place; name at least one")
    by_theme = {db.theme_id: db for db in databases}
    texts = []
    for theme in themes:
        business = theme.spec.get("operations") or {}
        told = [theme.name, theme.description, str(business.get("unit", "")), str(business.get("actor", ""))]
        database = by_theme.get(theme.id)
        for table in database.tables if database else ():
            told += [table.plural, table.description, *(column.label for column in table.columns)]
        texts.append(" ".join(told))
    return texts


def _clusters(themes: Sequence[Theme], weights: np.ndarray) -> list[np.ndarray]:
    """Cluster numbers of both levels: one Ward tree, cut twice."""
    if len(themes) == 1:
        return [np.ones(1, dtype=int)] * 2
    left, singular, _ = np.linalg.svd(weights, full_matrices=False)
    points = left[:, :DIMENSIONS] * singular[:DIMENSIONS]
    points /= np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-12)
    tree = linkage(points, method="ward")
    return [fcluster(tree, _count(themes, level), criterion="maxclust") for level in LEVELS]


def _count(themes: Sequence[Theme], level: str) -> int:
    """Clusters of a level: as many as declared names, else the square root (first) or half (second)."""
    declared = {t.spec[level] for t in themes if t.spec.get(level)}
    rule = len(themes) ** 0.5 if level == LEVELS[0] else len(themes) / 2
    return len(declared) or max(1, round(rule))


def _names(
    themes: Sequence[Theme], level: str, labels: np.ndarray, weights: np.ndarray, terms: list[str]
) -> list[str]:
    """The name of every theme at a level: its own, else that of its cluster."""
    named: dict[int, str] = {}
    for cluster in {int(c) for c in labels}:
        members = [i for i, c in enumerate(labels) if c == cluster]
        declared = Counter(themes[i].spec[level] for i in members if themes[i].spec.get(level))
        top = np.argsort(-weights[members].mean(axis=0), kind="stable")[:TERMS]
        named[cluster] = declared.most_common(1)[0][0] if declared else ", ".join(terms[int(i)] for i in top)
    return [t.spec.get(level) or named[int(c)] for t, c in zip(themes, labels, strict=True)]
