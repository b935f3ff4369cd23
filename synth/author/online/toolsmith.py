"""Tools by a model: designed as a set, then each with code and tests, run and repaired in the sandbox.

The design says for every parameter and result which column it holds (the tool graph lives on that). A
tool's expected values are computed by a second program from the rows, not typed. Every draft goes through
the same gates and test runs as in :mod:`synth.admission`; what happened goes back to the model. A tool that
still fails more than half of its tests after all repairs is kept apart, with its rate, in
``set_aside/<theme>.jsonl`` of the model's folder: it may be hard rather than bad.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from synth.author.asking import GIVEN_UP, Mend, ask
from synth.author.llm import LLM
from synth.author.online import schema
from synth.author.online.scratch import run_python
from synth.env.bundle import read_bundle, write_bundle
from synth.env.episode import EnvServer
from synth.gates import Ledger, check_tool
from synth.tool_tests import KEEP_ABOVE, run_tests
from synth.types import Database, Environment, Theme, Tool, ToolCase

WRITES = ("create", "update", "confirm", "cancel", "transfer")
COUNT = (8, 14)  # tools of an environment (the paper: more than 10 on average, more than 40 at most)
MORE = (3, 6)  # tools that an environment gains when it grows (ours: a list, a write or two, a look-up)
FEWEST_CASES = 4  # ours: 0.5 of 4 is the least that says anything


@dataclass(frozen=True)
class Draft:
    """The best version of a tool so far, and how it did."""

    tool: Tool
    rate: float
    sound: bool  # no gate failed


def write_tools(llm: LLM, db: Database, theme: Theme, rng: random.Random) -> list[Tool]:
    """Design and write the tools of an environment; those that hold come first-designed first.

    Raises:
        Unusable, Refused: there is no design.
        BudgetExceeded, InfrastructureError: see :meth:`synth.author.llm.LLM.complete`.
    """
    seed = rng.randrange(1_000_000)
    return _made(llm, db, theme, _design(llm, db, theme, rng, seed), seed, theme.id)


def more_tools(
    llm: LLM, before: Database, db: Database, theme: Theme, there: Sequence[Tool], rng: random.Random
) -> list[Tool]:
    """Tools over what ``db`` has and ``before`` had not, beside those that are there. Errors as above."""
    seed = rng.randrange(1_000_000)
    new = {t.name for t in db.tables} - {t.name for t in before.tables}
    designs = _design(llm, db, theme, rng, seed, there, new)
    return _made(llm, db, theme, designs, seed, f"{theme.id}-{db.rounds}")


def _made(
    llm: LLM, db: Database, theme: Theme, specs: list[dict[str, Any]], seed: int, name: str
) -> list[Tool]:
    """The designed tools that hold, in their order; the others are kept apart under ``name``."""
    with ThreadPoolExecutor(llm.settings.concurrency) as pool:
        drafts = list(pool.map(lambda spec: _write(llm, db, theme, spec, seed), specs))
    made = [draft for draft in drafts if draft is not None]
    _set_aside(llm, name, [draft for draft in made if not holds(draft)])
    return [draft.tool for draft in made if holds(draft)]


def holds(draft: Draft) -> bool:
    """The paper's bar: it passes its gates and more than half of its tests."""
    return draft.sound and draft.rate > KEEP_ABOVE


# --- design ---------------------------------------------------------------------------------------


def _design(
    llm: LLM, db: Database, theme: Theme, rng: random.Random, seed: int,
    there: Sequence[Tool] = (), new: Collection[str] = (),
) -> list[dict[str, Any]]:  # fmt: skip
    fewest, most = MORE if there else COUNT
    counts = {n: len(r) for n, r in db.rows.items()}
    marked = f"\n\nNew tables: {', '.join(sorted(new))}" if new else ""
    inputs = {
        "theme": f"{theme.name}: {theme.description}",
        "schema": schema.describe(db.tables, counts) + marked,
        "sample": schema.sample(schema.records_of(db), rng),
        "count": f"{fewest} to {most}",
        "existing": "\n".join(f"- {t.name}: {t.description}" for t in there) or "none",
    }

    def check(reply: dict[str, Any]) -> list[dict[str, Any]]:
        return _checked(db, reply, [t.name for t in there], new)

    return ask(llm, "tool_design", inputs, check, stage="tools", sample=seed)


def _checked(
    db: Database, reply: dict[str, Any], taken: Sequence[str] = (), new: Collection[str] = ()
) -> list[dict[str, Any]]:
    """The designs, every reference good. Raises Mend with all faults found."""
    columns = {f"{t.name}.{c.name}" for t in db.tables for c in t.columns}
    tables = {t.name for t in db.tables}
    faults = []
    names = [*taken, *(spec["name"] for spec in reply["tools"])]
    faults += [f"the name {n} is there twice" for n in sorted({n for n in names if names.count(n) > 1})]
    for spec in reply["tools"]:
        faults += [f"{spec['name']}: {fault}" for fault in _spec_faults(spec, tables, columns)]
        if new and not _works_on(spec, new):
            faults.append(f"{spec['name']}: works on no new table ({', '.join(sorted(new))})")
    if faults:
        raise Mend("; ".join(faults[:12]))
    return reply["tools"]


def _works_on(spec: dict[str, Any], tables: Collection[str]) -> bool:
    """Whether a design acts on one of the tables, takes or returns a column of one."""
    references = [*spec["outputs"].values(), *(p.get("column") or "" for p in spec["parameters"])]
    return spec["table"] in tables or any(ref.partition(".")[0] in tables for ref in references)


def _spec_faults(spec: dict[str, Any], tables: set[str], columns: set[str]) -> list[str]:
    faults = []
    if spec["table"] not in tables:
        faults.append(f"table {spec['table']} is not there")
    if spec["read_only"] == (spec["kind"] in WRITES):
        faults.append(f"the kind {spec['kind']} and read_only {spec['read_only']} contradict each other")
    if spec["output_schema"].get("type") != "object":
        faults.append("output_schema: a result is an object")
    for p in spec["parameters"]:
        if p.get("column"):
            if p["column"] not in columns:
                faults.append(f"parameter {p['name']}: {p['column']} is no column")
        elif p["required"] and p["op"] != "amount" and not (p.get("enum") or p.get("examples")):
            faults.append(f"parameter {p['name']}: needs a column, an enum or examples, to be called with")
    for path, column in spec["outputs"].items():
        if column not in columns:
            faults.append(f"outputs {path}: {column} is no column")
        if not path.startswith("$.") or path.count("[]") > 1:
            faults.append(f"outputs {path}: write $.name or $.items[].name")
    return faults


def _tool(spec: dict[str, Any], code: str, cases: tuple[ToolCase, ...] = ()) -> Tool:
    """The record of a designed tool; ``op`` and ``column`` of its parameters go to ``meta``."""
    properties = {}
    for p in spec["parameters"]:
        shown = {"type": p["type"]} | {k: p[k] for k in ("description", "enum", "examples") if p.get(k)}
        properties[p["name"]] = shown | (
            {"minimum": 1} if p["op"] == "amount" and p["type"] == "integer" else {}
        )
    return Tool(
        name=spec["name"],
        description=spec["description"],
        input_schema={
            "type": "object",
            "properties": properties,
            "required": [p["name"] for p in spec["parameters"] if p["required"]],
            "additionalProperties": False,
        },
        output_schema=spec["output_schema"],
        read_only=spec["read_only"],
        code=code,
        cases=cases,
        meta={
            "kind": spec["kind"],
            "table": spec["table"],
            "inputs": {p["name"]: p.get("column") or "" for p in spec["parameters"]},
            "ops": {p["name"]: p["op"] for p in spec["parameters"]},
            "outputs": spec["outputs"],
        },
    )


# --- code and tests -------------------------------------------------------------------------------


def _write(llm: LLM, db: Database, theme: Theme, spec: dict[str, Any], seed: int) -> Draft | None:
    """One tool; the best draft when the repairs run out, None when none could be run."""
    best: list[Draft] = []

    def check(reply: dict[str, Any]) -> Draft:
        tool = _tool(spec, reply["code"], _cases(db, spec, reply["cases"]))
        draft, problems = try_tool(db, theme, tool)
        if not best or (draft.sound, draft.rate) > (best[0].sound, best[0].rate):
            best[:] = [draft]
        if problems:
            raise Mend("; ".join(problems[:5]))
        return draft

    rng = random.Random(f"{seed}:{spec['name']}")
    inputs = {
        "tool": spec,
        "schema": schema.describe(db.tables),
        "sample": schema.sample(schema.records_of(db), rng, most=3),
    }
    try:
        return ask(llm, "tool_code", inputs, check, stage="tools", sample=seed)
    except GIVEN_UP:
        return best[0] if best else None


def _cases(db: Database, spec: dict[str, Any], program: str) -> tuple[ToolCase, ...]:
    """The tests that the reply's program computes from the rows. Raises Mend."""
    given = {"tables": schema.records_of(db)}
    ran = run_python(f"{program}\nresult = cases(tables)", given=given)
    if ran.error is not None:
        raise Mend(f"cases failed in the sandbox: {ran.error}")
    try:
        cases = tuple(ToolCase(**case) for case in ran.result)
    except (ValidationError, TypeError) as err:
        raise Mend(f"cases must return a list of tests: {str(err)[:300]}") from None
    if len(cases) < FEWEST_CASES:
        raise Mend(f"cases returned {len(cases)} tests, at least {FEWEST_CASES} are wanted")
    untested = sorted({e["code"] for e in spec["errors"]} - {case.error for case in cases})
    if untested:
        raise Mend(f"no test expects the error {untested[0]}")
    if not spec["read_only"] and not any(case.changes for case in cases):
        raise Mend("a tool that writes needs tests with changes")
    if all(case.error for case in cases):
        raise Mend("no test expects a result")
    return cases


def try_tool(db: Database, theme: Theme, tool: Tool) -> tuple[Draft, list[str]]:
    """Run a tool's gates and tests in the sandbox: how it did, and what was wrong."""
    ledger = Ledger()
    if not check_tool(tool, ledger):
        return Draft(tool, 0.0, False), [f"{f.gate}: {f.detail}" for f in ledger.faults]
    env = Environment(env_id="draft", theme=theme, database=db, tools=(tool,))
    with tempfile.TemporaryDirectory(prefix="agent-world-tool-") as folder:
        path = Path(folder) / "draft"
        write_bundle(env, path)
        with EnvServer(path) as server:
            rates, failed = run_tests(read_bundle(path), [tool], server, ledger)
    problems = [f"test {f.target.split('#')[-1]}: {f.detail}" for f in failed]
    problems += [f"{f.gate}: {f.detail}" for f in ledger.faults if f.gate != "tests"]
    sound = all(fault.gate == "tests" for fault in ledger.faults)
    return Draft(tool, rates[tool.name], sound), problems


def _set_aside(llm: LLM, name: str, drafts: list[Draft]) -> None:
    path = Path(llm.settings.folder) / "set_aside" / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"rate": d.rate, "sound": d.sound, "tool": d.tool.model_dump(mode="json")}) for d in drafts
    ]
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    os.replace(scratch, path)
