"""Tasks for an imported server, made without help, on a server of our own; real ones where installed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from synth_sandbox import bubblewrap_works

from synth.admission import check_bundle, check_task
from synth.env.bundle import read_bundle
from synth.env.mcp_client import McpEnvServer
from synth.env.observed import gives, observed_graph
from synth.env.verifier import VerifierServer
from synth.errors import CallerError
from synth.importers.facts import logical
from synth.importers.known import KNOWN
from synth.importers.maker import make
from synth.importers.phrasing import order, values
from synth.importers.readings import records
from synth.importers.real import HELD_OUT, import_known, table, write_made
from synth.importers.seeds import SEEDS, lay, real_rows
from synth.importers.workshop import _in_words
from synth.types import Task, Tool, ToolCase, ToolStep

needs_bubblewrap = pytest.mark.skipif(not bubblewrap_works(), reason="imported servers need bubblewrap")


@needs_bubblewrap
def test_tasks_of_both_routes_come_out_and_all_gates_hold(notes, made):
    tasks = made.tasks
    assert len(tasks) == 8, made.refused
    assert {t.route for t in tasks} == {"graph", "program"}
    assert any(t.changes_state for t in tasks)
    assert len({t.instruction for t in tasks}) == 8
    bundle = read_bundle(notes)
    with McpEnvServer(notes) as server, VerifierServer() as verifiers:
        assert [check_task(server, bundle, task, verifiers) for task in tasks[:3]] == [[]] * 3


@needs_bubblewrap
def test_the_bundle_passes_its_own_check_and_has_a_graph(notes, made):
    report = check_bundle(notes, made.tasks[-2:])
    assert report.failed == 0, report.faults
    edges = {(e.source, e.target): e.kind for e in read_bundle(notes).graph.edges}
    assert edges["list_notes", "get_note"] == "strong"  # the title stands in the list


@needs_bubblewrap
def test_the_same_seed_gives_the_same_tasks(notes, made):
    with McpEnvServer(notes) as server:
        again = make(server, 3, seed=0)
    ids = {t.id for t in made.tasks} | {t.id for t in again.tasks}
    assert all(t.id in ids for t in again.tasks)
    first = next(t for t in made.tasks if t.route == "program")
    assert again.tasks[0].to_json() == first.to_json()


@needs_bubblewrap
def test_no_instruction_names_a_tool(notes, made):
    names = [tool.name for tool in read_bundle(notes).tools]
    for task in made.tasks:
        assert not [
            n for n in names if n in task.instruction or n.replace("_", " ") in task.instruction.lower()
        ]


@needs_bubblewrap
@pytest.mark.parametrize(
    ("kept", "wanted"),
    [
        (("add_note",), {"program: no table comes back whole": 1, "questions ran out": 1}),
        (("get_note",), {"changes ran out": 1}),
        (("list_notes",), {"changes ran out": 1}),
    ],
)
def test_a_bundle_with_little_to_ask_about_ends_and_says_what_ran_out(notes, kept, wanted):
    seen = []
    with McpEnvServer(notes) as server:
        server.tools = {name: tool for name, tool in server.tools.items() if name in kept}
        made = make(server, 3, progress=lambda *step: seen.append(step))
    assert set(wanted.items()) <= set(made.refused.items()), made.refused
    assert seen[0] == (0, 3, "programs")
    assert seen[-1] == (len(made.tasks), 3, "")


# --- the parts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ({"items": [{"a": 1, "b": "x"}]}, [{"a": 1, "b": "x"}]),
        ('{"columns": ["id", "Name"], "rows": [[1, "lamp"]]}', [{"id": 1, "name": "lamp"}]),
        ({"values": [["name", "price"], ["lamp", 2.5]]}, [{"name": "lamp", "price": 2.5}]),
        ("Name: Mei\nAge: 7\nName: Jo\nAge: 9\n", [{"name": "Mei", "age": 7}, {"name": "Jo", "age": 9}]),
        ([{"entityType": "film", "observations": ["runtime: 90"]}],
         [{"runtime": 90, "entity_type": "film", "observations": ["runtime: 90"]}]),
        ("nothing to see", []),
    ],
)  # fmt: skip
def test_records_are_read_out_of_whatever_servers_answer(value, wanted):
    assert records(value) == wanted


def test_a_table_is_told_in_words_and_other_values_as_they_are():
    call = {"table": "order_lines", "data": {"title": "two_words", "rank": 3}, "names": ["order_lines", "x"]}
    told = values(_in_words(call, ["order_lines", "cars"]))
    assert told == 'table "order lines"; data with title two_words, rank 3; names "order lines" and x'


def test_facts_of_sheets_typed_lines_and_labelled_texts():
    cells = [("A1", "name"), ("B1", "price"), ("A2", "lamp"), ("B2", 3)]
    sheet = [{"file": "f.xlsx", "sheet": "stock", "cell": c, "value": v} for c, v in cells]
    lines = [
        {"type": "entity", "name": "Ada", "from": None, "seen": '["age: 7"]'},
        {"type": "entity", "name": "Mei", "from": None, "seen": "[]"},
        {"type": "relation", "name": None, "from": "Ada", "seen": None},
    ]
    found = logical(
        {"cell": sheet, "m.jsonl": lines}, {"people/ada.note": b"Name: Ada\nAge: 7\n", "x.bin": b"\xff"}
    )
    assert found["stock"] == [{"name": "lamp", "price": 3}]
    assert found["entity"] == [{"age": 7, "name": "Ada", "seen": '["age: 7"]'}, {"name": "Mei", "seen": "[]"}]
    assert found["relation"] == [{"from": "Ada"}]
    assert found["people"] == [{"name_of_file": "ada", "name": "Ada", "age": 7}]


@pytest.mark.parametrize(("text", "wanted", "holds"), [
    ("Commit by Ada", "Ada", True), ("Adam", "Ada", False), ("has 12 rows", 12, True), ("has 120", 12, False),
    ("at 12.5", 12, False), ({"n": 3}, 3, True), ({"n": True}, 1, False), ("ab", "ab", True),
    ("an ab", "ab", False),
])  # fmt: skip
def test_a_result_holds_a_value_whole_or_as_a_word(text, wanted, holds):
    assert (gives(text, wanted) is not None) is holds


def test_values_seen_make_edges_where_schemas_say_nothing():
    def tool(name, arguments, expect, schema):
        case = ToolCase(arguments=arguments, expect=expect)
        return Tool(
            name=name,
            description=name,
            input_schema=schema,
            output_schema={},
            read_only=True,
            code="",
            cases=(case,),
        )

    listing = tool("shelf", {}, "lamp\ndesk", {"type": "object", "properties": {}})
    wants = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
    look = tool("look", {"item": "lamp"}, "a lamp", wants)
    edges = {(e.source, e.target): (e.kind, e.weight) for e in observed_graph([listing, look]).edges}
    assert edges["shelf", "look"] == ("strong", 3)


@pytest.mark.parametrize(("description", "wanted"), [
    ("Creates a new branch from an optional base branch", "create a new branch from an optional base branch"),
    ("Switches branches", "switch branches"),
    ("Move or rename files (any). Can move many.", "move or rename files"),
    ("Process the orders", "process the orders"),
])  # fmt: skip
def test_descriptions_become_orders(description, wanted):
    tool = Tool(
        name="t", description=description, input_schema={}, output_schema={}, read_only=False, code=""
    )
    assert order(tool) == wanted


def test_arguments_are_told_in_words():
    told = values(
        {"entityName": "Mei Tan", "contents": ["paints boats"], "rows": [[1, 2]], "where": {"unit_price": 3}}
    )
    assert told == 'entity name "Mei Tan"; contents "paints boats"; rows 1, 2; where with unit price 3'


@pytest.mark.parametrize("kind", SEEDS)
def test_states_are_filled_with_real_rows_and_the_same_each_time(kind, tmp_path):
    pytest.importorskip("duckdb") if kind == "duckdb" else None
    rows = real_rows("penguin_survey")
    assert lay(kind, rows, tmp_path / "a") == lay(kind, rows, tmp_path / "b") != []


def test_a_server_that_is_not_installed_is_named_with_its_package(tmp_path):
    rows = import_known(tmp_path, tmp_path / "out", ["git"], 1, say=lambda _: None)
    assert "install mcp-server-git with pip" in rows["git"]["missing"]
    assert "mcp-server-git" in table(rows)


def test_a_server_gets_a_state_of_each_theme_and_each_is_held_out_by_its_own_name(tmp_path):
    def known(**more):
        return import_known(tmp_path, tmp_path / "out", ["git"], 1, say=lambda _: None, **more)

    rows = known(themes=["penguin_survey", "element_lab"], held_out=["git_element_lab"])
    assert set(rows) == {"git_penguin_survey", "git_element_lab"}
    assert set(known()) == {"git"}
    kept = json.loads((tmp_path / "out" / "servers.json").read_text())
    assert set(kept) == {"git", *rows}  # earlier calls stay
    with pytest.raises(CallerError, match="no theme nothing"):
        known(themes=["nothing"])
    with pytest.raises(CallerError, match="--held-out git_film_rentals: not a known server"):
        known(themes=["element_lab"], held_out=["git_film_rentals"])


@needs_bubblewrap
def test_tasks_come_with_their_calls_and_leave_no_trace_of_another_split(notes, made, tmp_path):
    write_made(tmp_path, "notes", ("train", "heldout"), made.tasks)
    write_made(tmp_path, "notes", ("heldout", "train"), made.tasks[:3])
    assert [p.name for p in (tmp_path / "tasks").iterdir()] == ["notes.heldout.jsonl"]
    lines = (tmp_path / "solutions" / "notes.heldout.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["task_id"] for line in lines] == [task.id for task in made.tasks[:3]]
    first = json.loads(lines[0])
    assert [ToolStep(**call) for call in first["calls"]] == list(made.tasks[0].chain)
    assert first["answer"] == made.tasks[0].reference_answer


def test_servers_to_measure_on_are_known_ones_and_leave_some_to_train_on(tmp_path):
    assert set(HELD_OUT) < set(KNOWN)
    with pytest.raises(CallerError, match="--held-out nothing: not a known server"):
        import_known(tmp_path, tmp_path / "out", ["git"], 1, say=lambda _: None, held_out=["nothing"])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@needs_bubblewrap
@pytest.mark.parametrize("name", KNOWN)
def test_a_real_server_gives_twenty_tasks_of_both_routes(name, tmp_path):
    servers = Path(os.environ.get("AGENT_WORLD_MCP_SERVERS", "/nowhere"))
    rows = import_known(servers, tmp_path, [name], 20)
    if "is not there" in rows[name].get("missing", ""):
        pytest.skip(rows[name]["missing"])
    assert rows[name]["tasks"]["tasks"] >= 20
    tag = "heldout" if name in HELD_OUT else "train"
    (path,) = (tmp_path / "tasks").glob("*.jsonl")
    assert path.name == f"{name}.{tag}.jsonl"
    assert read_bundle(tmp_path / "bundles" / name).manifest.theme.spec.get("arena", False) is (
        tag != "train"
    )
    lines = path.read_text("utf-8").splitlines()
    assert {Task.from_json(line).route for line in lines} == {"graph", "program"}
