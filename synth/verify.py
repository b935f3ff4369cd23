"""Did the agent do it? An answer and two states go in, a verdict comes out.

A task carries a verifier: a rubric (criteria over the answer and over what changed in the
database, evaluated here) or a program (code, run only in the verifier's own sandbox). Both
see the pristine state, the state that the episode left, and the answer; neither sees the
trajectory. What the agent says last comes from :mod:`rl.rollout` or :mod:`synth.solver` as
text; the verdict goes back there and into the trajectory.

Values are compared as JSON, with two rules: ``12`` and ``12.0`` are the same number, and a
boolean is never a number.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from synth.env import state as states
from synth.errors import CallerError
from synth.judging import judged, judged_check
from synth.types import Check, Criterion, Rubric, Table, Task, Verdict

if TYPE_CHECKING:
    from synth.env.bundle import Bundle
    from synth.env.episode import VerifierServer
    from synth.env.state import State
    from synth.judging import Judge

ANSWER_FORM = 'the final message must be one JSON object with the single key "answer", and nothing else'
_PATH = re.compile(r"answer((?:\[\d+\]|\.\w+)*)")
_PART = re.compile(r"\[(\d+)\]|\.(\w+)")
_MISSING = object()


# --- the agent's last message -------------------------------------------------------------


def parse_answer(text: str) -> Any:
    """Read ``{"answer": X}``; X is a scalar, or a flat list or object of scalars.

    White space around the object is allowed, nothing else is: no prose, no code fence, no
    second key, no repeated key, no NaN.

    Raises:
        CallerError: the message has another form; the text says which rule it breaks.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as err:
        raise CallerError(f"answer: {ANSWER_FORM} ({err or type(err).__name__})") from None
    if not isinstance(value, dict) or set(value) != {"answer"}:
        raise CallerError(f"answer: {ANSWER_FORM}")
    answer = value["answer"]
    parts = answer if isinstance(answer, list) else answer.values() if isinstance(answer, dict) else ()
    if any(isinstance(part, list | dict) for part in parts):
        raise CallerError("answer: must be a scalar, or a flat list or object of scalars")
    return answer


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key is repeated")
    return dict(pairs)


# --- comparing values -----------------------------------------------------------------------


def canonical(value: Any) -> str:
    """JSON text that is equal exactly when two values are: keys sorted, ``12.0`` written as ``12``."""
    return json.dumps(_plain(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def is_number(value: Any) -> TypeGuard[int | float]:
    """A finite int or float; a boolean is not a number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def same_number(actual: Any, expected: Any, tolerance: float = 0.0) -> bool:
    """Within ``tolerance``: absolute up to 1 in size, relative to ``expected`` above."""
    if not (is_number(actual) and is_number(expected)):
        return False
    return abs(actual - expected) <= tolerance * max(1.0, abs(expected))


def fold(value: str) -> str:
    """Text apart from case, Unicode composition and runs of white space."""
    return " ".join(unicodedata.normalize("NFKC", value).casefold().split())


def _folded(value: Any) -> str:
    return canonical(fold(value) if isinstance(value, str) else value)


# --- rubrics ----------------------------------------------------------------------------------


def evaluate(
    rubric: Rubric,
    answer: Any,
    diff: Mapping[str, Any] | None = None,
    judge: Judge | None = None,
    instruction: str = "",
) -> list[Check]:
    """One check for each criterion, in order.

    Judged criteria need a judge; without one they are left out, and the others decide (:mod:`synth.judging`).

    Args:
        rubric: the criteria.
        answer: the parsed answer.
        diff: normalized diff of the initial to the final state; needed by ``state`` criteria only.
        judge: judges what no program can check.
        instruction: of the task, which a judge reads.

    Raises:
        CallerError: a criterion that can't be evaluated: a field or check that doesn't fit,
            or nothing but judged ones and no judge.
    """
    by_program = [c for c in rubric.criteria if c.how == "program"]
    if judge is None and rubric.criteria and not by_program:
        raise CallerError(
            f'criterion {rubric.criteria[0].field}: how="judge" needs a judge model, and there is none here; '
            'add a check with how="program"'
        )
    checks = []
    for criterion in by_program if judge is None else rubric.criteria:
        if criterion.how == "judge" and judge is not None:
            part = _at_path(answer, criterion.field)
            checks.append(judged_check(criterion, part, judge, instruction))
        else:
            checks.append(_evaluate(criterion, answer, diff))
    return checks


def _evaluate(criterion: Criterion, answer: Any, diff: Mapping[str, Any] | None) -> Check:
    name = f"{criterion.field} {criterion.check}"
    if (criterion.field == "state") != (criterion.check == "diff"):
        raise CallerError(f'criterion {name}: the check "diff" and the field "state" belong together')
    if criterion.field == "state":
        if diff is None:
            raise CallerError(f"criterion {name}: no diff of the states was given")
        return _check_diff(name, diff, criterion.expected or {})
    actual = _at_path(answer, criterion.field)
    if actual is _MISSING:
        return Check(name=name, passed=False, detail="the answer has no such part")
    passed = _matches(actual, criterion)
    return Check(name=name, passed=passed, detail="" if passed else f"got {_short(actual)}")


def _matches(actual: Any, criterion: Criterion) -> bool:
    expected = criterion.expected
    match criterion.check:
        case "equals":
            return canonical(actual) == canonical(expected)
        case "text":
            return isinstance(actual, str) and isinstance(expected, str) and fold(actual) == fold(expected)
        case "number":
            return same_number(actual, expected, criterion.tolerance)
        case "set":
            if not (isinstance(actual, list | tuple) and isinstance(expected, list | tuple)):
                return False
            return Counter(map(_folded, actual)) == Counter(map(_folded, expected))
        case _:
            raise CallerError(f"criterion {criterion.field}: unknown check {criterion.check}")


def _at_path(answer: Any, field: str) -> Any:
    path = _PATH.fullmatch(field)
    if path is None:
        raise CallerError(f"criterion field {field!r}: must be answer, answer[0], answer.name or state")
    value = answer
    for index, key in _PART.findall(path.group(1)):
        if index and isinstance(value, list) and int(index) < len(value):
            value = value[int(index)]
        elif key and isinstance(value, dict) and key in value:
            value = value[key]
        else:
            return _MISSING
    return value


def _check_diff(name: str, actual: Mapping[str, Any], expected: Mapping[str, Any]) -> Check:
    got, want = comparable_diff(actual), comparable_diff(expected)
    wrong = sorted(table for table in got.keys() | want.keys() if got.get(table) != want.get(table))
    if not wrong:
        return Check(name=name, passed=True)
    table = wrong[0]
    detail = f"{', '.join(wrong)}: got {_short(actual.get(table))}, expected {_short(expected.get(table))}"
    return Check(name=name, passed=False, detail=detail)


def comparable_diff(diff: Mapping[str, Any]) -> dict[str, dict[str, list[str]]]:
    """A diff in which equal means equal: canonical rows, sorted; untouched tables left out."""
    tables = {}
    for table, parts in diff.items():
        rows = {part: sorted(map(canonical, entries)) for part, entries in parts.items() if entries}
        if rows:
            tables[table] = rows
    return tables


def _short(value: Any, limit: int = 160) -> str:
    text = canonical(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


# --- tasks ------------------------------------------------------------------------------------


def state_change(
    initial: State, final: State, tables: Sequence[Table], audit_tables: Sequence[str] = ()
) -> dict[str, Any]:
    """Normalized diff of two states, minted columns as ``"*"``, audit tables left out.

    This is what a ``state`` criterion expects, so authors of tasks make their expectations with it.
    """
    diff = states.diff(initial, final)
    kept = {table: parts for table, parts in diff.items() if table not in audit_tables}
    return states.normalized_diff(kept, tables)


def verify(
    task: Task,
    bundle: Bundle,
    initial: State,
    final: State,
    answer: Any,
    verifier_server: VerifierServer | None,
    judge: Judge | None = None,
) -> Verdict:
    """Judge one episode of a task.

    Args:
        initial, final: the state before the first and after the last call.
        answer: what :func:`parse_answer` gave; None when the agent gave no answer.
        verifier_server: where verifier programs run; a rubric needs none.
        judge: of judged criteria; None, as in training: only what programs check counts.

    Returns:
        A verdict that passes only when there is at least one check and all of them pass. A
        verifier program that raises gives a failed check ``verifier_raised``; a sandbox that dies gives
        a verdict with ``error`` set, which has no reward.

    Raises:
        CallerError: a rubric that can't be evaluated here.
    """
    return verify_all(task, bundle, initial, [(final, answer)], verifier_server, judge)[0]


def verify_all(
    task: Task,
    bundle: Bundle,
    initial: State,
    outcomes: Sequence[tuple[State, Any]],
    verifier_server: VerifierServer | None,
    judge: Judge | None = None,
) -> list[Verdict]:
    """:func:`verify` for several outcomes (final state, answer) of one task, for little more than one costs;
    see :meth:`synth.env.verifier.VerifierServer.run_all` for what programs then share."""
    manifest = bundle.manifest
    if not isinstance(task.verifier, Rubric):
        if verifier_server is None:
            raise CallerError(f"task {task.id}: its verifier is a program, which needs a verifier server")
        code = task.verifier.code
        return verifier_server.run_all(code, initial, outcomes, manifest.tables, manifest.audit_tables)
    rubric, diffs, verdicts = task.verifier, {}, []
    needs_state = any(criterion.field == "state" for criterion in rubric.criteria)
    for final, answer in outcomes:
        if needs_state and id(final) not in diffs:
            diffs[id(final)] = state_change(initial, final, manifest.tables, manifest.audit_tables)
        checks = evaluate(rubric, answer, diffs.get(id(final)), judge, task.instruction)
        verdicts.append(Verdict(passed=bool(checks) and all(c.passed for c in checks), checks=tuple(checks)))
    return verdicts


def verdict_with(verdict: Verdict, task: Task, answer: Any, judge: Judge) -> Verdict:
    """A verdict by programs, with the checks of the task's judged criteria added.

    Args:
        verdict: what :func:`verify` gave without a judge.
        answer: of that episode.
    """
    parts = [(c, _at_path(answer, c.field)) for c in judged(task.verifier)]
    more = [judged_check(c, None if part is _MISSING else part, judge, task.instruction) for c, part in parts]
    passed = verdict.passed and all(check.passed for check in more)
    return verdict.model_copy(update={"passed": passed, "checks": (*verdict.checks, *more)})
