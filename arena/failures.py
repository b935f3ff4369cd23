"""What went wrong in one failed episode, decided by program from its turns and the task's gold calls.

Comes from: a failed Trajectory and its Task. Goes to: :mod:`arena.diagnose`, which counts the kinds.

The rule: walk through the episode; a call that equals a gold call not yet made is progress (order is free,
so that harmless reordering isn't blamed). The kind is the first thing that went wrong after the last
progress, so a mistake that the agent mended isn't blamed either. With nothing wrong there, the way in which
the episode ended decides: answered early, cut off, a wrong state, a wrong answer.

It compares with one gold solution. Another way to the same end passes the verifier and never comes here; a
failed episode on another way is named after its distance from the gold calls, which is a hint, not a proof.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from synth.types import Task, ToolStep, Trajectory, Turn
from synth.verify import canonical

LOOP = 3  # the same call this many times is a loop (ours: twice can be a re-read after a write)

KINDS = {
    "malformed_call": "the message is neither a tool call nor an answer that can be parsed",
    "unknown_tool": "a tool that the environment does not have",
    "invalid_arguments": "arguments that the tool's schema refuses",
    "wrong_tool": "another tool than the one that was due",
    "wrong_argument": "the right tool with another argument",
    "missing_step": "answered before all needed calls were made",
    "repeated_call": "the same call again and again",
    "rule_refused": "a call that a business rule refused",
    "wrong_answer": "all calls as needed, but another answer",
    "state_wrong": "the state at the end is not what was asked for",
    "truncated": "cut off by the length limit",
    "too_many_turns": "cut off by the limit on turns",
    "tool_failed": "a tool of the environment broke",
}


@dataclass(frozen=True)
class Failure:
    """The kind of failure, evidence in words, and which tool was due (None when the answer was)."""

    kind: str
    detail: str
    due_tool: str | None = None
    parameter: str | None = None


def show_call(step: ToolStep, limit: int = 120) -> str:
    """``name(key=value, ...)``, cut to ``limit`` characters."""
    arguments = ", ".join(f"{key}={canonical(value)}" for key, value in step.arguments.items())
    text = f"{step.tool}({arguments})"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def explain(trajectory: Trajectory, task: Task) -> Failure:
    """Name the failure of one episode that did not pass."""
    due = list(task.chain)
    made: Counter[str] = Counter()
    problem: Failure | None = None
    cut_off = trajectory.turns[-1] if trajectory.finish_reason == "length" and trajectory.turns else None
    for turn, result in _moves(trajectory.turns):
        if turn.call is None:
            if turn.error is not None and turn is not cut_off:  # half a message can't be parsed
                problem = problem or _malformed(turn.text, turn.error, due)
            continue
        key = _key(turn.call)
        made[key] += 1
        hit = next((i for i, step in enumerate(due) if _key(step) == key), None)
        error = result.error if result else None
        if hit is not None and error is None:
            del due[hit]
            problem = None
        elif problem is None:
            problem = _bad_call(turn.call, result, due, again=made[key] > 1)
    if trajectory.finish_reason in ("turns", "length") and max(made.values(), default=0) >= LOOP:
        step = next(t.call for t in trajectory.turns if t.call and made[_key(t.call)] >= LOOP)
        return Failure("repeated_call", f"called {show_call(step)} {made[_key(step)]} times", _due_tool(due))
    unanswered = trajectory.finish_reason != "answer"
    if problem is not None and (due or (problem.kind == "malformed_call" and unanswered)):
        return problem
    return _ending(trajectory, task, due)


def _moves(turns: Sequence[Turn]) -> Iterator[tuple[Turn, Turn | None]]:
    """Each assistant turn with the tool turn that answers it."""
    for i, turn in enumerate(turns):
        if turn.role == "assistant":
            following = turns[i + 1] if i + 1 < len(turns) else None
            yield turn, following if following is not None and following.role == "tool" else None


def _key(step: ToolStep) -> str:
    return step.tool + canonical(step.arguments)


def _due_tool(due: Sequence[ToolStep]) -> str | None:
    return due[0].tool if due else None


def _due_words(due: Sequence[ToolStep]) -> str:
    return f"where {show_call(due[0])} was due" if due else "where the answer was due"


def _malformed(text: str, error: str, due: Sequence[ToolStep]) -> Failure:
    text = " ".join(text.split())
    shown = text if len(text) <= 80 else text[:79] + "…"
    return Failure("malformed_call", f"wrote {shown!r} ({error}) {_due_words(due)}", _due_tool(due))


def _bad_call(call: ToolStep, result: Turn | None, due: Sequence[ToolStep], again: bool) -> Failure:
    """Name a call that brought no progress."""
    error = result.error if result else None
    refused = f" (refused: {error})" if error else ""
    detail = f"called {show_call(call)}{refused} {_due_words(due)}"
    if error in ("unknown_tool", "invalid_arguments"):
        return Failure(error, detail, _due_tool(due))
    if result is not None and result.fault == "environment":
        return Failure("tool_failed", detail, _due_tool(due))
    meant = next((step for step in due if step.tool == call.tool and _key(step) != _key(call)), None)
    if meant is not None and not again:
        parameter = _first_difference(call.arguments, meant.arguments)
        detail = f"called {show_call(call)}{refused} where {show_call(meant)} was due: {parameter} differs"
        return Failure("wrong_argument", detail, meant.tool, parameter)
    if again:
        return Failure("repeated_call", f"called {show_call(call)} again {_due_words(due)}", _due_tool(due))
    return Failure("rule_refused" if error else "wrong_tool", detail, _due_tool(due))


def _first_difference(got: dict[str, Any], want: dict[str, Any]) -> str:
    """First parameter, by name, that is missing, added or has another value."""
    names = sorted(got.keys() | want.keys())
    return next(n for n in names if n not in got or n not in want or canonical(got[n]) != canonical(want[n]))


def _ending(trajectory: Trajectory, task: Task, due: Sequence[ToolStep]) -> Failure:
    """Nothing went wrong after the last progress: how the episode ended tells the kind."""
    if trajectory.finish_reason == "length":
        return Failure("truncated", f"cut off after {len(trajectory.token_ids)} tokens", _due_tool(due))
    if trajectory.finish_reason == "turns":
        calls = sum(t.call is not None for t in trajectory.turns)
        return Failure("too_many_turns", f"{calls} calls and no answer, {len(task.chain)} were due")
    failed = [c for c in (trajectory.verdict.checks if trajectory.verdict else ()) if not c.passed]
    if failed and failed[0].name == "form":  # of rl.rollout: the last message is no strict JSON answer
        return _malformed(trajectory.turns[-1].text, failed[0].detail, due)
    answer = _short(trajectory.answer)
    if due:
        return Failure("missing_step", f"answered {answer} {_due_words(due)}", _due_tool(due))
    for check in failed:
        # "answer ..." checks look at the answer, "verifier" is a broken verifier, the rest look at the state.
        if not check.name.startswith(("answer", "verifier")):
            return Failure("state_wrong", f"check {check.name!r} failed: {check.detail[:160] or 'no detail'}")
    return Failure("wrong_answer", f"answered {answer} where {_short(task.reference_answer)} was due")


def _short(value: Any, limit: int = 80) -> str:
    text = canonical(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
