"""Gates that read a bundle without running any of its code.

A tool's source is parsed, never imported: its signature against its schema, and calls or
imports by which a result could depend on anything but state, arguments and seed. Beside
them the gates on the graph and on provenance. Everything goes into a :class:`Ledger`, from
which :mod:`synth.admission` makes its report. These gates find honest mistakes; what keeps
hostile code in its place is the sandbox alone.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from synth.types import Provenance, Record, Table, Tool, ToolGraph

Progress = Callable[[int, int, str], None]  # done, total, what

# Time, chance, ids and the outside world come through ctx, or not at all.
UNSTEADY_MODULES = frozenset(
    {
        "asyncio",
        "ctypes",
        "glob",
        "importlib",
        "inspect",
        "io",
        "multiprocessing",
        "os",
        "pathlib",
        "platform",
    }
    | {"random", "secrets", "shutil", "signal", "socket", "subprocess", "sys", "tempfile", "threading"}
    | {"time", "urllib", "uuid"}
)
UNSTEADY_CALLS = frozenset({"__import__", "compile", "eval", "exec", "hash", "id", "input", "open"})
CLOCK_METHODS = frozenset({"now", "today", "utcnow"})  # of datetime and date; not of ctx


class Fault(Record):
    """One gate that one target did not pass."""

    gate: str
    target: str  # a tool, "tool#case", a task id, a table or a file
    detail: str


@dataclass
class Ledger:
    """What was checked so far."""

    passed: int = 0
    faults: list[Fault] = field(default_factory=list)

    def check(self, ok: bool, gate: str, target: str, detail: str = "") -> bool:
        """Count one check, note the fault if it failed, and give ``ok`` back."""
        if ok:
            self.passed += 1
        else:
            self.faults.append(Fault(gate=gate, target=target, detail=detail))
        return ok


# --- tools ------------------------------------------------------------------------------------


def check_tool(tool: Tool, ledger: Ledger) -> bool:
    """All static gates of one tool: schema, code, signature, determinism-scan, tests.

    Returns:
        Whether it passed all of them (and so is worth running).
    """
    before = len(ledger.faults)
    problem = schema_problem(tool)
    ledger.check(not problem, "schema", tool.name, problem)
    try:
        tree = ast.parse(tool.code)
        compile(tree, f"{tool.name}.py", "exec")
    except (SyntaxError, ValueError, RecursionError) as err:
        ledger.check(False, "code", tool.name, f"does not compile: {err}")
        return False
    ledger.check(True, "code", tool.name)
    if not problem:
        mismatch = signature_problem(tree, tool)
        ledger.check(not mismatch, "signature", tool.name, mismatch)
    unsteady = "; ".join(unsteady_code(tree))
    ledger.check(not unsteady, "determinism-scan", tool.name, unsteady)
    ledger.check(bool(tool.cases), "tests", tool.name, "has no test cases")
    return len(ledger.faults) == before


def schema_problem(tool: Tool) -> str:
    """Why the tool's schemas can't be used, or an empty string."""
    for name, schema in (("inputSchema", tool.input_schema), ("outputSchema", tool.output_schema)):
        if wrong := _invalid(json.dumps(schema)):
            return f"{name}: not a valid JSON Schema: {wrong}"
    schema = tool.input_schema
    if schema.get("type") != "object":
        return 'inputSchema: its type must be "object"'
    properties = schema.get("properties", {})
    if odd := [name for name in properties if not name.isidentifier()]:
        return f"inputSchema: parameter {odd[0]!r} is no Python name"
    if unknown := sorted(set(schema.get("required", [])) - set(properties)):
        return f"inputSchema: required parameter {unknown[0]} is not among its properties"
    return ""


@lru_cache(maxsize=4096)
def _invalid(schema: str) -> str:
    """Why a JSON text is no schema, or an empty string; found once: variants of an environment share most."""
    try:
        Draft202012Validator.check_schema(json.loads(schema))
    except SchemaError as err:
        return err.message
    return ""


def signature_problem(tree: ast.Module, tool: Tool) -> str:
    """How ``def <name>(ctx, *, ...)`` differs from the input schema, or an empty string.

    Parameters are the schema's properties, keyword-only; those with a default are the ones
    that the schema does not require.
    """
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == tool.name]
    if len(found) != 1:
        return f"the code must define the function {tool.name} once, and does so {len(found)} times"
    args = found[0].args
    if [a.arg for a in args.posonlyargs + args.args] != ["ctx"] or args.vararg or args.kwarg:
        return f"must be def {tool.name}(ctx, *, ...) with keyword-only parameters"
    with_default = {a.arg: d is not None for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True)}
    properties = set(tool.input_schema.get("properties", {}))
    required = set(tool.input_schema.get("required", []))
    if missing := sorted(properties - set(with_default)):
        return f"the code lacks the schema's parameter {missing[0]}"
    if extra := sorted(set(with_default) - properties):
        return f"the schema lacks the code's parameter {extra[0]}"
    for name, has_default in with_default.items():
        if has_default == (name in required):
            state = (
                "required by the schema but has a default" if has_default else "optional but has no default"
            )
            return f"parameter {name} is {state}"
    return ""


def unsteady_code(tree: ast.AST) -> list[str]:
    """Uses of the clock, chance, ids or the outside world, other than through ``ctx``."""
    found = []
    for node in ast.walk(tree):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or "."]
        found += [
            f"line {node.lineno}: imports {module}"  # pyright: ignore[reportAttributeAccessIssue]
            for module in modules
            if module.split(".")[0] in UNSTEADY_MODULES
        ]
        if isinstance(node, ast.Call) and (name := _unsteady_call(node.func)):
            found.append(f"line {node.lineno}: calls {name}")
    return found


def _unsteady_call(func: ast.expr) -> str:
    if isinstance(func, ast.Name) and func.id in UNSTEADY_CALLS:
        return f"{func.id}()"
    if isinstance(func, ast.Attribute) and func.attr in CLOCK_METHODS:
        owner = func.value
        if not (isinstance(owner, ast.Name) and owner.id == "ctx"):
            return f".{func.attr}() of something other than ctx"
    return ""


# --- graph and provenance ---------------------------------------------------------------------


def check_graph(graph: ToolGraph, tools: Sequence[Tool], ledger: Ledger) -> None:
    """Nodes and edges refer to tools that exist; links fill parameters that exist."""
    by_name = {tool.name: tool for tool in tools}
    for node in graph.nodes:
        ledger.check(node in by_name, "graph", node, "graph.json: a node that is no tool of this bundle")
    for edge in graph.edges:
        target = f"{edge.source}->{edge.target}"
        lost = [end for end in (edge.source, edge.target) if end not in by_name or end not in graph.nodes]
        if not ledger.check(not lost, "graph", target, f"graph.json: an edge to {lost}, which is no node"):
            continue
        known = by_name[edge.target].input_schema.get("properties", {})
        unknown = [link.parameter for link in edge.links if link.parameter not in known]
        ledger.check(not unknown, "graph", target, f"graph.json: a link to {unknown}, which is no parameter")


def check_provenance(tables: Sequence[Table], entries: Sequence[Provenance], ledger: Ledger) -> None:
    """Every table says where its rows come from, under which license."""
    by_target = {entry.target: entry for entry in entries}
    for table in tables:
        entry: Any = by_target.get(table.name)
        if ledger.check(entry is not None, "provenance", table.name, "provenance.jsonl: no line for it"):
            bare = [name for name in ("origin", "license", "sha256") if not getattr(entry, name).strip()]
            ledger.check(not bare, "provenance", table.name, f"provenance.jsonl: {bare} left empty")
