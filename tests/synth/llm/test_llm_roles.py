"""What each role refuses, without a model: replies are handed to the checks directly."""

import random

import lake_world as world
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.author.asking import Mend
from synth.author.base import Executed, World
from synth.author.library import FolderCorpus
from synth.author.online import enrich, tasks, toolsmith
from synth.author.online.intake import take
from synth.author.online.scratch import run_python
from synth.complexify import coverage, depth, gaps
from synth.told import says_value
from synth.types import Database, ToolStep


@pytest.fixture(scope="module")
def mined(tmp_path_factory):
    corpus = FolderCorpus(world.write_corpus(tmp_path_factory.mktemp("web")))
    documents = {f"file:{p}": corpus.fetch(f"file:{p}") for p in ("lakes.csv", "countries.md")}
    taken = {}
    for spec in (world.COUNTRY_TABLE, world.LAKE_TABLE):
        taken[spec["name"]] = take(spec, documents, taken, random.Random(0))
    return Database(
        theme_id="lakes",
        tables=tuple(t.table for t in taken.values()),
        rows={n: t.rows for n, t in taken.items()},
        provenance=tuple(p for t in taken.values() for p in t.provenance),
    )


@pytest.fixture(scope="module")
def grown(mined):
    return enrich._grown(mined, world.ENRICHED, 0, 3)


def changed(**more):
    return {**world.ENRICHED, **more}


# --- the miner's tables ---------------------------------------------------------------------------


def test_a_reference_becomes_the_parents_key(mined):
    assert {r["country"] for r in mined.records("lakes")} == {"Russia", "Tanzania", "Canada", "Sweden"}
    assert mined.table("lakes").foreign_keys[0].table == "countries"
    assert all(r["lake_id"].startswith("LK-") for r in mined.records("lakes"))


# --- complexification -----------------------------------------------------------------------------


def test_measures_before_and_after(mined, grown):
    assert [g.kind for g in gaps(mined)] == ["history", "constraints", "totals"]
    assert (gaps(grown), coverage(grown), depth(grown)) == ([], 1.0, 2)


def test_a_program_with_a_seed_makes_the_same_rows(mined, grown):
    assert enrich._grown(mined, world.ENRICHED, 0, 3) == grown
    assert enrich._grown(mined, world.ENRICHED, 0, 4).rows["permits"] != grown.rows["permits"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kinds = ", "open('/etc/passwd')\n    kinds = ", "failed in the sandbox: FileNotFoundError"),
        ("kind, len(depths)", "kind, rng.randint(1, 9)", "computed from rows, never drawn"),
        ("totals.append([kind,", "totals.append([kind + ' lake',", "stands in no row"),
        ('lake["lake_id"]', '"LK-0"', "permits.lake_id: 1 values are not in lakes.lake_id"),
        ("range(30)", "range(5)", "at least 24"),
        ('"permits": permits', '"permits": []', "at least 24"),
        ("rng.randint(1, 4), status", "'two', status", "'two' is not of type integer"),
        ('"asked", "granted"', '"asked", "lost"', "not in the closed set"),
    ],
)  # fmt: skip
def test_programs_that_are_refused(mined, old, new, message):
    assert world.PROGRAM.count(old) == 1
    with pytest.raises(Mend, match=message):
        enrich._grown(mined, changed(program=world.PROGRAM.replace(old, new)), 0, 3)


def test_a_copy_is_refused(grown):
    copy = {**world.ENRICHED["tables"][0], "name": "again"}
    program = "def build(tables, rng):\n    return {'again': [[*r.values()] for r in tables['kind_totals']]}"
    with pytest.raises(Mend, match="again is a copy of kind_totals"):
        enrich._grown(grown, {"tables": [copy], "program": program}, 1, 3)


def test_a_round_that_closes_no_gap_is_refused(mined):
    spec = {**world.ENRICHED["tables"][0], "name": "waters", "kind": "dimension"}
    spec["columns"] = spec["columns"][:2]
    program = "def build(tables, rng):\n    return {'waters': [[r['name'], 1] for r in tables['lakes']]}"
    with pytest.raises(Mend, match="no measured gap is closed"):
        enrich._grown(mined, {"tables": [spec], "program": program}, 0, 3)


# --- tools ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"table": "ponds"}, "table ponds is not there"),
        ({"read_only": False}, "contradict"),
        ({"outputs": {"$.x": "lakes.colour"}}, "lakes.colour is no column"),
        ({"outputs": {"items[0]": "lakes.name"}}, "write"),
        ({"parameters": [world.parameter("name", "name", "lakes.title")]}, "lakes.title is no column"),
        ({"parameters": [world.parameter("note", "text")]}, "needs a column, an enum or examples"),
    ],
)
def test_designs_that_are_refused(grown, change, message):
    toolsmith._checked(grown, world.DESIGN)
    design = {"tools": [{**world.DESIGN["tools"][0], **change}, *world.DESIGN["tools"][1:]]}
    with pytest.raises(Mend, match=message):
        toolsmith._checked(grown, design)


@pytest.mark.parametrize(
    ("cases", "message"),
    [
        ("def cases(tables):\n    return [1 / 0]", "ZeroDivisionError"),
        ("def cases(tables):\n    return [{'arguments': {}}]", "at least 4"),
        (
            "def cases(tables):\n    return [{'arguments': {}, 'expect': 1}] * 4",
            "expects the error not_found",
        ),
        ("def cases(tables):\n    return [{'arguments': {}, 'error': 'not_found'}] * 4", "expects a result"),
        ("def cases(tables):\n    return [{'args': {}}] * 4", "list of tests"),
    ],
)
def test_tests_that_are_refused(grown, cases, message):
    with pytest.raises(Mend, match=message):
        toolsmith._cases(grown, world.DESIGN["tools"][0], cases)


# --- wording --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chain(grown):
    tools = {s["name"]: toolsmith._tool(s, "") for s in world.DESIGN["tools"]}
    place = World(
        tools, {t.name: t for t in grown.tables}, {t.name: grown.records(t.name) for t in grown.tables}
    )
    found = {"lake_id": "LK-500", "country": "Sweden", "kind": "glacial", "depth_m": 106}
    listed = {
        "total": 2,
        "items": [{"permit_id": "PER-1", "anglers": 3}, {"permit_id": "PER-2", "anglers": 4}],
    }
    source = {"lake_id": (0, "$.lake_id")}
    steps = [
        Executed(ToolStep(tool="find_lake", arguments={"name": "Vanern"}), found, {"name": None}),
        Executed(ToolStep(tool="list_permits", arguments={"lake_id": "LK-500"}), listed, source),
    ]
    return place, steps


def reply(text, *answer):
    return {"sensible": True, "instruction": text, "answer": [{"step": s, "path": p} for s, p in answer]}


def test_the_answer_is_read_from_the_real_results(chain):
    worded = tasks._worded(*chain, reply("How many permits are there for Vanern?", (2, "$.items.length")))
    assert (worded.answer, worded.pattern, worded.given) == (2, "find>list", ("Vanern",))
    ends = [(2, f"$.items[{n}].permit_id") for n in (0, 1)]
    both = tasks._worded(*chain, reply("First and last permit of Vanern?", *ends))
    assert both.answer == ["PER-1", "PER-2"]
    assert tasks._worded(*chain, {"sensible": False}) is None


@pytest.mark.parametrize(
    ("text", "answer", "message"),
    [
        ("How many permits does the lake have?", [(2, "$.total")], "needs 'Vanern'"),
        ("How many permits does LK-500, Vanern, have?", [(2, "$.total")], "gives away 'LK-500'"),
        ("Call list_permits for Vanern, please.", [(2, "$.total")], "tool name list_permits"),
        ("Is Vanern the one with permit PER-1?", [(2, "$.items[0].permit_id")], "answer"),
        ("How many permits are there for Vanern?", [(3, "$.total")], "there is no step 3"),
        ("How many permits are there for Vanern?", [(2, "$.items[7].anglers")], "nothing stands at"),
        ("How many permits are there for Vanern?", [(2, "$.items")], "scalar"),
        ("How many permits are there for Vanern?", [(2, "$..total")], "can't be read"),
    ],
)
def test_wordings_that_are_refused(chain, text, answer, message):
    with pytest.raises(Mend, match=message):
        tasks._worded(*chain, reply(text, *answer))


def test_a_sentence_is_judged_and_its_values_are_not(chain):
    request = "How many permits are there for Vanern? Also say in a sentence which of them has more anglers."
    statement = "Permit PER-2 has more anglers than permit PER-1."
    worded = tasks._worded(*chain, {**reply(request, (2, "$.total")), "must_state": statement})
    assert worded.answer == [2, statement]
    assert [(c.field, c.how) for c in worded.criteria] == [("answer[0]", "program"), ("answer[1]", "judge")]


@pytest.mark.parametrize(
    ("statement", "message"),
    [("PER-2", "is no sentence"), ("All of them have been closed by now.", "no name and no number")],
)
def test_statements_that_are_refused(chain, statement, message):
    request = "How many permits are there for Vanern? Also say in a sentence what is special."
    with pytest.raises(Mend, match=message):
        tasks._worded(*chain, {**reply(request, (2, "$.total")), "must_state": statement})


@given(st.integers(0, 10**6))
def test_numbers_are_said_in_figures_or_up_to_twelve_in_words(n):
    assert says_value(f"take {n:,} of them", n)
    assert says_value("take three of them", 3)
    assert not says_value("take four of them", n + 5)


# --- the sandbox ----------------------------------------------------------------------------------


def test_model_written_code_is_shut_off():
    assert "FileNotFoundError" in (run_python("open('/etc/passwd')").error or "")
    assert "Operation not permitted" in (run_python("import socket\nsocket.socket()").error or "")
    code = "print(len(files['a b']))\nresult = number + 1"
    ran = run_python(code, files={"a b": "xyz"}, given={"number": 4})
    assert (ran.printed, ran.result, ran.error) == ("3\n", 5, None)
    assert (run_python("x = 1\ny = x / 0").error or "").endswith("(line 2)")
