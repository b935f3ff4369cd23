"""Taking a table that the miner hands in: its form, its rows, and whether its sources hold them.

A table comes as columns and, for each source, rows or a program that extracts them (run in the sandbox). It
is taken only when every row is found in its document; keys that no document has are numbered here, and
values that refer to a parent become its key.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from synth.author.asking import Mend
from synth.author.online import schema
from synth.author.online.scratch import run_python
from synth.author.online.tracing import trace
from synth.author.web import Document
from synth.errors import EnvironmentFault
from synth.mining import validate
from synth.types import Database, Provenance, Table

MOST_ROWS = 400  # of a table; environments stay small enough to reset in a millisecond (ours)
TEXT = {"type": "string"}
_COLUMN = {
    "type": "object",
    "required": ["name", "type", "role", "label"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z][a-z0-9_]*$"},
        "type": {"enum": ["integer", "real", "text"]},
        "role": {"enum": ["key", "name", "category", "measure", "date", "ref", "text"]},
        "label": TEXT,
        "nullable": {"type": "boolean"},
        "generated": {
            "type": "string",
            "description": "prefix of a key that is numbered for you: AP -> AP-142",
        },
        "refers_to": {"type": "string", "description": "parent.column that holds the same values"},
    },
}
TABLE = {
    "type": "object",
    "required": ["name", "singular", "plural", "description", "primary_key", "columns", "sources"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z][a-z0-9_]*$"},
        "singular": TEXT,
        "plural": TEXT,
        "description": TEXT,
        "primary_key": TEXT,
        "columns": {"type": "array", "minItems": 2, "items": _COLUMN},
        "sources": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["url"],
                "additionalProperties": False,
                "properties": {
                    "url": TEXT,
                    "extract": {"type": "string", "description": "Python: rows from files[url] into result"},
                    "rows": {"type": "array", "items": {"type": "array"}},
                },
            },
        },
    },
}


@dataclass(frozen=True)
class Taken:
    """A table that was accepted, and where each of its rows stands."""

    table: Table
    rows: list[list[Any]]
    provenance: list[Provenance]
    traces: list[dict[str, Any]]

    def records(self) -> list[dict[str, Any]]:
        names = [c.name for c in self.table.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]


def take(
    spec: dict[str, Any],
    documents: Mapping[str, Document],
    parents: Mapping[str, Taken],
    rng: random.Random,
) -> Taken:
    """Check a table and take it.

    Args:
        spec: valid under :data:`TABLE`.
        documents: by the addresses that ``spec`` cites.
        parents: the tables taken so far.

    Raises:
        Mend: what is wrong with it, in words for the model.
    """
    given = [c for c in spec["columns"] if not c.get("generated")]
    rows: list[list[Any]] = []
    provenance, traces = [], []
    for source in spec["sources"]:
        document = documents[source["url"]]
        found = _rows(source, document, {**spec, "columns": given})
        traced = trace(found, [c["name"] for c in given], document)
        if traced.problems:
            some, lost = "; ".join(traced.problems[:5]), len(traced.problems)
            raise Mend(f"{spec['name']} refused: {lost} of {len(found)} rows not found: {some}")
        rows += found
        provenance.append(_provenance(spec["name"], document, len(found)))
        traces += [{"table": spec["name"], "url": document.url, "where": where} for where in traced.where]
    if not 1 <= len(rows) <= MOST_ROWS:
        raise Mend(f"{spec['name']}: {len(rows)} rows; 1 to {MOST_ROWS} are wanted")
    rows = _resolved({**spec, "columns": given}, rows, parents)
    rows = _numbered(spec, rows, rng)
    return Taken(_table(spec, rows, provenance, parents), rows, provenance, traces)


def _resolved(spec: dict[str, Any], rows: list[list[Any]], parents: Mapping[str, Taken]) -> list[list[Any]]:
    """Values that refer to a parent become its primary key."""
    for i, column in enumerate(spec["columns"]):
        if not column.get("refers_to"):
            continue
        name, _, match = column["refers_to"].partition(".")
        where = f"{spec['name']}.{column['name']}"
        if name not in parents:
            raise Mend(f"{where}: there is no table {name} yet; hand it in first")
        table = parents[name].table
        match = match or table.primary_key
        if match not in [c.name for c in table.columns]:
            raise Mend(f"{where}: {name} has no column {match}")
        keys = {record[match]: record[table.primary_key] for record in parents[name].records()}
        if lost := sorted({str(row[i]) for row in rows if row[i] is not None and row[i] not in keys}):
            raise Mend(f"{where}: {lost[0]!r} is no {match} of {name}")
        rows = [[*row[:i], keys.get(row[i]), *row[i + 1 :]] for row in rows]
    return rows


def _numbered(spec: dict[str, Any], rows: list[list[Any]], rng: random.Random) -> list[list[Any]]:
    """Rows with the generated keys in their places."""
    for i, column in enumerate(spec["columns"]):
        if column.get("generated"):
            numbers = rng.sample(range(101, 101 + max(899, 2 * len(rows))), len(rows))
            keys = [f"{column['generated']}-{n}" for n in numbers]
            rows = [[*row[:i], key, *row[i:]] for row, key in zip(rows, keys, strict=True)]
    return rows


def _table(
    spec: dict[str, Any], rows: list[list[Any]], provenance: list[Provenance], parents: Mapping[str, Taken]
) -> Table:
    known = {name: taken.table for name, taken in parents.items()}
    columns, links = [], []
    for c in spec["columns"]:
        parent = known.get((c.get("refers_to") or "").split(".")[0])
        if parent is not None:
            links.append(schema.foreign_key(spec["name"], c["name"], parent.name, known))
            c = {**c, "type": parent.column(parent.primary_key).type}
        columns.append(c)
    if spec["primary_key"] not in [c["name"] for c in columns]:
        raise Mend(f"{spec['name']}: its primary key {spec['primary_key']} is no column of it")
    table = Table(
        name=spec["name"],
        singular=spec["singular"],
        plural=spec["plural"],
        kind="mined",
        columns=schema.columns_of({**spec, "columns": columns}, rows),
        primary_key=spec["primary_key"],
        description=spec["description"],
    )
    alone = Database(theme_id="-", tables=(table,), rows={table.name: rows}, provenance=tuple(provenance))
    try:
        validate(alone)
    except EnvironmentFault as err:
        raise Mend(str(err)) from None
    return table.model_copy(update={"foreign_keys": tuple(links)})


def _rows(source: dict[str, Any], document: Document, spec: dict[str, Any]) -> list[list[Any]]:
    """The rows of one source: typed, or extracted by a program in the sandbox."""
    rows = source.get("rows")
    if source.get("extract"):
        ran = run_python(source["extract"], files={source["url"]: document.text})
        if ran.error is not None:
            raise Mend(f"extract failed on {source['url']}: {ran.error}")
        rows = ran.result
    if not isinstance(rows, list):
        raise Mend(f"{source['url']}: give rows, or a program that leaves a list of rows in result")
    return schema.fit_types(spec, rows)


def _provenance(table: str, document: Document, count: int) -> Provenance:
    return Provenance(
        target=table,
        origin=document.origin,
        license=document.license,
        sha256=document.sha256,
        retrieved=document.retrieved,
        note=f"{count} rows; every value found in the document, all values of a row in one place",
    )
