"""Calls over an imported server: proven calls varied by what their values mean, and walks of calls that link.

Every value in a proven call has a role, found by looking it up in the state: a path of the folder, a value
of a column, a name that nothing knows yet, a number. A varied call keeps the form and takes other values of
the same roles. A walk goes along the tool graph backwards: what a call needs and the user does not say must
have been in the result of an earlier call.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from synth.env.bundle import Bundle
from synth.env.folder import listing
from synth.env.mcp_client import SEED_FILE
from synth.env.observed import SHORTEST, gives, leaves
from synth.env.program import STATE
from synth.env.state import open_readonly, rows, table_names
from synth.importers.facts import logical
from synth.types import Tool, ToolStep
from synth.verify import canonical

Records = dict[str, list[dict[str, Any]]]
FRESH = (
    "Quince", "Juniper", "Harbour", "Meadow", "Lantern", "Willow", "Copper", "Saffron", "Granite", "Maple",
    "Orchid", "Pebble", "Cobalt", "Thistle", "Amber", "Cedar", "Falcon", "Ginger", "Hazel", "Indigo",
)  # fmt: skip
TEXTS = (
    "needs a second look", "agreed on Monday", "keep for the autumn list", "compare with last year",
    "waiting for a reply", "copied from the old list", "seen twice this week", "ready for the print run",
)  # fmt: skip


@dataclass
class Known:
    """What the pristine state of an environment holds, looked up by value."""

    bundle: Bundle
    records: Records
    paths: list[str]  # "/state/..." of files and folders; folders end in a slash
    places: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # value -> (table, column)

    @classmethod
    def of(cls, bundle: Bundle) -> Known:
        """Read the bundle's state once."""
        tables = {name: rows(bundle.state, name) for name in table_names(open_readonly(bundle.state))}
        paths = [f"{STATE}/{p}" for p in listing((bundle.path / SEED_FILE).read_bytes())]
        known = cls(bundle, logical(tables, bundle.state.files), paths)
        for table, records in known.records.items():
            for record in records:
                for column, value in record.items():
                    for single in spread(value):
                        spots = known.places.setdefault(canonical(single), [])
                        if (table, column) not in spots:
                            spots.append((table, column))
        return known

    def files(self, folder: str = STATE) -> list[str]:
        return [p for p in self.paths if not p.endswith("/") and p.startswith(f"{folder}/")]

    def folders(self) -> list[str]:
        return [p.rstrip("/") for p in self.paths if p.endswith("/")]


def spread(value: Any) -> list[Any]:
    """A value of a cell: itself, the parts of a list, the branch that a ref names."""
    if isinstance(value, str) and value[:1] == "[":
        try:
            parts = json.loads(value)
            return parts if isinstance(parts, list) else [value]
        except ValueError:
            return [value]
    if isinstance(value, str) and value.startswith("refs/heads/"):
        return [value.removeprefix("refs/heads/")]
    return [value]


class Variation:
    """One proven call with other values of the same roles; the same for the same ``rng``."""

    def __init__(self, known: Known, tool: Tool, arguments: dict[str, Any], rng: random.Random) -> None:
        self.known, self.tool, self.rng = known, tool, rng
        self.chosen: dict[str, dict[str, Any]] = {}  # table -> the record that this call speaks of
        self.folder = next(  # what relative paths are relative to
            (v for _, v in leaves(arguments) if isinstance(v, str) and f"{v}/" in known.paths), ""
        )
        self.fixed = {k for k, v in arguments.items() if isinstance(v, str) and f"{v}/" in known.paths}
        self.arguments = {name: self.vary(value, name) for name, value in arguments.items()}

    def vary(self, value: Any, name: str) -> Any:
        """The same form with other values."""
        if isinstance(value, dict):
            table = self._table_of(value)
            if table and set(value) <= set(self.known.records[table][0]):
                return self._record(table, value)
            return {key: self.vary(part, key) for key, part in value.items()}
        if isinstance(value, list):
            return [self.vary(part, name) for part in value]
        if isinstance(value, bool) or value is None:
            return value
        schema = self._schema(name)
        if schema.get("enum"):
            return self.rng.choice(schema["enum"])
        if isinstance(value, int | float):
            return self._number(value, name)
        return self._text(value, name)

    def _schema(self, name: str) -> dict[str, Any]:
        found = self.tool.input_schema.get("properties", {}).get(name, {})
        return found if isinstance(found, dict) else {}

    def _table_of(self, value: dict[str, Any]) -> str | None:
        """The table whose columns an object's keys are."""
        for table, records in self.known.records.items():
            if records and set(value) <= set(records[0]) and value:
                return table
        return None

    def _record(self, table: str, value: dict[str, Any]) -> dict[str, Any]:
        """``{column: value}``: known values for conditions, other ones where the given ones are new."""
        made = {}
        for column, given in value.items():
            record = self._choose(table)
            if isinstance(given, list | dict):
                made[column] = self.vary(given, column)
            elif (table, column) in self.known.places.get(canonical(given), []):
                made[column] = record[column]
            else:
                made[column] = (
                    self._number(given, column) if isinstance(given, int | float) else self._fresh()
                )
        return made

    def _choose(self, table: str) -> dict[str, Any]:
        if table not in self.chosen:
            self.chosen[table] = self.rng.choice(self.known.records[table])
        return self.chosen[table]

    def _number(self, value: int | float, name: str) -> int | float:
        if self.tool.read_only or name in ("start", "limit", "offset", "head", "tail"):
            return value
        return round(self.rng.uniform(1, 90), 1) if isinstance(value, float) else self.rng.randint(2, 90)

    def _fresh(self) -> str:
        return self.rng.choice(FRESH)

    def _text(self, value: str, name: str) -> str:
        known = self.known
        if value in known.records:  # a table or a sheet stays what it is
            return value
        if value in known.paths:
            return self.rng.choice(known.files(value.rpartition("/")[0]) or [value])
        if f"{value}/" in known.paths or value == STATE or name in self.fixed:
            return value
        if value.startswith(f"{STATE}/"):  # a path that is not there yet
            folder, _, last = value.rpartition("/")
            stem, dot, end = last.partition(".")
            moved = next(
                (str(p).rpartition("/")[2] for p in self._said() if p.rpartition("/")[2] == last), ""
            )
            new = moved.partition(".")[0] if moved else self._fresh().lower()
            return f"{folder}/{new}{dot}{end}" if stem else value
        if self.folder and f"{self.folder}/{value}" in known.paths:
            files = [p.removeprefix(f"{self.folder}/") for p in known.files(self.folder)]
            return self.rng.choice(files)
        spots = known.places.get(canonical(value), [])
        if spots:
            table, column = next(((t, c) for t, c in spots if t in self.chosen), spots[0])
            options = spread(self._choose(table).get(column))
            return str(self.rng.choice(options)) if options else value
        return self.rng.choice(TEXTS) if " " in value else self._like(value)

    def _said(self) -> list[str]:
        """Paths that this call has named already: a file keeps its name when it is moved."""
        return [
            v
            for _, v in leaves(getattr(self, "arguments", {}))
            if isinstance(v, str) and v in self.known.paths
        ]

    def _like(self, value: str) -> str:
        new = self._fresh()
        return new.lower() if value.islower() else new


@dataclass(frozen=True)
class Read:
    """A read-only call that was run on the pristine state, with what it gave."""

    step: ToolStep
    value: Any
    text: str  # the result as one text

    def holds(self, value: Any) -> bool:
        """Whether the result gives a value; a path also by its name, in a listing of its folder."""
        if gives(self.value, value) is not None:
            return True
        if not (isinstance(value, str) and value.startswith(f"{STATE}/")):
            return False
        folder, _, name = value.rpartition("/")
        return folder in scalars(self.step.arguments) and gives(self.value, name) is not None


def scalars(arguments: dict[str, Any]) -> list[Any]:
    """All scalars of a call's arguments."""
    return [leaf for _, leaf in leaves(arguments)]


def said(value: Any, text: str, known: Known) -> bool:
    """Whether an instruction hands a value over, or the agent may choose it (nothing in the state has it)."""
    shown = str(value)
    if (
        isinstance(value, bool)
        or value is None
        or len(shown) < SHORTEST
        or shown.casefold() in text.casefold()
    ):
        return True
    is_path = shown == STATE or shown in known.paths or f"{shown}/" in known.paths
    return not is_path and canonical(value) not in known.places


def lead_up(
    step: ToolStep, instruction: str, reads: Sequence[Read], known: Known, linked: set[tuple[str, str]],
    depth: int = 2,
) -> list[Read] | None:  # fmt: skip
    """The reads that must come before a call, so that nothing in it has to be guessed; None when none do.

    Args:
        step: the call; what its arguments hold is either in the instruction or in an earlier result.
        reads: candidates, cheapest first.
        linked: edges of the tool graph (source, target); only those are walked.
    """
    chain: list[Read] = []
    for value in scalars(step.arguments):
        if said(value, instruction, known) or any(r.holds(value) for r in chain):
            continue
        for read in _sources(value, step, reads, linked):
            before = lead_up(read.step, instruction, reads, known, linked, depth - 1) if depth else None
            if before is not None:
                chain += [r for r in (*before, read) if r not in chain]
                break
        else:
            return None
    return chain


def _sources(
    value: Any, step: ToolStep, reads: Sequence[Read], linked: set[tuple[str, str]]
) -> Iterator[Read]:
    for read in reads:
        if read.step != step and (read.step.tool, step.tool) in linked and read.holds(value):
            yield read
