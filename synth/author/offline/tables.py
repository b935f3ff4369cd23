"""Complexification by rule: richer tables derived from a mined database.

Round 1 adds what can be computed from the real rows: an aggregate table of the main table's best
category, and a constraint table with a limit for each of its values. Round 2 adds a business on top,
simulated from the seed and labelled so in the provenance: a stock of units for every entity, a ledger
of requests with a status workflow that draws on the stock, and an audit log of changes.
Nothing is a copy of an earlier table: each one brings a relation or a constraint that was missing.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import random
import re
from typing import Any

from synth.types import Column, Database, ForeignKey, Provenance, Table, Theme

WORKFLOWS = (
    ("open", "confirmed", "completed", "cancelled"),
    ("pending", "approved", "closed", "withdrawn"),
    ("requested", "scheduled", "finished", "dropped"),
    ("draft", "active", "done", "void"),
    ("new", "accepted", "settled", "revoked"),
    ("waiting", "granted", "fulfilled", "cancelled"),
)
UNITS = ("booking", "request", "order", "permit", "ticket", "loan", "inspection", "reservation")
QUANTITIES = ("units", "places", "slots", "credits", "passes", "kits")


def snake(words: str) -> str:
    """Words to an identifier: ``"seat booking"`` -> ``"seat_booking"``."""
    return re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")


def main_table(tables: tuple[Table, ...] | list[Table]) -> Table:
    """The mined table that people ask about: it has a name column and the most to filter and rank by."""
    named = [t for t in tables if t.kind == "mined" and t.by_role("name")]
    if not named:
        raise ValueError("no mined table with a name column")
    return max(named, key=lambda t: len(t.by_role("category")) * 2 + len(t.by_role("measure")))


def category_column(table: Table) -> Column | None:
    """The category with the most evenly useful number of values (3 to 12), else the first category."""
    columns = [c for c in table.by_role("category") if c.values]
    good = [c for c in columns if 3 <= len(c.values or ()) <= 12]
    return (good or columns or [None])[0]


def operations(theme: Theme, rng: random.Random) -> dict[str, str]:
    """Words of the business on top, from the theme where it states them, else drawn."""
    spec = theme.spec.get("operations") or {}
    unit = str(spec.get("unit") or rng.choice(UNITS))
    return {
        "unit": unit,
        "unit_plural": str(spec.get("unit_plural") or unit + "s"),
        "quantity": str(spec.get("quantity") or rng.choice(QUANTITIES)),
    }


def provenance(target: str, origin: str, rows: list[list[Any]], note: str, retrieved: str) -> Provenance:
    canonical = json.dumps(rows, ensure_ascii=False, separators=(",", ":"))
    return Provenance(
        target=target,
        origin=origin,
        license="Apache-2.0" if origin == "simulated" else "as the source table",
        sha256=hashlib.sha256(canonical.encode()).hexdigest(),
        retrieved=retrieved,
        note=note,
    )


def add_tables(
    db: Database,
    added: list[tuple[Table, list[list[Any]], str, str]],
    replaced: dict[str, Table],
    log: str,
) -> Database:
    """A database with more tables; ``added`` holds (table, rows, origin, note)."""
    retrieved = db.provenance[0].retrieved
    tables = tuple(replaced.get(t.name, t) for t in db.tables) + tuple(t for t, *_ in added)
    rows = {**db.rows, **{t.name: r for t, r, *_ in added}}
    extra = tuple(provenance(t.name, origin, r, note, retrieved) for t, r, origin, note in added)
    return db.model_copy(
        update={
            "tables": tables,
            "rows": rows,
            "provenance": db.provenance + extra,
            "rounds": db.rounds + 1,
            "log": (*db.log, log),
        }
    )


def totals_by(db: Database, main: Table, category: Column) -> tuple[Table, list[list[Any]], Table]:
    """Totals of a table by one of its categories: the new table, its rows, and the old table linked to it."""
    records, measures = db.records(main.name), main.by_role("measure")[:2]
    count = Column(
        name=f"{snake(main.singular)}_count", type="integer", role="measure", label=f"number of {main.plural}"
    )
    averages = [
        Column(
            name=f"average_{m.name}", type="real", role="measure", label=f"average {m.label}", nullable=True
        )
        for m in measures
    ]
    key = Column(name=category.name, type="text", role="key", label=category.label, values=category.values)
    rows: list[list[Any]] = []
    for value in category.values or ():
        group = [r for r in records if r[category.name] == value]
        row: list[Any] = [value, len(group)]
        for m in measures:
            known = [r[m.name] for r in group if r[m.name] is not None]
            row.append(round(sum(known) / len(known), 2) if known else None)
        rows.append(row)
    totals = Table(
        name=f"{snake(category.name)}_profiles", singular=f"{category.label} profile",
        plural=f"{category.label} profiles", kind="aggregate", columns=(key, count, *averages),
        primary_key=category.name,
        description=f"Totals of the {main.plural} by {category.label}, computed from the mined rows.",
    )  # fmt: skip
    link = ForeignKey(column=category.name, table=totals.name, ref_column=category.name)
    return totals, rows, main.model_copy(update={"foreign_keys": (*main.foreign_keys, link)})


def structure_round(db: Database, theme: Theme, rng: random.Random) -> Database:
    """Round 1: aggregate and constraint tables over the main table's category."""
    main = main_table(db.tables)
    category = category_column(main)
    if category is None:
        return db.model_copy(
            update={"rounds": db.rounds + 1, "log": (*db.log, "nothing: no category column")}
        )
    ops = operations(theme, rng)
    profiles, rows, linked = totals_by(db, main, category)
    profile_name, key = profiles.name, profiles.columns[0]
    limits_name = f"{snake(ops['unit'])}_limits"
    limits = Table(
        name=limits_name, singular=f"{ops['unit']} limit", plural=f"{ops['unit']} limits", kind="constraint",
        columns=(
            key,
            Column(name=f"max_{snake(ops['quantity'])}", type="integer", role="measure",
                   label=f"most {ops['quantity']} allowed for one {ops['unit']}"),
        ),
        primary_key=category.name,
        foreign_keys=(ForeignKey(column=category.name, table=profile_name, ref_column=category.name),),
        description=f"The most {ops['quantity']} that one {ops['unit']} may take, by {category.label}.",
    )  # fmt: skip
    limit_rows: list[list[Any]] = [[value, rng.randint(4, 12)] for value in category.values or ()]
    return add_tables(
        db,
        [
            (profiles, rows, "derived", f"computed from {main.name}"),
            (limits, limit_rows, "simulated", "limits drawn from the seed"),
        ],
        {main.name: linked},
        f"round 1: {profile_name} (aggregate) because {main.name} had no totals by {category.name}; "
        f"{limits_name} (constraint) because nothing limited a {ops['unit']}",
    )


def _date(rng: random.Random) -> str:
    return (datetime.date(2025, 7, 1) + datetime.timedelta(days=rng.randrange(180))).isoformat()


def business_round(db: Database, theme: Theme, rng: random.Random) -> Database:
    """Round 2: stock, ledger with a workflow, audit log; simulated and labelled so."""
    main = main_table(db.tables)
    ops = operations(theme, rng)
    unit, quantity = snake(ops["unit"]), snake(ops["quantity"])
    workflow = rng.choice(WORKFLOWS)
    limit_table = next((t for t in db.tables if t.kind == "constraint"), None)
    limits = {r[0]: r[1] for r in db.rows[limit_table.name]} if limit_table else {}
    main_key = main.column(main.primary_key)
    ref = Column(name=main_key.name, type=main_key.type, role="ref", label=main.singular)
    stock_name, ledger_name = f"{quantity}_stock", snake(ops["unit_plural"])
    ledger_key = f"{unit}_id"
    prefix = (unit.replace("_", "")[:3]).upper()

    stock_rows: list[list[Any]] = []
    ledger_rows: list[list[Any]] = []
    for record in db.records(main.name):
        total, used = rng.randint(12, 60), 0
        cap = limits.get(record.get(limit_table.primary_key), 8) if limit_table else 8
        for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
            status = rng.choices(workflow, (4, 3, 1, 1))[0]
            amount = rng.randint(1, min(cap, 6))
            if status in workflow[:2]:
                if used + amount > total:
                    continue
                used += amount
            ledger_rows.append([None, record[main_key.name], amount, status, _date(rng)])
        stock_rows.append([record[main_key.name], total, total - used])
    rng.shuffle(ledger_rows)
    start = rng.randint(101, 899)
    for i, row in enumerate(ledger_rows):
        row[0] = f"{prefix}-{start + i}"

    to_main = ForeignKey(column=main_key.name, table=main.name, ref_column=main_key.name)
    stock = Table(
        name=stock_name, singular=f"{ops['quantity']} stock", plural=f"{ops['quantity']} stocks", kind="ledger",
        columns=(
            ref.model_copy(update={"role": "key"}),
            Column(name=f"{quantity}_total", type="integer", role="measure", label=f"{ops['quantity']} in total"),
            Column(name=f"{quantity}_left", type="integer", role="measure", label=f"{ops['quantity']} left"),
        ),
        primary_key=main_key.name, foreign_keys=(to_main,),
        description=f"How many {ops['quantity']} every {main.singular} has, and how many are still free.",
    )  # fmt: skip
    ledger = Table(
        name=ledger_name, singular=ops["unit"], plural=ops["unit_plural"], kind="ledger",
        columns=(
            Column(name=ledger_key, type="text", role="key", label=f"{ops['unit']} number", minted=True),
            ref,
            Column(name=quantity, type="integer", role="measure", label=ops["quantity"]),
            Column(name="status", type="text", role="status", label="status", values=workflow),
            Column(name="opened", type="text", role="date", label="opening date", minted=True),
        ),
        primary_key=ledger_key, foreign_keys=(to_main,),
        description=f"The {ops['unit_plural']}; {workflow[0]} and {workflow[1]} ones hold {ops['quantity']} of the stock.",
    )  # fmt: skip
    audit = Table(
        name="activity_log", singular="log line", plural="log lines", kind="audit",
        columns=(
            Column(name="line", type="integer", role="key", label="line", minted=True),
            Column(name="at", type="text", role="date", label="time", minted=True),
            Column(name="action", type="text", role="text", label="action"),
            Column(name="subject", type="text", role="text", label="subject"),
        ),
        primary_key="line", description="What the write tools did; not part of the state.",
    )  # fmt: skip
    note = "simulated from the seed, no real transactions"
    return add_tables(
        db,
        [
            (stock, stock_rows, "simulated", note),
            (ledger, ledger_rows, "simulated", note),
            (audit, [], "simulated", "starts empty"),
        ],
        {},
        f"round 2: {stock_name} and {ledger_name} because {main.name} had no history and nothing to change; "
        "activity_log as audit table",
    )
