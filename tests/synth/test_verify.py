"""Answers are strict JSON; criteria compare values; a verdict needs every check to pass."""

import library
import pytest

from synth.errors import CallerError
from synth.replay import replay
from synth.types import Criterion, Program, Rubric
from synth.verify import canonical, comparable_diff, evaluate, parse_answer, state_change, verify


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"answer": 12}', 12),
        ('  \n{"answer": "Oslo"}\n', "Oslo"),
        ('{"answer": null}', None),
        ('{"answer": [1, "a", true]}', [1, "a", True]),
        ('{"answer": {"name": "Oslo", "n": 2}}', {"name": "Oslo", "n": 2}),
    ],
)
def test_an_answer_is_an_object_with_one_key(text, value):
    assert parse_answer(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "12",
        "[1]",
        "{}",
        '{"Answer": 1}',
        '{"answer": 1, "why": "x"}',
        '{"answer": 1, "answer": 1}',
        'The answer is {"answer": 1}',
        '```json\n{"answer": 1}\n```',
        '{"answer": 1}.',
        "{'answer': 1}",
        '{"answer": NaN}',
        '{"answer": -Infinity}',
        '{"answer": [[1]]}',
        '{"answer": {"a": {"b": 1}}}',
        "[" * 100_000,
    ],
)
def test_any_other_form_is_the_callers_mistake(text):
    with pytest.raises(CallerError, match="answer"):
        parse_answer(text)


def passes(check, expected, answer, field="answer", tolerance=0.0):
    rubric = Rubric(criteria=(Criterion(field=field, check=check, expected=expected, tolerance=tolerance),))
    (result,) = evaluate(rubric, answer)
    return result.passed


@pytest.mark.parametrize(
    ("check", "expected", "right", "wrong"),
    [
        ("equals", 12, [12, 12.0], [13, "12", True, None, [12]]),
        ("equals", True, [True], [1, 1.0, "true", False]),
        ("equals", ["a", 1], [["a", 1.0]], [[1, "a"], ["A", 1], ["a"], "a"]),
        ("equals", None, [None], [0, "", False, []]),
        ("text", "New York", ["New York", " new  YORK ", "NEW\nYORK"], ["New-York", "York", 3, None]),
        ("number", 12, [12, 12.0], [12.1, "12", True, None]),
        ("number", 1, [1], [True]),
        ("set", ["a", "b"], [["b", "A"], ["a", "b"]], [["a"], ["a", "b", "b"], ["a", "c"], "ab", None]),
        ("set", [1, 2], [[2.0, 1]], [[1, 1], [1, 2, 3], [True, 2]]),
    ],
)
def test_each_check_takes_what_is_right_and_refuses_what_is_wrong(check, expected, right, wrong):
    assert [passes(check, expected, answer) for answer in right] == [True] * len(right)
    assert [passes(check, expected, answer) for answer in wrong] == [False] * len(wrong)


def test_tolerance_is_absolute_up_to_one_and_relative_above():
    assert passes("number", 0.5, 0.509, tolerance=0.01)
    assert not passes("number", 0.5, 0.511, tolerance=0.01)
    assert passes("number", 1000, 1009, tolerance=0.01)
    assert not passes("number", 1000, 1011, tolerance=0.01)
    assert not passes("number", 1000, float("inf"), tolerance=0.01)


def test_criteria_reach_into_lists_and_objects():
    assert passes("text", "b", ["a", "B"], field="answer[1]")
    assert passes("number", 2, {"n": 2}, field="answer.n")
    for answer in (["a"], "ab", {"n": 1}, None):
        assert not passes("text", "b", answer, field="answer[1]")
        assert not passes("number", 2, answer, field="answer.n")


@pytest.mark.parametrize(
    ("criterion", "message"),
    [
        (Criterion(field="answer", check="text", expected="x", how="judge"), "judge"),
        (Criterion(field="answer", check="diff", expected={}), "belong together"),
        (Criterion(field="state", check="equals", expected={}), "belong together"),
        (Criterion(field="reply", check="equals", expected=1), "field"),
        (Criterion(field="state", check="diff", expected={}), "no diff"),
    ],
)
def test_a_criterion_that_cant_be_evaluated_is_said_so(criterion, message):
    with pytest.raises(CallerError, match=message):
        evaluate(Rubric(criteria=(criterion,)), "x")


def test_a_diff_is_equal_apart_from_order_and_untouched_tables():
    expected = {
        "bookings": {"added": [{"id": "*", "n": 1}, {"id": "*", "n": 2}], "removed": [], "changed": []}
    }
    actual = {"bookings": {"added": [{"n": 2.0, "id": "*"}, {"n": 1, "id": "*"}]}, "seats": {"added": []}}
    rubric = Rubric(criteria=(Criterion(field="state", check="diff", expected=expected),))
    assert evaluate(rubric, None, actual)[0].passed
    actual["seats"]["added"].append({"id": 1})
    (check,) = evaluate(rubric, None, actual)
    assert not check.passed
    assert "seats" in check.detail
    assert comparable_diff({}) == {}


def test_canonical_text_is_equal_exactly_when_values_are():
    assert canonical({"b": 1, "a": [2.0]}) == canonical({"a": [2], "b": 1.0})
    assert canonical(True) != canonical(1)
    assert canonical("1") != canonical(1)


# --- tasks, with real states ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lib(tmp_path_factory):
    with library.opened(tmp_path_factory.mktemp("verify")) as opened:
        yield opened


def judge(lib, task, steps, answer):
    final = replay(lib.server, steps, task.seed).final
    return verify(task, lib.bundle, lib.bundle.state, final, answer, lib.verifier)


def test_a_rubric_wants_the_answer_and_the_state_whatever_the_ids_and_times(lib):
    task = library.write_task(lib.bundle)
    direct = task.chain[-1:]  # the loan gets another time than in the gold chain
    assert judge(lib, task, task.chain, 1942).reward == 1.0
    assert judge(lib, task, direct, 1942).reward == 1.0
    assert judge(lib, task, direct, 1943).reward == 0.0
    assert judge(lib, task, (), 1942).reward == 0.0


def test_a_write_beside_the_wanted_one_fails_the_state(lib):
    task = library.write_task(lib.bundle)
    more = task.chain[-1].model_copy(update={"arguments": {"book_id": "B03", "reader": "Jo Weber"}})
    verdict = judge(lib, task, (*task.chain, more), 1942)
    assert [(check.name, check.passed) for check in verdict.checks] == [
        ("answer number", True),
        ("state diff", False),
    ]
    assert "B03" in verdict.checks[1].detail


def test_authors_make_their_expectation_with_the_same_difference(lib):
    task = library.write_task(lib.bundle)
    final = replay(lib.server, task.chain, task.seed).final
    manifest = lib.bundle.manifest
    change = state_change(lib.bundle.state, final, manifest.tables, manifest.audit_tables)
    assert comparable_diff(change) == comparable_diff(library.LOAN_DIFF)


def test_a_program_judges_in_its_own_sandbox(lib):
    task = library.program_task(lib.bundle)
    assert judge(lib, task, task.chain, 2).reward == 1.0
    assert [c.name for c in judge(lib, task, task.chain[:2], 2).checks if not c.passed] == ["loans", "books"]
    with pytest.raises(CallerError, match="verifier server"):
        verify(task, lib.bundle, lib.bundle.state, lib.bundle.state, 2, None)


def test_verifier_code_that_raises_has_failed_and_says_why(lib):
    task = library.program_task(lib.bundle, verifier=Program(code="def verify(i, f, a):\n    return a.x\n"))
    verdict = judge(lib, task, task.chain, 2)
    assert verdict.reward == 0.0
    assert "AttributeError" in verdict.checks[0].detail


def test_a_verifier_whose_sandbox_dies_gives_no_reward_at_all(lib):
    code = "import os\ndef verify(i, f, a):\n    os._exit(1)\n"
    verdict = judge(lib, library.program_task(lib.bundle, verifier=Program(code=code)), (), 2)
    assert verdict.error
    assert verdict.reward is None


def test_an_empty_rubric_passes_nothing(lib):
    task = library.read_task(lib.bundle, verifier=Rubric(criteria=()))
    assert judge(lib, task, task.chain, "on shelf").reward == 0.0
