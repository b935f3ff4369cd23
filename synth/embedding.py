"""Texts as vectors: TF-IDF over words and word pairs, made dense by a truncated SVD.

What taxonomy and duplicate search of large collections stand on. The fit is kept (terms, rarity, SVD), so
that new texts get their vector without refitting. NumPy and SciPy only; anything with the same three
methods (``fit`` by the caller, :meth:`Embedding.transform`, :meth:`Embedding.save`) could stand in for it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from synth.errors import CallerError
from synth.lexicon import words_of

DIMENSIONS = 100  # of the SVD (ours: a usual size for thousands of short texts)
RARE = 3  # a term of fewer texts says nothing about likeness (collections of 200 texts and more)
COMMON = 0.2  # a term of more than this share of texts neither
STYLE = 0.25  # nor one of more than this share of one source's texts: it is the source's way of speaking
STOP = words_of("embedding", "stop")


def words(text: str) -> list[str]:
    """Lower-case words of three letters and more, plurals cut to the singular by rule of thumb."""
    return [singular(word) for word in re.findall(r"[^\W\d_]{3,}", text.lower())]


def singular(word: str) -> str:
    """airports -> airport, cities -> city; glass, bus and basis stay."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if len(word) > 3 and re.search(r"[^sui]s$", word) else word


def terms_of(text: str) -> Counter[str]:
    """Words and neighbouring pairs of words, without stop words."""
    counts: Counter[str] = Counter()
    for line in text.splitlines():
        row = [w for w in words(line) if w not in STOP]
        counts.update(row)
        counts.update(f"{a} {b}" for a, b in pairwise(row) if a != b)
    return counts


@dataclass(frozen=True)
class Embedding:
    """A fitted embedding.

    Attributes:
        terms: words and pairs, sorted.
        rarity: smoothed inverse frequency of each, [terms].
        axes: right singular vectors, [terms, dimensions], float32.
    """

    terms: tuple[str, ...]
    rarity: np.ndarray
    axes: np.ndarray

    def weights(self, texts: Sequence[str]) -> csr_matrix:
        """TF-IDF rows of unit length, [texts, terms]."""
        return _weights([terms_of(text) for text in texts], self.terms, self.rarity)

    def transform(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of unit length, [texts, dimensions]; zeros for a text without known words."""
        return unit(np.asarray(self.weights(texts) @ self.axes))

    def save(self, path: Path) -> None:
        """Write one ``.npz``; no pickle in it."""
        terms = np.frombuffer(json.dumps(self.terms).encode(), dtype=np.uint8)
        with path.open("wb") as out:
            np.savez_compressed(out, terms=terms, rarity=self.rarity, axes=self.axes)

    @classmethod
    def load(cls, path: Path) -> Embedding:
        """Read what :meth:`save` wrote.

        Raises:
            CallerError: the file is absent or damaged.
        """
        try:
            with np.load(path, allow_pickle=False) as held:
                terms = tuple(json.loads(held["terms"].tobytes()))
                return cls(terms, held["rarity"], held["axes"])
        except (OSError, ValueError, KeyError) as err:
            raise CallerError(
                f"{path}: no readable embedding ({type(err).__name__}); build it anew"
            ) from None


def fit(texts: Sequence[str], sources: Sequence[str] = (), dimensions: int = DIMENSIONS) -> Embedding:
    """Learn terms, rarity and axes from texts.

    Args:
        texts: at least one.
        sources: where each text comes from; terms that are a source's manner of speaking are left out.
        dimensions: at most; fewer for small collections.

    Raises:
        CallerError: no texts, or no words in them.
    """
    counts = [terms_of(text) for text in texts]
    seen = Counter(term for count in counts for term in count)
    least = RARE if len(texts) >= 200 else 1
    most = max(COMMON * len(texts), 5)
    manner = _manners(counts, sources)
    terms = tuple(sorted(t for t, n in seen.items() if least <= n <= most and t not in manner))
    if not terms:
        raise CallerError("no words to embed; the texts are empty or all alike")
    rarity = np.log((1 + len(texts)) / (1 + np.array([seen[t] for t in terms]))) + 1
    weights = _weights(counts, terms, rarity)
    return Embedding(terms, rarity, _axes(weights, dimensions))


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows of length one; zero rows stay zero."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def _manners(counts: Sequence[Counter[str]], sources: Sequence[str]) -> set[str]:
    """Terms of more than a share :data:`STYLE` of one source's texts (sources of 20 texts and more)."""
    manner: set[str] = set()
    for source, size in Counter(sources).items():
        if size >= 20:
            rows = (count for count, s in zip(counts, sources, strict=True) if s == source)
            seen = Counter(term for count in rows for term in count)
            manner |= {term for term, n in seen.items() if n > STYLE * size}
    return manner


def _weights(counts: Iterable[Counter[str]], terms: Sequence[str], rarity: np.ndarray) -> csr_matrix:
    """(1 + log count) * rarity, rows of unit length."""
    column = {term: i for i, term in enumerate(terms)}
    values, columns, starts = [], [], [0]
    for count in counts:
        known = sorted((column[term], n) for term, n in count.items() if term in column)
        row = np.array([(1 + np.log(n)) * rarity[i] for i, n in known])
        values += list(row / max(float(np.linalg.norm(row)), 1e-12))
        columns += [i for i, _ in known]
        starts.append(len(columns))
    shape = (len(starts) - 1, len(terms))
    return csr_matrix((np.array(values), np.array(columns, dtype=int), starts), shape=shape)


def _axes(weights: Any, dimensions: int) -> np.ndarray:
    """The leading right singular vectors by randomized subspace iteration (Halko, Martinsson, Tropp 2011).

    The same on every run. ARPACK gives the same classes and takes a hundred times as long here.
    """
    most = min(dimensions, *weights.shape)
    wide = min(most + 20, *weights.shape)
    basis: np.ndarray = np.random.default_rng(0).standard_normal((weights.shape[1], wide))
    for _ in range(6):
        basis = np.linalg.qr(np.asarray(weights.T @ (weights @ basis)))[0]
    turned = np.linalg.svd(np.asarray(weights @ basis), full_matrices=False)[2]
    axes = basis @ turned[:most].T
    signs = np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])
    return (axes * signs).astype(np.float32)
