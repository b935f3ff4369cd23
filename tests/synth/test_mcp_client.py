"""A real program behind MCP as an environment: fresh every time, and its faults told apart.

The program is ``notes_server.py`` beside this file; ``test_mcp_real.py`` has servers from the registries.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.make import extra_tool, write_library
from synth_sandbox import bubblewrap_works

from synth.env.bundle import check_hashes, read_bundle
from synth.env.folder import pack, read_state, unpack
from synth.env.mcp_client import SEED_FILE, McpEnvServer
from synth.env.mcp_import import import_server
from synth.env.program import Program, locate
from synth.env.sandbox import Limits
from synth.env.serving import open_environment
from synth.env.state import diff, rows
from synth.errors import CallerError, EnvironmentFault, InfrastructureError
from synth.gates import Ledger
from synth.replay import replay
from synth.tool_tests import run_tests
from synth.types import ToolStep

SERVER = str(Path(__file__).with_name("notes_server.py"))
PYTHON = [str(Path(sys.base_prefix) / "bin" / "python3"), "-s", "-B", SERVER, "{state}"]
SEA = {"title": "sea", "text": "salt"}
FULL = {
    "list_notes": [{}],
    "get_note": [{"title": "tea"}, {"title": "none"}],
    "addNote": [SEA],
    "log": [{"line": "one"}],
}


pytestmark = pytest.mark.skipif(not bubblewrap_works(), reason="imported servers need bubblewrap")


def seed_folder(path: Path) -> Path:
    path.mkdir()
    notes = [{"title": "tea", "text": "green"}, {"title": "tax", "text": "due in May"}]
    (path / "notes.jsonl").write_text("".join(json.dumps(n) + "\n" for n in notes))
    db = sqlite3.connect(path / "log.db")
    db.execute("CREATE TABLE log (id INTEGER PRIMARY KEY, line TEXT)")
    db.commit()
    db.close()
    return path


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """The bundle of the notes server, and the report of its import."""
    root = tmp_path_factory.mktemp("import")
    state = seed_folder(root / "notes")
    report = import_server(PYTHON, state, root / "b" / "notes", given=FULL)
    return root / "b" / "notes", report


@pytest.fixture(scope="module")
def server(imported):
    with McpEnvServer(imported[0]) as server:
        yield server


@pytest.fixture(scope="module")
def bad(imported, tmp_path_factory):
    """The same server with its bad tools, which no import would keep."""
    outside = tmp_path_factory.mktemp("outside")
    bundle = read_bundle(imported[0])
    program = Program.from_json(bundle.manifest.generator["mcp_server"], bundle.path)
    program = replace(program, env={"BAD": "1", "OUTSIDE": str(outside)})
    names = ("die", "hang", "flood", "escape", "links", "refuse")
    takes = {"echo": {"value": {}}, "odd": {"kind": {"type": "string"}}} | {name: {} for name in names}
    tools = [*bundle.tools, *(extra_tool(name, "", given, read_only=False) for name, given in takes.items())]
    seed = (bundle.path / SEED_FILE).read_bytes()
    limits = Limits(wall_s=5.0, output_bytes=100_000)
    with McpEnvServer.over(replace(bundle, tools=tools), program, seed, limits=limits) as server:
        yield server


@pytest.fixture(scope="module")
def server_of_odd(bad):
    """One episode for many calls that change nothing."""
    with bad.open(0) as episode:
        yield episode


# --- what the import finds out ---------------------------------------------------------------------


def test_effects_are_seen_from_outside_whatever_a_tool_claims(imported):
    tools = imported[1].tools
    effects = {name: (row["effect"], row["claimed"]) for name, row in tools.items()}
    assert effects["list_notes"] == ("read", "read")
    assert effects["add_note"] == ("write", "write")
    assert effects["log"] == ("write", "read")
    assert effects["sly"] == ("write", "read")
    assert "says that it only reads" in tools["sly"]["why"]
    assert effects["rewrite"] == ("read", "read")  # other bytes, the same notes


def test_an_unsteady_tool_is_held_still_or_refused(imported):
    report = imported[1]
    assert report.steady
    assert report.tools["moment"]["kept"]  # clock, uuid, random and urandom stand still
    assert not report.tools["count_runs"]["kept"]
    assert "unsteady" in report.tools["count_runs"]["why"]


def test_a_refusal_stays_as_a_test_of_its_tool(imported):
    bundle = read_bundle(imported[0])
    cases = next(tool for tool in bundle.tools if tool.name == "get_note").cases
    assert [(case.arguments["title"], case.error) for case in cases] == [
        ("tea", None),
        ("none", "tool_error"),
    ]


def test_names_become_identifiers_and_calls_find_their_way_back(server):
    tool = server.tools["add_note"]
    assert tool.meta["mcp_name"] == "addNote"
    with server.open(0) as episode:
        assert episode.call("add_note", SEA).value == {"count": 3}


def test_the_bundle_is_whole_and_passes_its_own_tests(imported, server):
    assert check_hashes(imported[0]) == []
    ledger = Ledger()
    rates, failed = run_tests(server.bundle, server.bundle.tools, server, ledger)
    assert (set(rates.values()), failed, ledger.faults) == ({1.0}, [], [])


@pytest.mark.slow
def test_the_same_import_gives_the_same_digest(imported, tmp_path):
    import_server(PYTHON, seed_folder(tmp_path / "n"), tmp_path / "notes", given=FULL)
    digests = {read_bundle(path).manifest.digest for path in (imported[0], tmp_path / "notes")}
    assert len(digests) == 1


# --- an episode --------------------------------------------------------------------------------------


def test_every_episode_starts_from_the_pristine_folder(server):
    for _ in range(2):
        with server.open(0) as episode:
            assert episode.snapshot() == server.bundle.state
            episode.call("add_note", SEA)
            assert episode.digest() != server.bundle.manifest.state_digest


def test_a_change_is_read_as_rows(server):
    with server.open(0) as episode:
        episode.call("add_note", SEA)
        episode.call("log", {"line": "hello"})
        change = diff(server.bundle.state, episode.snapshot())
    assert change["notes.jsonl"]["added"] == [SEA]
    assert change["log"]["added"] == [{"id": 1, "line": "hello"}]


def test_two_episodes_at_once_share_nothing(server):
    with server.open(0) as one, server.open(0) as two:
        one.call("add_note", SEA)
        assert len(rows(one.snapshot(), "notes.jsonl")) == 3
        assert len(rows(two.snapshot(), "notes.jsonl")) == 2
        assert two.call("get_note", {"title": "sea"}).error_code == "tool_error"


def test_a_replay_is_exact_and_seeds_differ(server):
    steps = [ToolStep(tool="add_note", arguments=SEA), ToolStep(tool="moment", arguments={})]
    assert replay(server, steps, 7).same_as(replay(server, steps, 7))
    assert not replay(server, steps, 7).same_as(replay(server, steps, 8))


def test_an_episode_goes_on_from_where_it_was_saved(server):
    with server.open(0) as episode:
        episode.call("add_note", SEA)
        saved, digest = episode.save(), episode.digest()
        episode.call("add_note", {"title": "sun", "text": "warm"})
    with server.open(0, saved) as again:
        assert again.digest() == digest
        assert again.call("get_note", {"title": "sea"}).value == SEA


def test_a_solution_calls_the_tools_from_a_sandbox_of_its_own(server):
    code = """
def solve(call):
    import os
    titles = [note["title"] for note in call("list_notes")["notes"]]
    for title in titles:
        call("log", line=title)
    try:
        call("get_note", title="nothing")
    except ToolError as err:
        return [titles, err.code, os.listdir("/state")]
"""
    with server.open(0) as episode:
        result = episode.run_solution(code)
        assert result.error is None
        assert result.answer == [["tea", "tax"], "tool_error", []]
        assert [step.tool for step in result.calls] == ["list_notes", "log", "log", "get_note"]
        assert [row["line"] for row in rows(episode.snapshot(), "log")] == ["tea", "tax"]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("def solve(call): return 1 / 0", "ZeroDivisionError"),
        ("def solve(call):\n while True: pass", "did not end"),
        ("import os\ndef solve(call): os._exit(1)", "broke the protocol"),
        ("def solve(call): return call('nope')", "unknown_tool"),
        ("def solve(call): return [call('list_notes') for _ in range(9)]", "more than 4 calls"),
    ],
)
def test_a_solution_that_fails_says_how(bad, code, error):
    with bad.open(0) as episode:
        assert error in (episode.run_solution(code, max_calls=4).error or "")


# --- faults -------------------------------------------------------------------------------------------


def test_bad_arguments_never_reach_the_program(server):
    with server.open(0) as episode:
        assert episode.call("nope", {}).error_code == "unknown_tool"
        wrong = episode.call("add_note", {"title": 7, "text": "x"})
    assert (wrong.error_code, wrong.fault) == ("invalid_arguments", "caller")
    assert "title" in (wrong.error_message or "")


def test_a_refusal_in_the_common_shape_keeps_its_code(bad):
    with bad.open(0) as episode:
        refused = episode.call("refuse", {})
    assert (refused.error_code, refused.error_message, refused.fault) == ("not_allowed", "never", "caller")


def test_a_program_that_hangs_is_the_environments_fault(bad):
    with bad.open(0) as episode:
        assert (episode.call("hang", {}).error_code, episode.dead) != (None, None)
        with pytest.raises(InfrastructureError):
            episode.snapshot()


def test_a_program_that_dies_is_no_answer(bad):
    with bad.open(0) as episode, pytest.raises(InfrastructureError):
        episode.call("die", {})


def test_a_very_long_text_is_cut_and_says_so(bad):
    with bad.open(0) as episode:
        value = episode.call("flood", {}).value
    assert value.endswith("[cut: the result has 3000000 characters, shown are the first 100000]")


@pytest.mark.parametrize(
    "value",
    ["Ünïcödé 漢字 \u202e\U0001f40d\x00", None, 10**30, -0.0, 1e308, {"a": [{"b": None}]}, [[[[[]]]]], ""],
)
def test_odd_values_survive_the_trip_to_a_program_and_back(server_of_odd, value):
    got = server_of_odd.call("echo", {"value": value})
    assert (got.value, got.error_code) == ({"value": value}, None)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("nan"), "not JSON compliant"),
        pytest.param(10**5000, "not JSON", id="5001 digits"),
        ("\ud800", "half of a surrogate pair"),
        ({"\ud800": 1}, "half of a surrogate pair"),
    ],
)
def test_what_json_cannot_say_is_the_callers_fault_and_never_reaches_the_program(server_of_odd, value, why):
    got = server_of_odd.call("echo", {"value": value})
    assert (got.error_code, got.fault) == ("invalid_arguments", "caller")
    assert why in got.error_message
    assert server_of_odd.dead is None


@pytest.mark.parametrize(
    ("kind", "seen", "fault"),
    [
        ("nan", "None", "environment"),
        ("deep", "'[[[[", None),
        ("digits", "'[999", None),
        ("half", "['", None),
    ],
)
def test_results_that_are_hardly_json_stay_text_or_are_the_programs_fault(server_of_odd, kind, seen, fault):
    got = server_of_odd.call("odd", {"kind": kind})
    assert (repr(got.value)[: len(seen)], got.fault) == (seen, fault)
    assert server_of_odd.dead is None


# --- the sandbox --------------------------------------------------------------------------------------


def test_the_program_reaches_nothing_but_its_folder(bad, monkeypatch):
    monkeypatch.setenv("MY_SECRET", "x")
    with bad.open(0) as episode:
        assert episode.call("escape", {}).value == {"found": [], "environment": []}
    assert not (Path(__file__).parent / "escaped").exists()


def test_links_and_pipes_in_the_folder_are_never_followed(bad):
    with bad.open(0) as episode:
        episode.call("links", {})
        files = episode.snapshot().files
    assert files["passwd (link)"] == b"/etc/passwd"
    assert files["empty/(empty folder)"] == b""
    assert not any("root:" in content.decode("latin-1") for content in files.values())
    assert not any(path.startswith("pipe") for path in files)


def test_nothing_is_left_when_episodes_end(server):
    episode = server.open(0)
    folder = episode.folder
    episode.close()
    assert not folder.exists()
    assert not server._open


def test_another_sandbox_is_refused(imported):
    class Other:
        name, isolated = "landlock", True

    with pytest.raises(CallerError, match="bubblewrap only"):
        McpEnvServer(imported[0], provider=Other())  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["/", "/home", "~"])
def test_a_bind_that_shows_too_much_is_refused(tmp_path, path):
    with pytest.raises(CallerError, match="too much to show"):
        locate(["python3"], tmp_path, [str(Path(path).expanduser())], {})


# --- the callers mistakes -----------------------------------------------------------------------------


def test_either_kind_of_bundle_is_opened_by_one_function(imported, tmp_path):
    with open_environment(imported[0]) as one, open_environment(write_library(tmp_path)) as other:
        for environment in (one, other):
            with environment.open(0) as episode:
                assert episode.digest() == environment.bundle.manifest.state_digest


def test_mistakes_are_told_in_one_line(tmp_path):
    state = seed_folder(tmp_path / "notes")
    with pytest.raises(CallerError, match="no such command"):
        import_server(["no-such-server"], state, tmp_path / "b")
    with pytest.raises(CallerError, match="no such folder"):
        import_server(PYTHON, tmp_path / "none", tmp_path / "b")
    with pytest.raises(CallerError, match="no such tool of notes 1"):
        import_server(PYTHON, state, tmp_path / "b", given={"nope": [{}]})
    with pytest.raises(InfrastructureError, match="does not start"):
        import_server(["false"], state, tmp_path / "b")
    with pytest.raises(EnvironmentFault, match="give calls with --probes"):
        import_server(PYTHON, state, tmp_path / "b", given={n: [] for n in TOOLS})


TOOLS = ["list_notes", "get_note", "addNote", "rewrite", "log", "sly", "moment", "count_runs"]


# --- the lens -----------------------------------------------------------------------------------------


def test_two_folders_that_say_the_same_are_the_same_state(tmp_path):
    program, limits = Program((PYTHON[0],)), Limits()
    states = []
    for name, text in (("a", '{"b": 1, "a": [2]}'), ("b", '{\n "a": [2],\n "b": 1}\n')):
        folder = tmp_path / name
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "x.json").write_text(text)
        (folder / "y.json").write_text("{not json")
        states.append(read_state(program, folder, limits))
    assert states[0] == states[1]
    assert states[0].files == {"deep/x.json": b'{"a":[2],"b":1}', "y.json": b"{not json"}


def test_packing_depends_on_contents_only(tmp_path):
    first = seed_folder(tmp_path / "one")
    archive = pack(first, 1 << 20)
    (tmp_path / "two").mkdir()
    unpack(archive, tmp_path / "two")
    assert pack(tmp_path / "two", 1 << 20) == archive
    with pytest.raises(InfrastructureError, match="more than"):
        pack(first, 100)
