"""Admission: a sound library comes in whole; each way to be unsound is named by its gate."""

import os

import library
import pytest
from library import FIND_BOOKS, GET_BOOK, LEND_BOOK, TOOLS

from synth.admission import check_bundle, check_task, validate_environment
from synth.env.bundle import write_bundle
from synth.errors import CallerError, EnvironmentFault
from synth.types import Criterion, Program, Rubric, ToolCase


@pytest.fixture(scope="module")
def lib(tmp_path_factory):
    with library.opened(tmp_path_factory.mktemp("admission")) as opened:
        yield opened


def with_tool(changed):
    """The library in which one tool is replaced by a changed one of the same name."""
    return library.environment(tools=tuple(changed if t.name == changed.name else t for t in TOOLS))


def tool_faults(tool, tmp_path):
    path = tmp_path / "library"
    write_bundle(with_tool(tool), path)
    report = check_bundle(path)
    assert report.failed == len(report.faults)
    assert {fault.target for fault in report.faults} <= {tool.name}
    return {fault.gate: fault.detail for fault in report.faults}, report


# --- bundles ------------------------------------------------------------------------------------------


def test_a_sound_bundle_with_its_tasks_passes_every_gate(lib):
    seen = []
    tasks = [make(lib.bundle) for make in (library.read_task, library.write_task, library.program_task)]
    report = check_bundle(
        lib.path, tasks, progress=lambda done, total, what: seen.append((done, total, what))
    )
    assert report.faults == ()
    assert report.failed == 0
    assert report.passed > 60
    assert report.tools == {"find_books": 1.0, "get_book": 1.0, "lend_book": 1.0}
    assert [what for _, _, what in seen] == [t.name for t in TOOLS] + [t.id for t in tasks]
    assert check_bundle(lib.path, tasks) == report


def test_a_place_without_a_bundle_is_the_callers_mistake(tmp_path):
    with pytest.raises(CallerError, match="no such bundle"):
        check_bundle(tmp_path / "nothing")


def test_the_real_pass_rate_is_recorded_and_a_failed_case_is_no_fault_above_one_half(tmp_path):
    wrong = FIND_BOOKS.cases[1].model_copy(update={"expect": ["a book"]})
    cases = (FIND_BOOKS.cases[0], wrong, FIND_BOOKS.cases[2])
    faults, report = tool_faults(FIND_BOOKS.model_copy(update={"cases": cases}), tmp_path)
    assert faults == {}
    assert report.tools["find_books"] == pytest.approx(2 / 3)
    assert [(f.target, f.detail) for f in report.failed_cases] == [
        ("find_books#2", 'expected ["a book"], got []')
    ]


def test_exactly_one_half_is_not_enough(tmp_path):
    wrong = GET_BOOK.cases[1].model_copy(update={"error": "gone"})
    faults, report = tool_faults(GET_BOOK.model_copy(update={"cases": (GET_BOOK.cases[0], wrong)}), tmp_path)
    assert report.tools["get_book"] == 0.5
    assert set(faults) == {"tests"}
    assert "expected gone, got not_found" in faults["tests"]


def test_a_case_also_fails_by_its_effect_on_the_state(tmp_path):
    cases = tuple(case.model_copy(update={"changes": {"books": 2}}) for case in LEND_BOOK.cases[:1])
    faults, _ = tool_faults(LEND_BOOK.model_copy(update={"cases": cases}), tmp_path)
    assert 'expected changes {"books":2}, got {"books":1,"loans":1}' in faults["tests"]


def test_reals_may_differ_in_their_last_digits_only(tmp_path):
    code = "def get_book(ctx, *, book_id):\n    return 0.1 + 0.2\n"
    base = GET_BOOK.model_copy(update={"code": code, "output_schema": {"type": "number"}})
    for expect, ok in ((0.3, True), (0.3001, False)):
        case = ToolCase(arguments={"book_id": "B01"}, expect=expect)
        faults, _ = tool_faults(base.model_copy(update={"cases": (case,)}), tmp_path)
        assert (faults == {}) is ok


def test_a_tool_that_kills_its_process_fails_its_test_and_the_check_goes_on(tmp_path):
    killer = "import contextlib\n\ndef get_book(ctx, *, book_id):\n    contextlib.os._exit(3)\n"
    faults, report = tool_faults(GET_BOOK.model_copy(update={"code": killer}), tmp_path)
    assert "died" in faults["tests"]
    assert report.tools["find_books"] == 1.0


def test_twelve_tools_of_four_cases_are_checked_well_under_two_seconds(tmp_path):
    case, *_ = FIND_BOOKS.cases
    tools = tuple(
        FIND_BOOKS.model_copy(
            update={
                "name": f"find_books_{n}",
                "code": FIND_BOOKS.code.replace("find_books", f"find_books_{n}"),
                "cases": (case,) * 4,
            }
        )
        for n in range(12)
    )
    write_bundle(library.environment(tools=tools, graph=None), tmp_path / "library")
    before = sum(os.times()[:4])  # processor seconds of this process and the sandboxes it waited for
    report = check_bundle(tmp_path / "library")
    assert sum(os.times()[:4]) - before < 2.0
    assert (report.failed, set(report.tools.values())) == (0, {1.0})


# --- environments in memory ---------------------------------------------------------------------------


def test_validation_keeps_what_holds_and_restricts_the_graph(tmp_path):
    bad = GET_BOOK.model_copy(update={"code": GET_BOOK.code.replace("return dict(row)", "return {}")})
    kept, report = validate_environment(with_tool(bad), tmp_path / "work")
    assert [tool.name for tool in kept.tools] == ["find_books", "lend_book"]
    assert kept.graph is not None
    assert kept.graph.nodes == ("find_books", "lend_book")
    assert kept.graph.edges == ()
    assert report.dropped == {"get_book": 0.5}
    assert list((tmp_path / "work").iterdir()) == []
    again, clean = validate_environment(kept, tmp_path / "work")
    assert again == kept
    assert (clean.failed, clean.dropped) == (0, {})


def test_validation_drops_tools_that_are_not_worth_running(tmp_path):
    broken = GET_BOOK.model_copy(update={"code": "def get_book(ctx, *, book_id:\n"})
    kept, report = validate_environment(with_tool(broken), tmp_path)
    assert report.dropped == {"get_book": 0.0}
    assert len(kept.tools) == 2


def test_an_environment_of_which_no_tool_holds_is_a_fault_of_the_environment(tmp_path):
    tool = FIND_BOOKS.model_copy(update={"cases": ()})
    with pytest.raises(EnvironmentFault, match="no tool passed"):
        validate_environment(library.environment(tools=(tool,), graph=None), tmp_path)


# --- tasks ----------------------------------------------------------------------------------------------


def faults_of(lib, task):
    return {f.gate for f in check_task(lib.server, lib.bundle, task, lib.verifier)}


@pytest.mark.parametrize("make", [library.read_task, library.write_task, library.program_task])
def test_sound_tasks_are_admitted(lib, make):
    assert check_task(lib.server, lib.bundle, make(lib.bundle), lib.verifier) == []


def test_a_task_of_another_version_of_the_environment_is_refused(lib):
    assert faults_of(lib, library.read_task(lib.bundle, env_digest="0" * 64)) == {"digest"}


def test_leaks_in_the_instruction_are_named(lib):
    task = library.read_task(lib.bundle, instruction="Call get_book on B03: is it on shelf?")
    (fault,) = check_task(lib.server, lib.bundle, task, lib.verifier)
    assert fault.gate == "leak"
    assert "tool name get_book" in fault.detail
    assert 'answer "on shelf"' in fault.detail


def test_a_value_that_the_user_wants_written_may_be_the_answer(lib):
    verifier = Rubric(
        criteria=(
            Criterion(field="answer", check="text", expected="Jo Weber"),
            Criterion(field="state", check="diff", expected=library.LOAN_DIFF),
        )
    )
    instruction = "Lend Winter Tales to Jo Weber and tell me who has it now."
    task = library.write_task(
        lib.bundle, instruction=instruction, reference_answer="Jo Weber", verifier=verifier
    )
    assert faults_of(lib, task) == set()


def test_a_wrong_reference_answer_does_not_pass_as_gold(lib):
    assert faults_of(lib, library.write_task(lib.bundle, reference_answer=1943)) == {"gold"}


def test_gold_calls_must_work(lib):
    chain = library.read_task(lib.bundle).chain
    gone = (chain[0].model_copy(update={"tool": "find_films"}), *chain[1:])
    bad = (chain[0].model_copy(update={"arguments": {"year": "x"}}), *chain[1:])
    for broken in (gone, bad, ()):
        assert faults_of(lib, library.read_task(lib.bundle, chain=broken)) == {"gold"}


def test_a_verifier_that_forgets_the_answer_is_found(lib):
    only_state = Rubric(criteria=(Criterion(field="state", check="diff", expected=library.LOAN_DIFF),))
    assert faults_of(lib, library.write_task(lib.bundle, verifier=only_state)) == {"perturbed"}


def test_a_verifier_that_forgets_the_state_is_found(lib):
    only_answer = Rubric(criteria=(Criterion(field="answer", check="number", expected=1942),))
    assert faults_of(lib, library.write_task(lib.bundle, verifier=only_answer)) == {"no-op", "dropped-step"}


def test_a_verifier_that_takes_everything_is_found_by_every_wrong_thing(lib):
    lax = Program(code="def verify(initial, final, answer):\n    return [('fine', True, '')]\n")
    assert faults_of(lib, library.program_task(lib.bundle, verifier=lax)) == {
        "no-op",
        "dropped-step",
        "perturbed",
    }
    assert faults_of(lib, library.read_task(lib.bundle, verifier=lax)) == {
        "no-op",
        "dropped-step",
        "perturbed",
    }


def test_a_verifier_that_counts_any_loan_is_found_by_the_step_left_out(lib):
    code = library.VERIFY.replace('lent == ["B03", "B04"]', "len(lent) >= 1").replace(
        'touched == ["B03", "B04"]', "len(touched) >= 1"
    )
    assert faults_of(lib, library.program_task(lib.bundle, verifier=Program(code=code))) == {"dropped-step"}


def test_a_verifier_that_raises_fails_the_gold(lib):
    (fault,) = check_task(
        lib.server,
        lib.bundle,
        library.program_task(lib.bundle, verifier=Program(code="def verify(*a):\n    return 1 / 0\n")),
        lib.verifier,
    )
    assert fault.gate == "gold"
    assert "ZeroDivisionError" in fault.detail


def test_a_rubric_for_a_judge_is_a_fault_offline(lib):
    rubric = Rubric(criteria=(Criterion(field="answer", check="text", expected="on shelf", how="judge"),))
    assert faults_of(lib, library.read_task(lib.bundle, verifier=rubric)) == {"judged", "verifier"}


def test_changes_state_must_be_true(lib):
    assert faults_of(lib, library.read_task(lib.bundle, changes_state=True)) == {"changes-state", "no-op"}
    assert "changes-state" in faults_of(lib, library.write_task(lib.bundle, changes_state=False))


@pytest.mark.parametrize(
    ("solution", "gate"),
    [
        (library.SOLUTION.replace("return count", "return count + 1"), "gold"),
        (library.SOLUTION.replace("return count", "return count / 0"), "gold"),
        (library.SOLUTION.replace("count += 1", "count += 1; call('find_books')"), "deterministic"),
    ],
)
def test_the_solution_must_give_the_answer_by_the_calls_of_the_chain(lib, solution, gate):
    assert gate in faults_of(lib, library.program_task(lib.bundle, solution=solution))
