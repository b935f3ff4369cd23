"""Tool graphs: from references as before, and from schemas alone, measured against gold graphs."""

import json
import os
import random
from pathlib import Path

import pytest

from synth import graph, graph_bench, mining
from synth.author.offline import OfflineAuthor
from synth.errors import CallerError
from synth.graph_schemas import acts_on, infer_graph
from synth.sources.found import ToolDoc
from synth.themes import builtin

DATA = os.environ.get("AGENT_WORLD_DATA")


def tool(name: str, inputs: dict | None = None, outputs: dict | None = None, required: tuple = ()) -> ToolDoc:
    return ToolDoc(
        name=name,
        input_schema={"type": "object", "properties": inputs or {}, "required": list(required)},
        output_schema={"type": "object", "properties": outputs} if outputs else {},
    )


TEXT, WHOLE = {"type": "string"}, {"type": "integer"}
ROWS = {"flights": {"type": "array", "items": {"type": "object", "properties": {"id": TEXT, "status": TEXT}}}}


def edges(*tools: ToolDoc) -> dict[tuple[str, str], str]:
    return {(e.source, e.target): e.kind for e in infer_graph(tools).edges}


def test_a_required_identifier_makes_a_strong_link_along_its_path():
    found = infer_graph([
        tool("search_flights", {"city": TEXT}, ROWS),
        tool("book_seat", {"flight_id": TEXT}, {"booking_id": TEXT}, ("flight_id",)),
    ])  # fmt: skip
    strong = [e for e in found.edges if e.kind == "strong"]
    assert [(e.source, e.target, e.weight) for e in strong] == [("search_flights", "book_seat", 3)]
    assert [(link.path, link.parameter) for link in strong[0].links] == [("$.flights[].id", "flight_id")]


def test_an_optional_or_everyday_parameter_makes_a_weak_link():
    assert edges(
        tool("get_airport", {}, {"runway": TEXT}), tool("list_delays", {"runway": TEXT}, {}, ("runway",))
    )[("get_airport", "list_delays")] == "weak"  # fmt: skip


def test_the_names_style_does_not_matter():
    assert (
        edges(tool("a", {}, {"flightId": TEXT}), tool("b", {"flight_id": TEXT}, {}, ("flight_id",)))[
            ("a", "b")
        ]
        == "strong"
    )


def test_vague_names_belong_to_their_owner():
    flight, hotel = (
        tool("get_flight", {}, {"id": TEXT, "status": TEXT}),
        tool("cancel_hotel", {"hotel_id": TEXT}),
    )
    assert ("get_flight", "cancel_hotel") in edges(flight, hotel)
    assert edges(flight, hotel)[("get_flight", "cancel_hotel")] == "independent"
    same = tool("cancel_flight", {"id": TEXT}, {}, ("id",))
    assert edges(flight, same)[("get_flight", "cancel_flight")] == "strong"


def test_a_bare_entity_is_filled_by_its_name():
    assert (
        edges(tool("find", {}, {"airport_name": TEXT}), tool("b", {"airport": TEXT}))[("find", "b")] == "weak"
    )


def test_json_types_must_agree():
    def kind(given, wanted):
        return edges(tool("a", {}, {"seat_row": given}), tool("b", {"seat_row": wanted}))[("a", "b")]

    assert kind(WHOLE, {"type": "number"}) == "weak"
    assert kind({"type": ["integer", "null"]}, WHOLE) == "weak"
    assert kind(TEXT, {"type": "array", "items": TEXT}) == "weak"
    assert kind(TEXT, WHOLE) == "independent"
    assert kind({"type": "number"}, WHOLE) == "independent"


def test_declared_types_link_whatever_the_names():
    picture, sound = {"type": "Image"}, {"type": "audio"}
    found = edges(
        tool("draw", {}, {"x": picture}), tool("tint", {"y": {"type": "image"}}), tool("play", {"z": sound})
    )
    assert found[("draw", "tint")] == "weak"
    assert found[("draw", "play")] == "independent"


def test_switches_are_filled_by_nobody():
    assert edges(tool("a", {}, {"limit": WHOLE}), tool("b", {"limit": WHOLE}))[("a", "b")] == "independent"


def test_the_graph_holds_every_pair_once_or_by_direction():
    tools = [tool("a", {}, {"flight_id": TEXT}), tool("b", {"flight_id": TEXT}), tool("c")]
    pairs = {frozenset(p) for p in edges(*tools)}
    assert len(pairs) == 3
    assert infer_graph(tools).nodes == ("a", "b", "c")


@pytest.mark.parametrize(
    "schema",
    [{}, {"properties": None}, {"type": "object", "properties": {"x": None}}, {"properties": {"x": True}}],
)
def test_loose_schemas_are_read(schema):
    assert infer_graph(
        [ToolDoc(name="a", input_schema=schema, output_schema=schema), ToolDoc(name="b")]
    ).edges


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("list_open_orders", "order"),
        ("getUserById", "user"),
        ("search", ""),
        ("book_flight_for_user", "flight"),
    ],
)
def test_what_a_tool_acts_on(name, owner):
    assert acts_on(name) == owner


# --- against gold


def score_of_ours(count: int) -> graph_bench.Score:
    """Our own tools with their references taken away, against the graph that the references give."""
    inferred, gold = set(), set()
    author = OfflineAuthor()
    for theme in builtin("demo")[:count]:
        rng, db = random.Random(0), mining.mine(theme, 0)
        for number in (1, 2):
            db = author.complexify(db, theme, number, rng)
        tools = author.write_tools(db, theme, rng)
        bare = [t.model_copy(update={"meta": {}}) for t in tools]
        wanted = graph.build_graph(tools, db.tables).edges
        gold |= {(theme.id + e.source, theme.id + e.target) for e in wanted if e.kind != "independent"}
        found = infer_graph(bare).edges
        inferred |= {(theme.id + e.source, theme.id + e.target) for e in found if e.kind != "independent"}
    return graph_bench.score("ours", count, True, inferred, gold)


def test_schemas_alone_find_most_of_our_own_graphs():
    found = score_of_ours(2)
    assert found.precision >= 0.9
    assert found.f1 >= 0.9


@pytest.mark.slow
def test_schemas_alone_find_most_of_all_demo_graphs():
    found = score_of_ours(18)
    print(found)
    assert found.f1 >= 0.9


def small_taskbench(folder: Path) -> Path:
    """Three typed tools in TaskBench's layout; the gold graph misses one link that the types allow."""

    def node(name, given, back):
        return {"id": name, "desc": "d", "input-type": given, "output-type": back}

    nodes = [
        node("Draw", ["text"], ["image"]),
        node("Tint", ["image"], ["Image"]),
        node("Read", ["image"], ["text"]),
    ]
    pairs = [("Draw", "Tint"), ("Draw", "Read"), ("Read", "Draw")]
    links = [{"source": a, "target": b, "type": "x"} for a, b in pairs]
    path = folder / "taskbench_small_graph_desc.json"
    path.write_text(json.dumps({"nodes": nodes, "links": links}), "utf-8")
    return path


def test_precision_and_recall_are_counted(tmp_path):
    [found] = graph_bench.taskbench([small_taskbench(tmp_path)])
    assert (found.domain, found.tools, found.gold, found.inferred, found.right) == ("small", 3, 3, 4, 3)
    assert (found.precision, found.recall, found.f1) == (0.75, 1.0, pytest.approx(0.8571))
    assert graph_bench.score("none", 0, False, set(), {("a", "b")}).f1 == 0.0


def test_what_is_no_gold_graph_is_named(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    for name, line in (("a.json", "not a TaskBench graph"), ("gone.json", "cannot be read")):
        with pytest.raises(CallerError, match=line):
            graph_bench.taskbench([tmp_path / name])


@pytest.mark.skipif(not DATA, reason="AGENT_WORLD_DATA names no data folder")
def test_taskbench_domains_with_declared_types_reach_the_goal():
    scores = graph_bench.taskbench(sorted(Path(str(DATA)).glob("tool_docs/*graph_desc*")))
    for found in scores:
        print(found)
    typed = [found for found in scores if found.declares_types]
    assert len(typed) == 2
    assert all(found.f1 >= 0.9 for found in typed)
