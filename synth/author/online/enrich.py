"""Complexification by a model: it gets the measured gaps, and must close some of them.

The model designs tables and writes a program that makes their rows from the real ones; the program runs in
the sandbox with a seeded rng. What comes back is held against the database's own rules and against the
gaps, and goes back with the real error where it falls short.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from synth.author.asking import Mend, ask
from synth.author.llm import LLM
from synth.author.online import schema
from synth.author.online.scratch import run_python
from synth.complexify import Gap, coverage, depth, further, gaps
from synth.errors import EnvironmentFault
from synth.mining import validate
from synth.types import Database, ForeignKey, Provenance, Table, Theme

DERIVED = ("aggregate", "dimension")
Measure = Callable[[Database], list[Gap]]
COPY = 0.8  # share of a new table's rows that stand in one old table, from which it is a copy (ours)
LEDGER_ROWS = 24  # ours: enough for totals by status and for tasks that must not all meet the same line


def enrich(llm: LLM, db: Database, theme: Theme, round_: int, rng: random.Random) -> Database:
    """The database with more tables; the same database when nothing is lacking.

    Raises:
        Unusable, Refused: the model does not get there.
    """
    return _asked(llm, db, theme, round_, rng, gaps, ()) if gaps(db) else db


def enlarge(llm: LLM, db: Database, theme: Theme, aims: Sequence[str], rng: random.Random) -> Database:
    """One round more for a finished environment, towards what :func:`synth.complexify.further` measures.

    Args:
        aims: what agents should come to practise there, in words.

    Raises:
        Unusable, Refused: the model does not get there.
    """
    return _asked(llm, db, theme, db.rounds, rng, further, aims)


def _asked(
    llm: LLM,
    db: Database,
    theme: Theme,
    round_: int,
    rng: random.Random,
    measure: Measure,
    aims: Sequence[str],
) -> Database:
    seed = rng.randrange(1_000_000)
    inputs = {
        "theme": f"{theme.name}: {theme.description}",
        "schema": schema.describe(db.tables, {n: len(r) for n, r in db.rows.items()}),
        "sample": schema.sample(schema.records_of(db), rng),
        "gaps": "\n".join(f"- {gap}" for gap in measure(db)),
        "aims": "\n".join(f"- {aim}" for aim in aims) or "none stated",
        "rows": str(LEDGER_ROWS),
    }

    def check(reply: dict[str, Any]) -> Database:
        return _grown(db, reply, round_, seed, measure)

    return ask(llm, "enrich", inputs, check, stage="complexify", sample=seed)


def _grown(db: Database, reply: dict[str, Any], round_: int, seed: int, measure: Measure = gaps) -> Database:
    """The database with the reply's tables. Raises Mend with what is wrong."""
    made = _run(db, reply["program"], seed)
    _require_derived(db, reply, made, _run(db, reply["program"], seed + 1))
    known = {t.name: t for t in db.tables}
    added: list[tuple[Table, list[list[Any]]]] = []
    for spec in reply["tables"]:
        if spec["name"] in known:
            raise Mend(f"there is a table {spec['name']} already; add tables, don't replace them")
        rows = schema.fit_types(spec, made.get(spec["name"], []))
        table = _table(spec, rows)
        known[table.name] = table
        added.append((table, rows))
    linked = [_linked(table, spec, known) for (table, _), spec in zip(added, reply["tables"], strict=True)]
    old = _old_links(db, reply.get("links") or [], known)
    grown = db.model_copy(
        update={
            "tables": (*(old.get(t.name, t) for t in db.tables), *linked),
            "rows": {**db.rows, **{table.name: rows for table, rows in added}},
            "provenance": (
                *db.provenance,
                *(_provenance(t, rows, reply["program"], db) for t, rows in added),
            ),
            "rounds": db.rounds + 1,
        }
    )
    _require_sound(db, grown, added, measure)
    return grown.model_copy(update={"log": (*db.log, _log(db, grown, reply, round_, measure))})


def _run(db: Database, program: str, seed: int) -> dict[str, list[Any]]:
    given = {"tables": schema.records_of(db)}
    ran = run_python(f"{program}\nresult = build(tables, rng)", given=given, seed=seed)
    if ran.error is not None:
        raise Mend(f"the program failed in the sandbox: {ran.error}")
    if not isinstance(ran.result, dict) or not all(isinstance(rows, list) for rows in ran.result.values()):
        raise Mend("build must return a dictionary: table name -> list of rows")
    return ran.result


def _require_derived(
    db: Database, reply: dict[str, Any], made: dict[str, list[Any]], again: dict[str, list[Any]]
) -> None:
    """What counts as derived is not drawn, and says no word that the database does not hold."""
    words = {v for rows in db.rows.values() for row in rows for v in row if isinstance(v, str)}
    for spec in reply["tables"]:
        if spec["kind"] not in DERIVED:
            continue
        rows = made.get(spec["name"], [])
        if rows != again.get(spec["name"], []):
            raise Mend(f"{spec['name']}: a table of kind {spec['kind']} is computed from rows, never drawn")
        new = sorted({v for row in rows if isinstance(row, list) for v in row if isinstance(v, str)} - words)
        if new:
            raise Mend(f"{spec['name']}: {new[0]!r} stands in no row of the database; don't add from memory")


def _table(spec: dict[str, Any], rows: list[list[Any]]) -> Table:
    table = Table(
        name=spec["name"],
        singular=spec["singular"],
        plural=spec["plural"],
        kind=spec["kind"],
        columns=schema.columns_of(spec, rows),
        primary_key=spec["primary_key"],
        description=spec["description"],
    )
    if spec["primary_key"] not in [c.name for c in table.columns]:
        raise Mend(f"{table.name}: its primary key {spec['primary_key']} is no column of it")
    if table.kind == "ledger" and table.by_role("status"):
        status = table.by_role("status")[0]
        if len(status.values or ()) < 3:
            raise Mend(f"{table.name}.{status.name}: a workflow has 3 to 5 states; list them in values")
        if not table.column(table.primary_key).minted:
            raise Mend(f"{table.name}.{table.primary_key}: new lines get new keys; set minted to true")
    return table


def _linked(table: Table, spec: dict[str, Any], known: dict[str, Table]) -> Table:
    links = [
        schema.foreign_key(table.name, c["name"], c["refers_to"], known)
        for c in spec["columns"]
        if c.get("refers_to")
    ]
    return table.model_copy(update={"foreign_keys": tuple(links)})


def _old_links(db: Database, links: Sequence[dict[str, str]], known: dict[str, Table]) -> dict[str, Table]:
    """Old tables with the references that the reply adds to them."""
    changed: dict[str, Table] = {}
    for link in links:
        name, column = link["table"], link["column"]
        table = changed.get(name) or next((t for t in db.tables if t.name == name), None)
        if table is None or column not in [c.name for c in table.columns]:
            raise Mend(f"links: {name}.{column} is no column of an old table")
        new: ForeignKey = schema.foreign_key(name, column, link["refers_to"], known)
        kept = tuple(fk for fk in table.foreign_keys if fk.column != column)
        changed[name] = table.model_copy(update={"foreign_keys": (*kept, new)})
    return changed


def _require_sound(
    db: Database, grown: Database, added: Sequence[tuple[Table, list[list[Any]]]], measure: Measure
) -> None:
    for table, rows in added:
        if table.kind == "audit":
            continue
        if table.kind == "ledger" and table.by_role("status") and len(rows) < LEDGER_ROWS:
            raise Mend(f"{table.name}: {len(rows)} rows; a ledger wants at least {LEDGER_ROWS}")
        seen = {json.dumps(row, ensure_ascii=False) for row in rows}
        for other in db.tables:
            same = seen & {json.dumps(row, ensure_ascii=False) for row in db.rows[other.name]}
            if seen and len(same) > COPY * len(seen):
                raise Mend(f"{table.name} is a copy of {other.name}; add what is missing instead")
    try:
        validate(_without_empty_audit(grown))
    except EnvironmentFault as err:
        raise Mend(str(err)) from None
    before, after = measure(db), measure(grown)
    if len(after) >= len(before):
        raise Mend("no measured gap is closed; still lacking: " + "; ".join(map(str, after)))


def _without_empty_audit(db: Database) -> Database:
    """Audit tables may start empty, which the rules of mined tables do not allow."""
    return db.model_copy(update={"tables": tuple(t for t in db.tables if t.kind != "audit")})


def _provenance(table: Table, rows: list[list[Any]], program: str, db: Database) -> Provenance:
    derived = table.kind in DERIVED
    code = hashlib.sha256(program.encode()).hexdigest()[:12]
    text = json.dumps(rows, ensure_ascii=False, separators=(",", ":"))
    return Provenance(
        target=table.name,
        origin="derived" if derived else "simulated",
        license="as the source table" if derived else "Apache-2.0",
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        retrieved=db.provenance[0].retrieved,
        note=f"made by a model's program (sha256 {code}...), run in the sandbox with a seed",
    )


def _log(db: Database, grown: Database, reply: dict[str, Any], round_: int, measure: Measure) -> str:
    """What the round added, why, and what that did to the measures."""
    added = "; ".join(
        f"{t['name']} ({t['kind']}) closes '{t['closes']}': {t['why']}" for t in reply["tables"]
    )
    return (
        f"round {round_ + 1}: {added}. Measured: gaps {len(measure(db))} -> {len(measure(grown))}, coverage "
        f"{coverage(db):.2f} -> {coverage(grown):.2f}, depth {depth(db)} -> {depth(grown)}"
    )
