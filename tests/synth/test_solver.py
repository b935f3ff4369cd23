"""The scripted solver really executes; its mistakes are stated, seeded, and judged like anyone's."""

from types import SimpleNamespace

import library
import pytest

from synth.author.online.solver import LLMSolver
from synth.errors import CallerError, EnvironmentFault, InfrastructureError
from synth.replay import perturbed, replay
from synth.solver import Attempt, ScriptedSolver, filter_solvable
from synth.types import Verdict
from synth.verify import canonical, parse_answer, verify


@pytest.fixture(scope="module")
def lib(tmp_path_factory):
    with library.opened(tmp_path_factory.mktemp("solver")) as opened:
        yield opened


def tasks_of(lib):
    return [make(lib.bundle) for make in (library.read_task, library.write_task, library.program_task)]


def attempts(lib, task, count, **solver):
    script = ScriptedSolver(**solver)
    return [script.attempt(lib.bundle, lib.server, task, n, lib.verifier) for n in range(count)]


def kept(lib, tasks, solver, **more):
    return filter_solvable(lib.bundle, lib.server, tasks, solver, lib.verifier, **more)


def test_without_errors_every_sound_task_is_solved_by_its_chain(lib):
    for task in tasks_of(lib):
        (attempt,) = attempts(lib, task, 1, error_rate=0.0)
        assert attempt.verdict.passed
        assert attempt.mistake is None
        assert attempt.calls == task.chain
        assert attempt.answer == task.reference_answer


def test_mistakes_are_made_at_the_stated_rate(lib):
    task = library.read_task(lib.bundle)
    made = [a.mistake is not None for a in attempts(lib, task, 60, error_rate=0.3)]
    assert 10 <= sum(made) <= 26
    assert all(a.mistake for a in attempts(lib, task, 10, error_rate=1.0))


def test_each_kind_of_mistake_shows_in_what_was_done(lib):
    task = library.write_task(lib.bundle)
    seen = {a.mistake: a for a in attempts(lib, task, 20, error_rate=1.0)}
    assert set(seen) == {"wrong_entity", "skipped_step", "wrong_answer"}
    assert len(seen["skipped_step"].calls) == len(task.chain) - 1
    wrong = seen["wrong_entity"].calls
    assert [step.tool for step in wrong] == [step.tool for step in task.chain]
    assert sum(a != b for a, b in zip(wrong, task.chain, strict=True)) == 1
    assert seen["wrong_answer"].answer == 1961
    assert not seen["wrong_answer"].verdict.passed


def test_a_wrong_entity_is_another_value_of_the_same_column(lib):
    books = {row[0] for row in library.BOOKS}
    for attempt in attempts(lib, library.read_task(lib.bundle), 20, error_rate=1.0):
        for step in attempt.calls:
            assert step.arguments.get("book_id", "B01") in books


def test_after_a_mistake_the_answer_is_read_from_what_the_tools_return(lib):
    """Asking for another book gives that book's status; without the last call there is nothing to read."""
    status = {row[0]: row[3] for row in library.BOOKS}
    checked = set()
    for attempt in attempts(lib, library.read_task(lib.bundle), 40, error_rate=1.0):
        last = attempt.calls[-1]
        if attempt.mistake == "wrong_entity" and last.arguments["book_id"] != "B03":
            assert attempt.answer == status[last.arguments["book_id"]]
            checked.add("entity")
        if attempt.mistake == "skipped_step" and last.tool == "find_books":
            assert attempt.answer is None
            assert not attempt.verdict.passed
            checked.add("skipped")
    assert checked == {"entity", "skipped"}


def test_every_verdict_is_what_the_verifier_says_of_the_executed_calls(lib):
    for task in tasks_of(lib):
        for attempt in attempts(lib, task, 6, error_rate=0.7):
            final = replay(lib.server, attempt.calls, task.seed).final
            assert final is not None
            again = verify(task, lib.bundle, lib.bundle.state, final, attempt.answer, lib.verifier)
            assert again == attempt.verdict


def test_attempts_depend_on_seed_task_and_number_only(lib):
    task, other = library.write_task(lib.bundle), library.read_task(lib.bundle)
    first = attempts(lib, task, 6, error_rate=0.5, seed=3)
    attempts(lib, other, 2, error_rate=0.5, seed=3)
    assert attempts(lib, task, 6, error_rate=0.5, seed=3) == first
    assert attempts(lib, task, 6, error_rate=0.5, seed=4) != first


def test_the_filter_keeps_two_of_five_and_labels_the_rate(lib):
    solver = ScriptedSolver(error_rate=0.3, seed=0)
    for solved in kept(lib, tasks_of(lib), solver):
        assert solved.task.solver == "scripted:error_rate=0.3"
        assert solved.task.solve_rate == len(solved.passing) / 5
        assert solved.task.solve_rate >= 0.4
        assert all(
            a.verdict.passed and parse_answer(f'{{"answer": {canonical(a.answer)}}}') for a in solved.passing
        )


def test_the_filter_drops_what_is_not_solved(lib):
    unsolvable = library.read_task(lib.bundle, reference_answer="in repair")
    good = library.read_task(lib.bundle, id="good")
    solved = kept(lib, [unsolvable, good], ScriptedSolver(error_rate=0.0))
    assert [s.task.id for s in solved] == ["good"]
    assert solved[0].task.solve_rate == 1.0


def test_a_model_whose_context_is_full_has_failed_a_try(lib):
    class Full:
        settings = SimpleNamespace(solver_model=None, model="small")

        def complete(self, *_, **__):
            raise EnvironmentFault("the prompt is longer than the model takes")

    task = library.read_task(lib.bundle)
    attempt = LLMSolver(Full()).attempt(lib.bundle, lib.server, task, 0, lib.verifier)  # type: ignore[arg-type]
    assert attempt.answer is None
    assert not attempt.verdict.passed
    assert attempt.verdict.error is None


class Sometimes:
    """A solver that is right in the first ``right`` of five attempts."""

    label = "sometimes"

    def __init__(self, right):
        self.right = right

    def attempt(self, bundle, server, task, number, verifier_server):
        passed = Verdict(passed=number < self.right)
        return Attempt(task.id, number, None, task.chain, task.reference_answer, passed)


@pytest.mark.parametrize(
    ("right", "stays"), [(1, False), (2, True), (4, True), (5, False)], ids=lambda x: str(x)
)
def test_an_upper_bound_drops_what_is_always_solved(lib, right, stays):
    task = library.read_task(lib.bundle)
    solved = kept(lib, [task], Sometimes(right), most=4)
    assert bool(solved) == stays
    assert kept(lib, [task], Sometimes(5)), "without a bound all-pass tasks stay"


def test_infrastructure_errors_count_neither_for_nor_against_the_bound(lib):
    task = library.read_task(lib.bundle)
    assert kept(lib, [task], Flaky(3, "verdict"), most=5)
    assert kept(lib, [task], Flaky(3, "verdict"), most=4) == [], "five of five that were attempts"


def test_bounds_that_nothing_meets_are_the_callers_mistake(lib):
    with pytest.raises(CallerError, match="at least 2 and at most 1"):
        kept(lib, [], Sometimes(1), most=1)


class Flaky:
    """A solver under which the sandbox breaks ``times`` times before each attempt works."""

    label = "flaky"

    def __init__(self, times, way):
        self.times, self.way, self.calls, self.numbers = times, way, 0, []

    def attempt(self, bundle, server, task, number, verifier_server):
        self.calls += 1
        made = ScriptedSolver(error_rate=0.0).attempt(bundle, server, task, number, verifier_server)
        if self.calls <= self.times:
            if self.way == "raise":
                raise InfrastructureError("the sandbox died")
            return type(made)(task.id, number, None, (), None, Verdict(passed=False, error="died"))
        self.numbers.append(number)
        return made


@pytest.mark.parametrize("way", ["raise", "verdict"])
def test_infrastructure_errors_are_no_attempts(lib, way):
    flaky = Flaky(2, way)
    (solved,) = kept(lib, [library.read_task(lib.bundle)], flaky)
    assert solved.task.solve_rate == 1.0
    assert flaky.numbers == [0, 1, 2, 3, 4]
    assert flaky.calls == 7


def test_too_many_infrastructure_errors_are_raised(lib):
    with pytest.raises(InfrastructureError, match="status-of-salt"):
        kept(lib, [library.read_task(lib.bundle)], Flaky(100, "raise"))


@pytest.mark.parametrize(
    "answer", [0, 7, -3, 5_000_000, 0.25, 1e6, True, None, "", "Oslo", [], ["a", 2], {"a": 1, "b": "x"}]
)
def test_perturbed_answers_are_all_different_from_the_answer(answer):
    moved = perturbed(answer)
    assert moved
    assert all(canonical(value) != canonical(answer) for value in moved)
