"""The tools that the offline author adds to a grown environment, over what follows from a ledger line.

They list what is owed on a line, put something on it, take it in, let it go; and look up limits and totals.
The tables are those of :mod:`.followups`. What the tests of the tools expect is computed here from the rows,
without SQL, as in :mod:`.oracle`. Asked by :mod:`synth.grow`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from synth.author.offline.followups import FLOW, WRITES, ledger_of, main_of
from synth.author.offline.tables import snake
from synth.author.offline.toolkit import an, object_schema, out_schema, schema_of
from synth.types import Column, Database, Table, Tool, ToolCase

VERBS = {
    "dues": ("list", "show", "get", "view"),
    "charge": ("add", "raise", "enter"),
    "settle": ("settle", "pay", "clear"),
    "waive": ("waive", "remit", "forgive"),
    "limits": ("limit_for", "most", "max_allowed"),
    "profile": ("profile_of", "describe", "overview_of"),
}


@dataclass(frozen=True)
class Desk:
    """Tables and words that the new tools stand on."""

    db: Database
    main: Table
    ledger: Table
    dues: Table
    limits: Table | None
    verbs: dict[str, str]

    @property
    def line(self) -> str:
        return self.ledger.primary_key

    @property
    def key(self) -> str:
        return self.dues.primary_key

    @property
    def active(self) -> tuple[str, ...]:
        """States of a line on which something may still be charged."""
        return (self.ledger.by_role("status")[0].values or ())[:2]

    def of_line(self, key: Any) -> list[dict[str, Any]]:
        rows = [r for r in self.db.records(self.dues.name) if r[self.line] == key]
        return sorted(rows, key=lambda r: r[self.key])

    def owed(self, key: Any) -> int:
        return sum(r["amount"] for r in self.of_line(key) if r["status"] == FLOW[0])

    def most(self, line: dict[str, Any]) -> int | None:
        """The limit that binds a line, or None."""
        if self.limits is None:
            return None
        link = next(fk for fk in self.ledger.foreign_keys if fk.table == self.main.name)
        entity = next(r for r in self.db.records(self.main.name) if r[link.ref_column] == line[link.column])
        value = entity[self.limits.primary_key]
        column = self.limits.columns[1].name
        return next(
            (r[column] for r in self.db.records(self.limits.name) if r[self.limits.primary_key] == value),
            None,
        )


def followup_tools(before: Database, db: Database, there: Sequence[Tool], rng: random.Random) -> list[Tool]:
    """Tools over the tables that ``db`` has and ``before`` had not; names of tools that are there are kept free."""
    old = {t.name for t in before.tables}
    new = [t for t in db.tables if t.name not in old]
    made: list[Tool] = []
    dues = next((t for t in new if t.kind == "ledger"), None)
    main, ledger = main_of(db), ledger_of(db)
    verbs = {kind: rng.choice(options) for kind, options in VERBS.items()}
    if dues is not None and main is not None and ledger is not None:
        limits = next((t for t in new if t.kind == "constraint"), None)
        desk = Desk(db, main, ledger, dues, limits, verbs)
        made += [_list(desk, rng), _charge(desk, rng), _move(desk, rng, "settle"), _move(desk, rng, "waive")]
        if limits is not None:
            made.append(_look_up(db, limits, main, "limits", verbs, rng))
    for table in new:
        if table.kind == "aggregate" and main is not None:
            made.append(_look_up(db, table, main, "profile", verbs, rng))
    names = {tool.name for tool in there}
    return [_renamed(tool, names) for tool in made]


def _renamed(tool: Tool, names: set[str]) -> Tool:
    name = tool.name
    while name in names:
        name = f"{name}_too"
    names.add(name)
    code = tool.code.replace(f"def {tool.name}(", f"def {name}(", 1)
    return tool.model_copy(update={"name": name, "code": code})


def _tool(
    kind: str, name: str, description: str, params: dict[str, tuple[dict[str, Any], str, str]],
    outputs: dict[str, str], output_schema: dict[str, Any], body: Sequence[str], cases: list[ToolCase], table: str,
) -> Tool:  # fmt: skip
    lines = "\n".join(body).split("\n")
    code = f"def {name}(ctx, *{''.join(f', {p}' for p in params)}):\n" + "".join(f"    {x}\n" for x in lines)
    return Tool(
        name=name, description=description,
        input_schema=object_schema({p: schema for p, (schema, _, _) in params.items()}),
        output_schema=output_schema, read_only=kind not in WRITES, code=code, cases=tuple(cases),
        meta={
            "kind": kind, "table": table,
            "inputs": {p: ref for p, (_, ref, _) in params.items()},
            "ops": {p: op for p, (_, _, op) in params.items()},
            "outputs": outputs,
        },
    )  # fmt: skip


def _line_param(d: Desk) -> dict[str, tuple[dict[str, Any], str, str]]:
    return {d.line: (schema_of(d.ledger.column(d.line)), f"{d.ledger.name}.{d.line}", "line")}


def _load(table: str, key: str, singular: str, variable: str) -> str:
    return (
        f'{variable} = ctx.db.execute("SELECT * FROM {table} WHERE {key} = ?", ({key},)).fetchone()\n'
        f"if {variable} is None:\n"
        f'    raise ToolError("not_found", f"no {singular} {{{key}}}")'
    )


def _owed(d: Desk, key: str) -> str:
    return (
        f'owed = ctx.db.execute(\n    "SELECT COALESCE(SUM(amount), 0) FROM {d.dues.name} '
        f"WHERE {d.line} = ? AND status = '{FLOW[0]}'\", ({key},)\n).fetchone()[0]"
    )


def _log(d: Desk, action: str) -> list[str]:
    audit = next((t for t in d.db.tables if t.kind == "audit" and t.name == "activity_log"), None)
    if audit is None:
        return []
    return [
        f'ctx.db.execute("INSERT INTO activity_log (at, action, subject) VALUES (?, ?, ?)", '
        f'(ctx.now(), "{action}", str({d.key})))'
    ]


def _columns(d: Desk) -> list[Column]:
    return [d.dues.column(d.key), d.dues.column("amount"), d.dues.column("status")]


def _refs(d: Desk, prefix: str) -> dict[str, str]:
    return {f"$.{prefix}{c.name}": f"{d.dues.name}.{c.name}" for c in _columns(d)}


def _moved_out(d: Desk) -> dict[str, Any]:
    schema = out_schema(_columns(d))
    properties = {**schema["properties"], "owed": {"type": "integer"}}
    return {"type": "object", "properties": properties, "required": list(properties)}


def _shown(d: Desk, row: dict[str, Any]) -> dict[str, Any]:
    return {c.name: row[c.name] for c in _columns(d)}


def _sampled(rng: random.Random, rows: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    return rng.sample(rows, min(count, len(rows)))


def _list(d: Desk, rng: random.Random) -> Tool:
    names = ", ".join(c.name for c in _columns(d))
    body = [
        _load(d.ledger.name, d.line, d.ledger.singular, "line"),
        f'rows = ctx.db.execute(\n    "SELECT {names} FROM {d.dues.name} WHERE {d.line} = ? ORDER BY {d.key}", '
        f"({d.line},)\n).fetchall()",
        _owed(d, d.line),
        'return {"owed": owed, "items": [dict(r) for r in rows]}',
    ]
    cases = [ToolCase(arguments={d.line: "NONE-0"}, error="not_found")]
    for line in _sampled(rng, d.db.records(d.ledger.name), 4):
        items = [_shown(d, row) for row in d.of_line(line[d.line])]
        cases.append(
            ToolCase(arguments={d.line: line[d.line]}, expect={"owed": d.owed(line[d.line]), "items": items})
        )
    schema = object_schema(
        {"owed": {"type": "integer"}, "items": {"type": "array", "items": out_schema(_columns(d))}}
    )
    return _tool(
        "dues", f"{d.verbs['dues']}_{d.dues.name}",
        f"The {d.dues.plural} of one {d.ledger.singular}, and how much of them is still owed",
        _line_param(d), {"$.owed": "", **_refs(d, "items[].")}, schema, body, cases, d.dues.name,
    )  # fmt: skip


def _charge(d: Desk, rng: random.Random) -> Tool:
    status = d.ledger.by_role("status")[0].name
    prefix = str(d.db.rows[d.dues.name][0][0]).split("-")[0]
    body = [
        _load(d.ledger.name, d.line, d.ledger.singular, "line"),
        f'if line["{status}"] not in {d.active!r}:\n'
        f'    raise ToolError("not_allowed", f"{{{d.line}}} is already {{line[\'{status}\']}}")',
        'if amount < 1:\n    raise ToolError("invalid_amount", "at least 1 is needed")',
        *_limit_check(d),
        f'{d.key} = ctx.new_id("{prefix}")',
        f'ctx.db.execute("INSERT INTO {d.dues.name} VALUES (?, ?, ?, ?)", ({d.key}, {d.line}, amount, "{FLOW[0]}"))',
        *_log(d, "charge"),
        _owed(d, d.line),
        f'return {{"{d.key}": {d.key}, "amount": amount, "status": "{FLOW[0]}", "owed": owed}}',
    ]
    lines, cases = (
        d.db.records(d.ledger.name),
        [ToolCase(arguments={d.line: "NONE-0", "amount": 1}, error="not_found")],
    )
    for line in _sampled(rng, [r for r in lines if r[status] in d.active], 3):
        amount, most = rng.randint(1, 5), d.most(line)
        arguments = {d.line: line[d.line], "amount": amount}
        if most is not None and amount > most:
            cases.append(ToolCase(arguments=arguments, error="limit_exceeded"))
            continue
        expect = {
            d.key: f"{prefix}-9001",
            "amount": amount,
            "status": FLOW[0],
            "owed": d.owed(line[d.line]) + amount,
        }
        cases.append(ToolCase(arguments=arguments, expect=expect, changes={d.dues.name: 1}))
    for line in _sampled(rng, [r for r in lines if r[status] in d.active], 1):
        cases.append(ToolCase(arguments={d.line: line[d.line], "amount": 0}, error="invalid_amount"))
        if d.most(line) is not None:
            cases.append(ToolCase(arguments={d.line: line[d.line], "amount": 1000}, error="limit_exceeded"))
    for line in _sampled(rng, [r for r in lines if r[status] not in d.active], 1):
        cases.append(ToolCase(arguments={d.line: line[d.line], "amount": 1}, error="not_allowed"))
    noun = d.dues.singular
    return _tool(
        "charge", f"{d.verbs['charge']}_{d.dues.name.removesuffix('s')}",
        f"Put {an(noun)} on {an(d.ledger.singular)} that is {d.active[0]} or {d.active[-1]}",
        _line_param(d) | {"amount": ({"type": "integer"}, f"{d.dues.name}.amount", "amount")},
        _refs(d, ""), _moved_out(d), body, cases, d.dues.name,
    )  # fmt: skip


def _limit_check(d: Desk) -> list[str]:
    if d.limits is None:
        return []
    link = next(fk for fk in d.ledger.foreign_keys if fk.table == d.main.name)
    key, most = d.limits.primary_key, d.limits.columns[1].name
    return [
        f"limit = ctx.db.execute(\n"
        f'    "SELECT x.{most} FROM {d.limits.name} x JOIN {d.main.name} m ON m.{key} = x.{key} WHERE m.{link.ref_column} = ?",\n'
        f'    (line["{link.column}"],),\n).fetchone()',
        f"if limit is not None and amount > limit[0]:\n"
        f'    raise ToolError("limit_exceeded", f"at most {{limit[0]}} for one {d.dues.singular}")',
    ]


def _move(d: Desk, rng: random.Random, kind: str) -> Tool:
    to = {"settle": FLOW[1], "waive": FLOW[2]}[kind]
    body = [
        _load(d.dues.name, d.key, d.dues.singular, "due"),
        f'if due["status"] != "{FLOW[0]}":\n'
        f'    raise ToolError("not_allowed", f"{{{d.key}}} is already {{due[\'status\']}}")',
        f'ctx.db.execute("UPDATE {d.dues.name} SET status = ? WHERE {d.key} = ?", ("{to}", {d.key}))',
        *_log(d, kind),
        _owed(d, f'due["{d.line}"]'),
        f'return {{"{d.key}": {d.key}, "amount": due["amount"], "status": "{to}", "owed": owed}}',
    ]
    rows = d.db.records(d.dues.name)
    cases = [ToolCase(arguments={d.key: "NONE-0"}, error="not_found")]
    for row in _sampled(rng, [r for r in rows if r["status"] == FLOW[0]], 3):
        owed = d.owed(row[d.line]) - row["amount"]
        expect = {**_shown(d, row), "status": to, "owed": owed}
        cases.append(ToolCase(arguments={d.key: row[d.key]}, expect=expect, changes={d.dues.name: 1}))
    for row in _sampled(rng, [r for r in rows if r["status"] != FLOW[0]], 1):
        cases.append(ToolCase(arguments={d.key: row[d.key]}, error="not_allowed"))
    noun = d.dues.singular
    words = (
        f"Take in {an(noun)} that is {FLOW[0]}"
        if kind == "settle"
        else f"Let {an(noun)} go that is {FLOW[0]}"
    )
    return _tool(
        kind, f"{d.verbs[kind]}_{d.dues.name.removesuffix('s')}", words,
        {d.key: (schema_of(d.dues.column(d.key)), f"{d.dues.name}.{d.key}", "due")},
        _refs(d, ""), _moved_out(d), body, cases, d.dues.name,
    )  # fmt: skip


def _look_up(
    db: Database, table: Table, main: Table, kind: str, verbs: dict[str, str], rng: random.Random
) -> Tool:
    """One row of a table that is keyed by a category of the entities."""
    key, columns = table.primary_key, list(table.columns)
    body = [
        f'row = ctx.db.execute("SELECT * FROM {table.name} WHERE {key} = ?", ({key},)).fetchone()\n'
        f'if row is None:\n    raise ToolError("not_found", f"no {table.singular} for {{{key}}}")',
        "return dict(row)",
    ]
    cases = [ToolCase(arguments={key: "nothing like it"}, error="not_found")]
    cases += [ToolCase(arguments={key: r[key]}, expect=r) for r in _sampled(rng, db.records(table.name), 3)]
    label = table.column(key).label
    words = {
        "limits": f"How high one {table.singular.removesuffix(' limit')} may be, by {label}",
        "profile": f"Totals of the {main.plural} of one {label}",
    }[kind]
    noun = snake(key) if kind == "profile" else table.name.removesuffix("_limits")
    return _tool(
        kind, f"{verbs[kind]}_{noun}", words, {key: (schema_of(table.column(key)), f"{main.name}.{key}", "eq")},
        {f"$.{c.name}": f"{table.name}.{c.name}" for c in columns}, out_schema(columns), body, cases, table.name,
    )  # fmt: skip
