"""Judged criteria stay in their place: never alone, never where a program could check, never by default."""

import library
import pytest

from synth.admission import check_task
from synth.errors import CallerError
from synth.judging import Case, calibrate, for_programs, judged_faults, read_cases
from synth.mutation import score
from synth.types import Criterion, Rubric
from synth.verify import evaluate

SENTENCE = "The book is on loan until the end of March."
VALUE = Criterion(field="answer[0]", check="number", expected=1942)
TOLD = Criterion(field="answer[1]", check="text", expected=SENTENCE, how="judge")


class Believer:
    """Believes what holds a certain word."""

    label = "test:believer"

    def __init__(self, word="loan"):
        self.word, self.asked = word, []

    def states(self, instruction, wanted, answer):
        self.asked.append((instruction, wanted, answer))
        return self.word in answer, "it says so"


def test_without_a_judge_the_programs_decide():
    checks = evaluate(Rubric(criteria=(VALUE, TOLD)), [1942, "whatever"])
    assert [(c.name, c.passed) for c in checks] == [("answer[0] number", True)]


def test_with_a_judge_the_check_says_who_judged():
    judge = Believer()
    rubric = Rubric(criteria=(VALUE, TOLD))
    checks = evaluate(rubric, [1942, "It is on loan."], judge=judge, instruction="Which year, and why?")
    assert [(c.name, c.passed) for c in checks] == [
        ("answer[0] number", True),
        ("answer[1] text (judged by test:believer)", True),
    ]
    assert judge.asked == [("Which year, and why?", SENTENCE, "It is on loan.")]
    assert not evaluate(rubric, [1942, "No."], judge=judge)[1].passed


@pytest.mark.parametrize("answer", [[1942], [1942, 7], [1942, " "]])
def test_a_missing_sentence_fails_without_asking(answer):
    judge = Believer()
    assert not evaluate(Rubric(criteria=(VALUE, TOLD)), answer, judge=judge)[1].passed
    assert judge.asked == []


def test_a_judge_alone_is_refused():
    with pytest.raises(CallerError, match="needs a judge model"):
        evaluate(Rubric(criteria=(TOLD,)), [1942, SENTENCE])
    assert "alone" in judged_faults(Rubric(criteria=(TOLD,)))[0]


@pytest.mark.parametrize("expected", [1942, "Ada Brandt", "2025-12-01", ["a", "b"], True, "on loan"])
def test_what_a_program_can_check_is_not_judged(expected):
    criterion = TOLD.model_copy(update={"expected": expected})
    assert "a program can check" in judged_faults(Rubric(criteria=(VALUE, criterion)))[0]
    assert judged_faults(Rubric(criteria=(VALUE, TOLD))) == []


def test_programs_see_an_answer_without_its_judged_parts():
    assert for_programs(Rubric(criteria=(VALUE, TOLD)), [1942, "x"]) == [1942]
    assert for_programs(Rubric(criteria=(VALUE,)), [1942, "x"]) == [1942, "x"]


@pytest.fixture(scope="module")
def lib(tmp_path_factory):
    with library.opened(tmp_path_factory.mktemp("library")) as opened:
        yield opened


def judged_task(lib, expected):
    """The library's reading task, asking for its value and a sentence."""
    task = library.read_task(lib.bundle)
    value = Criterion(field="answer[0]", check="equals", expected=task.reference_answer)
    told = TOLD.model_copy(update={"expected": expected})
    changed = {
        "reference_answer": [task.reference_answer, expected],
        "verifier": Rubric(criteria=(value, told, Criterion(field="state", check="diff", expected={}))),
    }
    return task.model_copy(update=changed)


def test_wrong_outcomes_are_those_that_programs_can_see(lib):
    found = score(lib.server, lib.bundle, judged_task(lib, SENTENCE), lib.verifier)
    assert found.gold_fails == []
    assert found.made.total() > 5
    assert found.survivors == []


def test_the_gates_of_a_task_take_sound_judged_criteria_and_refuse_others(lib):
    def asking(expected):
        return check_task(lib.server, lib.bundle, judged_task(lib, expected), lib.verifier)

    assert asking(SENTENCE) == []
    assert [fault.gate for fault in asking("on loan")] == ["judged"]


def test_errors_are_counted_on_both_sides_and_by_kind():
    cases = [
        Case("q", SENTENCE, "a loan", True, "reworded"),
        Case("q", SENTENCE, "lent", True, "reworded"),
        Case("q", SENTENCE, "no loan", False, "negated"),
        Case("q", SENTENCE, "nothing", False, "half"),
    ]
    found = calibrate(Believer(), cases)
    assert (found.refused, found.right, found.accepted, found.wrong) == (1, 2, 1, 2)
    assert found.error_rate == 0.5
    assert found.by_kind == {"half": (0, 1), "negated": (1, 1), "reworded": (1, 2)}


def test_the_cases_that_come_along_are_balanced_and_need_a_judge():
    cases = read_cases()
    assert len(cases) >= 60
    assert 0.3 <= sum(case.right for case in cases) / len(cases) <= 0.7
    assert len({(case.wanted, case.answer) for case in cases}) == len(cases)
    for case in cases:
        criterion = TOLD.model_copy(update={"expected": case.wanted})
        assert judged_faults(Rubric(criteria=(VALUE, criterion))) == [], case.wanted
