"""The layout in which the authors of Agent-World released environments.

    <root>/<name>/*                        the database: JSON collections, found through MCP_DB_DIR
    <root>/<name>_step4_checkpoint.json    data.ToolDesignAgent.tool_schemas[]: name, description, parameters,
                                           implementation (Python source)
    <root>/questions/<name>.json           tasks[]: task, reference_answer, grading_rubric{
                                           success_criteria[], verified_tool_chain[{tool, args}]}

Files are known by what they hold; a checkpoint belongs to the folder whose name its own begins with, or to
the only one. Questions may stand beside it, too. Reads only; runs nothing.
"""

from __future__ import annotations

import glob
import json
import re
from pathlib import Path
from typing import Any

from synth.errors import CallerError
from synth.importers.base import Source
from synth.importers.tasks import RawTask
from synth.types import Theme

LICENSE = "see the release"
CHECKPOINT, QUESTIONS = "checkpoint", "questions"


def read_all(folder: Path, license: str = LICENSE) -> list[Source]:
    """Every environment of a released folder; or the one whose database ``folder`` itself is.

    Raises:
        CallerError: there is no checkpoint with tools, or one without a database.
    """
    try:
        of_its_name = sorted(folder.parent.glob(f"{glob.escape(folder.name)}*.json"))
        for path in of_its_name:
            if _holds(path) == CHECKPOINT and _database(path, folder.parent).name == folder.name:
                return [_source(path, folder, license)]
        inside = [path for path in sorted(folder.glob("*.json")) if _holds(path) == CHECKPOINT]
        if inside:
            return [_source(path, _database(path, folder), license) for path in inside]
    except OSError as err:
        raise CallerError(f"{folder}: cannot be read: {err}") from None
    wanted = "a JSON file with data.ToolDesignAgent.tool_schemas"
    raise CallerError(f"{folder}: no checkpoint there or beside it; it must hold {wanted}")


def _holds(path: Path) -> str | None:
    """What a file of the release is, by what it holds."""
    value = _json(path)
    if isinstance(value, dict) and isinstance(value.get("tasks"), list):
        return QUESTIONS
    design = value.get("data") if isinstance(value, dict) else None
    design = design.get("ToolDesignAgent") if isinstance(design, dict) else None
    found = isinstance(design, dict) and isinstance(design.get("tool_schemas"), list)
    return CHECKPOINT if found else None


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError as err:
        raise CallerError(f"{path}: not JSON: {err}") from None


def _database(checkpoint: Path, folder: Path) -> Path:
    found = [p for p in sorted(folder.iterdir()) if p.is_dir() and p.name != QUESTIONS and any(_files(p))]
    named = [p for p in found if checkpoint.name.startswith(p.name)]
    if named or len(found) == 1:
        return max(named or found, key=lambda p: len(p.name))
    raise CallerError(
        f"{checkpoint}: {len(found)} folders beside it and none has its name; one must hold its database"
    )


def _questions(checkpoint: Path, database: Path) -> list[Any]:
    root = checkpoint.parent
    of_its_name = root / QUESTIONS / f"{database.name}.json"
    if of_its_name.is_file():
        value = _json(of_its_name)
        return list(value.get("tasks") or []) if isinstance(value, dict) else []
    if of_its_name.parent.is_dir():  # of other environments
        return []
    beside = [p for p in sorted(root.glob("*.json")) if _holds(p) == QUESTIONS]
    return _json(beside[0])["tasks"] if len(beside) == 1 else []


def _source(checkpoint: Path, database: Path, license: str) -> Source:
    schemas = _json(checkpoint)["data"]["ToolDesignAgent"]["tool_schemas"]
    questions = _questions(checkpoint, database)
    tools, code, refused = [], {}, {}
    for number, schema in enumerate(schemas):
        try:
            tool = _tool(schema, number)
        except (KeyError, TypeError, ValueError, SyntaxError, RecursionError) as err:
            name = schema.get("name") if isinstance(schema, dict) else None
            refused[str(name or f"tool {number}")] = f"cannot be read: {type(err).__name__} {err}"
            continue
        if any(other["name"] == tool["name"] for other in tools):
            refused[f"{tool['name']} ({number})"] = "there twice; the first one was kept"
            continue
        tools.append(tool)
        code[tool["file"]] = schema["implementation"]
    tasks = [_task(raw, number) for number, raw in enumerate(questions)]
    calls: dict[str, list[dict[str, Any]]] = {}
    for task in tasks:
        for call in task.calls:
            if call["args"] not in calls.setdefault(call["tool"], []):
                calls[call["tool"]].append(call["args"])
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", database.name)
    return Source(
        env_id=name,
        theme=Theme(
            id=name, source="mcp", name=database.name.replace("_", " "), license=license,
            description="Released with Agent-World (arXiv 2604.18292).",
        ),
        tools=tools,
        code=code,
        state={p.relative_to(database).as_posix(): p.read_bytes() for p in _files(database)},
        spec={"kind": "functions", "data_variables": ["MCP_DB_DIR"]},
        calls={tool: some[:4] for tool, some in calls.items()},
        tasks=tasks,
        refused=refused,
    )  # fmt: skip


def _files(folder: Path) -> list[Path]:
    return [p for p in sorted(folder.rglob("*")) if p.is_file() and not p.is_symlink()]


def _tool(schema: dict[str, Any], number: int) -> dict[str, Any]:
    compile(schema["implementation"], schema["name"], "exec")  # parsed, not run
    parameters = schema.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise TypeError("parameters must be a JSON Schema")
    return {
        "name": schema["name"],
        "description": schema.get("description") or schema["name"],
        "inputSchema": {"type": "object", "properties": {}, **parameters},
        "file": f"tools/tool_{number}.py",
    }


def _task(raw: Any, number: int) -> RawTask:
    try:
        rubric = raw.get("grading_rubric") or {}
        chain = [
            {"tool": c["tool"], "args": c.get("args") or {}} for c in rubric.get("verified_tool_chain") or []
        ]
        prose = len(rubric.get("success_criteria") or [])
        return RawTask(f"task {number}", str(raw["task"]), chain, raw.get("reference_answer"), prose)
    except (AttributeError, KeyError, TypeError) as err:
        return RawTask(f"task {number}", "", fault=f"cannot be read: {type(err).__name__} {err}")
