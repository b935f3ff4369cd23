"""Static gates: a tool's code is read, never run, and each mismatch is named."""

import ast

import pytest

from synth.gates import Ledger, check_graph, check_provenance, check_tool, unsteady_code
from synth.types import Column, Edge, Link, Provenance, Table, Tool, ToolCase, ToolGraph

SCHEMA = {
    "type": "object",
    "properties": {"country": {"type": "string"}, "limit": {"type": "integer"}},
    "required": ["country"],
}
CASES = (ToolCase(arguments={"country": "IS"}, expect=[]),)
CODE = "def find(ctx, *, country, limit=5):\n    return []\n"


def tool(code=CODE, schema=SCHEMA, output=None, cases=CASES):
    return Tool(
        name="find",
        description="",
        input_schema=schema,
        output_schema=output or {"type": "array"},
        read_only=True,
        code=code,
        cases=cases,
    )


def faults(candidate):
    ledger = Ledger()
    sound = check_tool(candidate, ledger)
    assert sound == (not ledger.faults)
    return [(fault.gate, fault.target, fault.detail) for fault in ledger.faults]


def test_a_sound_tool_passes_every_static_gate():
    ledger = Ledger()
    assert check_tool(tool(), ledger)
    assert ledger.passed == 5


@pytest.mark.parametrize(
    ("code", "part"),
    [
        ("def find(ctx, *, country):\n    return []", "the code lacks the schema's parameter limit"),
        (
            "def find(ctx, *, country, limit=5, sort=1):\n    return []",
            "the schema lacks the code's parameter sort",
        ),
        (
            "def find(ctx, *, country='IS', limit=5):\n    return []",
            "country is required by the schema but has",
        ),
        ("def find(ctx, *, country, limit):\n    return []", "limit is optional but has no default"),
        ("def find(ctx, country, limit=5):\n    return []", "keyword-only"),
        ("def find(ctx, *, country, **rest):\n    return []", "keyword-only"),
        ("def look(ctx, *, country, limit=5):\n    return []", "must define the function find once"),
    ],
)
def test_the_signature_is_compared_with_the_schema(code, part):
    ((gate, target, detail),) = faults(tool(code))
    assert (gate, target) == ("signature", "find")
    assert part in detail


@pytest.mark.parametrize(
    ("schema", "part"),
    [
        ({"type": "strange"}, "inputSchema: not a valid JSON Schema"),
        ({"type": "array"}, 'type must be "object"'),
        ({"type": "object", "properties": {"a b": {}}}, "no Python name"),
        ({"type": "object", "properties": {}, "required": ["x"]}, "required parameter x"),
    ],
)
def test_the_schema_must_be_usable(schema, part):
    ((gate, _, detail),) = faults(tool(schema=schema))
    assert gate == "schema"
    assert part in detail


def test_the_output_schema_must_be_valid_too():
    ((gate, _, detail),) = faults(tool(output={"type": 3}))
    assert (gate, detail[:12]) == ("schema", "outputSchema")


def test_code_that_does_not_compile_is_a_fault_with_its_line():
    ((gate, _, detail),) = faults(tool("def find(ctx, *, country, limit=5:\n    return []"))
    assert gate == "code"
    assert "line 1" in detail


def test_a_tool_without_tests_is_a_fault():
    assert [gate for gate, _, _ in faults(tool(cases=()))] == ["tests"]


@pytest.mark.parametrize(
    "line",
    [
        "import time",
        "import os.path",
        "from random import choice",
        "from uuid import uuid4",
        "import json, secrets",
        "x = datetime.now()",
        "x = datetime.date.today()",
        "x = open('f')",
        "x = hash('a')",
        "x = __import__('time')",
    ],
)
def test_clock_chance_and_outside_world_are_found_without_running(line):
    source = f"def find(ctx, *, country, limit=5):\n    {line}\n    return []\n"
    ((gate, _, detail),) = faults(tool(source))
    assert gate == "determinism-scan"
    assert "line 2" in detail


def test_the_context_and_pure_modules_are_fine():
    source = (
        "import json, math, re, datetime\nx = ctx.now() + ctx.new_id('b')\ny = ctx.rng.random()\nz.open()"
    )
    assert unsteady_code(ast.parse(source)) == []


def test_the_graph_refers_to_tools_and_parameters_that_exist():
    good = Edge(
        source="find", target="find", kind="weak", weight=2, links=(Link(path="$[]", parameter="country"),)
    )
    bad = good.model_copy(update={"links": (Link(path="$[]", parameter="city"),)})
    lost = good.model_copy(update={"target": "gone"})
    ledger = Ledger()
    check_graph(ToolGraph(nodes=("find",), edges=(good,)), [tool()], ledger)
    assert ledger.faults == []
    check_graph(ToolGraph(nodes=("find", "gone"), edges=(bad, lost)), [tool()], ledger)
    assert [fault.target for fault in ledger.faults] == ["gone", "find->find", "find->gone"]


def test_every_table_has_provenance_with_a_license():
    column = Column(name="id", type="text", role="key", label="id")
    tables = [
        Table(name=n, singular=n, plural=n, kind="mined", columns=(column,), primary_key="id")
        for n in ("a", "b", "c")
    ]
    line = Provenance(target="a", origin="pkg:a.csv", license="MIT", sha256="0" * 64, retrieved="2026-01-01")
    ledger = Ledger()
    check_provenance(tables, [line, line.model_copy(update={"target": "b", "license": " "})], ledger)
    assert [(fault.gate, fault.target) for fault in ledger.faults] == [
        ("provenance", "b"),
        ("provenance", "c"),
    ]
