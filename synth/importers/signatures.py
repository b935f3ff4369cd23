"""Tools' schemas out of a class's syntax, without running it: signatures, docstrings, pydantic models.

In: the text of a toolkit and of the models that it names. Out: MCP tools. What an annotation means is looked
up in both files; a name that neither defines allows anything, and the tool itself then says what is wrong.
"""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synth.errors import CallerError

_PLAIN = {"str": "string", "int": "integer", "float": "number", "bool": "boolean",
          "dict": "object", "Dict": "object", "list": "array", "List": "array"}  # fmt: skip
DEEPEST = 6


@dataclass(frozen=True)
class Toolkit:
    """A class of tools: its name, its database's class, and MCP tools."""

    name: str
    database: str
    tools: list[dict[str, Any]]


def read_toolkit(tools: Path, models: Path) -> Toolkit:
    """The first class with ``@is_tool`` methods and a ``db: NAME`` annotation.

    Raises:
        CallerError: a file cannot be read, or has no such class.
    """
    trees = [_parse(models), _parse(tools)]
    names = {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}
    aliases = {
        target.id: node.value
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    scope: dict[str, ast.AST] = {**aliases, **names}
    for node in trees[1].body:
        if not isinstance(node, ast.ClassDef):
            continue
        methods = [n for n in node.body if isinstance(n, ast.FunctionDef) and _is_tool(n)]
        database = next((ast.unparse(n.annotation) for n in node.body if isinstance(n, ast.AnnAssign)
                         and isinstance(n.target, ast.Name) and n.target.id == "db"), None)  # fmt: skip
        if methods and database:
            return Toolkit(node.name, database, [_tool(method, scope) for method in methods])
    raise CallerError(f"{tools}: no class with @is_tool methods and an annotation of db")


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError) as err:
        raise CallerError(f"{path}: cannot be read as Python: {err}") from None


def _is_tool(node: ast.FunctionDef) -> bool:
    heads = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
    return any(isinstance(head, ast.Name) and head.id == "is_tool" for head in heads)


def _tool(node: ast.FunctionDef, scope: dict[str, ast.AST]) -> dict[str, Any]:
    text = inspect.cleandoc(ast.get_docstring(node) or node.name)
    said = dict(re.findall(r"^\s+(\w+)(?: \([^)]*\))?: (.+)$", text, re.MULTILINE))
    given = node.args.args[1:] + node.args.kwonlyargs
    properties = {}
    for arg in given:
        properties[arg.arg] = _schema(arg.annotation, scope, 0)
        if arg.arg in said:
            properties[arg.arg] = {**properties[arg.arg], "description": said[arg.arg]}
    free = len(node.args.args) - len(node.args.defaults)
    required = [a.arg for a in node.args.args[1:free]]
    required += [a.arg for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d is None]
    head = re.split(r"\n\s*(?:Args|Returns|Raises):", text)[0].strip()
    return {
        "name": node.name,
        "description": head or node.name,
        "inputSchema": {"type": "object", "properties": properties, "required": required},
        **_claim(node),
    }


def _claim(node: ast.FunctionDef) -> dict[str, Any]:
    """What ``@is_tool(ToolType.WRITE)`` says, as MCP's hint; the import checks it."""
    for decorator in node.decorator_list:
        kind = decorator.args[0] if isinstance(decorator, ast.Call) and decorator.args else None
        if isinstance(kind, ast.Attribute) and kind.attr in ("READ", "WRITE"):
            return {"annotations": {"readOnlyHint": kind.attr == "READ"}}
    return {}


def _schema(node: ast.AST | None, scope: dict[str, ast.AST], depth: int) -> dict[str, Any]:
    """An annotation as JSON Schema; ``{}`` where it says nothing that can be read."""
    if node is None or depth > DEEPEST:
        return {}
    if isinstance(node, ast.Constant):
        return {"type": "null"} if node.value is None else {}
    if isinstance(node, ast.Name):
        if node.id in _PLAIN:
            return {"type": _PLAIN[node.id]}
        known = scope.get(node.id)
        if isinstance(known, ast.ClassDef):
            return _record(known, scope, depth)
        return _schema(known, scope, depth + 1)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _either([node.left, node.right], scope, depth)
    if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
        return {}
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    head = node.value.id
    if head == "Literal":
        return {"enum": [part.value for part in parts if isinstance(part, ast.Constant)]}
    if head in ("List", "list"):
        return {"type": "array", "items": _schema(parts[0], scope, depth + 1)}
    if head in ("Dict", "dict"):
        return {"type": "object"}
    if head == "Annotated":
        return _schema(parts[0], scope, depth + 1)
    if head == "Optional":
        return _either([*parts, ast.Constant(None)], scope, depth)
    return _either(parts, scope, depth) if head == "Union" else {}


def _either(parts: list[Any], scope: dict[str, ast.AST], depth: int) -> dict[str, Any]:
    """A union; ``Model | dict`` is the model."""
    found = [_schema(part, scope, depth + 1) for part in parts]
    if {"type": "object"} in found and any("properties" in one for one in found):
        found.remove({"type": "object"})
    return found[0] if len(found) == 1 else {"anyOf": found}


def _record(node: ast.ClassDef, scope: dict[str, ast.AST], depth: int) -> dict[str, Any]:
    """A pydantic model, with the fields of its bases; or an Enum."""
    bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
    if "Enum" in bases:
        values = [n.value.value for n in node.body
                  if isinstance(n, ast.Assign) and isinstance(n.value, ast.Constant)]  # fmt: skip
        return {"enum": values}
    properties: dict[str, Any] = {}
    required: list[str] = []
    for base in bases:
        known = scope.get(base)
        if isinstance(known, ast.ClassDef) and known is not node and depth < DEEPEST:
            above = _record(known, scope, depth + 1)
            properties |= above.get("properties", {})
            required += above.get("required", [])
    for field in node.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            properties[field.target.id] = _schema(field.annotation, scope, depth + 1)
            if not _has_default(field.value):
                required.append(field.target.id)
    return {"type": "object", "properties": properties, "required": required}


def _has_default(node: ast.AST | None) -> bool:
    """``Field(description=...)`` without a default is none."""
    if node is None:
        return False
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Field":
        first = node.args[0] if node.args else None
        named = any(k.arg in ("default", "default_factory") for k in node.keywords)
        return named or (first is not None and not (isinstance(first, ast.Constant) and first.value is ...))
    return True
