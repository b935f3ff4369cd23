"""An environment in use: fresh every time, the same every time, and faults are told apart."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from fixtures.make import extra_tool, library, with_tools, write_library, write_parking

from synth.env import sandbox
from synth.env.bundle import read_bundle, write_bundle
from synth.env.episode import EnvServer, VerifierServer, run_verifier
from synth.env.sandbox import Limits, pick_provider
from synth.env.state import diff, normalized_diff, rows
from synth.errors import CallerError, InfrastructureError

CODE = {
    "moment": "def moment(ctx): return [ctx.now(), ctx.now(), ctx.new_id('X'), ctx.rng.random()]",
    "crash": """
        def crash(ctx):
            ctx.db.execute("DELETE FROM member WHERE member_id = 'M-3'")
            ctx.new_id("X")
            ctx.files["junk"] = b"x"
            return 1 / 0
    """,
    "leave": "import sys\ndef leave(ctx): sys.exit(3)",
    "vanish": "import os\ndef vanish(ctx): os._exit(1)",
    "count": """
        total = 0
        def count(ctx):
            global total
            total += 1
            return total
    """,
    "nan": "def nan(ctx): return float('nan')",
    "row": "def row(ctx): return ctx.db.execute('SELECT 1').fetchone()",
    "deep": """
        def deep(ctx):
            value = []
            for _ in range(5000):
                value = [value]
            return value
    """,
    "syntax": "def syntax(ctx: return 1",
    "nameless": "x = 1",
    "files": """
        def files(ctx, *, text=None):
            if text is not None:
                ctx.files["note.md"] = text.encode()
            return ctx.files.get("note.md", b"").decode()
    """,
    "badfiles": "def badfiles(ctx): ctx.files['x'] = 'text'",
    "sql": """
        def sql(ctx, *, statement):
            return [list(row) for row in ctx.db.execute(statement)]
    """,
    "finish": """
        def finish(ctx):
            with ctx.db:
                ctx.db.execute("DELETE FROM member WHERE member_id = 'M-3'")
            ctx.db.commit()
            raise ToolError("no", "after all")
    """,
    "accents": "def accents(ctx): return 'žluťoučký 🚲' + chr(0xD800)",
    "order": "def order(ctx): return list({'a', 'b', 'c', 'd', 'e', 'f', 'g'})",
}


def odd_library():
    parameters = {"text": {"type": "string"}, "statement": {"type": "string"}}
    extra = [extra_tool(name, code, parameters, read_only=False) for name, code in CODE.items()]
    return with_tools(library(), *extra)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("bundles") / "odd"
    write_bundle(odd_library(), path)
    with EnvServer(path) as server:
        yield server


@pytest.fixture
def episode(server):
    with server.open(seed=7) as episode:
        yield episode


def test_every_case_of_the_fixtures_holds_in_a_fresh_episode(tmp_path):
    for path in (write_library(tmp_path), write_parking(tmp_path)):
        with EnvServer(path) as server:
            for tool in server.bundle.tools:
                for case in tool.cases:
                    with server.open(seed=0) as episode:
                        result = episode.call(tool.name, case.arguments)
                        changes = diff(server.bundle.state, episode.snapshot())
                    counts = {name: sum(map(len, c.values())) for name, c in changes.items()}
                    assert (result.error_code, result.value) == (case.error, case.expect), (tool.name, case)
                    assert counts == case.changes


# --- sameness ---------------------------------------------------------------------------------------


def test_an_episode_starts_pristine_and_leaves_the_bundle_alone(server):
    with server.open(seed=1) as one:
        assert one.digest() == server.bundle.manifest.state_digest
        one.call("lend_book", {"book_id": "B-1", "member_id": "M-2"})
        assert one.digest() != server.bundle.manifest.state_digest
        with server.open(seed=1) as other:
            assert other.digest() == server.bundle.manifest.state_digest
    assert read_bundle(server.bundle.path).state == server.bundle.state


def test_python_globals_last_for_one_episode_only(server):
    for _ in range(2):
        with server.open(seed=1) as episode:
            assert [episode.call("count", {}).value for _ in range(3)] == [1, 2, 3]


def test_the_same_seed_and_calls_give_the_same_results_and_digest(server):
    def play(seed):
        with server.open(seed=seed) as episode:
            results = [episode.call("moment", {}).value for _ in range(3)]
            episode.call("lend_book", {"book_id": "B-1", "member_id": "M-2"})
            return results, episode.digest()

    assert play(5) == play(5)
    assert play(5)[0] != play(6)[0]


def test_clock_ids_and_randomness_come_from_the_episode(episode):
    first, second = (episode.call("moment", {}).value for _ in range(2))
    assert first[:3] == ["2026-01-05T09:00:00Z", "2026-01-05T09:00:00Z", "X-9001"]
    assert second[:3] == ["2026-01-05T09:00:01Z", "2026-01-05T09:00:01Z", "X-9002"]
    assert first[3] != second[3]


def test_sets_keep_their_order_between_servers(server):
    with server.open(seed=1) as episode, EnvServer(server.bundle.path) as fresh, fresh.open(seed=1) as other:
        assert episode.call("order", {}).value == other.call("order", {}).value


# --- faults -----------------------------------------------------------------------------------------


def test_a_good_call_gives_the_value_and_its_json(episode):
    result = episode.call("search_books", {"genre": "travel", "limit": 1})
    assert result.value == {"items": [{"book_id": "B-5", "title": "Night Trains"}]}
    assert result.to_json() == '{"items": [{"book_id": "B-5", "title": "Night Trains"}]}'
    assert (result.error_code, result.fault, result.ok) == (None, None, True)
    assert 0 < result.seconds < 5


def test_a_rule_of_the_environment_is_the_callers_fault(episode):
    result = episode.call("get_book", {"book_id": "B-77"})
    assert (result.error_code, result.error_message, result.fault) == ("not_found", "no book B-77", "caller")
    assert json.loads(result.to_json()) == {"error": {"code": "not_found", "message": "no book B-77"}}


@pytest.mark.parametrize(
    ("name", "arguments", "code", "words"),
    [
        ("get_books", {}, "unknown_tool", "get_books"),
        ("get_book", {}, "invalid_arguments", "book_id"),
        ("get_book", {"book_id": 3}, "invalid_arguments", "book_id: 3 is not of type 'string'"),
        ("get_book", {"book_id": "B-1", "x": 1}, "invalid_arguments", "x"),
        ("search_books", {"genre": "travel", "limit": 0}, "invalid_arguments", "limit"),
        ("search_books", {"genre": float("nan")}, "invalid_arguments", "not JSON"),
        ("get_book", ["B-1"], "invalid_arguments", "must be a JSON object"),
        ("get_book", {"book_id": {1}}, "invalid_arguments", "not JSON"),
    ],
)
def test_bad_calls_are_refused_before_any_code_runs(episode, name, arguments, code, words):
    result = episode.call(name, arguments)
    assert (result.error_code, result.fault) == (code, "caller")
    assert words in result.error_message
    assert episode.call("moment", {}).value[0].endswith("09:00:00Z"), "no call has reached a tool"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("crash", "ZeroDivisionError"),
        ("leave", "SystemExit"),
        ("nan", "not JSON compliant"),
        ("row", "not JSON serializable"),
        ("deep", "RecursionError"),
        ("syntax", "SyntaxError"),
        ("nameless", "nameless"),
        ("badfiles", "ctx.files"),
    ],
)
def test_broken_tools_are_the_environments_fault_and_the_episode_goes_on(episode, name, words):
    result = episode.call(name, {})
    assert (result.error_code, result.fault) == ("tool_failed", "environment")
    assert words in result.error_message
    assert episode.call("search_books", {"genre": "travel"}).ok


def test_a_process_that_dies_is_an_infrastructure_error_and_the_server_lives_on(server):
    episode = server.open(seed=1)
    with pytest.raises(InfrastructureError, match="died"):
        episode.call("vanish", {})
    with pytest.raises(InfrastructureError, match="ended"):
        episode.call("search_books", {"genre": "travel"})
    with server.open(seed=1) as other:
        assert other.call("search_books", {"genre": "travel"}).ok


def test_text_beyond_ascii_survives(episode):
    assert episode.call("accents", {}).value == "žluťoučký 🚲\ud800"
    assert episode.call("files", {"text": "čaj 🍵"}).value == "čaj 🍵"


# --- one call, one transaction ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["crash", "finish"])
def test_a_failed_call_leaves_nothing_behind(episode, name):
    before = episode.snapshot()
    assert not episode.call(name, {}).ok
    assert diff(before, episode.snapshot()) == {}
    assert episode.call("moment", {}).value[2] == "X-9001"


def test_a_refused_write_is_rolled_back(episode):
    before = episode.digest()
    assert episode.call("lend_book", {"book_id": "B-3", "member_id": "M-1"}).error_code == "not_available"
    assert episode.digest() == before


DOCUMENTS = {
    "books.xlsx": b"PK\x03\x04\x14\x00\x00\xff\xfe\x00 a workbook is bytes",
    "page.html": "<p>Opening hours: 9\u20135</p>".encode(),
    "rows.csv": b"a;b\r\n1;2\r\n",
    "rules.yaml": b"fine: 1.50\n",
    "sub/rules.md": b"# Rules\n",
    "values.json": b'{"n": null}',
}


def test_documents_of_every_kind_reach_a_tool_and_come_back_byte_for_byte(tmp_path):
    code = """
        def append(ctx, *, name):
            ctx.files[name] = ctx.files[name] + b"\\x00"
            return [len(ctx.files[n]) for n in sorted(ctx.files)]
    """
    tool = extra_tool("append", code, {"name": {}}, read_only=False)
    write_bundle(with_tools(library(), tool), tmp_path / "library", files=DOCUMENTS)
    with EnvServer(tmp_path / "library") as server, server.open(0) as episode:
        assert episode.snapshot().files == DOCUMENTS
        assert episode.call("append", {"name": "books.xlsx"}).ok
        assert episode.snapshot().files == {**DOCUMENTS, "books.xlsx": DOCUMENTS["books.xlsx"] + b"\x00"}
        (line,) = episode.changes().splitlines()
        assert "books.xlsx" in line


def test_files_are_state(episode):
    before = episode.digest()
    assert episode.call("files", {"text": "hello"}).value == "hello"
    assert episode.snapshot().files == {"note.md": b"hello"}
    assert episode.digest() != before


@pytest.mark.parametrize(
    "statement",
    [
        "COMMIT",
        "ROLLBACK",
        "ATTACH '/tmp/x' AS x",
        "CREATE TABLE t (x)",
        "DROP TABLE loan",
        "PRAGMA foreign_keys = OFF",
        "SELECT random()",
        "SELECT CURRENT_TIMESTAMP",
        "SELECT load_extension('x')",
    ],
)
def test_sql_cannot_leave_the_transaction_the_schema_or_the_clock(episode, statement):
    result = episode.call("sql", {"statement": statement})
    assert result.error_code == "tool_failed"
    assert "not authorized" in result.error_message


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("SELECT name FROM pragma_table_info('member')", [["member_id"], ["name"]]),
        ("SELECT value FROM json_each('[1, 2]')", [[1], [2]]),
        (
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION SELECT i + 1 FROM n WHERE i < 3) SELECT i FROM n",
            [[1], [2], [3]],
        ),
        ("SELECT count(*) OVER () FROM member LIMIT 1", [[3]]),
    ],
)
def test_ordinary_sql_works(episode, statement, expected):
    assert episode.call("sql", {"statement": statement}).value == expected


def test_references_are_enforced(episode):
    result = episode.call("sql", {"statement": "INSERT INTO loan VALUES ('a', 'B-404', 'M-1', 't', 'open')"})
    assert "FOREIGN KEY" in result.error_message


# --- solutions --------------------------------------------------------------------------------------

LEND_ALL = """
def solve(call):
    lent = []
    for genre in ("travel", "history"):
        for book in call("search_books", genre=genre)["items"]:
            try:
                lent.append(call("lend_book", book_id=book["book_id"], member_id="M-2")["book_id"])
            except ToolError as err:
                lent.append(err.code)
    return lent
"""


def test_a_solution_calls_tools_and_answers(episode):
    result = episode.run_solution(LEND_ALL)
    assert (result.answer, result.error) == (["B-5", "B-1", "not_available"], None)
    assert [step.tool for step in result.calls] == [
        "search_books",
        *["lend_book"] * 2,
        "search_books",
        "lend_book",
    ]
    assert result.calls[1].arguments == {"book_id": "B-5", "member_id": "M-2"}
    assert len(rows(episode.snapshot(), "loan")) == 4


def test_replaying_the_calls_of_a_solution_gives_the_same_state(server):
    with server.open(seed=3) as one, server.open(seed=3) as other:
        for step in one.run_solution(LEND_ALL).calls:
            other.call(step.tool, step.arguments)
        assert one.digest() == other.digest()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return call('get_book', book=1)", "invalid_arguments"),
        ("return call('nothing')", "unknown_tool"),
        ("return call('crash')", "ToolFault: crash: tool_failed"),
        ("return {1, 2}", "not JSON serializable"),
        ("return [call('count') for _ in range(9)]", "more than 5 calls"),
        ("return 'x' * 2_000_000", "TooLarge"),
        ("return (", "SyntaxError"),
    ],
)
def test_a_solution_that_fails_says_why(episode, body, words):
    result = episode.run_solution(f"def solve(call):\n    {body}", max_calls=5)
    assert result.answer is None
    assert words in result.error
    assert episode.call("search_books", {"genre": "travel"}).ok


def test_an_endless_solution_ends(server):
    with EnvServer(server.bundle.path, limits=Limits(wall_s=0.5)) as hasty, hasty.open(seed=1) as episode:
        result = episode.run_solution("def solve(call):\n    while True: pass")
        assert "did not end within 0.5 s" in result.error


# --- verifiers --------------------------------------------------------------------------------------

VERIFY = """
def verify(initial, final, answer):
    change = initial.diff(final)
    return [
        ("answer", answer == ["B-1"], str(answer)),
        ("one loan", len(change["loan"]["added"]) == 1, ""),
        ("nothing asked", "lookup" not in change),
        ("copies", final.query("SELECT copies FROM book WHERE book_id = ?", "B-1") == [{"copies": 1}]),
        ("members", initial.rows("member") == final.rows("member"), "same"),
    ]
"""


def test_a_verifier_sees_both_states_and_the_answer(server, episode):
    episode.call("get_book", {"book_id": "B-1"})
    episode.call("lend_book", {"book_id": "B-1", "member_id": "M-2"})
    manifest, final = server.bundle.manifest, episode.snapshot()
    arguments = (manifest.tables, manifest.audit_tables)
    with VerifierServer() as verifiers:
        good = verifiers.run(VERIFY, server.bundle.state, final, ["B-1"], *arguments)
        assert [c.name for c in good.checks] == ["answer", "one loan", "nothing asked", "copies", "members"]
        assert (good.passed, good.reward) == (True, 1.0)
        wrong = verifiers.run(VERIFY, server.bundle.state, final, ["B-2"], *arguments)
        assert (wrong.passed, wrong.reward) == (False, 0.0)
        assert [c.name for c in wrong.checks if not c.passed] == ["answer"]
    idle = run_verifier(VERIFY, server.bundle.state, server.bundle.state, ["B-1"], *arguments)
    assert (idle.passed, idle.checks[0].name) == (False, "verifier_raised")


@pytest.mark.parametrize(
    ("body", "answer", "name"),
    [
        ("return []", 1, "verifier_raised"),
        ("return [('x', 'yes', '')]", 1, "verifier_raised"),
        ("return 1 / 0", 1, "verifier_raised"),
        ("return [('x', True, '')]", float("nan"), "answer_is_json"),
        ("return [('x', True, '')]", "\ud800", "answer_is_json"),
    ],
)
def test_neither_a_sloppy_verifier_nor_an_odd_answer_earns_or_voids_a_reward(server, body, answer, name):
    code = f"def verify(initial, final, answer):\n    {body}"
    verdict = run_verifier(code, server.bundle.state, server.bundle.state, answer, ())
    assert (verdict.reward, verdict.checks[0].name) == (0.0, name)


def test_a_verifier_whose_process_dies_gives_no_reward(server):
    code = "import os\ndef verify(initial, final, answer):\n    os._exit(0)"
    verdict = run_verifier(code, server.bundle.state, server.bundle.state, 1, ())
    assert verdict.reward is None
    assert verdict.error


# --- many at once, and the choice of a sandbox ------------------------------------------------------


def test_64_episodes_over_several_servers_from_a_pool_of_threads(tmp_path):
    paths = [write_library(tmp_path), write_parking(tmp_path), write_library(tmp_path / "again")]
    servers = [EnvServer(path) for path in paths]
    calls = {
        "library": ("lend_book", {"book_id": "B-4", "member_id": "M-1"}),
        "parking": ("start_parking", {"garage_id": 3, "plate": "Q-1"}),
    }

    def play(number):
        server = servers[number % 3]
        name, arguments = calls[server.bundle.manifest.env_id]
        with server.open(seed=number % 3) as episode:
            values = [episode.call(name, arguments).value for _ in range(3)]
            change = normalized_diff(
                diff(server.bundle.state, episode.snapshot()), server.bundle.manifest.tables
            )
            return number % 3, json.dumps([values, change])

    with ThreadPoolExecutor(16) as pool:
        outcomes = set(pool.map(play, range(64)))
    for server in servers:
        server.close()
    assert len(outcomes) == 3, "episodes of one environment and seed must not differ"


def test_a_server_refuses_more_episodes_than_it_may_hold_and_a_dead_one_says_so(tmp_path):
    with EnvServer(write_library(tmp_path), limits=Limits(processes=2)) as server:
        held = [server.open(seed=i) for i in range(2)]
        with pytest.raises(InfrastructureError, match="close some"):
            server.open(seed=3)
        held[0].close()
        server.open(seed=3)
        assert server.alive
    assert not server.alive
    with pytest.raises(InfrastructureError):
        held[1].call("search_books", {"genre": "travel"})
    with pytest.raises(InfrastructureError):
        server.open(seed=1)


def test_without_any_sandbox_the_refusal_names_the_mend(monkeypatch):
    monkeypatch.setattr(sandbox, "_why_not", lambda name: "not here")
    with pytest.raises(CallerError, match=r"apt install bubblewrap.*--unsafe-local"):
        pick_provider()
    monkeypatch.setenv("AGENT_WORLD_SANDBOX", "chroot")
    with pytest.raises(CallerError, match="use bwrap, landlock or gvisor"):
        pick_provider()


@pytest.mark.parametrize("name", ["bwrap", "landlock"])
def test_the_sandbox_can_be_chosen_by_name(monkeypatch, name):
    if (reason := sandbox._why_not(name)) is not None:
        pytest.skip(f"{name}: {reason}")
    monkeypatch.setenv("AGENT_WORLD_SANDBOX", name)
    assert pick_provider().name == name


def test_a_sandbox_that_does_not_isolate_is_not_chosen(monkeypatch):
    monkeypatch.setattr(sandbox.Landlock, "locks", sandbox.UnsafeLocal.locks)
    monkeypatch.setattr(sandbox.Bubblewrap, "command", lambda self: ["/bin/false"])
    sandbox._why_not.cache_clear()
    try:
        assert "did not start" in (sandbox._why_not("bwrap") or "not installed: did not start")
        assert "does not isolate" in (sandbox._why_not("landlock") or "")
    finally:
        sandbox._why_not.cache_clear()


def test_no_sandbox_is_said_out_loud(capsys):
    assert not pick_provider(unsafe_local=True).isolated
    assert "no sandbox" in capsys.readouterr().err


def test_a_default_timeout_of_the_process_does_not_reach_the_sandbox():
    """Beam's GCP client sets one; sockets made after it must still wait inside the sandbox."""
    script = (
        "import socket, sys; socket.setdefaulttimeout(60)\n"
        "from synth.env.sandbox import pick_provider\n"
        "print(pick_provider().name)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
