"""The layout in which the authors of Agent-World released environments.

    <folder>/<name>/*.json          the database: JSON collections, found through MCP_DB_DIR
    <folder>/<checkpoint>.json      data.ToolDesignAgent.tool_schemas[]: name, description, parameters,
                                    implementation (Python source)
    <folder>/<questions>.json       tasks[]: task, reference_answer,
                                    grading_rubric{success_criteria[], verified_tool_chain[{tool, args}]}

Files are known by what they hold, not by name. Reads only; runs nothing.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from synth.errors import CallerError
from synth.importers.base import Source
from synth.importers.tasks import RawTask
from synth.types import Theme

LICENSE = "see the release"


def read(folder: Path, env_id: str | None = None, license: str = LICENSE) -> Source:
    """One released environment.

    Raises:
        CallerError: the folder holds no checkpoint with tools, or no database.
    """
    checkpoint, questions = _find(folder)
    schemas = checkpoint["data"]["ToolDesignAgent"]["tool_schemas"]
    database = _database(folder)
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
    name = env_id or re.sub(r"[^A-Za-z0-9._-]+", "_", database.name)
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


def _find(folder: Path) -> tuple[dict[str, Any], list[Any]]:
    checkpoint, questions = None, []
    for path in sorted(folder.glob("*.json")):
        try:
            value = json.loads(path.read_bytes())
        except ValueError as err:
            raise CallerError(f"{path}: not JSON: {err}") from None
        if isinstance(value, dict) and isinstance(value.get("tasks"), list):
            questions = value["tasks"]
        elif isinstance(value, dict) and isinstance(value.get("data"), dict):
            design = value["data"].get("ToolDesignAgent")
            if isinstance(design, dict) and isinstance(design.get("tool_schemas"), list):
                checkpoint = value
    if checkpoint is None:
        wanted = "a JSON file with data.ToolDesignAgent.tool_schemas"
        raise CallerError(f"{folder}: no checkpoint there; it must hold {wanted}")
    return checkpoint, questions


def _database(folder: Path) -> Path:
    found = [p for p in sorted(folder.iterdir()) if p.is_dir() and any(_files(p))]
    if len(found) != 1:
        raise CallerError(
            f"{folder}: {len(found)} folders with JSON collections; there must be one, the database"
        )
    return found[0]


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
