"""Every role through LiteLLM and real HTTP, from a theme to the diagnosis.

theme -> database -> complexified -> tools -> tasks of both routes -> filter -> diagnosis. The endpoint
misbehaves on the way (busy, broken, slow, malformed, cut off, declining, wrong code, an invented row, a weak
verifier, an invented quote); what comes out has passed the same gates as anybody's work.
"""

import json
import zlib

import scripted_llm as scripted
from lake_diagnosis import GUIDE, WHY
from lake_world import FALSE_ROW, LAKES, THEME

from synth.admission import check_bundle
from synth.author import make_author
from synth.complexify import complexify, coverage, depth, gaps
from synth.mining import mine
from synth.tools import make_environment


def test_every_fault_was_met_and_survived(run):
    met = set(run.server.faults)
    assert met >= {"busy", "broken", "slow", "malformed", "cut off", "declines"}, run.server.faults


def test_every_cell_of_the_mined_database_is_traced_to_a_file(run):
    lines = (run.folder / "llm/traces/lake_permits.jsonl").read_text().splitlines()
    traces = [json.loads(line) for line in lines]
    assert len(traces) == sum(len(rows) for rows in run.mined.rows.values()) == 16
    source = LAKES.splitlines()[1:]
    for trace in traces:
        if trace["table"] != "lakes":
            continue
        record = next(r for r in run.mined.records("lakes") if r["lake_id"] == trace["key"])
        cells = source[int(trace["where"].removeprefix("record ")) - 1].split(",")
        assert [record["name"], record["country"], record["kind"]] == cells[:3]
        assert [record["depth_m"], record["area_km2"]] == [float(c) for c in cells[3:]]


def test_the_planted_false_row_was_refused(run):
    with run.author.llm.store._open() as db:
        requests = [zlib.decompress(r).decode() for (r,) in db.execute("SELECT request FROM exchanges")]
    told = [r for r in requests if "lakes refused: 1 of 2 rows not found" in r]
    assert told
    assert "depth_m 231" in told[0]
    assert FALSE_ROW[3] not in [r["depth_m"] for r in run.mined.records("lakes")]


def test_provenance_names_license_hash_and_origin_of_each_source(run):
    by_table = {p.target: p for p in run.mined.provenance}
    assert by_table["lakes"].license == "CC0-1.0"
    assert by_table["lakes"].origin == "https://lakes.example/lakes.csv"
    assert by_table["countries"].retrieved == "2026-11-03"
    assert {p.origin for p in run.db.provenance} >= {"derived", "simulated"}


def test_complexification_closes_measured_gaps_and_says_so(run):
    assert len(gaps(run.mined)) == 3
    assert gaps(run.db) == []
    assert coverage(run.db) == 1.0
    assert depth(run.db) >= 2
    assert run.db.rounds == 1  # the second round found nothing lacking, and asked nothing
    assert "gaps 3 -> 0" in run.db.log[-1]


def test_wrong_tool_code_is_mended_and_a_hopeless_tool_kept_apart(run):
    assert {t.name for t in run.env.tools} == {
        "find_lake",
        "list_permits",
        "count_lakes",
        "book_permit",
        "withdraw_permit",
    }
    assert set(run.report.tools.values()) == {1.0}
    (aside,) = map(json.loads, (run.folder / "llm/set_aside/lake_permits.jsonl").read_text().splitlines())
    assert (aside["tool"]["name"], aside["rate"]) == ("mean_depth", 0.0)


def test_the_bundle_passes_every_gate_and_names_model_and_prompts(run):
    report = check_bundle(run.folder / "bundle", run.sound)
    assert report.faults == ()
    generator = run.bundle.manifest.generator
    assert generator["model"] == "scripted-8b"
    assert set(generator["prompts"]) >= {"mine", "enrich", "tool_design", "tool_code", "word_chain"}


def test_tasks_of_both_routes_pass_gates_and_filter(run):
    assert len(run.graph) == 4
    assert len(run.programs) == 3
    assert {t.route for t in run.sound} == {"graph", "program"}
    assert {s.task.id for s in run.solved} == {t.id for t in run.sound}
    for solved in run.solved:  # of five tries one answers wrongly and one gives up
        assert solved.task.solve_rate == 0.6
        assert solved.task.solver == "llm:scripted-8b"
        assert all(attempt.calls == solved.task.chain for attempt in solved.passing)


def test_the_diagnosis_is_read_from_the_episodes_and_holds(run):
    (weak,) = run.diagnosis.weaknesses
    counted = run.diagnose(make_author("offline"))
    assert counted.author == "offline"
    assert run.diagnosis.author == "llm:scripted-8b"
    assert (weak.pass_rate, weak.error_kinds) == (0.6, counted.weaknesses[0].error_kinds), (
        "counts stay counts"
    )
    assert weak.why == WHY
    (guide,) = weak.guides
    assert guide.text == GUIDE
    assert guide.id == f"lake_permits.{next(k for k in weak.error_kinds if guide.id.endswith(k))}"
    name = weak.evidence[0].split(":")[0]
    assert any(f"{e.task_id}#{e.sample}" == name and e.verdict.passed is False for e in run.episodes)


def test_invented_quotes_values_and_kinds_are_told_back_to_the_diagnostician(run):
    with run.author.llm.store._open() as db:
        packed = db.execute("SELECT request FROM exchanges WHERE stage = 'diagnosis'").fetchall()
    longest = max((zlib.decompress(r).decode() for (r,) in packed), key=len)
    assert "does not stand in" in longest
    assert "is a value of a measured task" in longest
    assert "not counted there" in longest
    assert "steps must be 1 to" in longest


def test_no_two_tasks_ask_the_same(run):
    assert len({json.dumps([c.model_dump() for c in t.chain]) for t in run.graph}) == len(run.graph)


def test_the_ledger_adds_up_to_what_the_endpoint_answered(run):
    lines = run.author.llm.store.ledger()
    assert sum(line.exchanges for line in lines) == run.server.paid.total()
    assert sum(line.tokens_in for line in lines) == 100 * run.server.paid.total()
    assert {line.stage for line in lines} == {
        *("mine", "complexify", "tools", "tasks", "filter", "diagnosis")
    }
    assert max(run.server.paid.values()) == 1


def test_a_second_run_pays_nothing_and_makes_the_same(run, tmp_path):
    before = run.server.paid.total()
    author = make_author("llm", run.settings)
    assert mine(THEME, 0, author) == run.mined
    assert complexify(run.mined, THEME, author, 0) == run.db
    assert make_environment(run.db, THEME, author, 0).tools == run.env.tools
    assert run.diagnose(author) == run.diagnosis
    assert run.server.paid.total() == before


def test_the_key_is_in_no_file(run):
    for path in run.folder.rglob("*"):
        if path.is_file():
            assert scripted.KEY.encode() not in path.read_bytes(), path
