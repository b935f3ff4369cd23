"""The tools of an environment: schema, code and tests from a :class:`~synth.author.offline.plan.Plan`.

The code of a tool reads and writes SQLite through ``ctx``. What its tests expect is computed apart from
it, in Python over the database's rows (:mod:`synth.author.offline.oracle`), so a test can fail.
"""

from __future__ import annotations

import random
from typing import Any

from synth.author.offline import oracle
from synth.author.offline.plan import Plan
from synth.author.offline.tables import snake
from synth.types import Column, Tool, ToolCase

ALWAYS = ("find", "list_ledger", "create", "cancel")
OPTIONAL = (
    "search", "rank", "count", "summary", "profile", "limits", "stock",
    "get_ledger", "update", "confirm", "transfer", "children",
)  # fmt: skip


def an(noun: str) -> str:
    """The noun with its indefinite article."""
    return f"{'an' if noun[:1].lower() in 'aeio' else 'a'} {noun}"


def schema_of(column: Column, description: str = "") -> dict[str, Any]:
    """JSON Schema of a column used as a parameter."""
    kind = {"integer": "integer", "real": "number", "text": "string"}[column.type]
    schema: dict[str, Any] = {"type": kind}
    if description:
        schema["description"] = description
    return schema


def object_schema(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


def out_schema(columns: list[Column]) -> dict[str, Any]:
    """JSON Schema of a record with these columns."""
    properties = {}
    for c in columns:
        kind: Any = {"integer": "integer", "real": "number", "text": "string"}[c.type]
        properties[c.name] = {"type": [kind, "null"] if c.nullable else kind}
    return {"type": "object", "properties": properties, "required": [c.name for c in columns]}


def write_tools(plan: Plan, rng: random.Random, low: int = 8, high: int = 12) -> list[Tool]:
    """8 to 12 tools (the paper has more than 10 on average), in random order.

    Every environment can find an entity, list its ledger lines, create and cancel one;
    the rest is drawn.
    """
    optional = [kind for kind in OPTIONAL if builders(plan).get(kind)]
    count = rng.randint(low, high) - len(ALWAYS)
    chosen = [*ALWAYS, *rng.sample(optional, min(count, len(optional)))]
    tools: list[Tool] = []
    names: set[str] = set()
    for kind in chosen:
        tool = builders(plan)[kind](plan, rng)
        if tool.name in names:  # two kinds drew the same verb
            renamed = f"{tool.name}_{kind.split('_')[0]}"
            tool = tool.model_copy(
                update={"name": renamed, "code": tool.code.replace(f"def {tool.name}(", f"def {renamed}(", 1)}
            )
        names.add(tool.name)
        tools.append(tool)
    rng.shuffle(tools)
    return tools


def builders(plan: Plan) -> dict[str, Any]:
    """Kind -> builder, for the kinds that this plan supports."""
    found: dict[str, Any] = {
        "find": find, "stock": stock, "list_ledger": list_ledger, "get_ledger": get_ledger,
        "create": create, "update": update, "confirm": confirm, "cancel": cancel, "transfer": transfer,
    }  # fmt: skip
    if plan.categories:
        found |= {"search": search, "count": count}
    if plan.measures:
        found["rank"] = rank
        if plan.categories:
            found["summary"] = summary
    if plan.profiles:
        found["profile"] = profile
    if plan.limits:
        found["limits"] = limits
    if plan.child:
        found["children"] = children
    return found


def _tool(plan: Plan, kind: str, noun: str, description: str, params: dict[str, tuple[dict[str, Any], str, str]],
          outputs: dict[str, str], output_schema: dict[str, Any], read_only: bool, body: str,
          cases: list[ToolCase], required: list[str] | None = None, **meta: Any) -> Tool:  # fmt: skip
    """Assemble a tool. ``params``: name -> (schema, "table.column", op)."""
    name = f"{plan.verbs[kind]}_{noun}"
    optional = [] if required is None else [p for p in params if p not in required]
    signature = "".join(f", {p}=None" if p in optional else f", {p}" for p in params)
    code = f"def {name}(ctx, *{signature}):\n" + "".join(
        f"    {line}\n" if line else "\n" for line in body.strip("\n").split("\n")
    )
    return Tool(
        name=name, description=description,
        input_schema=object_schema({p: s for p, (s, _, _) in params.items()}, required),
        output_schema=output_schema, read_only=read_only, code=code, cases=tuple(cases),
        meta={
            "kind": kind, **meta,
            "inputs": {p: ref for p, (_, ref, _) in params.items()},
            "ops": {p: op for p, (_, _, op) in params.items()},
            "outputs": outputs,
        },
    )  # fmt: skip


def _entity(plan: Plan) -> dict[str, tuple[dict[str, Any], str, str]]:
    return {plan.entity_param: (schema_of(plan.entity_column), plan.entity_ref(), "entity")}


def _load_entity(plan: Plan, param: str | None = None, variable: str = "entity") -> str:
    """Source lines that load the entity row or raise not_found."""
    param = param or plan.entity_param
    columns = ", ".join(
        dict.fromkeys([plan.key.name, plan.name.name, *([plan.category.name] if plan.category else [])])
    )
    return (
        f'{variable} = ctx.db.execute(\n    "SELECT {columns} FROM {plan.main.name} WHERE {plan.entity_column.name} = ?", ({param},)\n).fetchone()\n'
        f"if {variable} is None:\n"
        f'    raise ToolError("not_found", f"no {plan.main.singular} {{{param}}}")'
    )


def _load_line(plan: Plan) -> str:
    key = plan.ledger.primary_key
    return (
        f'line = ctx.db.execute("SELECT * FROM {plan.ledger.name} WHERE {key} = ?", ({key},)).fetchone()\n'
        f"if line is None:\n"
        f'    raise ToolError("not_found", f"no {plan.ledger.singular} {{{key}}}")'
    )


def _log(plan: Plan, action: str, subject: str) -> str:
    return f'ctx.db.execute("INSERT INTO activity_log (at, action, subject) VALUES (?, ?, ?)", (ctx.now(), "{action}", str({subject})))'


def _move_stock(plan: Plan, amount: str, key: str) -> str:
    return (
        f'ctx.db.execute("UPDATE {plan.stock.name} SET {plan.left} = {plan.left} + ? WHERE {plan.key.name} = ?", ({amount}, {key}))\n'
        f'left = ctx.db.execute("SELECT {plan.left} FROM {plan.stock.name} WHERE {plan.key.name} = ?", ({key},)).fetchone()[0]'
    )


def _left_now(plan: Plan, key: str) -> str:
    return f'left = ctx.db.execute("SELECT {plan.left} FROM {plan.stock.name} WHERE {plan.key.name} = ?", ({key},)).fetchone()[0]'


def _refs(prefix: str, table: str, columns: list[str]) -> dict[str, str]:
    return {f"$.{prefix}{c}": f"{table}.{c}" for c in columns}


# --- reading -------------------------------------------------------------------------------


def find(plan: Plan, rng: random.Random) -> Tool:
    columns = [plan.key, plan.name, *[c for c in plan.shown if c not in (plan.key, plan.name)]]
    param = rng.choice(("name", plan.name.name, f"{snake(plan.main.singular)}_name"))
    body = (
        f'row = ctx.db.execute(\n    "SELECT {", ".join(c.name for c in columns)} FROM {plan.main.name} WHERE {plan.name.name} = ?", ({param},)\n).fetchone()\n'
        f"if row is None:\n"
        f'    raise ToolError("not_found", f"no {plan.main.singular} is called {{{param}}}")\n'
        f"return dict(row)"
    )
    verb = "Find" if plan.terse else "Look up the record of"
    return _tool(
        plan, "find", snake(plan.main.singular), f"{verb} one {plan.main.singular} by {plan.name.label}",
        {param: (schema_of(plan.name), f"{plan.main.name}.{plan.name.name}", "name")},
        _refs("", plan.main.name, [c.name for c in columns]), out_schema(columns), True, body,
        oracle.find_cases(plan, rng, param, columns), table=plan.main.name,
    )  # fmt: skip


def _filters(plan: Plan, rng: random.Random) -> dict[str, tuple[dict[str, Any], str, str]]:
    params: dict[str, tuple[dict[str, Any], str, str]] = {}
    for c in plan.categories[: rng.choice((1, 2))]:
        params[c.name] = (schema_of(c), f"{plan.main.name}.{c.name}", "eq")
    for m in plan.measures[:1]:
        op = rng.choice(("ge", "le"))
        prefix = "min" if op == "ge" else "max"
        params[f"{prefix}_{m.name}"] = (schema_of(m), f"{plan.main.name}.{m.name}", op)
    return params


def search(plan: Plan, rng: random.Random) -> Tool:
    params = _filters(plan, rng)
    first = next(iter(params))
    lines = [f'where, values = ["{first} = ?"], [{first}]']
    for p, (_, ref, op) in list(params.items())[1:]:
        sign = {"eq": "=", "ge": ">=", "le": "<="}[op]
        lines += [
            f"if {p} is not None:",
            f'    where.append("{ref.split(".")[1]} {sign} ?")',
            f"    values.append({p})",
        ]
    lines += [
        f'rows = ctx.db.execute(\n    "SELECT {plan.key.name}, {plan.name.name} FROM {plan.main.name} WHERE " + " AND ".join(where) + " ORDER BY {plan.name.name}", values\n).fetchall()',
        'return {"total": len(rows), "items": [dict(r) for r in rows[:5]]}',
    ]
    columns = [plan.key, plan.name]
    return _tool(
        plan, "search", snake(plan.main.plural), f"{'Search' if plan.terse else 'List the'} {plan.main.plural} by {plan.categories[0].label}, first five by {plan.name.label}",
        params, {"$.total": "", **_refs("items[].", plan.main.name, [c.name for c in columns])},
        object_schema({"total": {"type": "integer"}, "items": {"type": "array", "items": out_schema(columns)}}), True,
        "\n".join(lines), oracle.search_cases(plan, rng, params), [first], table=plan.main.name,
    )  # fmt: skip


def rank(plan: Plan, rng: random.Random) -> Tool:
    measure = rng.choice(plan.measures)
    params: dict[str, tuple[dict[str, Any], str, str]] = {
        "order": ({"type": "string", "enum": ["highest", "lowest"]}, "", "order")
    }
    category = plan.category if plan.category and rng.random() < 0.7 else None
    if category:
        params[category.name] = (schema_of(category), f"{plan.main.name}.{category.name}", "eq")
    where = f" AND {category.name} = ?" if category else ""
    value = f"({category.name},)" if category else "()"
    body = (
        f'direction = "DESC" if order == "highest" else "ASC"\n'
        f"row = ctx.db.execute(\n"
        f'    "SELECT {plan.key.name}, {plan.name.name}, {measure.name} FROM {plan.main.name} WHERE {measure.name} IS NOT NULL{where}"\n'
        f'    f" ORDER BY {measure.name} {{direction}}, {plan.name.name} LIMIT 1",\n'
        f"    {value},\n).fetchone()\n"
        f"if row is None:\n"
        f'    raise ToolError("not_found", "no {plan.main.singular} matches")\n'
        f"return dict(row)"
    )
    columns = [plan.key, plan.name, measure.model_copy(update={"nullable": False})]
    where_words = f" in {an(category.label)}" if category else ""
    return _tool(
        plan, "rank", f"{snake(plan.main.singular)}_by_{measure.name}", f"The {plan.main.singular} with the highest or lowest {measure.label}{where_words}",
        params, _refs("", plan.main.name, [c.name for c in columns]), out_schema(columns), True, body,
        oracle.rank_cases(plan, rng, measure, category), table=plan.main.name, measure=f"{plan.main.name}.{measure.name}",
    )  # fmt: skip


def count(plan: Plan, rng: random.Random) -> Tool:
    column = rng.choice(plan.categories)
    body = (
        f'total = ctx.db.execute("SELECT COUNT(*) FROM {plan.main.name} WHERE {column.name} = ?", ({column.name},)).fetchone()[0]\n'
        f'return {{"{column.name}": {column.name}, "count": total}}'
    )
    return _tool(
        plan, "count", f"{snake(plan.main.plural)}_by_{column.name}", f"How many {plan.main.plural} have a given {column.label}",
        {column.name: (schema_of(column), f"{plan.main.name}.{column.name}", "eq")}, {"$.count": ""},
        object_schema({column.name: {"type": "string"}, "count": {"type": "integer"}}), True, body,
        oracle.count_cases(plan, rng, column), table=plan.main.name,
    )  # fmt: skip


def summary(plan: Plan, rng: random.Random) -> Tool:
    column, measure = rng.choice(plan.categories), rng.choice(plan.measures)
    body = (
        f"values = [\n    r[0]\n    for r in ctx.db.execute(\n"
        f'        "SELECT {measure.name} FROM {plan.main.name} WHERE {column.name} = ? AND {measure.name} IS NOT NULL", ({column.name},)\n'
        f"    )\n]\n"
        f"if not values:\n"
        f'    raise ToolError("not_found", f"no {plan.main.singular} with a known {measure.label} for {{{column.name}}}")\n'
        f'return {{"average": round(sum(values) / len(values), 2), "highest": max(values), "lowest": min(values)}}'
    )
    number = {"type": "number"}
    return _tool(
        plan, "summary", f"{measure.name}_by_{column.name}", f"Average, highest and lowest {measure.label} of the {plan.main.plural} with a given {column.label}",
        {column.name: (schema_of(column), f"{plan.main.name}.{column.name}", "eq")},
        {"$.average": "", "$.highest": "", "$.lowest": ""},
        object_schema({"average": number, "highest": number, "lowest": number}), True, body,
        oracle.summary_cases(plan, rng, column, measure), table=plan.main.name, measure=f"{plan.main.name}.{measure.name}",
    )  # fmt: skip


def _by_category(plan: Plan, kind: str, rng: random.Random) -> Tool:
    table = plan.profiles if kind == "profile" else plan.limits
    assert table is not None
    key = table.primary_key
    columns = list(table.columns)
    body = (
        f'row = ctx.db.execute("SELECT * FROM {table.name} WHERE {key} = ?", ({key},)).fetchone()\n'
        f"if row is None:\n"
        f'    raise ToolError("not_found", f"no {table.singular} for {{{key}}}")\n'
        f"return dict(row)"
    )
    words = {
        "profile": f"Totals of the {plan.main.plural} of one {table.column(key).label}",
        "limits": f"The most {plan.words['quantity']} for one {plan.words['unit']}, by {table.column(key).label}",
    }
    noun = snake(table.column(key).name) if kind == "profile" else plan.quantity
    return _tool(
        plan, kind, noun, words[kind], {key: (schema_of(table.column(key)), f"{plan.main.name}.{key}", "eq")},
        _refs("", table.name, [c.name for c in columns]), out_schema(columns), True, body,
        oracle.keyed_cases(plan, rng, table), table=table.name,
    )  # fmt: skip


def profile(plan: Plan, rng: random.Random) -> Tool:
    return _by_category(plan, "profile", rng)


def limits(plan: Plan, rng: random.Random) -> Tool:
    return _by_category(plan, "limits", rng)


def stock(plan: Plan, rng: random.Random) -> Tool:
    body = (
        _load_entity(plan) + "\n"
        f'row = ctx.db.execute("SELECT {plan.total}, {plan.left} FROM {plan.stock.name} WHERE {plan.key.name} = ?", (entity["{plan.key.name}"],)).fetchone()\n'
        f"return dict(row)"
    )
    columns = [plan.stock.column(plan.total), plan.stock.column(plan.left)]
    return _tool(
        plan, "stock", plan.quantity, f"How many {plan.words['quantity']} {an(plan.main.singular)} has in total and left",
        _entity(plan), _refs("", plan.stock.name, [c.name for c in columns]), out_schema(columns), True, body,
        oracle.stock_cases(plan, rng), table=plan.stock.name,
    )  # fmt: skip


def list_ledger(plan: Plan, rng: random.Random) -> Tool:
    columns = [plan.ledger.columns[0], plan.ledger.column(plan.quantity), plan.ledger.column("status")]
    body = (
        _load_entity(plan) + "\n"
        f"rows = ctx.db.execute(\n"
        f'    "SELECT {", ".join(c.name for c in columns)} FROM {plan.ledger.name} WHERE {plan.key.name} = ? ORDER BY {plan.ledger.primary_key}",\n'
        f'    (entity["{plan.key.name}"],),\n).fetchall()\n'
        f'return {{"items": [dict(r) for r in rows]}}'
    )
    return _tool(
        plan, "list_ledger", plan.ledger.name, f"The {plan.words['unit_plural']} of one {plan.main.singular}",
        _entity(plan), _refs("items[].", plan.ledger.name, [c.name for c in columns]),
        object_schema({"items": {"type": "array", "items": out_schema(columns)}}), True, body,
        oracle.list_ledger_cases(plan, rng, columns), table=plan.ledger.name,
    )  # fmt: skip


def get_ledger(plan: Plan, rng: random.Random) -> Tool:
    key = plan.ledger.primary_key
    columns = [
        plan.name,
        plan.ledger.column(plan.quantity),
        plan.ledger.column("status"),
        plan.ledger.column("opened"),
    ]
    names = ", ".join(f"{'m' if c is plan.name else 'l'}.{c.name}" for c in columns)
    body = (
        f"row = ctx.db.execute(\n"
        f'    "SELECT {names} FROM {plan.ledger.name} l JOIN {plan.main.name} m ON m.{plan.key.name} = l.{plan.key.name} WHERE l.{key} = ?", ({key},)\n'
        f").fetchone()\n"
        f"if row is None:\n"
        f'    raise ToolError("not_found", f"no {plan.ledger.singular} {{{key}}}")\n'
        f"return dict(row)"
    )
    outputs = {f"$.{plan.name.name}": f"{plan.main.name}.{plan.name.name}"} | _refs(
        "", plan.ledger.name, [c.name for c in columns[1:]]
    )
    return _tool(
        plan, "get_ledger", snake(plan.ledger.singular), f"One {plan.words['unit']} by its number",
        {key: (schema_of(plan.ledger.column(key)), f"{plan.ledger.name}.{key}", "line")}, outputs, out_schema(columns), True, body,
        oracle.get_ledger_cases(plan, rng, columns), table=plan.ledger.name,
    )  # fmt: skip


def children(plan: Plan, rng: random.Random) -> Tool:
    child = plan.child
    assert child is not None
    fk = next(f for f in child.foreign_keys if f.table == plan.main.name)
    columns = [c for c in child.columns if c.name != fk.column][:4]
    body = (
        _load_entity(plan) + "\n"
        f"rows = ctx.db.execute(\n"
        f'    "SELECT {", ".join(c.name for c in columns)} FROM {child.name} WHERE {fk.column} = ? ORDER BY {child.primary_key}", (entity["{fk.ref_column}"],)\n'
        f").fetchall()\n"
        f'return {{"total": len(rows), "items": [dict(r) for r in rows[:5]]}}'
    )
    return _tool(
        plan, "children", snake(child.plural), f"The {child.plural} of one {plan.main.singular}, first five",
        _entity(plan), {"$.total": "", **_refs("items[].", child.name, [c.name for c in columns])},
        object_schema({"total": {"type": "integer"}, "items": {"type": "array", "items": out_schema(columns)}}), True, body,
        oracle.children_cases(plan, rng, child, fk, columns), table=child.name,
    )  # fmt: skip


# --- writing -------------------------------------------------------------------------------


def _line_out(plan: Plan) -> list[Column]:
    return [
        plan.ledger.columns[0],
        plan.ledger.column(plan.quantity),
        plan.ledger.column("status"),
        plan.stock.column(plan.left),
    ]


def _line_outputs(plan: Plan) -> dict[str, str]:
    names = [plan.ledger.primary_key, plan.quantity, "status"]
    return {**_refs("", plan.ledger.name, names), f"$.{plan.left}": f"{plan.stock.name}.{plan.left}"}


def _amount(plan: Plan) -> dict[str, tuple[dict[str, Any], str, str]]:
    return {plan.quantity: ({"type": "integer"}, f"{plan.ledger.name}.{plan.quantity}", "amount")}


def _check_limit(plan: Plan, amount: str, category: str) -> str:
    if plan.limits is None or plan.category is None:
        return ""
    most = plan.limits.columns[1].name
    return (
        f'limit = ctx.db.execute("SELECT {most} FROM {plan.limits.name} WHERE {plan.category.name} = ?", ({category},)).fetchone()\n'
        f"if limit is not None and {amount} > limit[0]:\n"
        f'    raise ToolError("limit_exceeded", f"at most {{limit[0]}} {plan.words["quantity"]} for one {plan.words["unit"]}")\n'
    )


def create(plan: Plan, rng: random.Random) -> Tool:
    q, key = plan.quantity, plan.ledger.primary_key
    prefix = oracle.prefix(plan)
    body = (
        _load_entity(plan) + "\n"
        f"if {q} < 1:\n"
        f'    raise ToolError("invalid_amount", "at least 1 is needed")\n'
        + _check_limit(plan, q, f'entity["{plan.category.name}"]' if plan.category else "None")
        + _left_now(plan, f'entity["{plan.key.name}"]')
        + "\n"
        f"if {q} > left:\n"
        f'    raise ToolError("not_enough", f"only {{left}} {plan.words["quantity"]} left")\n'
        f'{key} = ctx.new_id("{prefix}")\n'
        f'ctx.db.execute(\n    "INSERT INTO {plan.ledger.name} VALUES (?, ?, ?, ?, ?)",\n'
        f'    ({key}, entity["{plan.key.name}"], {q}, "{plan.workflow[0]}", ctx.now()[:10]),\n)\n'
        + _move_stock(plan, f"-{q}", f'entity["{plan.key.name}"]')
        + "\n"
        + _log(plan, "create", key)
        + f'\nreturn {{"{key}": {key}, "{q}": {q}, "status": "{plan.workflow[0]}", "{plan.left}": left}}'
    )
    return _tool(
        plan, "create", snake(plan.ledger.singular), f"Make a new {plan.words['unit']} for {an(plan.main.singular)}" + ("" if plan.terse else f"; takes {plan.words['quantity']} from its stock"),
        _entity(plan) | _amount(plan), _line_outputs(plan), out_schema(_line_out(plan)), False, body,
        oracle.create_cases(plan, rng), table=plan.ledger.name,
    )  # fmt: skip


def update(plan: Plan, rng: random.Random) -> Tool:
    q, key = plan.quantity, plan.ledger.primary_key
    body = (
        _load_line(plan) + "\n"
        f'if line["status"] != "{plan.workflow[0]}":\n'
        f'    raise ToolError("not_allowed", f"{{{key}}} is {{line[\'status\']}}, only {plan.workflow[0]} ones can change")\n'
        f"if {q} < 1:\n"
        f'    raise ToolError("invalid_amount", "at least 1 is needed")\n'
        + (f'entity = ctx.db.execute("SELECT {plan.category.name} FROM {plan.main.name} WHERE {plan.key.name} = ?", (line["{plan.key.name}"],)).fetchone()\n' if plan.category else "")
        + _check_limit(plan, q, f'entity["{plan.category.name}"]' if plan.category else "None")
        + _left_now(plan, f'line["{plan.key.name}"]')
        + "\n"
        f'more = {q} - line["{q}"]\n'
        f"if more > left:\n"
        f'    raise ToolError("not_enough", f"only {{left}} {plan.words["quantity"]} left")\n'
        f'ctx.db.execute("UPDATE {plan.ledger.name} SET {q} = ? WHERE {key} = ?", ({q}, {key}))\n'
        + _move_stock(plan, "-more", f'line["{plan.key.name}"]')
        + "\n"
        + _log(plan, "update", key)
        + f'\nreturn {{"{key}": {key}, "{q}": {q}, "status": line["status"], "{plan.left}": left}}'
    )  # fmt: skip
    return _tool(
        plan, "update", snake(plan.ledger.singular), f"Change the {plan.words['quantity']} of {an(plan.words['unit'])}" + ("" if plan.terse else f" that is still {plan.workflow[0]}"),
        {key: (schema_of(plan.ledger.column(key)), f"{plan.ledger.name}.{key}", "line")} | _amount(plan),
        _line_outputs(plan), out_schema(_line_out(plan)), False, body, oracle.update_cases(plan, rng), table=plan.ledger.name,
    )  # fmt: skip


def confirm(plan: Plan, rng: random.Random) -> Tool:
    q, key = plan.quantity, plan.ledger.primary_key
    body = (
        _load_line(plan) + "\n"
        f'if line["status"] != "{plan.workflow[0]}":\n'
        f'    raise ToolError("not_allowed", f"{{{key}}} is {{line[\'status\']}}, not {plan.workflow[0]}")\n'
        f'ctx.db.execute("UPDATE {plan.ledger.name} SET status = ? WHERE {key} = ?", ("{plan.workflow[1]}", {key}))\n'
        + _left_now(plan, f'line["{plan.key.name}"]')
        + "\n"
        + _log(plan, "confirm", key)
        + f'\nreturn {{"{key}": {key}, "{q}": line["{q}"], "status": "{plan.workflow[1]}", "{plan.left}": left}}'
    )
    return _tool(
        plan, "confirm", snake(plan.ledger.singular), f"Move {an(plan.words['unit'])} from {plan.workflow[0]} to {plan.workflow[1]}",
        {key: (schema_of(plan.ledger.column(key)), f"{plan.ledger.name}.{key}", "line")},
        _line_outputs(plan), out_schema(_line_out(plan)), False, body, oracle.confirm_cases(plan, rng), table=plan.ledger.name,
    )  # fmt: skip


def cancel(plan: Plan, rng: random.Random) -> Tool:
    q, key = plan.quantity, plan.ledger.primary_key
    body = (
        _load_line(plan) + "\n"
        f'if line["status"] not in ("{plan.workflow[0]}", "{plan.workflow[1]}"):\n'
        f'    raise ToolError("not_allowed", f"{{{key}}} is already {{line[\'status\']}}")\n'
        f'ctx.db.execute("UPDATE {plan.ledger.name} SET status = ? WHERE {key} = ?", ("{plan.workflow[3]}", {key}))\n'
        + _move_stock(plan, f'line["{q}"]', f'line["{plan.key.name}"]')
        + "\n"
        + _log(plan, "cancel", key)
        + f'\nreturn {{"{key}": {key}, "{q}": line["{q}"], "status": "{plan.workflow[3]}", "{plan.left}": left}}'
    )
    return _tool(
        plan, "cancel", snake(plan.ledger.singular), f"Call off {an(plan.words['unit'])}" + ("" if plan.terse else f" and give its {plan.words['quantity']} back"),
        {key: (schema_of(plan.ledger.column(key)), f"{plan.ledger.name}.{key}", "line")},
        _line_outputs(plan), out_schema(_line_out(plan)), False, body, oracle.cancel_cases(plan, rng), table=plan.ledger.name,
    )  # fmt: skip


def transfer(plan: Plan, rng: random.Random) -> Tool:
    q, param = plan.quantity, plan.entity_param
    source, target = f"from_{param}", f"to_{param}"
    move = f'ctx.db.execute("UPDATE {plan.stock.name} SET {plan.total} = {plan.total} + ?, {plan.left} = {plan.left} + ? WHERE {plan.key.name} = ?", '
    body = (
        _load_entity(plan, source, "giver") + "\n" + _load_entity(plan, target, "taker") + "\n"
        f"if {source} == {target}:\n"
        f'    raise ToolError("not_allowed", "both ends are the same")\n'
        f"if {q} < 1:\n"
        f'    raise ToolError("invalid_amount", "at least 1 is needed")\n'
        + _left_now(plan, f'giver["{plan.key.name}"]') + "\n"
        f"if {q} > left:\n"
        f'    raise ToolError("not_enough", f"only {{left}} {plan.words["quantity"]} left")\n'
        f'{move}(-{q}, -{q}, giver["{plan.key.name}"]))\n'
        f'{move}({q}, {q}, taker["{plan.key.name}"]))\n'
        + _log(plan, "transfer", f'giver["{plan.key.name}"]') + "\n"
        f'arrived = ctx.db.execute("SELECT {plan.left} FROM {plan.stock.name} WHERE {plan.key.name} = ?", (taker["{plan.key.name}"],)).fetchone()[0]\n'
        f'return {{"from_left": left - {q}, "to_left": arrived}}'
    )  # fmt: skip
    ref = plan.entity_ref()
    integer = {"type": "integer"}
    return _tool(
        plan, "transfer", plan.quantity, f"Move free {plan.words['quantity']} from one {plan.main.singular} to another",
        {source: (schema_of(plan.entity_column), ref, "from"), target: (schema_of(plan.entity_column), ref, "to")} | _amount(plan),
        {"$.from_left": f"{plan.stock.name}.{plan.left}", "$.to_left": f"{plan.stock.name}.{plan.left}"},
        object_schema({"from_left": integer, "to_left": integer}), False, body, oracle.transfer_cases(plan, rng), table=plan.stock.name,
    )  # fmt: skip
