"""What the tests of the offline author's tools expect, computed in Python over the rows.

No SQL and no tool code is used here: the two ways to the same number are apart on purpose. Every case
starts from the pristine state. Changes count rows added, removed or changed, audit tables apart.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from synth.types import Column, ForeignKey, Table, ToolCase

if TYPE_CHECKING:
    from synth.author.offline.plan import Plan

Row = dict[str, Any]
MISSING = {"text": "Nowhere-0", "integer": -1, "real": -1.0}


def prefix(plan: Plan) -> str:
    """Prefix of minted ledger keys, as in the mined rows: ``BOO-101`` -> ``BOO``."""
    rows = plan.db.rows[plan.ledger.name]
    return str(rows[0][0]).split("-")[0] if rows else "NEW"


def sample(rng: random.Random, items: list[Any], count: int) -> list[Any]:
    return rng.sample(items, min(count, len(items)))


def pick(row: Row, columns: list[Column]) -> Row:
    return {c.name: row[c.name] for c in columns}


def left_of(plan: Plan, key: Any) -> int:
    return next(r for r in plan.records(plan.stock) if r[plan.key.name] == key)[plan.left]


def entity_value(plan: Plan, row: Row) -> Any:
    return row[plan.entity_column.name]


def missing_entity(plan: Plan) -> ToolCase:
    return ToolCase(arguments={plan.entity_param: MISSING[plan.entity_column.type]}, error="not_found")


def missing_line(plan: Plan, **more: Any) -> ToolCase:
    return ToolCase(arguments={plan.ledger.primary_key: "NONE-0", **more}, error="not_found")


def main_row(plan: Plan, key: Any) -> Row:
    return next(r for r in plan.records(plan.main) if r[plan.key.name] == key)


def cap(plan: Plan, row: Row) -> int | None:
    """The limit that binds an entity, or None."""
    if plan.limits is None or plan.category is None:
        return None
    for limit in plan.records(plan.limits):
        if limit[plan.limits.primary_key] == row[plan.category.name]:
            return limit[plan.limits.columns[1].name]
    return None


# --- reading ---------------------------------------------------------------------------------


def find_cases(plan: Plan, rng: random.Random, param: str, columns: list[Column]) -> list[ToolCase]:
    rows = sample(rng, plan.records(plan.main), 3)
    return [ToolCase(arguments={param: r[plan.name.name]}, expect=pick(r, columns)) for r in rows] + [
        ToolCase(arguments={param: "Nowhere-0"}, error="not_found")
    ]


def search_cases(plan: Plan, rng: random.Random, params: dict[str, Any]) -> list[ToolCase]:
    cases = []
    for r in sample(rng, plan.records(plan.main), 4):
        arguments = {}
        for i, (p, (_, ref, _op)) in enumerate(params.items()):
            value = r[ref.split(".")[1]]
            if value is not None and (i == 0 or rng.random() < 0.6):
                arguments[p] = value
        first = next(iter(params))
        arguments.setdefault(first, (plan.categories[0].values or ("",))[0])
        found = []
        for other in plan.records(plan.main):
            keep = True
            for p, value in arguments.items():
                _, ref, op = params[p]
                have = other[ref.split(".")[1]]
                if op == "eq":
                    keep &= have == value
                elif have is None:
                    keep = False
                else:
                    keep &= have >= value if op == "ge" else have <= value
            if keep:
                found.append(other)
        found.sort(key=lambda o: o[plan.name.name])
        items = [pick(o, [plan.key, plan.name]) for o in found[:5]]
        cases.append(ToolCase(arguments=arguments, expect={"total": len(found), "items": items}))
    return cases


def best(rows: list[Row], measure: str, name: str, order: str) -> Row | None:
    known = [r for r in rows if r[measure] is not None]
    if not known:
        return None
    sign = -1 if order == "highest" else 1
    return min(known, key=lambda r: (sign * r[measure], r[name]))


def rank_cases(plan: Plan, rng: random.Random, measure: Column, category: Column | None) -> list[ToolCase]:
    cases = []
    for order in ("highest", "lowest"):
        for value in sample(rng, list(category.values or ()), 2) if category else [None]:
            rows = [r for r in plan.records(plan.main) if category is None or r[category.name] == value]
            arguments = {"order": order} | ({category.name: value} if category else {})
            row = best(rows, measure.name, plan.name.name, order)
            cases.append(
                ToolCase(arguments=arguments, expect=pick(row, [plan.key, plan.name, measure]))
                if row
                else ToolCase(arguments=arguments, error="not_found")
            )
    return cases


def count_cases(plan: Plan, rng: random.Random, column: Column) -> list[ToolCase]:
    values = [*sample(rng, list(column.values or ()), 3), "nothing like it"]
    rows = plan.records(plan.main)
    return [
        ToolCase(
            arguments={column.name: v},
            expect={column.name: v, "count": sum(1 for r in rows if r[column.name] == v)},
        )
        for v in values
    ]


def summary_cases(plan: Plan, rng: random.Random, column: Column, measure: Column) -> list[ToolCase]:
    cases = [ToolCase(arguments={column.name: "nothing like it"}, error="not_found")]
    for v in sample(rng, list(column.values or ()), 3):
        known = [
            r[measure.name]
            for r in plan.records(plan.main)
            if r[column.name] == v and r[measure.name] is not None
        ]
        if known:
            mean = round(sum(known) / len(known), 2)
            expect = {"average": mean, "highest": max(known), "lowest": min(known)}
            cases.append(ToolCase(arguments={column.name: v}, expect=expect))
        else:
            cases.append(ToolCase(arguments={column.name: v}, error="not_found"))
    return cases


def keyed_cases(plan: Plan, rng: random.Random, table: Table) -> list[ToolCase]:
    key = table.primary_key
    rows = sample(rng, plan.records(table), 3)
    return [ToolCase(arguments={key: r[key]}, expect=r) for r in rows] + [
        ToolCase(arguments={key: "nothing like it"}, error="not_found")
    ]


def stock_cases(plan: Plan, rng: random.Random) -> list[ToolCase]:
    cases = [missing_entity(plan)]
    for row in sample(rng, plan.records(plan.main), 3):
        held = next(r for r in plan.records(plan.stock) if r[plan.key.name] == row[plan.key.name])
        expect = {plan.total: held[plan.total], plan.left: held[plan.left]}
        cases.append(ToolCase(arguments={plan.entity_param: entity_value(plan, row)}, expect=expect))
    return cases


def list_ledger_cases(plan: Plan, rng: random.Random, columns: list[Column]) -> list[ToolCase]:
    cases = [missing_entity(plan)]
    for row in sample(rng, plan.records(plan.main), 4):
        lines = [r for r in plan.records(plan.ledger) if r[plan.key.name] == row[plan.key.name]]
        lines.sort(key=lambda r: r[plan.ledger.primary_key])
        expect = {"items": [pick(r, columns) for r in lines]}
        cases.append(ToolCase(arguments={plan.entity_param: entity_value(plan, row)}, expect=expect))
    return cases


def get_ledger_cases(plan: Plan, rng: random.Random, columns: list[Column]) -> list[ToolCase]:
    cases = [missing_line(plan)]
    for line in sample(rng, plan.records(plan.ledger), 3):
        name = main_row(plan, line[plan.key.name])[plan.name.name]
        expect = {plan.name.name: name} | pick(line, columns[1:])
        key = plan.ledger.primary_key
        cases.append(ToolCase(arguments={key: line[key]}, expect=expect))
    return cases


def children_cases(
    plan: Plan, rng: random.Random, child: Table, fk: ForeignKey, columns: list[Column]
) -> list[ToolCase]:
    cases = [missing_entity(plan)]
    for row in sample(rng, plan.records(plan.main), 3):
        lines = [r for r in plan.records(child) if r[fk.column] == row[fk.ref_column]]
        lines.sort(key=lambda r: r[child.primary_key])
        expect = {"total": len(lines), "items": [pick(r, columns) for r in lines[:5]]}
        cases.append(ToolCase(arguments={plan.entity_param: entity_value(plan, row)}, expect=expect))
    return cases


# --- writing ---------------------------------------------------------------------------------


def _line_result(plan: Plan, key: str, amount: int, status: str, left: int) -> Row:
    return {plan.ledger.primary_key: key, plan.quantity: amount, "status": status, plan.left: left}


def create_cases(plan: Plan, rng: random.Random) -> list[ToolCase]:
    cases = []
    rows = plan.records(plan.main)
    for row in sample(rng, rows, 3):
        left, most = left_of(plan, row[plan.key.name]), cap(plan, row)
        arguments = {plan.entity_param: entity_value(plan, row), plan.quantity: rng.randint(1, 4)}
        amount = arguments[plan.quantity]
        if amount > left or (most is not None and amount > most):
            cases.append(
                ToolCase(
                    arguments=arguments,
                    error="not_enough" if most is None or amount <= most else "limit_exceeded",
                )
            )
            continue
        expect = _line_result(plan, f"{prefix(plan)}-9001", amount, plan.workflow[0], left - amount)
        changes = {plan.ledger.name: 1, plan.stock.name: 1}
        cases.append(ToolCase(arguments=arguments, expect=expect, changes=changes))
    row = rng.choice(rows)
    most = cap(plan, row)
    too_many = {plan.entity_param: entity_value(plan, row), plan.quantity: 1000}
    cases.append(ToolCase(arguments=too_many, error="limit_exceeded" if most is not None else "not_enough"))
    cases.append(ToolCase(arguments={**too_many, plan.quantity: 0}, error="invalid_amount"))
    return cases


def update_cases(plan: Plan, rng: random.Random) -> list[ToolCase]:
    key = plan.ledger.primary_key
    cases = [missing_line(plan, **{plan.quantity: 1})]
    lines = plan.records(plan.ledger)
    for line in sample(rng, [r for r in lines if r["status"] == plan.workflow[0]], 3):
        most = cap(plan, main_row(plan, line[plan.key.name]))
        left = left_of(plan, line[plan.key.name])
        amount = line[plan.quantity] % 4 + 1
        arguments = {key: line[key], plan.quantity: amount}
        if most is not None and amount > most:
            cases.append(ToolCase(arguments=arguments, error="limit_exceeded"))
        elif amount - line[plan.quantity] > left:
            cases.append(ToolCase(arguments=arguments, error="not_enough"))
        else:
            left -= amount - line[plan.quantity]
            changes = {plan.ledger.name: 1, plan.stock.name: 1} if amount != line[plan.quantity] else {}
            expect = _line_result(plan, line[key], amount, plan.workflow[0], left)
            cases.append(ToolCase(arguments=arguments, expect=expect, changes=changes))
    for line in sample(rng, [r for r in lines if r["status"] != plan.workflow[0]], 1):
        cases.append(ToolCase(arguments={key: line[key], plan.quantity: 1}, error="not_allowed"))
    return cases


def confirm_cases(plan: Plan, rng: random.Random) -> list[ToolCase]:
    key = plan.ledger.primary_key
    cases = [missing_line(plan)]
    lines = plan.records(plan.ledger)
    for line in sample(rng, [r for r in lines if r["status"] == plan.workflow[0]], 3):
        left = left_of(plan, line[plan.key.name])
        expect = _line_result(plan, line[key], line[plan.quantity], plan.workflow[1], left)
        cases.append(ToolCase(arguments={key: line[key]}, expect=expect, changes={plan.ledger.name: 1}))
    for line in sample(rng, [r for r in lines if r["status"] != plan.workflow[0]], 1):
        cases.append(ToolCase(arguments={key: line[key]}, error="not_allowed"))
    return cases


def cancel_cases(plan: Plan, rng: random.Random) -> list[ToolCase]:
    key = plan.ledger.primary_key
    cases = [missing_line(plan)]
    lines = plan.records(plan.ledger)
    for line in sample(rng, [r for r in lines if r["status"] in plan.workflow[:2]], 3):
        left = left_of(plan, line[plan.key.name]) + line[plan.quantity]
        expect = _line_result(plan, line[key], line[plan.quantity], plan.workflow[3], left)
        changes = {plan.ledger.name: 1, plan.stock.name: 1}
        cases.append(ToolCase(arguments={key: line[key]}, expect=expect, changes=changes))
    for line in sample(rng, [r for r in lines if r["status"] in plan.workflow[2:]], 1):
        cases.append(ToolCase(arguments={key: line[key]}, error="not_allowed"))
    return cases


def transfer_cases(plan: Plan, rng: random.Random) -> list[ToolCase]:
    source, target = f"from_{plan.entity_param}", f"to_{plan.entity_param}"
    cases = []
    for _ in range(3):
        a, b = rng.sample(plan.records(plan.main), 2)
        left = left_of(plan, a[plan.key.name])
        amount = rng.randint(1, 5)
        arguments = {source: entity_value(plan, a), target: entity_value(plan, b), plan.quantity: amount}
        if amount > left:
            cases.append(ToolCase(arguments=arguments, error="not_enough"))
            continue
        expect = {"from_left": left - amount, "to_left": left_of(plan, b[plan.key.name]) + amount}
        cases.append(ToolCase(arguments=arguments, expect=expect, changes={plan.stock.name: 2}))
    a, b = rng.sample(plan.records(plan.main), 2)
    both = {source: entity_value(plan, a), target: entity_value(plan, a), plan.quantity: 1}
    cases.append(ToolCase(arguments=both, error="not_allowed"))
    far = {source: entity_value(plan, a), target: entity_value(plan, b), plan.quantity: 9999}
    cases.append(ToolCase(arguments=far, error="not_enough"))
    return cases
