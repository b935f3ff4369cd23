"""BFCL's multi-turn classes: a Python API class, function documents, entries with a configuration.

    <name>.py            the class, with ``_load_scenario(config)``
    <name>.json          function documents, JSON lines: name, description, parameters (``"type": "dict"``)
    entries (JSON lines) id, initial_config{class: {...}}, question
    answers (JSON lines) id, ground_truth[[ "call(a='b')", ... ] a turn ]

Files beside the class that it imports come along, under the names by which it imports them. Entries that need
one class are read; the turns of an entry are joined into one task, graded on the final state. BFCL is a
benchmark: what comes out is for measuring, and its theme says so. Reads only; runs nothing.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

from synth.errors import CallerError
from synth.importers.base import Source
from synth.importers.tasks import RawTask
from synth.types import Theme

LICENSE = "Apache-2.0"
_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}


def read(
    source: Path, documents: Path, entries: Path, answers: Path, class_name: str, count: int | None = None
) -> list[Source]:
    """An environment for each entry that involves ``class_name`` only, at most ``count``.

    Raises:
        CallerError: a file cannot be read.
    """
    code = _text(source)
    beside = _imported(source, code, {})
    tools = [_tool(doc) for doc in _lines(documents)]
    gold = {row["id"]: row.get("ground_truth", []) for row in _lines(answers)}
    chosen = [e for e in _lines(entries) if list(e.get("initial_config", {})) == [class_name]]
    made = []
    for entry in chosen[:count]:
        name = str(entry["id"])
        config = json.dumps(entry["initial_config"][class_name]).encode()
        made.append(
            Source(
                env_id=name,
                theme=Theme(
                    id=name,
                    source="tool_doc",
                    name=class_name,
                    license=LICENSE,
                    description="From the benchmark BFCL (multi-turn): for measuring, never for training.",
                ),
                tools=tools,
                code={source.name: code, **beside},
                state={"init.json": config},
                spec={"kind": "object", "file": source.name, "class": class_name, "load": "_load_scenario"},
                tasks=[_task(entry, gold.get(name, []), tools)],
            )
        )
    return made


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise CallerError(f"{path}: cannot be read: {err}") from None


def _imported(source: Path, code: str, found: dict[str, str]) -> dict[str, str]:
    """Files beside ``source`` that it imports, and what those import: path by which they are found -> text.

    Raises:
        CallerError: a source is not Python.
    """
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except (SyntaxError, ValueError, RecursionError) as err:
        raise CallerError(f"{source}: not Python: {err}") from None
    names = [node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    names += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    for name in filter(None, names):
        beside, path = source.with_name(f"{name.rpartition('.')[2]}.py"), f"{name.replace('.', '/')}.py"
        if beside.is_file() and path not in found:
            found[path] = _text(beside)
            _imported(beside, found[path], found)
    return found


def _lines(path: Path) -> list[Any]:
    try:
        return [json.loads(line) for line in _text(path).splitlines() if line.strip()]
    except ValueError as err:
        raise CallerError(f"{path}: not JSON lines: {err}") from None


def _tool(doc: dict[str, Any]) -> dict[str, Any]:
    schema = _schema(doc.get("parameters") or {})
    return {"name": doc["name"], "description": doc.get("description") or doc["name"],
            "inputSchema": {"type": "object", "properties": {}, **schema}}  # fmt: skip


def _schema(raw: Any) -> Any:
    """Their type names in JSON Schema's."""
    if isinstance(raw, list):
        return [_schema(item) for item in raw]
    if not isinstance(raw, dict):
        return raw
    made = {}
    for key, value in raw.items():
        if key == "type" and isinstance(value, str):
            value = _TYPES.get(value, value)
            if value is None:
                continue
        made[key] = {k: _schema(v) for k, v in value.items()} if key == "properties" else _schema(value)
    return made


def _task(entry: dict[str, Any], gold: list[list[str]], tools: list[dict[str, Any]]) -> RawTask:
    names = {tool["name"]: list(tool["inputSchema"]["properties"]) for tool in tools}
    turns = [message["content"] for turn in entry.get("question", []) for message in turn]
    calls = []
    for text in (call for turn in gold for call in turn):
        try:
            calls.append(_call(text, names))
        except (ValueError, SyntaxError, AttributeError) as err:
            return RawTask(str(entry["id"]), "", fault=f"the call {text[:80]} cannot be read: {err}")
    return RawTask(str(entry["id"]), "\n".join(turns), calls)


def _call(text: str, names: dict[str, list[str]]) -> dict[str, Any]:
    """``mv('a', destination='b')`` as data; literals only. ``names`` are a tool's parameters in order."""
    node = ast.parse(text.strip(), mode="eval").body
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError("must be name(literal, keyword=literal, ...)")
    if len(node.args) > len(order := names.get(node.func.id, [])):
        raise ValueError(f"more values than {node.func.id} has parameters")
    given = dict(zip(order, map(ast.literal_eval, node.args), strict=False))
    return {
        "tool": node.func.id,
        "args": given | {str(k.arg): ast.literal_eval(k.value) for k in node.keywords},
    }
