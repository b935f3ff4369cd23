"""What follows from a ledger line: the tables that the offline author adds when asked to grow.

An environment of this author has a ledger (bookings, loans, permits). Growing hangs a second ledger on its
lines (fees, deposits), with a workflow of its own and, where the entities have a category, a limit for each of
its values; and totals by a second category. So references go three deep, and questions can: the entity, its
lines, what is owed on one of them. Rows are simulated from the seed and say so.

Asked by :mod:`synth.complexify`; tools over them are in :mod:`.followup_tools`, questions in
:mod:`.followup_tasks`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from synth.author.offline.tables import add_tables, category_column, totals_by
from synth.types import Column, Database, ForeignKey, Table

NOUNS = ("fee", "deposit", "surcharge")
FLOW = ("billed", "paid", "waived")
WRITES = ("charge", "settle", "waive")
MOST = (3, 9)  # a limit is drawn from here; walks ask for 1 to 5 (synth.tasks_graph)


def followup_round(db: Database, kinds: Sequence[str], rng: random.Random) -> Database:
    """The database with tables for the measured gaps of these kinds; as it was when there is nothing to add."""
    main, ledger = main_of(db), ledger_of(db)
    if main is None or ledger is None:
        return db
    added: list[tuple[Table, list[list[Any]], str, str]] = []
    why = []
    if "totals" in kinds and (column := _without_totals(main)) is not None:
        profiles, rows, linked = totals_by(db, main, column)
        added.append((profiles, rows, "derived", f"computed from {main.name}"))
        why.append(f"{profiles.name} (aggregate) because {main.name} had totals by one category only")
        main = linked
    if "follow-ups" in kinds:
        new = _dues(db, main, ledger, rng)
        added += new
        why.append(
            " and ".join(f"{t.name} ({t.kind})" for t, *_ in new)
            + f" because nothing that follows from {ledger.plural} was recorded"
        )
    if not added:
        return db
    return add_tables(db, added, {main.name: main}, f"round {db.rounds + 1}: " + "; ".join(why))


def main_of(db: Database) -> Table | None:
    ledger = ledger_of(db)
    return db.table(ledger.foreign_keys[0].table) if ledger and ledger.foreign_keys else None


def ledger_of(db: Database) -> Table | None:
    """The ledger of the business round: with a workflow, over a mined table."""
    mined = {t.name for t in db.tables if t.kind == "mined"}
    return next(
        (
            t
            for t in db.tables
            if t.kind == "ledger" and t.by_role("status") and any(fk.table in mined for fk in t.foreign_keys)
        ),
        None,
    )


def _without_totals(main: Table) -> Column | None:
    linked = {fk.column for fk in main.foreign_keys}
    return next((c for c in main.by_role("category") if c.values and c.name not in linked), None)


def _dues(
    db: Database, main: Table, ledger: Table, rng: random.Random
) -> list[tuple[Table, list[list[Any]], str, str]]:
    """The limits (where there is a category) and the second ledger, with their rows."""
    taken = {t.name for t in db.tables} | {t.singular for t in db.tables}
    noun = rng.choice([n for n in NOUNS if n not in taken and f"{n}s" not in taken] or [f"{NOUNS[0]}_item"])
    plural, words = f"{noun}s", noun.replace("_", " ")
    made: list[tuple[Table, list[list[Any]], str, str]] = []
    category, most = category_column(main), {}
    if category is not None:
        key = Column(
            name=category.name, type="text", role="key", label=category.label, values=category.values
        )
        column = Column(
            name=f"most_{noun}",
            type="integer",
            role="measure",
            label=f"highest {words} for one {ledger.singular}",
        )
        limits = Table(
            name=f"{noun}_limits", singular=f"{words} limit", plural=f"{words} limits", kind="constraint",
            columns=(key, column), primary_key=category.name,
            foreign_keys=tuple(
                ForeignKey(column=category.name, table=fk.table, ref_column=fk.ref_column)
                for fk in main.foreign_keys
                if fk.column == category.name
            ),
            description=f"How high one {words} may be, by {category.label}.",
        )  # fmt: skip
        most = {value: rng.randint(*MOST) for value in category.values or ()}
        made.append((limits, [[v, n] for v, n in most.items()], "simulated", "limits drawn from the seed"))
    table = Table(
        name=plural, singular=words, plural=f"{words}s", kind="ledger",
        columns=(
            Column(name=f"{noun}_id", type="text", role="key", label=f"{words} number", minted=True),
            Column(name=ledger.primary_key, type="text", role="ref", label=ledger.singular),
            Column(name="amount", type="integer", role="measure", label="amount"),
            Column(name="status", type="text", role="status", label="status", values=FLOW),
        ),
        primary_key=f"{noun}_id",
        foreign_keys=(ForeignKey(column=ledger.primary_key, table=ledger.name, ref_column=ledger.primary_key),),
        description=f"The {words}s of the {ledger.plural}; {FLOW[0]} ones are still owed.",
    )  # fmt: skip
    rows: list[list[Any]] = []
    states = ledger.by_role("status")[0]
    flow, entities = states.values or (), {r[main.primary_key]: r for r in db.records(main.name)}
    link = next(fk.column for fk in ledger.foreign_keys if fk.table == main.name)
    for line in db.records(ledger.name):
        entity = entities.get(line[link], {})
        cap = most.get(str(entity.get(category.name)), MOST[1]) if category is not None else MOST[1]
        over = line[states.name] in flow[2:]  # what is over is mostly settled
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            state = rng.choices(FLOW, (1, 6, 2) if over else (5, 3, 1))[0]
            rows.append([None, line[ledger.primary_key], rng.randint(1, cap), state])
    rng.shuffle(rows)
    start = rng.randint(101, 899)
    for i, row in enumerate(rows):
        row[0] = f"{noun[:3].upper()}-{start + i}"
    made.append((table, rows, "simulated", "simulated from the seed, no real transactions"))
    return made
