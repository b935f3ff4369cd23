"""A good bundle broken in many ways, one at a time: the check names each fault, and where it is."""

import json

import library
import pytest
from library import FIND_BOOKS, GET_BOOK, GRAPH, LEND_BOOK, TOOLS

from synth.admission import check_bundle
from synth.env.bundle import read_bundle, write_bundle
from synth.errors import CallerError
from synth.types import Edge


def broken_tool(tool, **changes):
    changed = tool.model_copy(update=changes)
    return library.environment(tools=tuple(changed if t.name == tool.name else t for t in TOOLS))


def source(tool, old, new):
    assert old in tool.code
    return tool.code.replace(old, new)


LOST_EDGE = Edge(source="find_books", target="burn_book", kind="weak", weight=2)
PROVENANCE = library.environment().database.provenance

# how it is broken: (environment that a stage might have written, gate, target, part of the detail)
BREAKS = {
    "the code has another parameter than the schema": (
        broken_tool(GET_BOOK, code=source(GET_BOOK, "*, book_id", "*, number")),
        "signature",
        "get_book",
        "lacks the schema's parameter book_id",
    ),
    "the code does not compile": (
        broken_tool(GET_BOOK, code=source(GET_BOOK, "is None:", "is None")),
        "code",
        "get_book",
        "does not compile",
    ),
    "the input schema is no JSON Schema": (
        broken_tool(FIND_BOOKS, input_schema={"type": "object", "properties": {"year": {"type": "yr"}}}),
        "schema",
        "find_books",
        "inputSchema",
    ),
    "most tests of a tool fail": (
        broken_tool(FIND_BOOKS, code=source(FIND_BOOKS, "year = ?", "year > ?")),
        "tests",
        "find_books",
        "0.33 of its tests pass",
    ),
    "a tool reads the clock": (
        broken_tool(FIND_BOOKS, code="import time\n" + source(FIND_BOOKS, "ORDER BY", "AND 0 < 1 ORDER BY")),
        "determinism-scan",
        "find_books",
        "line 1: imports time",
    ),
    "a read-only tool writes": (
        broken_tool(LEND_BOOK, read_only=True),
        "read-only",
        "lend_book",
        "lend_book#1",
    ),
    "a write tool writes nothing": (
        broken_tool(GET_BOOK, read_only=False),
        "write",
        "get_book",
        "no test of it changes the state",
    ),
    "a result does not fit the output schema": (
        broken_tool(GET_BOOK, output_schema={"type": "object", "required": ["author"]}),
        "output-schema",
        "get_book",
        "author",
    ),
    "two runs of a call differ": (
        broken_tool(
            FIND_BOOKS,
            code="import contextlib\n"
            + source(FIND_BOOKS, "return [", "return [contextlib.os.urandom(8).hex()] + ["),
        ),
        "determinism",
        "find_books",
        "find_books#1",
    ),
    "a tool has no test": (broken_tool(GET_BOOK, cases=()), "tests", "get_book", "no test cases"),
    "the graph leads to a tool that is not there": (
        library.environment(graph=GRAPH.model_copy(update={"edges": (LOST_EDGE,)})),
        "graph",
        "find_books->burn_book",
        "burn_book",
    ),
    "a table has no provenance": (
        library.environment(
            database=library.environment().database.model_copy(update={"provenance": PROVENANCE[:1]})
        ),
        "provenance",
        "loans",
        "no line for it",
    ),
    "there is no tool": (library.environment(tools=(), graph=None), "not-empty", "library", "no valid tool"),
}


@pytest.mark.parametrize("how", BREAKS)
def test_each_fault_of_a_stage_is_named(how, tmp_path):
    env, gate, target, part = BREAKS[how]
    write_bundle(env, tmp_path / "library")
    faults = check_bundle(tmp_path / "library").faults
    assert any(f.gate == gate and f.target == target and part in f.detail for f in faults), faults


def damage(path, name, change):
    file = path / name
    file.write_text(change(file.read_text()))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tools/get_book.py", lambda text: text + "# later\n"),
        ("README.md", lambda text: text.upper()),
        ("cases/find_books.jsonl", lambda text: text.splitlines()[0] + "\n"),
    ],
)
def test_a_file_changed_after_the_bundle_was_written_is_named(tmp_path, name, change):
    path = tmp_path / "library"
    write_bundle(library.environment(), path)
    damage(path, name, change)
    faults = check_bundle(path).faults
    assert ("integrity", name) in [(f.gate, f.target) for f in faults]


def test_a_state_that_is_not_the_one_the_manifest_speaks_of_is_named(tmp_path):
    path = tmp_path / "library"
    write_bundle(library.environment(), path)
    damage(path, "manifest.json", lambda t: json.dumps({**json.loads(t), "state_digest": "0" * 64}))
    faults = check_bundle(path).faults
    assert any(f.gate == "integrity" and "state_digest" in f.detail for f in faults)


@pytest.mark.parametrize(
    "name", ["manifest.json", "tools/tools.json", "provenance.jsonl", "tools/get_book.py"]
)
def test_a_bundle_that_cant_be_read_is_one_clear_line(tmp_path, name):
    path = tmp_path / "library"
    write_bundle(library.environment(), path)
    (path / name).write_bytes(b"\xff{")
    with pytest.raises(CallerError) as caught:
        check_bundle(path)
    assert name.split("/")[-1].split(".")[0] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_many_faults_at_once_are_all_named(tmp_path):
    tools = (
        FIND_BOOKS.model_copy(update={"code": source(FIND_BOOKS, "year = ?", "year > ?")}),
        GET_BOOK.model_copy(update={"code": source(GET_BOOK, "*, book_id", "*, number")}),
        LEND_BOOK.model_copy(update={"read_only": True}),
    )
    path = tmp_path / "library"
    write_bundle(
        library.environment(tools=tools, graph=GRAPH.model_copy(update={"edges": (*GRAPH.edges, LOST_EDGE)})),
        path,
    )
    damage(path, "README.md", str.upper)
    bundle = read_bundle(path)
    report = check_bundle(path, [library.write_task(bundle, reference_answer=1943)])
    assert {(f.gate, f.target) for f in report.faults} >= {
        ("integrity", "README.md"),
        ("tests", "find_books"),
        ("signature", "get_book"),
        ("read-only", "lend_book"),
        ("graph", "find_books->burn_book"),
        ("gold", "lend-winter-tales"),
    }
    shown = json.loads(report.to_json())
    assert shown["failed"] == len(shown["faults"]) >= 6
    assert shown["tools"]["get_book"] == 0.0
    assert set(shown["faults"][0]) >= {"gate", "target", "detail"}
