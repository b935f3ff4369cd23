"""What the offline author decides once for an environment, before it writes any tool.

A :class:`Plan` names the tables and columns that the tools will use, and the style of the tools
(verbs, whether entities are addressed by name or by id). It is drawn from the rng, so that two
environments over equal schemas still differ.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from synth.author.offline.tables import category_column, main_table, operations, snake
from synth.types import Column, Database, Table, Theme

VERBS: dict[str, tuple[str, ...]] = {
    "find": ("find", "get", "lookup", "fetch", "show", "read"),
    "search": ("search", "list", "filter", "query", "browse"),
    "rank": ("top", "rank", "leading", "extreme"),
    "count": ("count", "tally", "number_of"),
    "summary": ("summarize", "average", "stats_of"),
    "profile": ("profile_of", "describe", "overview_of"),
    "limits": ("limit_for", "check_limit", "max_allowed"),
    "stock": ("stock_of", "availability_of", "check_stock", "remaining"),
    "list_ledger": ("list", "show", "get", "view"),
    "get_ledger": ("read", "open", "inspect", "track"),
    "create": ("create", "add", "open", "make", "new", "submit"),
    "update": ("update", "change", "set", "adjust", "edit"),
    "confirm": ("confirm", "approve", "advance", "accept"),
    "cancel": ("cancel", "withdraw", "drop", "revoke", "delete"),
    "transfer": ("transfer", "move", "shift", "reassign"),
    "children": ("list", "show", "get", "view"),
}


@dataclass(frozen=True)
class Plan:
    """Tables, columns and style of one environment's tools."""

    db: Database
    main: Table
    key: Column
    name: Column
    shown: tuple[Column, ...]  # columns that a record shows besides key and name
    categories: tuple[Column, ...]
    measures: tuple[Column, ...]
    category: Column | None  # the one that profiles and limits hang on
    profiles: Table | None
    limits: Table | None
    stock: Table
    ledger: Table
    child: Table | None
    by_name: bool  # entities are addressed by name (True) or by key (False)
    words: dict[str, str]  # unit, unit_plural, quantity
    verbs: dict[str, str]
    terse: bool  # short descriptions

    @property
    def quantity(self) -> str:
        """Column and parameter name of the quantity."""
        return self.ledger.columns[2].name

    @property
    def left(self) -> str:
        return f"{self.quantity}_left"

    @property
    def total(self) -> str:
        return f"{self.quantity}_total"

    @property
    def workflow(self) -> tuple[str, ...]:
        return self.ledger.column("status").values or ()

    @property
    def entity_param(self) -> str:
        return snake(self.main.singular) if self.by_name else self.key.name

    @property
    def entity_column(self) -> Column:
        return self.name if self.by_name else self.key

    def entity_ref(self) -> str:
        return f"{self.main.name}.{self.entity_column.name}"

    def records(self, table: Table) -> list[dict[str, Any]]:
        return self.db.records(table.name)


def make_plan(db: Database, theme: Theme, rng: random.Random) -> Plan:
    """Draw a plan for a complexified database.

    Raises:
        ValueError: the database has no named main table or was not complexified twice.
    """
    main = main_table(db.tables)
    ledgers = [t for t in db.tables if t.kind == "ledger"]
    if len(ledgers) < 2:
        raise ValueError("the database has no stock and ledger; complexify it first")
    stock, ledger = ledgers[0], ledgers[1]
    category = category_column(main)
    categories = [c for c in main.by_role("category") if c.values]
    if category is not None:
        categories = [category, *[c for c in categories if c.name != category.name]][:3]
    measures = main.by_role("measure")[: rng.choice((2, 3))]
    shown = [c for c in main.columns if c in categories or c in measures]
    if rng.random() < 0.5:
        shown += main.by_role("date", "text")[:1]
    children = [
        t for t in db.tables
        if t.kind == "mined" and any(fk.table == main.name for fk in t.foreign_keys) and len(db.rows[t.name]) > 3
    ]  # fmt: skip
    verbs = {kind: rng.choice(options) for kind, options in VERBS.items()}
    return Plan(
        db=db, main=main, key=main.column(main.primary_key), name=main.by_role("name")[0],
        shown=tuple(shown), categories=tuple(categories), measures=tuple(measures), category=category,
        profiles=next((t for t in db.tables if t.kind == "aggregate"), None),
        limits=next((t for t in db.tables if t.kind == "constraint"), None),
        stock=stock, ledger=ledger, child=children[0] if children else None,
        by_name=rng.random() < 0.5, words=operations(theme, rng), verbs=verbs, terse=rng.random() < 0.5,
    )  # fmt: skip
