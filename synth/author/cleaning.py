"""Cleaning: raw rows of a source to typed rows, as its data dictionary says.

Rows with a gap, with a rare category, with a repeated key or with an unusable name are left out;
what stays is plain one-line text, whole numbers and sensibly rounded reals. The verbs that a
``clean`` entry of :class:`synth.author.corpus.SourceColumn` may name stand in :data:`VERBS`.
"""

from __future__ import annotations

import datetime
import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from synth.author.corpus import Source, SourceColumn

MISSING = frozenset({"", "NA", "N/A", "N.A.", "-", "None", "nan"})
MAX_NAME = 30  # characters; ours: longer names cost a small policy too many tokens to copy

Rows = list[dict[str, Any]]


def clean(source: Source, rows: Rows) -> Rows:
    """Typed rows with the columns of the data dictionary, apart from opaque keys; in source order."""
    kept: Rows = []
    for index, raw in enumerate(rows, start=1):
        if not all(_allowed(raw.get(column), values) for column, values in source.where.items()):
            continue
        raw = {**raw, "_row": index}
        row = {c.name: value_of(c, raw) for c in source.columns if not c.opaque}
        if all(row[c.name] is not None or c.nullable for c in source.columns if not c.opaque):
            kept.append(row)
    for column in source.columns:
        if column.role == "category":
            common = {v for v, _ in Counter(r[column.name] for r in kept).most_common(column.keep)}
            kept = [r for r in kept if r[column.name] in common]
        elif column.role == "name":
            kept = [r for r in _distinct(kept, column.name) if 2 <= len(r[column.name]) <= MAX_NAME]
        elif column.role == "key" and not column.opaque:
            kept = _distinct(kept, column.name)
    return kept


def value_of(column: SourceColumn, raw: dict[str, Any]) -> Any:
    """The value of one column in one raw row; None for a gap."""
    if "{" in column.source:
        fields = {name: _text(raw.get(name)) for name in re.findall(r"{([^:}]+)", column.source)}
        text = None if None in fields.values() else column.source.format_map(fields)
    else:
        text = _text(raw.get(column.source))
    for verb in column.clean:
        name, _, argument = verb.partition(":")
        text = VERBS[name](text, argument) if text is not None else None
    if text is None:
        return column.map.get("")
    if column.bands:
        number = float(text)
        return next((word for limit, word in column.bands if number <= limit), None)
    if column.map:
        text = column.map.get(text, column.map.get("*", text))
    if column.type == "integer":
        return round(float(text))
    return _rounded(float(text)) if column.type == "real" else text


def _distinct(rows: Rows, column: str) -> Rows:
    """The first row of each value."""
    first: dict[Any, dict[str, Any]] = {}
    for row in rows:
        first.setdefault(row[column], row)
    return list(first.values())


def _allowed(value: Any, allowed: tuple[str, ...] | None) -> bool:
    text = _text(value)
    return text is not None if allowed is None else text in allowed


def _text(value: Any) -> str | None:
    """One line of plain text, or None for a gap."""
    if value is None:
        return None
    text = " ".join(str(value).replace("’", "'").split())
    return None if text in MISSING else text


def _rounded(number: float) -> float:
    """Two decimals, or three significant digits for numbers below 1."""
    if number == 0 or abs(number) >= 1:
        return round(number, 2)
    return round(number, 2 - math.floor(math.log10(abs(number))))


# --- verbs --------------------------------------------------------------------------------


def _title(text: str, _: str) -> str:
    """ALL CAPS or lower case to Title Case: "NEW MEXICO" -> "New Mexico"."""
    words = re.sub(r"[^\W\d_]+('s\b)?", lambda m: m[0].capitalize(), text, flags=re.IGNORECASE)
    words = re.sub(r"\bMc([a-z])", lambda m: f"Mc{m[1].upper()}", words)
    return re.sub(r"(?<=\w) (Of|The|And|In) ", lambda m: m[0].lower(), words)


def _badge(text: str, _: str) -> str:
    """Title Case with short words that have no vowel (AMC, II, 4WD too) in capitals: "Dodge Colt GT"."""
    short = r"\b([B-DF-HJ-NP-TV-XZ][b-df-hj-np-tv-xz]{1,2}|Amc|Ii+|\dWd)\b"
    return re.sub(short, lambda m: m[0].upper(), _title(text, _))


def _find(text: str, pattern: str) -> str | None:
    """The first group of a regular expression; None if there is no match."""
    found = re.search(pattern, text)
    return found[1] if found and found[1] else None


def _date(text: str, layout: str) -> str | None:
    """A date in a strptime layout as ISO; None if it is none."""
    try:
        return datetime.datetime.strptime(text, layout).date().isoformat()
    except ValueError:
        return None


def _flip(text: str, _: str) -> str:
    """ "Carter, Jimmy" -> "Jimmy Carter"."""
    return " ".join(reversed(text.split(", ", 1)))


def _unglue(text: str, _: str) -> str:
    """ "Mme.Magloire" -> "Mme. Magloire", "OldMan" -> "Old Man"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z\d])|(?<=\.)(?=\w)", " ", text)


VERBS: dict[str, Callable[[str, str], str | None]] = {
    "title": _title,
    "badge": _badge,
    "find": _find,
    "date": _date,
    "flip": _flip,
    "unglue": _unglue,
    "lower": lambda text, _: text.lower(),
    "plain": lambda text, _: re.sub(r'[\\"]', "", text),
    "words": lambda text, _: text.replace("_", " "),
    "number": lambda text, _: re.sub(r"[$,%\s]", "", text),
    "percent": lambda text, _: str(float(text) * 100),
    "decade": lambda text, _: f"{text[:3]}0s",
}
