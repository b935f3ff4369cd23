"""Tables between a model and the records: what prompts show of a database, and specs read back."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from synth.author.asking import Mend
from synth.mining import TYPES
from synth.types import Column, Database, ForeignKey, Table

MOST_VALUES = 12  # of a category (synth.mining.validate)


def describe(tables: Sequence[Table], counts: Mapping[str, int] | None = None) -> str:
    """Tables for a prompt: a line each, then a line for each column."""
    lines = []
    for table in tables:
        count = f", {counts.get(table.name, 0)} rows" if counts is not None else ""
        lines.append(f"{table.name} ({table.kind}{count}): {table.description or table.plural}")
        refs = {fk.column: fk for fk in table.foreign_keys}
        for column in table.columns:
            notes = [column.role] + (["primary key"] if column.name == table.primary_key else [])
            if column.name in refs:
                notes.append(f"refers to {refs[column.name].table}.{refs[column.name].ref_column}")
            notes += ["minted for new rows"] if column.minted else []
            notes += [f"one of {', '.join(column.values)}"] if column.values else []
            notes += ["may be null"] if column.nullable else []
            lines.append(f"  {column.name} {column.type}: {column.label} ({'; '.join(notes)})")
    return "\n".join(lines)


def sample(rows: Mapping[str, Sequence[Any]], rng: random.Random, most: int = 4) -> str:
    """Some rows of each table for a prompt, in stored order."""
    shown = {}
    for name, records in rows.items():
        picked = sorted(rng.sample(range(len(records)), min(most, len(records))))
        shown[name] = [records[i] for i in picked]
    lines = [f"{name}: {record!r}" for name, records in shown.items() for record in records]
    return "\n".join(lines)


def records_of(db: Database) -> dict[str, list[dict[str, Any]]]:
    """All rows as dictionaries, by table."""
    return {table.name: db.records(table.name) for table in db.tables}


def columns_of(spec: dict[str, Any], rows: Sequence[Sequence[Any]]) -> tuple[Column, ...]:
    """Columns as a model specified them; the values of a category are those of its rows.

    Raises:
        Mend: a repeated name, or a value of the wrong type; names table, column and value.
    """
    names = [c["name"] for c in spec["columns"]]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise Mend(f"{spec['name']}: column {twice[0]} occurs twice")
    columns = []
    for i, c in enumerate(spec["columns"]):
        values = [row[i] for row in rows]
        wrong = next((v for v in values if v is not None and type(v) is not TYPES[c["type"]]), None)
        if wrong is not None:
            raise Mend(f"{spec['name']}.{c['name']}: {wrong!r} is not of type {c['type']}")
        closed = tuple(c.get("values") or ()) or None
        if c["role"] == "category":
            closed = tuple(sorted({str(v) for v in values if v is not None}))
            if not 2 <= len(closed) <= MOST_VALUES:
                raise Mend(
                    f"{spec['name']}.{c['name']}: a category has 2 to {MOST_VALUES} different values, "
                    f"this one {len(closed)}; give it the role text or leave it out"
                )
        columns.append(
            Column(
                name=c["name"],
                type=c["type"],
                role=c["role"],
                label=c["label"],
                nullable=bool(c.get("nullable")) and None in values,
                values=closed,
                minted=bool(c.get("minted")),
            )
        )
    return tuple(columns)


def fit_types(spec: dict[str, Any], rows: Sequence[Any]) -> list[list[Any]]:
    """Rows as lists with one value a column; whole numbers become reals where a real is wanted.

    Raises:
        Mend: a row is no list of that length.
    """
    width = len(spec["columns"])
    fitted = []
    for row in rows:
        if not isinstance(row, list) or len(row) != width:
            raise Mend(f"{spec['name']}: the row {row!r} is no list of {width} values")
        fitted.append(
            [_real(v) if c["type"] == "real" else v for c, v in zip(spec["columns"], row, strict=True)]
        )
    return fitted


def _real(value: Any) -> Any:
    return float(value) if type(value) is int else value


def foreign_key(table: str, column: str, to: str, known: Mapping[str, Table]) -> ForeignKey:
    """A reference to another table's primary key; ``to`` is its name, or "table.column".

    Raises:
        Mend: there is no such table, or the column is not its key.
    """
    name, _, ref = to.partition(".")
    if name not in known:
        raise Mend(f"{table}.{column}: refers to {name}, which is no table; there are {', '.join(known)}")
    if ref and ref != known[name].primary_key:
        raise Mend(f"{table}.{column}: must refer to the primary key of {name}, {known[name].primary_key}")
    return ForeignKey(column=column, table=name, ref_column=known[name].primary_key)
