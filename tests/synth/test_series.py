"""Episodes that share a process begin as fresh ones do; what a reset can't reach is found by comparing."""

from __future__ import annotations

import random

import library as lending
import pytest
from fixtures.make import extra_tool, library, with_tools, write_library, write_parking

from synth.admission import validate_environment
from synth.env.bundle import write_bundle
from synth.env.episode import EnvServer, VerifierServer
from synth.env.series import MOST, in_series
from synth.env.zygote import Zygote
from synth.errors import EnvironmentFault, InfrastructureError
from synth.solver import ScriptedSolver, filter_solvable
from synth.types import ToolCase
from synth.verify import verify, verify_all

CODE = {
    "moment": "def moment(ctx): return [ctx.now(), ctx.new_id('X'), ctx.rng.random()]",
    "spoil": """
        seen = []
        def spoil(ctx):
            seen.append(1)
            ctx.db.execute("DELETE FROM loan")
            ctx.files["note"] = b"x"
            ctx.db.row_factory = None
            ctx.db.set_authorizer(None)
            return len(seen)
    """,
    "look": """
        def look(ctx):
            row = ctx.db.execute("SELECT count(*) AS n FROM loan").fetchone()
            try:
                ctx.db.execute("CREATE TABLE more (x)")
            except Exception as err:
                return [type(row).__name__, row["n"], len(ctx.files), str(err)]
    """,
    "vanish": "import os\ndef vanish(ctx): os._exit(1)",
}


@pytest.fixture
def server(tmp_path):
    extra = [extra_tool(name, code, {}, read_only=False) for name, code in CODE.items()]
    write_bundle(with_tools(library(), *extra), tmp_path / "odd")
    with EnvServer(tmp_path / "odd") as server:
        yield server


@pytest.fixture
def forks(monkeypatch):
    """How many processes were forked, counted from now on."""
    made: list[int] = []
    fork = Zygote.fork

    def counted(self):
        made.append(1)
        return fork(self)

    monkeypatch.setattr(Zygote, "fork", counted)
    return made


def outcome(server, steps, seed):
    """All that an episode shows: results, state, digest."""
    with server.open(seed) as episode:
        results = [episode.call(name, arguments).to_json() for name, arguments in steps]
        return results, episode.snapshot(), episode.digest()


@pytest.mark.parametrize("write", [write_library, write_parking])
def test_whatever_came_before_an_episode_is_as_a_fresh_one(tmp_path, write, forks):
    """Every case of the fixtures, thrice in random order and with several seeds."""
    with EnvServer(write(tmp_path)) as server:
        cases = [
            [*((s.tool, s.arguments) for s in case.before), (tool.name, case.arguments)]
            for tool in server.bundle.tools
            for case in tool.cases
        ]
        fresh = {(n, seed): outcome(server, cases[n], seed) for n in range(len(cases)) for seed in (0, 5)}
        del forks[:]
        order = list(fresh) * 3
        random.Random(1).shuffle(order)
        for n, seed in order:
            assert outcome(in_series(server), cases[n], seed) == fresh[n, seed]
        assert len(forks) == -(-len(order) // MOST)


def test_clock_ids_chance_globals_files_and_connection_begin_anew(server):
    steps = [("moment", {}), ("spoil", {}), ("moment", {})]
    fresh = outcome(server, steps, seed=3)
    pristine = outcome(server, [("look", {})], seed=3)
    assert "not authorized" in pristine[0][0]
    for _ in range(3):
        assert outcome(in_series(server), steps, seed=3) == fresh
        assert outcome(in_series(server), [("look", {})], seed=3) == pristine


def test_a_process_that_died_or_was_left_by_an_error_serves_nobody(server, forks):
    series = in_series(server)
    with series.open(0) as episode:
        with pytest.raises(InfrastructureError, match="died"):
            episode.call("vanish", {})
        assert episode.dead
    with pytest.raises(ZeroDivisionError), series.open(0):
        raise ZeroDivisionError
    with series.open(0) as episode:
        assert episode.call("look", {}).ok
    assert len(forks) == 3
    with pytest.raises(InfrastructureError, match="ended"):
        episode.call("look", {})


def test_two_at_once_have_processes_of_their_own_and_one_that_waits_makes_room(tmp_path):
    from synth.env.sandbox import Limits

    with EnvServer(write_library(tmp_path), limits=Limits(processes=2)) as server:
        series = in_series(server)
        with series.open(0) as one, series.open(0) as other:
            one.call("lend_book", {"book_id": "B-2", "member_id": "M-1"})
            assert one.snapshot() != other.snapshot() == server.bundle.state
        with server.open(0), server.open(0):
            pass  # the two may be open although a process of the series was waiting


def test_a_snapshot_says_in_a_word_that_nothing_has_changed(server):
    with server.open(0) as episode:
        episode.call("look", {})
        assert episode.snapshot() is server.bundle.state
        episode.call("spoil", {})
        assert episode.snapshot() != server.bundle.state


# --- who uses it --------------------------------------------------------------------------------


def remembering(cases):
    """A tool that counts its calls where no reset reaches."""
    code = (
        "import math\ndef hoard(ctx):\n    math.calls = getattr(math, 'calls', 0) + 1\n    return math.calls"
    )
    tool = extra_tool("hoard", code, {}, read_only=True)
    return tool.model_copy(update={"cases": cases, "output_schema": {"type": "integer"}})


def test_a_tool_that_remembers_behind_everyones_back_is_not_deterministic(tmp_path):
    cases = (ToolCase(arguments={}, expect=1), ToolCase(arguments={}, expect=2))
    env, report = validate_environment(with_tools(library(), remembering(cases)), tmp_path)
    assert "hoard" in report.dropped
    assert any(f.gate == "determinism" and f.target == "hoard" for f in report.faults)
    assert len(env.tools) == len(library().tools)


def test_the_tests_of_a_tool_need_one_process_and_the_second_runs_one_for_all_tools(tmp_path, forks):
    env, _ = validate_environment(library(), tmp_path)
    assert sum(len(tool.cases) for tool in env.tools) > len(env.tools) + 1
    assert len(forks) == len(env.tools) + 1


def test_an_environment_whose_only_tool_kills_its_process_fails_by_its_tests(tmp_path):
    tool = extra_tool("vanish", CODE["vanish"], {}, read_only=True)
    tool = tool.model_copy(update={"cases": (ToolCase(arguments={}, expect=1),) * 2})
    env = library().model_copy(update={"tools": (tool,), "graph": None})
    with pytest.raises(EnvironmentFault, match="no tool passed its gates"):
        validate_environment(env, tmp_path)


@pytest.fixture(scope="module")
def lib(tmp_path_factory):
    with lending.opened(tmp_path_factory.mktemp("series")) as opened:
        yield opened


def test_attempts_that_are_equal_to_the_letter_are_executed_and_judged_once(lib, monkeypatch):
    judged = []
    run_all = VerifierServer.run_all

    def counted(self, code, initial, outcomes, *more):
        judged.extend(outcomes)
        return run_all(self, code, initial, outcomes, *more)

    monkeypatch.setattr(VerifierServer, "run_all", counted)
    tasks = [lending.program_task(lib.bundle), lending.program_task(lib.bundle, id="other")]
    solver = ScriptedSolver(error_rate=0.0)
    (first, second) = filter_solvable(lib.bundle, lib.server, tasks, solver, lib.verifier)
    assert len(judged) == 2  # one a task
    assert first.task.solve_rate == second.task.solve_rate == 1.0
    assert [attempt.number for attempt in first.passing] == [0, 1, 2, 3, 4]


def test_outcomes_judged_together_get_the_verdicts_that_each_gets_alone(lib, forks):
    task = lending.program_task(lib.bundle)
    with lib.server.open(task.seed) as episode:
        for step in task.chain:
            episode.call(step.tool, step.arguments)
        final = episode.snapshot()
    start, right = lib.bundle.state, task.reference_answer
    outcomes = [
        (start, None),
        (final, right),
        (final, "?"),
        (start, right),
        (final, float("nan")),
        (final, right),
    ]
    alone = [verify(task, lib.bundle, start, state, answer, lib.verifier) for state, answer in outcomes]
    del forks[:]
    assert verify_all(task, lib.bundle, start, outcomes, lib.verifier) == alone
    assert len(forks) == 1
    assert [verdict.passed for verdict in alone] == [False, True, False, False, False, True]


def test_verifier_code_has_fresh_globals_for_each_outcome(lib):
    code = "seen = []\ndef verify(i, f, a):\n    seen.append(a)\n    return [('first', len(seen) == 1, '')]"
    state = lib.bundle.state
    verdicts = lib.verifier.run_all(code, state, [(state, n) for n in range(3)], ())
    assert [verdict.passed for verdict in verdicts] == [True] * 3


def test_a_verifier_whose_process_dies_leaves_all_outcomes_without_a_verdict(lib):
    code = "import os\ndef verify(i, f, a):\n    os._exit(1)"
    state = lib.bundle.state
    verdicts = lib.verifier.run_all(code, state, [(state, 1), (state, 2)], ())
    assert [verdict.reward for verdict in verdicts] == [None, None]
