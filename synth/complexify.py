"""Complexification: D(n+1) = phi(D(n), theme), N rounds.

Each round asks the author for tables that the database lacks and records in ``Database.log`` what was
added and why. What it lacks is measured here (:func:`gaps`), and so is when to stop: when nothing is
lacking and every table hangs together with the others, deep enough; or when a round adds no table. The number
of records is no sign of progress (paper.md, section 1.3).

The arena may ask for more than that (``SynthesisRequest.complexify``): :func:`grow` makes one further round
of a database that lacks nothing by the first measure, towards what :func:`further` finds: nothing follows
from the lines of its ledger, or its entities have totals by one category only.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx

from synth.author.base import Author, Grower
from synth.errors import CallerError, EnvironmentFault
from synth.types import Database, Table, Theme

ROUNDS = 2  # the paper does not state N; a third party's reproduction uses 2
DEPTH = 2  # references in a row, from a ledger line over its entity to what groups it (ours)
GROWN_TOTALS = 2  # categories by which grown entities have totals, where they have as many (ours)
FEW = 3.0  # rows for each value of a category, below which totals say nothing (ours)


@dataclass(frozen=True)
class Gap:
    """One thing that a database lacks. ``str(gap)`` says it in words."""

    kind: str  # relations, history, constraints, totals, rows; when growing also follow-ups
    table: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


def complexify(db: Database, theme: Theme, author: Author, seed: int, rounds: int = ROUNDS) -> Database:
    """Run up to ``rounds`` rounds. Deterministic for (db, theme, author, seed)."""
    for round_ in range(db.rounds, db.rounds + rounds):
        if not gaps(db) and coverage(db) == 1.0 and depth(db) >= DEPTH:
            return db
        rng = random.Random(f"complexify:{seed}:{theme.id}:{round_}")
        richer = author.complexify(db, theme, round_, rng)
        if len(richer.tables) == len(db.tables):
            return richer
        db = richer
    return db


def grow(db: Database, theme: Theme, author: Author, seed: int, aims: Sequence[str] = ()) -> Database:
    """One further round, because the arena asks for a richer database; the same one when nothing is lacking.

    Args:
        aims: what agents should come to practise, in words (guides of a diagnosis), for authors that read.

    Raises:
        CallerError: the author can't grow environments.
        EnvironmentFault: what came back closes no gap, or its tables don't hang together.
    """
    lacking = further(db)
    if not lacking:
        return db
    if not isinstance(author, Grower):
        raise CallerError(f"author {author.name}: can't grow environments; choose another author")
    rng = random.Random(f"grow:{seed}:{theme.id}:{db.rounds}")
    richer = author.enlarge(db, theme, lacking, aims, rng)
    if len(richer.tables) == len(db.tables):
        return db
    if len(further(richer)) >= len(lacking) or coverage(richer) < coverage(db):
        raise EnvironmentFault(f"{theme.id}: a round that closes no gap: {'; '.join(map(str, lacking))}")
    return richer


# --- measuring ----------------------------------------------------------------------------------


def gaps(db: Database) -> list[Gap]:
    """What a database lacks, in a fixed order: relations, history, constraints, totals, rows."""
    found: list[Gap] = []
    tables = [t for t in db.tables if t.kind != "audit"]
    linked = {t.name for t in tables if t.foreign_keys} | {fk.table for t in tables for fk in t.foreign_keys}
    found += [
        Gap("relations", t.name, f"{t.name} has no reference to or from another table")
        for t in tables
        if t.name not in linked
    ]
    people_ask = _asked_about(tables)
    for table in people_ask:
        about = [t for t in tables if any(fk.table == table.name for fk in t.foreign_keys)]
        if not any(t.kind == "ledger" and t.by_role("status") for t in about):
            found.append(Gap("history", table.name, f"nothing that happens to {table.plural} is recorded"))
    if not any(t.kind == "constraint" for t in tables):
        found.append(Gap("constraints", "", "no table of limits or rules"))
    with_category = [t for t in people_ask if t.by_role("category")]
    if with_category and not any(t.kind == "aggregate" for t in tables):
        found.append(Gap("totals", with_category[0].name, f"no totals over {with_category[0].plural}"))
    found += [gap for t in tables if (gap := _thin(db, t)) is not None]
    return found


def further(db: Database) -> list[Gap]:
    """What a database lacks when more is asked of it than of a new one: :func:`gaps`, depth, totals."""
    found, tables = gaps(db), [t for t in db.tables if t.kind != "audit"]
    mined = {t.name for t in tables if t.kind == "mined"}
    ledgers = [t for t in tables if t.kind == "ledger"]
    for ledger in ledgers:
        about_things = any(fk.table in mined for fk in ledger.foreign_keys)
        followed = any(fk.table == ledger.name for t in ledgers for fk in t.foreign_keys)
        if ledger.by_role("status") and about_things and not followed:
            detail = f"nothing that follows from a line of {ledger.name} ({ledger.plural}) is recorded"
            found.append(Gap("follow-ups", ledger.name, detail))
    aggregates = {t.name for t in tables if t.kind == "aggregate"}
    for table in _asked_about(tables) if aggregates else []:
        summed = {fk.column for fk in table.foreign_keys if fk.table in aggregates}
        bare = [c for c in table.by_role("category") if c.values and c.name not in summed]
        if bare and len(summed) < GROWN_TOTALS:
            found.append(Gap("totals", table.name, f"no totals over {table.plural} by {bare[0].label}"))
    return found


def _asked_about(tables: Sequence[Table]) -> list[Table]:
    """The mined tables with names, apart from those only looked up, such as the countries of the airports."""
    named = [t for t in tables if t.kind == "mined" and t.by_role("name")]
    looked_up = {fk.table for t in named for fk in t.foreign_keys}
    return [t for t in named if t.name not in looked_up] or named


def _thin(db: Database, table: Table) -> Gap | None:
    """A ledger that has too few lines to add up."""
    states = [c for c in table.by_role("status") if c.values]
    if table.kind != "ledger" or not states:
        return None
    rows, wanted = len(db.rows[table.name]), FEW * len(states[0].values or ())
    if rows >= wanted:
        return None
    return Gap(
        "rows", table.name, f"{table.name} has {rows} rows, totals by {states[0].name} want {wanted:g}"
    )


def coverage(db: Database) -> float:
    """Share of the tables that hang together by references (audit tables apart); 1.0 is all."""
    graph = _references(db.tables)
    parts = list(nx.weakly_connected_components(graph))
    return max(map(len, parts)) / len(graph) if parts else 0.0


def depth(db: Database) -> int:
    """The longest way along references, in steps; a cycle counts as one table."""
    return nx.dag_longest_path_length(nx.condensation(_references(db.tables)))


def _references(tables: Sequence[Table]) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(t.name for t in tables if t.kind != "audit")
    graph.add_edges_from(
        (t.name, fk.table) for t in tables for fk in t.foreign_keys if t.name in graph and fk.table in graph
    )
    return graph
