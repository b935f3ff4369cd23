"""Duplicates among candidates: the same text or repository, and near-duplicates; every pair is reported.

The best documented candidate of a group stays: schemas count most, then tools, then words. The others
are dropped against a candidate that stays, never along a chain of likenesses.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from synth import embedding
from synth.sources.found import Found

NEAR = 0.75  # cosine of TF-IDF rows; ours: hand-read pairs just above are the same product, below it varies
NAMED = 0.2  # the same for two of one name: "GitHub" and "GitHub" need less agreement
BLOCK = 512  # rows at a time: memory stays at BLOCK x candidates
SAME_WORDS = 6  # descriptions shorter than this may agree by chance


@dataclass(frozen=True)
class Pair:
    """Two candidates that are one; ``similarity`` is 1.0 for exact ones."""

    kept: str
    dropped: str
    why: str  # same text, same repository, same name, near text
    similarity: float

    def to_json(self) -> dict[str, Any]:
        """A line of ``duplicates.jsonl``."""
        return asdict(self)


def quality(found: Found) -> tuple[int, int, int, int, str]:
    """Sorts the best documented first."""
    schemas = sum(1 for tool in found.tools if tool.input_schema.get("properties"))
    return (-(found.source == "prd"), -schemas, -len(found.tools), -len(found.description), found.key)


def exact(candidates: Sequence[Found]) -> tuple[list[Found], list[Pair]]:
    """Drop candidates with the same description, or the same repository and name, as a better one."""
    owner: dict[tuple[str, str], str] = {}
    kept, pairs = [], []
    for found in sorted(candidates, key=quality):
        marks = _marks(found)
        twin = next((m for m in marks if m in owner), None)
        if twin:
            pairs.append(Pair(owner[twin], found.key, f"same {twin[0]}", 1.0))
        else:
            kept.append(found)
            owner |= dict.fromkeys(marks, found.key)
    return kept, pairs


def near(
    candidates: Sequence[Found], progress: Callable[[int, int], None] | None = None
) -> tuple[list[Found], list[Pair]]:
    """Drop candidates whose words are nearly those of a better one."""
    ordered = sorted(candidates, key=quality)
    if len(ordered) < 2:
        return ordered, []
    texts = [found.words() for found in ordered]
    fitted = embedding.fit(texts, dimensions=1)
    rows = fitted.weights(texts)
    dropped: dict[int, Pair] = {}
    names = [_core(found.name) for found in ordered]
    for better, worse, cosine in _alike(rows, names, progress):
        if better not in dropped and worse not in dropped:
            why = "near text" if cosine >= NEAR else "same name"
            dropped[worse] = Pair(ordered[better].key, ordered[worse].key, why, round(cosine, 3))
    return [f for i, f in enumerate(ordered) if i not in dropped], list(dropped.values())


def _alike(
    rows: Any, names: Sequence[str], progress: Callable[[int, int], None] | None
) -> Iterator[tuple[int, int, float]]:
    """(better, worse, cosine) of all pairs above the thresholds, in the order of the better one."""
    by_name: dict[str, list[int]] = defaultdict(list)
    for i, name in enumerate(names):
        by_name[name].append(i)
    for start in range(0, len(names), BLOCK):
        block = (rows[start : start + BLOCK] @ rows.T).tocsr()
        for i in range(block.shape[0]):
            row = block.getrow(i)
            better = start + i
            cosine = dict(zip(row.indices.tolist(), row.data.tolist(), strict=True))
            found = {int(j) for j in row.indices[row.data >= NEAR]}
            if names[better]:
                found |= {j for j in by_name[names[better]] if cosine.get(j, 0.0) >= NAMED}
            for worse in sorted(j for j in found if j > better):
                yield better, worse, float(cosine[worse])
        if progress:
            progress(min(start + BLOCK, len(names)), len(names))


def _marks(found: Found) -> list[tuple[str, str]]:
    """What may be the same in an exact duplicate."""
    text = re.sub(r"\W+", " ", found.description.casefold()).strip()
    marks = [("text", text)] if len(text.split()) >= SAME_WORDS else []
    repository = re.sub(r"^(git\+)?(https?|ssh|git)://(git@)?|\.git$|/+$", "", found.url.casefold())
    if repository.count("/") >= 2 and not repository.startswith("github:"):
        marks.append(("repository", f"{repository} {_core(found.name)}"))
    return marks


def _core(name: str) -> str:
    """A name without case, punctuation and filler words."""
    drop = {
        "the",
        "a",
        "an",
        "api",
        "ai",
        "tool",
        "tools",
        "for",
        "and",
        "of",
        "enhanced",
        "simple",
        "advanced",
    }
    return " ".join(w for w in re.findall(r"[^\W_]+", name.casefold()) if w not in drop)


def rate(pairs: Sequence[Pair]) -> dict[str, int]:
    """Pairs by reason."""
    return dict(sorted(Counter(pair.why for pair in pairs).items()))
