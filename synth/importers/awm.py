"""AWM's layout (Agent World Model): JSON lines, a file a stage, joined by the name of the scenario.

    gen_scenario.jsonl   name, description
    gen_db.jsonl         scenario, db_schema.tables[{name, ddl, indexes[]}]            (SQLite)
    gen_sample.jsonl     scenario, sample_data.tables[{table_name, insert_statements[]}]
    gen_spec.jsonl       scenario, api_spec.api_groups[].endpoints[{path, method, operation_id,
                         request_params}]
    gen_envs.jsonl       scenario, full_code: a FastAPI application over SQLAlchemy, one endpoint a tool
    gen_tasks.jsonl      scenario, tasks[] (prose)
    gen_verifier.pure_code.jsonl or gen_verifier.jsonl
                         scenario, task_idx, verification.code:
                         verify_task_completion(initial_db_path, final_db_path, final_answer) -> {"result"}

The layout has no calls that solve its tasks, so tasks are refused unless ``solutions`` are given; then the
published verifier grades them, on the two databases. No source is run here: statements for the database are,
in SQLite, with the clock held still and nothing but tables allowed. The application runs in the sandbox
(:mod:`synth.env.web_host`) by an interpreter that has FastAPI and SQLAlchemy (``--python``).
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synth.env.program import CLOCK
from synth.env.sqlite_clock import hold_clock
from synth.errors import CallerError
from synth.importers.base import Source
from synth.importers.tasks import DONE, RawTask
from synth.jsonl import read_jsonl
from synth.types import Theme

LICENSE = "see the release"  # AgentWorldModel-1K says CC-BY-4.0
DATABASE = "data.db"
NEEDS = ("fastapi", "sqlalchemy")
VERIFIER = """\
import json
import sqlite3

CODE = {code!r}
WANTED = {wanted!r}


def verify(initial, final, answer):
    states = {{"initial": initial, "final": final}}
    sqlite3.connect = lambda path, *_, **__: states["initial" if "initial" in str(path) else "final"].copy()
    scope = {{"__name__": "awm_verifier"}}
    exec(CODE, scope)
    name = "verify_task_completion"
    if name not in scope:
        name = next(n for n in scope if n.startswith("verify_"))
    text = answer if isinstance(answer, str) else json.dumps(answer)
    found = scope[name](initial_db_path="initial.db", final_db_path="final.db", final_answer=text)
    result = found.get("result") if isinstance(found, dict) else found
    return [("answer", answer == WANTED, ""), ("result", result == "complete", str(result))]
"""
_TYPES = {"float": "number", "int": "integer", "str": "string", "bool": "boolean", "list": "array"}
_KNOWN = {"string", "integer", "number", "boolean", "array", "object"}
_ALLOWED = {  # what statements of a schema and its rows may do; no other file, no pragma, no extension
    sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE,
    sqlite3.SQLITE_DELETE, sqlite3.SQLITE_CREATE_TABLE, sqlite3.SQLITE_CREATE_INDEX, sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_REINDEX, sqlite3.SQLITE_RECURSIVE,
}  # fmt: skip


def read(
    folder: Path, count: int | None = None, license: str = LICENSE,
    solutions: Mapping[str, Solution] | None = None,
) -> list[Source]:  # fmt: skip
    """The first ``count`` scenarios that have an application.

    Args:
        solutions: task ("<scenario> <index>") -> what solves it, such as a trajectory that did.

    Raises:
        CallerError: a file is missing or not of that shape; the message names file and line.
    """
    environments = _stage(folder, "gen_envs", "scenario")
    schemas, specs = _stage(folder, "gen_db", "scenario"), _stage(folder, "gen_spec", "scenario")
    samples = _stage(folder, "gen_sample", "scenario")
    stories, tasks = (
        _stage(folder, "gen_scenario", "name", False),
        _stage(folder, "gen_tasks", "scenario", False),
    )
    verifiers, solved = _verifiers(folder), solutions or {}
    found = []
    for name in list(environments)[:count]:
        missing = [s for s, rows in (("gen_db", schemas), ("gen_spec", specs)) if name not in rows]
        if missing:
            raise CallerError(f"{folder}/{missing[0]}.jsonl: no line for the scenario {name}")
        try:
            tools, refused = _tools(specs[name]["api_spec"])
            state, notes = _database(
                schemas[name]["db_schema"], samples.get(name, {}).get("sample_data") or {}
            )
            raw = [
                _task(name, i, text, verifiers.get((name, i)), solved.get(f"{name} {i}", Solution()))
                for i, text in enumerate(tasks.get(name, {}).get("tasks", []))
            ]
            source = Source(
                env_id=name,
                theme=Theme(
                    id=name, source="prd", name=str(environments[name]["scenario"]), license=license,
                    description=str(stories.get(name, {}).get("description", "")),
                ),
                tools=tools,
                code={"application.py": environments[name]["full_code"]},
                state={DATABASE: state},
                spec={"kind": "web", "file": "application.py", "database": DATABASE},
                tasks=raw,
                refused=refused,
                notes=notes,
            )  # fmt: skip
        except (KeyError, TypeError, AttributeError, sqlite3.Error) as err:
            raise CallerError(f"{folder}: scenario {name}: {type(err).__name__} {err}") from None
        found.append(source)
    return found


def interpreter(python: Path | None = None) -> Path:
    """The interpreter that runs the applications: the one given, or this one.

    Raises:
        CallerError: it lacks a package that they need.
    """
    path = Path(os.path.abspath(python or sys.executable))
    code = "import importlib.util as u, sys; print(*[n for n in sys.argv[1:] if u.find_spec(n) is None])"
    try:
        done = subprocess.run(
            [str(path), "-s", "-c", code, *NEEDS], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as err:
        raise CallerError(f"--python {path}: cannot be run: {err}") from None
    if done.stdout.strip():
        mend = f"{path} -m pip install {' '.join(NEEDS)}, or name another with --python"
        raise CallerError(f"{path}: lacks {done.stdout.strip()}; {mend}")
    return path


@dataclass(frozen=True)
class Solution:
    """Calls ``{"tool", "args"}`` that solve a task, and the answer to give; None where there is none."""

    calls: tuple[dict[str, Any], ...] = ()
    answer: Any = None


def read_solutions(path: Path) -> dict[str, Solution]:
    """JSONL: ``{"task": "<scenario> <index>", "calls": [{"tool", "args"}], "answer": ...}``.

    Raises:
        CallerError: the file or a line of it is not that.
    """

    def row(_: int, line: str) -> tuple[str, Solution]:
        raw = json.loads(line)
        calls = ({"tool": str(c["tool"]), "args": dict(c["args"])} for c in raw["calls"])
        return str(raw["task"]), Solution(tuple(calls), raw.get("answer"))

    return dict(read_jsonl(path, row, '{"task": "<scenario> <index>", "calls": [{"tool": ..., "args": {}}]}'))


def normal(name: str) -> str:
    """A scenario's name as its files are called: small letters, digits and underscores."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _stage(folder: Path, stem: str, key: str, must: bool = True) -> dict[str, dict[str, Any]]:
    path = folder / f"{stem}.jsonl"
    if not must and not path.is_file():
        return {}

    def row(_: int, line: str) -> tuple[str, dict[str, Any]]:
        value = json.loads(line)
        return normal(value[key]), value

    return dict(read_jsonl(path, row, f'{{"{key}": ..., ...}}'))


def _verifiers(folder: Path) -> dict[tuple[str, int], str]:
    path = next(
        (p for n in ("gen_verifier.pure_code", "gen_verifier") if (p := folder / f"{n}.jsonl").is_file()),
        None,
    )
    if path is None:
        return {}

    def row(_: int, line: str) -> tuple[tuple[str, int], str]:
        value = json.loads(line)
        return (normal(value["scenario"]), int(value["task_idx"])), str(
            value["verification"].get("code") or ""
        )

    return dict(read_jsonl(path, row, '{"scenario": ..., "task_idx": ..., "verification": {"code": ...}}'))


def _task(scenario: str, index: int, text: Any, code: str | None, solved: Solution) -> RawTask:
    fault = None
    if not code:
        fault = "no verifier"
    elif "complete" not in code:
        fault = "its verifier only gathers evidence for a judge"
    verifier = VERIFIER.format(code=code, wanted=DONE if solved.answer is None else solved.answer)
    calls = [dict(call) for call in solved.calls]
    return RawTask(f"{scenario} {index}", str(text), calls, solved.answer, fault=fault, verifier=verifier)


# --- tools ----------------------------------------------------------------------------------------


def _tools(spec: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    tools: dict[str, dict[str, Any]] = {}
    refused: dict[str, str] = {}
    for group in spec["api_groups"]:
        for endpoint in group["endpoints"]:
            name = str(endpoint["operation_id"])
            if name in tools:
                refused[f"{name} ({endpoint['path']})"] = "there twice; the first one was kept"
                continue
            parameters = endpoint.get("request_params") or {}
            tools[name] = {
                "name": name,
                "description": endpoint.get("description") or endpoint.get("summary") or name,
                "inputSchema": {
                    "type": "object",
                    "properties": {n: _schema(p) for n, p in parameters.items()},
                    "required": [n for n, p in parameters.items() if p.get("required")],
                    "additionalProperties": False,
                },
                "method": str(endpoint["method"]).upper(),
                "path": endpoint["path"],
                "where": {n: p.get("param_type", "query") for n, p in parameters.items()},
            }
    return list(tools.values()), refused


def _schema(raw: dict[str, Any]) -> dict[str, Any]:
    kind = _TYPES.get(str(raw.get("type")), str(raw.get("type")))
    made: dict[str, Any] = {"type": kind} if kind in _KNOWN else {}
    if raw.get("description"):
        made["description"] = raw["description"]
    if raw.get("example") is not None:
        made["examples"] = [raw["example"]]
    return made


# --- database -------------------------------------------------------------------------------------


def _database(schema: dict[str, Any], sample: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
    """The first state as an SQLite file, and which of its rows could not be put in."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    notes: dict[str, str] = {}
    hold_clock(db, CLOCK)
    budget = iter(range(20_000))  # x 10,000 instructions: no statement keeps us for ever
    db.set_progress_handler(lambda: next(budget, None) is None, 10_000)
    db.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY)
    work = [(f"schema of {t['name']}", [t["ddl"], *(t.get("indexes") or ())]) for t in schema["tables"]]
    work += [
        (f"rows of {t['table_name']}", t.get("insert_statements") or []) for t in sample.get("tables", ())
    ]
    for what, statements in work:
        bad = []
        for statement in statements:
            try:
                db.execute(statement)
            except (sqlite3.Error, sqlite3.Warning) as err:
                bad.append(str(err))
        if bad:
            notes[what] = f"{len(bad)} of {len(statements)} statements left out: {bad[0]}"
    db.set_authorizer(None)
    if db.in_transaction:
        db.execute("COMMIT")
    return db.serialize(), notes
