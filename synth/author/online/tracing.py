"""Is it in the source? Every row that a model hands in is looked for in the document that it cites.

A row is found when one *unit* of the document holds all its values: a record of a CSV or JSON file, a line
(a table row, a list item) or a paragraph of a text. Values that stand in the document but not together
don't make a row: a real name beside another row's number is an invention too. Where units have fields (a
record's keys, a table's cells), a column must come from the same field in every row, so swapped values are
found. Numbers count by value ("1,234 m" is 1234), text apart from case and white space; a gap (None) asks
for nothing.
"""

from __future__ import annotations

import csv
import io
import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from synth.author.web import Document
from synth.verify import fold, is_number

_THOUSANDS = "[,\\u00a0\\u202f]"
_NUMBER = re.compile(rf"[-\u2212]?(?:\d{{1,3}}(?:{_THOUSANDS}\d{{3}})+(?!\d)|\d+)(?:\.\d+)?")
MOST_PLACES = 5  # units that are looked at for one row
MOST_NEAR = 200  # units that are looked at for a hint, where a row stands nowhere (ours)
LONGEST_UNIT = 2000  # characters of a paragraph that still counts as one place (ours)


@dataclass(frozen=True)
class Unit:
    """One place of a document; its cells are prepared when a row may stand there."""

    where: str  # "record 12", "line 80", "paragraph 3"
    text: str  # folded
    raw: dict[str, str]  # text of a record's fields by name, of a table row's by number; prose has the one ""

    @cached_property
    def fields(self) -> dict[str, Cell]:
        return {name: _cell(text) for name, text in self.raw.items()}


@dataclass(frozen=True)
class Places:
    """All units of a document, found by the words that they hold."""

    units: tuple[Unit, ...]

    @cached_property
    def _text(self) -> str:
        return "\n".join(unit.text for unit in self.units)

    @cached_property
    def _starts(self) -> list[int]:
        return list(accumulate((len(unit.text) + 1 for unit in self.units), initial=0))

    def holding(self, words: str) -> list[Unit]:
        """The units with these (folded) words in their text, in order."""
        found = []
        at = self._text.find(words)
        while at >= 0:
            number = bisect_right(self._starts, at) - 1
            found.append(self.units[number])
            at = self._text.find(words, self._starts[number + 1])
        return found


@dataclass(frozen=True)
class Cell:
    text: str  # folded
    numbers: frozenset[float]

    def holds(self, value: Any) -> bool:
        if isinstance(value, bool):
            return self.text == str(value).lower()
        if is_number(value):
            return any(_same(number, value) for number in self.numbers)
        wanted = fold(str(value))
        if wanted not in self.text or not wanted:
            return False
        return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", self.text) is not None


@dataclass(frozen=True)
class Traced:
    """Where each row stands, or why it does not."""

    where: tuple[str | None, ...]  # one for each row; None: not found
    problems: tuple[str, ...]  # one for each row that was not found


def trace(rows: Sequence[Sequence[Any]], columns: Sequence[str], document: Document) -> Traced:
    """Look for rows in a document.

    Args:
        rows: values that should stand in the source; None where there is a gap.
        columns: their names, for the messages.
    """
    places = Places(tuple(units_of(document)))
    candidates = [_candidates(row, places) for row in rows]
    home = _homes([found for found, _ in candidates], len(columns))
    where: list[str | None] = []
    problems = []
    for row, (found, nearest) in zip(rows, candidates, strict=True):
        astray: list[int] = []
        for unit, fields in found:
            astray = [
                i for i, names in enumerate(fields) if names and home[i] is not None and home[i] not in names
            ]
            if not astray:
                where.append(unit.where)
                break
        else:
            where.append(None)
            missing, near = nearest if not found else (astray, found[-1][0].where)
            what = ", ".join(f"{columns[i]} {row[i]!r}" for i in missing[:4]) or "the row is empty"
            how = "stands in another field than in the other rows" if found else "not found"
            close = f" (nearest: {near})" if near else ""
            problems.append(f"row {list(row)!r}: {what} {how} in {document.url}{close}")
    return Traced(tuple(where), tuple(problems))


Found = list[tuple[Unit, list[set[str]]]]  # units that hold a row, and for each value the fields that hold it


def _candidates(row: Sequence[Any], places: Places) -> tuple[Found, tuple[list[int], str]]:
    """The units that hold a whole row (at most 5), else what the nearest one lacks and where it is."""
    if all(value is None for value in row):
        return [], ([], "")
    texts = sorted({fold(value) for value in row if isinstance(value, str)}, key=len, reverse=True)
    found, nearest = _look(row, places.holding(texts[0]) if texts else places.units)
    if not found:  # nowhere whole: what comes nearest may lack the longest text
        for text in texts[1:]:
            others = places.holding(text)[:MOST_NEAR]
            nearest = min(nearest, _look(row, others)[1], key=lambda near: len(near[0]))
    return found, nearest


def _look(row: Sequence[Any], units: Sequence[Unit]) -> tuple[Found, tuple[list[int], str]]:
    """Which of the units hold the row, and what the nearest one lacks."""
    found: Found = []
    missing, near = list(range(len(row))), ""
    for unit in units:
        fields = [
            set() if value is None else {name for name, cell in unit.fields.items() if cell.holds(value)}
            for value in row
        ]
        lost = [i for i, value in enumerate(row) if value is not None and not fields[i]]
        if not lost:
            found.append((unit, fields))
            if len(found) == MOST_PLACES:
                break
        elif len(lost) < len(missing):
            missing, near = lost, unit.where
    return found, (missing, near)


def _homes(candidates: Sequence[Found], width: int) -> list[str | None]:
    """The field that each column comes from: the one that holds its value in most rows."""
    counts: list[Counter[str]] = [Counter() for _ in range(width)]
    for found in candidates:
        for i in range(width):
            counts[i].update({name for _, fields in found for name in fields[i]})
    return [count.most_common(1)[0][0] if count else None for count in counts]


def _same(number: float, value: float) -> bool:
    """Equal; a value with two decimals or more may be the rounded one."""
    if isinstance(value, int):
        return number == value
    decimals = len(repr(value).split(".")[1]) if "e" not in repr(value) else 12
    return abs(number - value) <= 0.5 * 10**-decimals * (1 + 1e-9) if decimals >= 2 else number == value


def units_of(document: Document) -> Iterable[Unit]:
    """The places of a document."""
    records = _records(document)
    if records is not None:
        for number, record in enumerate(records, 1):
            yield _unit(f"record {number}", dict(_fields(record)))
        return
    paragraph: list[str] = []
    count = 0
    for number, line in enumerate([*document.readable().splitlines(), ""], 1):
        if line.strip():
            cells = line.strip().strip("|").split("|")
            named = dict(enumerate(cells)) if len(cells) > 1 else {"": line}
            yield _unit(f"line {number}", {str(name): cell for name, cell in named.items()})
            paragraph.append(line)
        elif paragraph:
            count += 1
            text = " ".join(paragraph)
            if len(paragraph) > 1 and len(text) <= LONGEST_UNIT and not _is_table(paragraph):
                yield _unit(f"paragraph {count}", {"": text})
            paragraph = []


def _is_table(lines: Sequence[str]) -> bool:
    """Rows under each other are no paragraph: values of two rows must not be mixed."""
    marked = [line.lstrip().startswith(("-", "*", "+")) or "|" in line for line in lines]
    return sum(marked) * 2 > len(lines)


def _unit(where: str, fields: dict[str, str]) -> Unit:
    raw = {name: text for name, text in fields.items() if text.strip()}
    return Unit(where, fold(_plain(" | ".join(raw.values()))), raw)


def _cell(text: str) -> Cell:
    plain = _plain(text)
    return Cell(fold(plain), frozenset(_number(match.group()) for match in _NUMBER.finditer(plain)))


def _plain(text: str) -> str:
    """Text without the emphasis of Markdown."""
    return re.sub(r"[*`]+|(?<!\w)_+|_+(?!\w)", "", text)


def _number(text: str) -> float:
    return float(re.sub(_THOUSANDS, "", text).replace("\u2212", "-"))


def _records(document: Document) -> list[Any] | None:
    """The records of a data file; None where there are none, or it can't be read as one."""
    try:
        match document.kind:
            case "text/csv" | "text/tab-separated-values":
                comma = "," if document.kind == "text/csv" else "\t"
                return list(csv.DictReader(io.StringIO(document.text, newline=""), delimiter=comma))
            case "application/jsonl":
                return [json.loads(line) for line in document.text.splitlines() if line.strip()]
            case "application/json":
                return _innermost(json.loads(document.text))
    except (ValueError, csv.Error, RecursionError):
        pass
    return None


def _innermost(value: Any) -> list[Any]:
    """The objects of a JSON file that hold no list of objects."""
    if isinstance(value, list):
        if all(not isinstance(item, dict | list) for item in value):
            return [value]
        return [record for item in value for record in _innermost(item)]
    if isinstance(value, dict):
        nested = [v for v in value.values() if isinstance(v, list) and any(isinstance(i, dict) for i in v)]
        if nested:
            return [record for item in nested for record in _innermost(item)]
        if value and all(isinstance(v, dict) for v in value.values()):  # objects under their names
            return [{"": name, **inner} for name, inner in value.items()]
    return [value]


def _fields(value: Any, name: str = "") -> Iterable[tuple[str, str]]:
    """Leaves of a record under their dotted names; a list of plain values is one leaf."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _fields(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        for number, item in enumerate(value):
            yield from _fields(item, f"{name}[{number}]")
    else:
        words = value if isinstance(value, list) else [value]
        yield name, " ; ".join("" if word is None else str(word) for word in words)
