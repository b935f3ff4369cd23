"""Published environments become bundles, with a report of what was kept, changed and refused, and why.

The layouts are those of the releases; every line of content is made up here.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from synth_sandbox import bubblewrap_works

from synth.admission import check_bundle, check_task
from synth.env.bundle import check_hashes, read_bundle
from synth.env.mcp_client import McpEnvServer
from synth.env.verifier import VerifierServer
from synth.errors import CallerError
from synth.importers import authors, bfcl, envscaler
from synth.importers.base import publish
from synth.types import ToolCase, ToolStep

pytestmark = pytest.mark.skipif(not bubblewrap_works(), reason="imported sources run in bubblewrap")

LOAD = """
import json, os
def rows(name):
    with open(os.path.join(os.environ["MCP_DB_DIR"], name)) as f:
        return json.load(f)
"""
FIND = (
    LOAD
    + """
def find_boats(harbour):
    return {"boats": [b for b in rows("boats.json") if b["harbour"] == harbour]}
"""
)
SAIL = (
    LOAD
    + """
import uuid, datetime
def move_boat(boat_id, harbour):
    boats = rows("boats.json")
    for boat in boats:
        if boat["id"] == boat_id:
            boat["harbour"] = harbour
            boat["moved"] = datetime.datetime.now().isoformat()
            boat["ticket"] = uuid.uuid4().hex
            with open(os.path.join(os.environ["MCP_DB_DIR"], "boats.json"), "w") as f:
                json.dump(boats, f)
            return {"moved": boat_id, "ticket": boat["ticket"]}
    return {"error": {"code": "not_found", "message": "no boat " + boat_id}}
"""
)
UNSTEADY = "import time\ndef weather(): return {'ns': time.monotonic_ns()}"
NOT_PYTHON = "def broken(: pass"
SPY = "def spy(): return {'host': open('/etc/hostname').read()}"
HARBOUR = {"type": "object", "properties": {"harbour": {"type": "string"}}, "required": ["harbour"]}
MOVE = {
    "type": "object",
    "properties": {"boat_id": {"type": "string"}, "harbour": {"type": "string"}},
    "required": ["boat_id", "harbour"],
}
BOATS = [
    {"id": "b-1", "name": "Heron", "harbour": "Ghent", "length": 9.5},
    {"id": "b-2", "name": "Tern", "harbour": "Oslo", "length": 7},
]
IN_OSLO = [{"tool": "find_boats", "args": {"harbour": "Oslo"}}]
TO_OSLO = [{"tool": "move_boat", "args": {"boat_id": "b-1", "harbour": "Oslo"}}]


def question(task, answer, chain, criteria=()):
    rubric = {"success_criteria": list(criteria), "verified_tool_chain": chain}
    return {"task": task, "reference_answer": answer, "grading_rubric": rubric}


QUESTIONS = [
    question("Which boat lies in Oslo, and how long is it?", '{"boat": "Tern", "metres": 7}', IN_OSLO),
    question("Bring the Heron from Ghent to Oslo.", {"r": {"moved": "b-1"}}, TO_OSLO, ["step 1 returns b-1"]),
    question("Which boat lies in Oslo now?", '{"boat": "Te', IN_OSLO),
    question("Whose is the boat in Oslo?", {"owner": None}, IN_OSLO),
    question("Which ticket has the boat in Oslo?", "f3a9c1", IN_OSLO),
    question(
        "Bring the boat b-9 home.", "b-9", [{"tool": "move_boat", "args": {"boat_id": "b-9", "harbour": "X"}}]
    ),
    question("How is the weather?", "fine", [{"tool": "weather", "args": {}}]),
    question("Call find_boats for Oslo and name the boat.", "Tern", IN_OSLO),
    question("Sail away.", "gone", []),
    {"no": "task"},
]


def schema(name, parameters, source):
    return {"name": name, "description": f"{name}.", "parameters": parameters, "implementation": source}


def release(folder: Path) -> Path:
    """A made-up environment in the authors' layout."""
    (folder / "harbours").mkdir(parents=True)
    (folder / "harbours" / "boats.json").write_text(json.dumps(BOATS))
    tools = [
        schema("find_boats", HARBOUR, FIND),
        schema("move_boat", MOVE, SAIL),
        schema("weather", {}, UNSTEADY),
        schema("broken", {}, NOT_PYTHON),
        schema("spy", {}, SPY),
        {"name": "bare"},
    ]
    checkpoint = {"data": {"ToolDesignAgent": {"tool_schemas": tools}}}
    (folder / "checkpoint.json").write_text(json.dumps(checkpoint))
    (folder / "questions.json").write_text(json.dumps({"tasks": QUESTIONS}))
    return folder


@pytest.fixture(scope="module")
def harbours(tmp_path_factory):
    root = tmp_path_factory.mktemp("authors")
    (source,) = authors.read_all(release(root / "release"))
    return root / "b", publish(source, root / "b")


def test_the_authors_tools_are_kept_when_they_work_the_same_twice(harbours):
    done = harbours[1]
    tools = done.to_json()["tools_by_name"]
    assert {name: row["kept"] for name, row in tools.items()} == {
        "find_boats": True, "move_boat": True, "weather": False, "spy": False, "broken": False, "bare": False,
    }  # fmt: skip
    assert (tools["find_boats"]["effect"], tools["move_boat"]["effect"]) == ("read", "write")
    assert "unsteady" in tools["weather"]["why"]
    assert "SyntaxError" in tools["broken"]["why"]
    assert "implementation" in tools["bare"]["why"]
    assert "No such file" in tools["spy"]["why"]


def test_each_of_the_authors_tasks_is_kept_changed_or_refused_with_a_reason(harbours):
    rows = harbours[1].rows
    assert [row.outcome for row in rows] == ["kept", "changed", *["refused"] * 8]
    reasons = [
        "rubric lines in prose dropped", "cut in the middle", "is empty", "do not return its answer",
        "not_found", "needs the tool weather", "leak", "no calls that solve it", "cannot be read",
    ]  # fmt: skip
    for row, reason in zip(rows[1:], reasons, strict=True):
        assert reason in row.why, row


def test_clock_and_ids_of_imported_sources_stand_still(harbours):
    with McpEnvServer(harbours[0] / "harbours") as server:
        moves = []
        for seed in (5, 5, 6):
            with server.open(seed) as episode:
                moves.append(episode.call("move_boat", {"boat_id": "b-1", "harbour": "Oslo"}).value["ticket"])
                assert b"2026-01-05T09:00:00" in episode.snapshot().tables
    assert moves[0] == moves[1] != moves[2]


def test_an_error_in_the_authors_shape_is_a_refusal_with_its_code(harbours):
    with McpEnvServer(harbours[0] / "harbours") as server, server.open(0) as episode:
        result = episode.call("move_boat", {"boat_id": "b-9", "harbour": "Oslo"})
    assert (result.error_code, result.fault) == ("not_found", "caller")


def test_an_imported_bundle_is_whole_and_moves_with_its_sources(harbours, tmp_path):
    here, there = harbours[0] / "harbours", tmp_path / "elsewhere"
    assert check_hashes(here) == []
    here.rename(there)
    try:
        with McpEnvServer(there) as server:
            for task in harbours[1].tasks:
                assert check_task(server, server.bundle, task, None) == []
    finally:
        there.rename(here)


def test_a_folder_in_no_layout_is_told_in_one_line(tmp_path):
    with pytest.raises(CallerError, match="no checkpoint there"):
        authors.read_all(tmp_path)
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(CallerError, match="not JSON"):
        authors.read_all(tmp_path)


def test_a_whole_release_is_read_each_with_its_own_database_and_questions(tmp_path):
    root = tmp_path / "environment_mix"
    for name, boat in (("0001", "Heron"), ("0001000", "Tern")):
        made = release(tmp_path / name)
        shutil.move(made / "harbours", root / name)
        (root / name / "boats.json").write_text(json.dumps([{"id": "b-1", "name": boat}]))
        shutil.move(made / "checkpoint.json", root / f"{name}_step4_checkpoint.json")
    (root / "questions").mkdir()
    (root / "questions" / "0001000.json").write_text(json.dumps({"tasks": QUESTIONS}))
    found = {source.env_id: source for source in authors.read_all(root)}
    assert {name: len(source.tasks) for name, source in found.items()} == {"0001": 0, "0001000": 10}
    assert b"Heron" in found["0001"].state["boats.json"]
    assert b"Tern" in found["0001000"].state["boats.json"]
    (one,) = authors.read_all(root / "0001000")
    assert (one.env_id, one.state) == ("0001000", found["0001000"].state)


# --- EnvScaler ------------------------------------------------------------------------------------

CLINIC = """
class Clinic:
    def __init__(self, config):
        self.visits = {}
        self.log = []
    def book(self, name, day):
        if day in self.visits:
            return {"success": False, "error": "that day is taken"}
        self.visits[day] = name
        return {"success": True}
    def who(self, day):
        return {"success": True, "data": self.visits.get(day)}
"""
DAY = {"day": {"type": "string"}}
CLINIC_TOOLS = [
    {"name": "book", "description": "Book.", "parameters": {
        "type": "object", "properties": {"name": {"type": "string"}, **DAY}, "required": ["name", "day"]}},
    {"type": "function", "function": {"name": "who", "description": "Who comes.", "parameters": {
        "type": "object", "properties": DAY, "required": ["day"]}}},
]  # fmt: skip
BOOKED = "def check_func(final_state):\n return final_state['visits'].get('Friday') == 'Mei'"
ALONE = "def check_func(final_state):\n return len(final_state['visits']) == len(initial_state['visits']) + 1"


def test_envscaler_scenarios_are_graded_by_their_own_check_functions(tmp_path):
    kinds = [{"env_class_code": CLINIC, "tools": CLINIC_TOOLS, "environment_introduction": "A clinic."}]
    item = {
        "task_id": "t7", "env_id": 0, "env_class_name": "Clinic",
        "init_config": {"visits": {"Monday": "Ada"}}, "task": "Mei wants to come on Friday.",
        "checklist_with_func": [{"check_item": "booked", "check_func": BOOKED}, {"check_func": ALONE}],
    }  # fmt: skip
    (tmp_path / "env.json").write_text(json.dumps(kinds))
    (tmp_path / "tasks.json").write_text(json.dumps([item]))
    calls = {"t7": [{"tool": "book", "args": {"name": "Mei", "day": "Friday"}}]}
    (source,) = envscaler.read(tmp_path / "env.json", tmp_path / "tasks.json", calls=calls)
    done = publish(source, tmp_path / "b")
    assert [row.outcome for row in done.rows] == ["changed"]
    assert done.report is not None
    assert {n: r["effect"] for n, r in done.report.tools.items()} == {"book": "write", "who": "read"}
    (task,) = done.tasks
    with McpEnvServer(tmp_path / "b" / "clinic_0") as server, VerifierServer() as verifiers:
        with server.open(0) as episode:
            assert episode.call("book", {"name": "Mei", "day": "Monday"}).error_message == "that day is taken"
            episode.call("book", {"name": "Mei", "day": "Sunday"})
            final = episode.snapshot()
        assert task.verifier.kind == "program"
        bundle = read_bundle(tmp_path / "b" / "clinic_0")
        verdict = verifiers.run(task.verifier.code, bundle.state, final, "ok", bundle.manifest.tables)
    assert [check.passed for check in verdict.checks] == [True, False, True]


# --- BFCL -----------------------------------------------------------------------------------------

RADIO = '''
class Radio:
    def __init__(self):
        self.station = None
        self._secret = object()
    def _load_scenario(self, scenario, long_context=False):
        self.station = scenario["station"]
        self.volume = scenario.get("volume", 3)
    def tune(self, station):
        """Tune."""
        self.station = station
        return {"station": station}
    def louder(self, by):
        self.volume += by
        return {"volume": self.volume}
'''


def test_bfcl_entries_become_environments_with_their_gold_calls(tmp_path):
    docs = [
        {"name": "tune", "description": "Tune.", "parameters": {
            "type": "dict", "properties": {"station": {"type": "string"}}, "required": ["station"]}},
        {"name": "louder", "description": "Louder.", "parameters": {
            "type": "dict", "properties": {"by": {"type": "float"}}, "required": ["by"]}},
    ]  # fmt: skip
    entries = [
        {"id": "m_0", "initial_config": {"Radio": {"station": "Jazz FM"}},
         "question": [[{"content": "Put on Klara."}], [{"content": "Louder by 2."}]]},
        {"id": "m_1", "initial_config": {"Radio": {}, "Other": {}}, "question": []},
    ]  # fmt: skip
    gold = [{"id": "m_0", "ground_truth": [["tune(station='Klara')"], ["louder(by=2)"]]}]
    (tmp_path / "radio.py").write_text(RADIO)
    for name, lines in (("docs", docs), ("entries", entries), ("gold", gold)):
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    paths = [tmp_path / name for name in ("radio.py", "docs", "entries", "gold")]
    (source,) = bfcl.read(*paths, "Radio")
    done = publish(source, tmp_path / "b")
    assert [row.outcome for row in done.rows] == ["changed"]
    (task,) = done.tasks
    assert [step.tool for step in task.chain] == ["tune", "louder"]
    assert "never for training" in read_bundle(tmp_path / "b" / "m_0").manifest.theme.description
    with McpEnvServer(tmp_path / "b" / "m_0") as server, server.open(0) as episode:
        episode.call("louder", {"by": 2.5})
        mirror = json.loads(episode.snapshot().files["object.json"])
    assert mirror == {"_secret": mirror["_secret"], "station": "Jazz FM", "volume": 5.5}
    assert "0x" not in mirror["_secret"]  # no addresses: they differ from run to run


def test_code_in_place_of_a_gold_call_is_data_that_cannot_be_read(tmp_path):
    task = bfcl._task({"id": "x"}, [["__import__('os').system('true')"]], [])
    assert "cannot be read" in (task.fault or "")


def test_gold_calls_may_give_values_by_place():
    tools = [{"name": "mv", "inputSchema": {"properties": {"source": {}, "destination": {}}}}]
    task = bfcl._task({"id": "x"}, [["mv('a', destination='b')"], ["mv('a', 'c')"]], tools)
    assert [call["args"] for call in task.calls] == [
        {"source": "a", "destination": "b"}, {"source": "a", "destination": "c"},
    ]  # fmt: skip
    assert "more values" in (bfcl._task({"id": "x"}, [["mv(1, 2, 3)"]], tools).fault or "")


def test_files_beside_a_class_come_along_under_the_names_by_which_it_imports_them(tmp_path):
    (tmp_path / "radio.py").write_text("from their.package.wave import LENGTH\n" + RADIO)
    (tmp_path / "wave.py").write_text("import math\nfrom their.package import band\nLENGTH = band.WIDTH")
    (tmp_path / "band.py").write_text("WIDTH = 3")
    for name in ("docs", "gold"):
        (tmp_path / name).write_text("")
    (tmp_path / "entries").write_text(json.dumps({"id": "m_0", "initial_config": {"Radio": {}}}))
    (source,) = bfcl.read(*(tmp_path / name for name in ("radio.py", "docs", "entries", "gold")), "Radio")
    assert set(source.code) == {"radio.py", "their/package/wave.py"}  # "their.package" is no file beside it


def test_a_source_that_cannot_be_loaded_is_refused_and_the_others_go_on(tmp_path):
    (tmp_path / "radio.py").write_text("import a_package_that_is_not_here\n" + RADIO)
    docs = {"name": "tune", "description": "Tune.", "parameters": {"type": "dict", "properties": {}}}
    (tmp_path / "docs").write_text(json.dumps(docs))
    (tmp_path / "gold").write_text("")
    (tmp_path / "entries").write_text(json.dumps({"id": "m_0", "initial_config": {"Radio": {}}}))
    (source,) = bfcl.read(*(tmp_path / name for name in ("radio.py", "docs", "entries", "gold")), "Radio")
    done = publish(source, tmp_path / "b")
    assert "No module named 'a_package_that_is_not_here'" in (done.error or "")
    assert [row.why for row in done.rows] == ["its environment was refused"]
    assert not (tmp_path / "b" / "m_0").exists()


SAFE = """
class Safe:
    def _load_scenario(self, scenario, long_context=False):
        self.code, self.open, self.held = scenario["code"], False, []
    def unlock(self, code):
        self.open = code == self.code
        return {"open": True} if self.open else {"error": "wrong code"}
    def put(self, thing):
        if not self.open:
            return {"error": "it is locked"}
        self.held.append(thing)
        return {"held": len(self.held)}
"""


def test_a_tool_that_works_only_after_another_is_proven_by_the_published_calls(tmp_path):
    docs = [{"name": name, "description": f"{name.title()}.", "parameters": {
        "type": "dict", "properties": {key: {"type": "string"}}, "required": [key]}}
        for name, key in (("unlock", "code"), ("put", "thing"))]  # fmt: skip
    entry = {"id": "safe", "initial_config": {"Safe": {"code": "7x"}},
             "question": [[{"content": "Open the safe with 7x and put the ring in."}]]}  # fmt: skip
    gold = {"id": "safe", "ground_truth": [["unlock(code='7x')", "put(thing='ring')"]]}
    (tmp_path / "safe.py").write_text(SAFE)
    for name, lines in (("docs", docs), ("entries", [entry]), ("gold", [gold])):
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    paths = [tmp_path / name for name in ("safe.py", "docs", "entries", "gold")]
    (source,) = bfcl.read(*paths, "Safe")
    done = publish(source, tmp_path / "b")
    assert done.report is not None
    assert {n: (r["kept"], r["effect"]) for n, r in done.report.tools.items()} == {
        "unlock": (True, "write"), "put": (True, "write"),
    }  # fmt: skip
    bundle = read_bundle(tmp_path / "b" / "safe")
    (case,) = [c for t in bundle.tools if t.name == "put" for c in t.cases if c.error is None]
    assert [step.tool for step in case.before] == ["unlock"]
    assert (case.expect, case.changes) == ({"held": 1}, {"(files)": 1})
    assert [row.outcome for row in done.rows] == ["changed"]
    report = check_bundle(tmp_path / "b" / "safe", done.tasks)
    assert report.failed == 0, report.faults


def test_a_test_without_calls_before_it_is_written_as_ever():
    case = ToolCase(arguments={"x": 1.5}, expect=[float("inf"), "é"], changes={"t": 1})
    assert case.to_json() == (
        '{"schema_version":1,"arguments":{"x":1.5},"expect":[Infinity,"é"],"error":null,"changes":{"t":1}}'
    )
    after = case.model_copy(update={"before": (ToolStep(tool="a", arguments={}),)})
    assert ToolCase.from_json(after.to_json()) == after
