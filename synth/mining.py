"""Mining: from a theme to a database of real rows (round 0).

A theme names sources of the offline web (:mod:`synth.author.corpus`), the main one first. Each is
read and cleaned with its data dictionary (:mod:`synth.author.cleaning`) and sampled by a seed:
parents are cut to the rows that are referenced, children to the rows whose parents are in the
sample. Out comes a :class:`synth.types.Database` with keys, foreign keys, closed value sets and
provenance, ready for :mod:`synth.complexify`.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from functools import cache
from typing import Any

from synth.author import corpus
from synth.author.base import Author, Miner
from synth.author.cleaning import Rows, clean
from synth.author.corpus import Opened, Source, SourceColumn
from synth.errors import CallerError, EnvironmentFault
from synth.types import Column, Database, ForeignKey, Provenance, Table, Theme

TYPES = {"integer": int, "real": float, "text": str}
UNFIT = "a gap, a rare category, a repeated or long name, no row to refer to, or outside the chosen part"


def mine(theme: Theme, seed: int, author: Author | None = None) -> Database:
    """The database of a theme, the same for the same theme and seed.

    Args:
        author: mines the themes that name no sources, when it can (:class:`synth.author.base.Miner`).

    Raises:
        CallerError: the theme names no sources, or one that is not in the catalogue.
        EnvironmentFault: what came out breaks :func:`validate`.
    """
    ids = theme.spec.get("sources") or []
    if not ids and isinstance(author, Miner):
        return author.mine(theme, random.Random(f"mine:{seed}:{theme.id}"))
    if not ids:
        raise CallerError(
            f"theme {theme.id}: field spec.sources: names no source; name some of the catalogue"
        )
    sources = [corpus.source(i) for i in ids]
    opened = {s.id: corpus.open_source(s.id) for s in sources}
    usable = {s.id: _usable(s.id) for s in sources}
    drawn: dict[str, Rows] = {}
    notes: dict[str, str] = {}
    for source in sources:
        rng = random.Random(f"{theme.id}/{source.id}/{seed}")
        rows = _with_parents(source, {**usable, **drawn})
        picked, how = _pick(source, rows, [s for s in sources if s.id in drawn], drawn, rng)
        drawn[source.id] = _make_keys(source, picked, rng)
        notes[source.id] = how + _leftovers(source, opened[source.id], len(rows))
    db = Database(
        theme_id=theme.id,
        tables=tuple(_table(s, drawn[s.id]) for s in sources),
        rows={s.table: _lists(s, drawn) for s in sources},
        provenance=tuple(_provenance(s, opened[s.id], notes[s.id]) for s in sources),
        log=(f"round 0: mined {', '.join(s.table for s in sources)}",),
    )
    validate(db)
    return db


@cache
def _usable(source_id: str) -> Rows:
    """The cleaned rows of a source, made once a process as its raw rows are; nobody changes them."""
    return clean(corpus.source(source_id), corpus.open_source(source_id).rows)


# --- choosing rows ------------------------------------------------------------------------


def sample(rows: Rows, size: int, by: str | None, rng: random.Random) -> Rows:
    """``size`` rows in source order; the strata of ``by`` share by the square root of their sizes."""
    if len(rows) <= size:
        return rows
    strata: dict[Any, list[int]] = {}
    for index, row in enumerate(rows):
        strata.setdefault(row[by] if by else None, []).append(index)
    for members in strata.values():
        rng.shuffle(members)
    weight = {value: math.sqrt(len(members)) for value, members in strata.items()}
    taken = dict.fromkeys(strata, 0)
    for _ in range(size):  # the stratum that is furthest below its share gives the next row
        left = [value for value in strata if taken[value] < len(strata[value])]
        taken[min(left, key=lambda value: ((taken[value] + 1) / weight[value], str(value)))] += 1
    return [rows[i] for i in sorted(i for v, members in strata.items() for i in members[: taken[v]])]


def _pick(
    source: Source, rows: Rows, earlier: list[Source], drawn: dict[str, Rows], rng: random.Random
) -> tuple[Rows, str]:
    """The rows that earlier tables reference if any does, else a sample; and how, in words."""
    wanted: dict[str, set[Any]] = {}
    for other in earlier:
        for column in other.columns:
            if column.to == source.id:
                values = {row[column.name] for row in drawn[other.id]}
                wanted.setdefault(_match(column), set()).update(values)
    if wanted:
        picked = [r for r in rows if any(r[name] in values for name, values in wanted.items())]
        by = ", ".join(o.table for o in earlier if any(c.to == source.id for c in o.columns))
        return picked, f"the {len(picked)} rows that {by} refer to, of "
    picked = sample(rows, source.rows, source.by, rng)
    return picked, ("all {} of " if len(picked) == len(rows) else "seeded sample of {} of ").format(
        len(picked)
    )


def _with_parents(source: Source, rows: dict[str, Rows]) -> Rows:
    """Rows of which every ref finds its row in ``rows`` of the source it points to."""
    kept = rows[source.id]
    for column in source.columns:
        if column.to:
            known = {row[_match(column)] for row in rows[column.to]}
            kept = [row for row in kept if row[column.name] in known]
    return kept


def _match(column: SourceColumn) -> str:
    """The column of the referenced source that holds the values of a ref."""
    return column.match or corpus.source(column.to or "").key.name


def _make_keys(source: Source, rows: Rows, rng: random.Random) -> Rows:
    """Give opaque keys such as ``AP-142``: distinct three-digit numbers in drawn order."""
    key = source.key
    if not key.opaque:
        return rows
    numbers = rng.sample(range(101, 1000), len(rows))
    return [{**row, key.name: f"{key.source[1:]}-{n}"} for row, n in zip(rows, numbers, strict=True)]


# --- records ------------------------------------------------------------------------------


def _lists(source: Source, drawn: dict[str, Rows]) -> list[list[Any]]:
    """Rows as lists in column order, refs replaced by the keys of the rows they point to."""
    keys: dict[str, dict[Any, Any]] = {}
    for column in source.columns:
        if column.to:
            key = corpus.source(column.to).key.name
            keys[column.name] = {row[_match(column)]: row[key] for row in drawn[column.to]}
    return [
        [keys[c.name][row[c.name]] if c.to else row[c.name] for c in source.columns]
        for row in drawn[source.id]
    ]


def _table(source: Source, rows: Rows) -> Table:
    columns = tuple(
        Column(
            name=c.name,
            type=corpus.source(c.to).key.type if c.to else c.type,
            role=c.role,
            label=c.label,
            nullable=c.nullable and any(row[c.name] is None for row in rows),
            values=tuple(sorted({row[c.name] for row in rows})) if c.role == "category" else None,
        )
        for c in source.columns
    )
    links = [(c.name, corpus.source(c.to)) for c in source.columns if c.to]
    return Table(
        name=source.table,
        singular=source.singular,
        plural=source.plural,
        kind="mined",
        columns=columns,
        primary_key=source.key.name,
        foreign_keys=tuple(
            ForeignKey(column=name, table=to.table, ref_column=to.key.name) for name, to in links
        ),
        description=source.description,
    )


def _leftovers(source: Source, opened: Opened, fit: int) -> str:
    """The end of a sampling note: how many rows there were, and why some could not be drawn."""
    text = f"{opened.total:,} rows"
    if source.by:
        text += f", stratified by {source.by} (shares by the square root of group size)"
    if source.stride > 1:
        text += f"; every {source.stride}th row was read"
    if fit < len(opened.rows):
        text += f"; {len(opened.rows) - fit:,} of the rows read were unfit ({UNFIT})"
    return text


def _provenance(source: Source, opened: Opened, note: str) -> Provenance:
    return Provenance(
        target=source.table,
        origin=opened.origin,
        package=opened.package,
        version=opened.version,
        license=opened.license,
        sha256=opened.sha256,
        retrieved=corpus.REVIEWED,
        note=note,
    )


# --- validation ---------------------------------------------------------------------------


def validate(db: Database) -> None:
    """Check a mined database.

    Raises:
        EnvironmentFault: names table and column for an empty table, a repeated key or name, a
            dangling foreign key, a value of the wrong type or outside its closed set, a category
            with fewer than 2 or more than 12 values, or a table without provenance.
    """
    sourced = {p.target for p in db.provenance if p.sha256 and p.license}
    for table in db.tables:
        records = db.records(table.name)
        if not records:
            raise EnvironmentFault(f"{table.name}: the table is empty")
        if table.name not in sourced:
            raise EnvironmentFault(f"{table.name}: no provenance with license and sha256")
        for column in table.columns:
            unique = column.name == table.primary_key or column.role == "name"
            fault = _column_fault(column, [r[column.name] for r in records], unique)
            if fault:
                raise EnvironmentFault(f"{table.name}.{column.name}: {fault}")
        for link in table.foreign_keys:
            known = {r[link.ref_column] for r in db.records(link.table)}
            lost = sorted(str(v) for v in {r[link.column] for r in records} - known - {None})
            if lost:
                raise EnvironmentFault(
                    f"{table.name}.{link.column}: {len(lost)} values are not in "
                    f"{link.table}.{link.ref_column}, for example {lost[0]!r}"
                )


def _column_fault(column: Column, values: list[Any], unique: bool) -> str | None:
    for value in values:
        if value is None:
            if not column.nullable:
                return "a gap in a column that is not nullable"
        elif type(value) is not TYPES[column.type]:
            return f"{value!r} is not of type {column.type}"
        elif column.values is not None and value not in column.values:
            return f"{value!r} is not in the closed set of values"
    if unique and len(set(values)) < len(values):
        return f"the {column.role} {Counter(values).most_common(1)[0][0]!r} occurs twice"
    if column.role == "category" and not 2 <= len(column.values or ()) <= 12:
        return f"a category of {len(column.values or ())} values (2 to 12 wanted)"
    return None
