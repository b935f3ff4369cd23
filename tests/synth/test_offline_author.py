"""The procedural author: richer tables, tools with tests, questions and programs from a real schema."""

from __future__ import annotations

import random

import pytest

from synth.admission import check_task, validate_environment
from synth.author.offline import OfflineAuthor
from synth.complexify import complexify
from synth.env.bundle import read_bundle, write_bundle
from synth.env.episode import EnvServer, VerifierServer
from synth.graph import build_graph, opaque_refs, to_networkx
from synth.leaks import find_leaks
from synth.mining import mine
from synth.tasks_graph import make_tasks as graph_tasks
from synth.tasks_program import make_tasks as program_tasks
from synth.themes import builtin
from synth.tools import make_environment
from synth.types import Guide

AUTHOR = OfflineAuthor()
THEMES = {t.id: t for t in builtin()}


def environment(theme_id: str, seed: int = 0):
    theme = THEMES[theme_id]
    return make_environment(complexify(mine(theme, seed), theme, AUTHOR, seed), theme, AUTHOR, seed)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A bundle with its servers: (bundle, server, verifiers)."""
    path = tmp_path_factory.mktemp("bundles") / "euro_squads"
    write_bundle(environment("euro_squads"), path)
    with EnvServer(path) as server, VerifierServer() as verifiers:
        yield read_bundle(path), server, verifiers


def test_complexify_adds_aggregates_constraints_and_a_business_not_copies():
    theme = THEMES["airport_slots"]
    mined = mine(theme, 0)
    db = complexify(mined, theme, AUTHOR, 0)
    assert [t.kind for t in db.tables if t.kind != "mined"] == [
        "aggregate", "constraint", "ledger", "ledger", "audit",
    ]  # fmt: skip
    assert db.rounds == 2
    assert len(db.log) == 3  # mined, and a line a round
    before = {tuple(map(tuple, rows)) for rows in mined.rows.values()}
    assert not any(tuple(map(tuple, db.rows[t.name])) in before for t in db.tables if t.kind != "mined")
    assert {p.target for p in db.provenance} == {t.name for t in db.tables}


def test_aggregates_are_those_of_the_real_rows():
    db = complexify(mine(THEMES["airport_slots"], 0), THEMES["airport_slots"], AUTHOR, 0)
    airports = db.records("airports")
    for profile in db.records("country_profiles"):
        assert profile["airport_count"] == sum(a["country"] == profile["country"] for a in airports)


def test_the_ledger_draws_on_the_stock():
    """Units left are the total less what open and confirmed lines hold."""
    db = complexify(mine(THEMES["airport_slots"], 3), THEMES["airport_slots"], AUTHOR, 3)
    stock, ledger = [t for t in db.tables if t.kind == "ledger"]
    key, quantity, total, left = (
        stock.primary_key,
        ledger.columns[2].name,
        *(c.name for c in stock.columns[1:]),
    )
    holding = ledger.column("status").values[:2]
    for row in db.records(stock.name):
        held = [r[quantity] for r in db.records(ledger.name) if r[key] == row[key] and r["status"] in holding]
        assert row[left] == row[total] - sum(held) >= 0


@pytest.mark.parametrize("theme_id", sorted(THEMES))
def test_every_theme_gives_8_to_12_tools_with_tests_and_both_effects(theme_id):
    env = environment(theme_id, seed=5)
    assert 8 <= len(env.tools) <= 12
    assert len({t.name for t in env.tools}) == len(env.tools)
    assert all(len(t.cases) >= 2 for t in env.tools)
    assert any(t.read_only for t in env.tools)
    assert any(not t.read_only for t in env.tools)


@pytest.mark.parametrize("theme_id", ["element_lab", "city_flights"])
def test_every_tool_passes_all_its_tests_in_the_sandbox(theme_id, tmp_path):
    kept, report = validate_environment(environment(theme_id), tmp_path)
    assert not report.dropped
    assert set(report.tools.values()) == {1.0}
    assert len(kept.tools) == len(report.tools)


def test_the_same_seed_gives_the_same_environment_and_another_seed_another_one():
    assert environment("film_rentals").to_json() == environment("film_rentals").to_json()
    assert environment("film_rentals").to_json() != environment("film_rentals", seed=1).to_json()


def test_strong_edges_lead_into_required_opaque_parameters_only():
    env = environment("airport_slots")
    opaque = opaque_refs(env.database.tables)
    tools = {t.name: t for t in env.tools}
    edges = build_graph(env.tools, env.database.tables).edges
    assert {e.kind for e in edges} == {"strong", "weak", "independent"}
    for e in edges:
        assert e.weight == {"strong": 3, "weak": 2, "independent": 1}[e.kind]
        for link in e.links if e.kind == "strong" else ():
            assert tools[e.target].meta["inputs"][link.parameter] in opaque
            assert link.parameter in tools[e.target].input_schema["required"]


def test_independent_edges_keep_the_graph_connected():
    import networkx as nx

    graph = to_networkx(
        build_graph(environment("novel_stage").tools, environment("novel_stage").database.tables)
    )
    assert nx.is_weakly_connected(graph)


def test_graph_tasks_pass_every_gate_and_half_of_them_write(world):
    bundle, server, verifiers = world
    tasks = graph_tasks(bundle, server, AUTHOR, seed=1, count=12)
    assert len(tasks) == 12
    assert sum(t.changes_state for t in tasks) >= 0.4 * len(tasks)
    for task in tasks:
        assert check_task(server, bundle, task, verifiers) == []


def test_program_tasks_pass_every_gate_and_have_loops_and_branches(world):
    bundle, server, verifiers = world
    tasks = program_tasks(bundle, server, AUTHOR, seed=1, count=10, verifier_server=verifiers)
    assert len(tasks) >= 6
    assert any(t.difficulty.loop for t in tasks)
    assert any(t.difficulty.branch for t in tasks)
    for task in tasks:
        assert check_task(server, bundle, task, verifiers) == []


def test_instructions_name_no_tool_and_no_column(world):
    bundle, server, _ = world
    for task in graph_tasks(bundle, server, AUTHOR, seed=2, count=10):
        assert find_leaks(task.instruction, bundle.tools, bundle.manifest.tables, None) == []


def test_wording_varies(world):
    bundle, server, _ = world
    tasks = graph_tasks(bundle, server, AUTHOR, seed=3, count=20)
    assert len({" ".join(t.instruction.split()[:2]) for t in tasks}) >= 8


def test_tasks_are_the_same_for_the_same_seed(world):
    bundle, server, _ = world
    first, again = (graph_tasks(bundle, server, AUTHOR, seed=4, count=5) for _ in range(2))
    assert [t.to_json() for t in first] == [t.to_json() for t in again]


def test_a_guide_is_obeyed(world):
    bundle, server, _ = world
    guide = Guide(
        id="g1", text="cancel something", tool_kinds=("cancel",), min_steps=2, max_steps=3, changes_state=True
    )
    tasks = graph_tasks(bundle, server, AUTHOR, seed=5, count=5, guide=guide)
    assert tasks
    kinds = {t.name: t.meta["kind"] for t in bundle.tools}
    for task in tasks:
        assert "cancel" in {kinds[s.tool] for s in task.chain}
        assert 2 <= task.difficulty.steps <= 3
        assert task.changes_state
        assert task.guide_id == "g1"


def test_a_third_round_has_nothing_to_add_and_stops():
    theme = THEMES["airport_slots"]
    db = complexify(mine(theme, 0), theme, AUTHOR, 0)
    assert AUTHOR.complexify(db, theme, 2, random.Random(0)) == db
