"""Names of classes without a language model: their distinctive terms, in the spelling people use."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from synth.embedding import STOP, singular
from synth.lexicon import words_of

TERMS = 3  # terms of a name
LISTED = 12  # terms that are kept for the mapping
PAIR = 1.2  # how much more a pair of words says than one word (ours)
PLURAL = 0.25  # a plural this often, beside its singular, makes the better title
PLAIN = words_of("naming", "plain")


def distinctive(texts: Sequence[str], labels: np.ndarray) -> list[list[str]]:
    """The terms of each class, most telling first: frequent inside, rare outside.

    Scored by share inside * log(share inside / share outside); a term must be in 8% of the class.
    """
    held = [_terms(text) for text in texts]
    everywhere = Counter(term for terms in held for term in terms)
    inside: dict[int, Counter[str]] = defaultdict(Counter)
    for terms, label in zip(held, labels, strict=True):
        inside[int(label)].update(terms)
    sizes = Counter(int(label) for label in labels)
    listed = []
    for label in range(int(labels.max()) + 1):
        n, rest = sizes[label], max(len(texts) - sizes[label], 1)
        scored = []
        for term, k in inside[label].items():
            share, other = k / n, (everywhere[term] - k) / rest
            if share >= 0.08 and share > other:
                weight = PAIR if " " in term else 1.0
                scored.append((-weight * share * np.log(share / (other + 0.5 / rest)), term))
        listed.append([term for _, term in sorted(scored)[:LISTED]])
    return listed


def surface_forms(texts: Sequence[str]) -> dict[str, str]:
    """How people write each word: "github" -> "GitHub", "flight" -> "flights".

    Words at the start of a sentence don't count (their capital says nothing), unless there is nothing else.
    """
    inner: dict[str, Counter[str]] = defaultdict(Counter)
    first: dict[str, Counter[str]] = defaultdict(Counter)
    for text in texts:
        for match in re.finditer(r"[^\W\d_]{3,}", text):
            word, before = match.group(), text[max(0, match.start() - 2) : match.start()]
            starts = (not before.strip() and not before) or before[:1] in ".!?:"
            key = singular(word.lower())
            (first if starts else inner)[key][word.lower() if starts else word] += 1
    return {key: _form(inner.get(key) or first[key]) for key in {*inner, *first}}


def join(terms: Sequence[str], forms: dict[str, str], taken: set[str]) -> str:
    """A name such as "Flights, Hotels and Trips" from terms, unlike those that are taken."""
    chosen: list[str] = []
    plain = [t for t in terms if not set(t.split()) & PLAIN] or list(terms) or ["other"]
    for term in plain:
        words = set(term.split())
        if any(words & set(other.split()) for other in chosen):
            continue
        chosen.append(term)
        name = _listing([_written(t, forms) for t in chosen])
        if len(chosen) >= TERMS and name not in taken:
            return name
    name = _listing([_written(t, forms) for t in chosen])
    return name if name not in taken else f"{name} ({len(taken) + 1})"


def _terms(text: str) -> set[str]:
    """Words, and pairs that stand side by side in the text, of one line; no stop words."""
    row = [singular(word) for word in re.findall(r"[^\W\d_]{3,}|[^\s]", text.lower())]
    good = [w if len(w) >= 3 and w not in STOP else "" for w in row]
    pairs = {f"{a} {b}" for a, b in pairwise(good) if a and b and a != b}
    return {w for w in good if w} | pairs


def _form(seen: Counter[str]) -> str:
    """The commonest way to write a word; its plural if that is common enough."""
    most, count = seen.most_common(1)[0]
    if most.lower() != singular(most.lower()):
        return most
    plurals = Counter({w: n for w, n in seen.items() if w.lower() != singular(w.lower())})
    if plurals and plurals.most_common(1)[0][1] >= PLURAL * count and most.islower():
        return plurals.most_common(1)[0][0]
    return most


def _written(term: str, forms: dict[str, str]) -> str:
    *front, last = term.split()
    words = [singular(forms.get(w, w)) if forms.get(w, w).islower() else forms[w] for w in front]
    return " ".join(w if re.search(r"[A-Z]", w) else w.capitalize() for w in [*words, forms.get(last, last)])


def _listing(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
