"""One hand-made episode for each kind of failure; gold is FIND, then BOOK, then the answer "LOP"."""

import pytest
from arena_samples import BOOK, FIND, call, episode, gold, said, task

from arena.failures import KINDS, explain
from synth.types import Check, Verdict

ANSWER = said('{"answer": "LOP"}')
CASES = {
    "malformed_call": episode(said('<tool_call>{"name": find', error="not JSON"), ANSWER),
    "unknown_tool": episode(call("find_port", error="unknown_tool", city="Praya"), ANSWER),
    "invalid_arguments": episode(call("find_airport", error="invalid_arguments", town="Praya"), ANSWER),
    "wrong_tool": episode(call("list_airports"), ANSWER),
    "wrong_argument": episode(gold(FIND), call("book_slot", airport="LOP", hours=3), ANSWER),
    "missing_step": episode(gold(FIND), ANSWER),
    "repeated_call": episode(gold(FIND), gold(FIND), gold(FIND), finish="turns"),
    "rule_refused": episode(gold(FIND), call("cancel_slot", error="not_yours", slot="S1"), ANSWER),
    "wrong_answer": episode(gold(FIND), gold(BOOK), said('{"answer": "DPS"}'), answer="DPS"),
    "state_wrong": episode(
        gold(FIND), gold(BOOK), ANSWER, checks=(Check(name="state diff", passed=False, detail="slots"),)
    ),
    "truncated": episode(gold(FIND), finish="length", answer=None),
    "too_many_turns": episode(gold(FIND), gold(BOOK), finish="turns", answer=None),
    "tool_failed": episode(call("list_airports", error="tool_failed", fault="environment"), ANSWER),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_told(kind):
    assert explain(CASES[kind], task()).kind == kind


def test_evidence_says_what_was_called_and_what_was_due():
    found = explain(CASES["wrong_tool"], task())
    assert found.detail == 'called list_airports() where find_airport(city="Praya") was due'
    assert found.due_tool == "find_airport"


def test_a_wrong_argument_is_named():
    found = explain(CASES["wrong_argument"], task())
    assert found.parameter == "hours"
    assert found.detail.endswith('where book_slot(airport="LOP", hours=2) was due: hours differs')


def test_a_wrong_argument_that_was_refused_is_still_a_wrong_argument():
    trajectory = episode(call("find_airport", error="not_found", city="Lombok"), ANSWER)
    found = explain(trajectory, task())
    assert (found.kind, found.parameter) == ("wrong_argument", "city")
    assert "refused: not_found" in found.detail


def test_a_mistake_that_was_mended_is_not_blamed():
    trajectory = episode(
        call("list_airports"),
        call("find_airport", city="Lombok"),
        gold(FIND),
        gold(BOOK),
        said("x"),
        answer="x",
    )
    assert explain(trajectory, task()).kind == "wrong_answer"


def test_the_order_of_calls_is_free_and_numbers_are_equal_as_json():
    trajectory = episode(call("book_slot", hours=2.0, airport="LOP"), gold(FIND), said("x"), answer="x")
    assert explain(trajectory, task()).kind == "wrong_answer"


def test_a_call_that_was_refused_is_no_progress():
    trajectory = episode(gold(FIND), call("book_slot", error="full", airport="LOP", hours=2), ANSWER)
    assert explain(trajectory, task()).kind == "rule_refused"


def test_extra_calls_after_all_due_calls_are_judged_by_the_state():
    trajectory = episode(
        gold(FIND),
        gold(BOOK),
        call("book_slot", airport="LOP", hours=9),
        ANSWER,
        checks=(Check(name="state diff", passed=False, detail="slots"),),
    )
    assert explain(trajectory, task()).kind == "state_wrong"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("answer[0] number", "wrong_answer"),
        ("answer is a number", "wrong_answer"),
        ("verifier", "wrong_answer"),
        ("state diff", "state_wrong"),
        ("nothing else changed", "state_wrong"),
    ],
)
def test_checks_of_rubrics_and_of_programs_are_told_apart_by_name(name, kind):
    checks = (Check(name="answer", passed=False), Check(name=name, passed=False))
    assert explain(episode(gold(FIND), gold(BOOK), ANSWER, checks=checks), task()).kind == kind


def test_an_answer_of_another_form_is_malformed():
    form = Check(name="form", passed=False, detail="the final message must be one JSON object")
    found = explain(episode(gold(FIND), said("It is LOP."), answer=None, checks=(form,)), task())
    assert found.kind == "malformed_call"
    assert "'It is LOP.'" in found.detail


def test_half_a_message_is_truncated_not_malformed():
    half = said('<tool_call>{"name": "bo', error="no JSON")
    assert explain(episode(gold(FIND), half, finish="length", answer=None), task()).kind == "truncated"


def test_the_same_call_twice_in_vain_is_repeated():
    assert explain(episode(gold(FIND), gold(FIND), ANSWER), task()).kind == "repeated_call"


def test_a_program_task_that_repeats_a_call_by_design_is_followed():
    looped = task(chain=(FIND, FIND, BOOK))
    assert explain(episode(gold(FIND), gold(FIND), ANSWER), looped).kind == "missing_step"


def test_an_episode_without_checks_can_be_explained():
    bare = episode(gold(FIND), gold(BOOK), ANSWER).model_copy(update={"verdict": Verdict(passed=False)})
    assert explain(bare, task()).kind == "wrong_answer"
