"""Criteria that no program can check, and how far a judge of them can be trusted.

Most of what an answer must hold is a value, and a program compares it (:mod:`synth.verify`). A sentence (why
a request was refused) has no one right text; such a criterion says ``how="judge"``, and its ``expected`` is
what the answer must state. Three rules keep it in its place. A judge decides nothing alone: the rubric has a
criterion of a program too. What a program can check is refused as judged (:func:`judged_faults`, a gate).
And without a judge, which is the default everywhere and so in training, the programs alone decide.

A judge is measured before it counts: it answers cases whose right verdict is known (``calibration.jsonl`` in
``author/``: true statements in other words, and statements that are wrong in one stated way), and its errors
are counted by kind. :class:`synth.author.online.judge.LLMJudge` asks a model; ``agent-world judge`` runs it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from synth.jsonl import read_jsonl
from synth.types import Check, Criterion, Program, Rubric

CASES = Path(__file__).parent / "author" / "calibration.jsonl"
FEWEST_WORDS = 5  # of a statement; fewer words are a value, which a program compares (ours)


class Judge(Protocol):
    """Says whether an answer states what it must."""

    @property
    def label(self) -> str:
        """Who judges, for the verdict: ``llm:<model>``."""
        ...

    def states(self, instruction: str, wanted: str, answer: str) -> tuple[bool, str]:
        """Whether the answer to a request states what is wanted, and the words that do (or why not)."""
        ...


def judged_check(criterion: Criterion, part: Any, judge: Judge, instruction: str) -> Check:
    """The check of one judged criterion; its name says who judged.

    Args:
        part: the part of the answer at the criterion's field.
    """
    name = f"{criterion.field} {criterion.check} (judged by {judge.label})"
    if not isinstance(part, str) or not part.strip():
        return Check(name=name, passed=False, detail="no text there")
    passed, why = judge.states(instruction, str(criterion.expected), part)
    return Check(name=name, passed=passed, detail=why[:200])


def judged(verifier: Rubric | Program) -> list[Criterion]:
    """The judged criteria of a verifier."""
    criteria = verifier.criteria if isinstance(verifier, Rubric) else ()
    return [criterion for criterion in criteria if criterion.how == "judge"]


def judged_faults(verifier: Rubric | Program) -> list[str]:
    """Why judged criteria may not stand as they are; empty when they may, or there are none."""
    found = judged(verifier)
    if not found or not isinstance(verifier, Rubric):
        return []
    faults = [f"{c.field}: a program can check {c.expected!r}" for c in found if checkable(c.expected)]
    faults += [f"{c.field}: a judge reads text, not {c.check}" for c in found if c.check != "text"]
    if len(found) == len(verifier.criteria):
        faults.append("a judge alone decides; add a criterion that a program checks")
    return faults


def checkable(expected: Any) -> bool:
    """Whether a program can compare what is expected: anything but a statement of several words."""
    return not isinstance(expected, str) or len(re.findall(r"[^\W\d_]+", expected)) < FEWEST_WORDS


def for_programs(verifier: Rubric | Program, answer: Any) -> Any:
    """The answer without its judged parts: what programs see of it."""
    places = {c.field.removeprefix("answer") for c in judged(verifier)}
    if "" in places:
        return None
    if isinstance(answer, list):
        return [item for i, item in enumerate(answer) if f"[{i}]" not in places]
    if isinstance(answer, dict):
        return {key: item for key, item in answer.items() if f".{key}" not in places}
    return answer


# --- calibration ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """An answer whose right verdict is known."""

    instruction: str
    wanted: str
    answer: str
    right: bool
    kind: str  # verbatim, reworded, ...; number, name, ...


@dataclass(frozen=True)
class Calibration:
    """How a judge did on known cases."""

    judge: str
    right: int  # cases that state what is wanted
    wrong: int
    refused: int  # of the right ones
    accepted: int  # of the wrong ones
    by_kind: dict[str, tuple[int, int]] = field(default_factory=dict)  # kind -> (errors, cases)

    @property
    def cases(self) -> int:
        return self.right + self.wrong

    @property
    def error_rate(self) -> float:
        return (self.refused + self.accepted) / self.cases if self.cases else 1.0


def read_cases(path: Path = CASES) -> list[Case]:
    """Calibration cases: ``{"instruction", "wanted", "right": {kind: answer}, "wrong": {...}}`` a line.

    Raises:
        CallerError: the file or a line of it is not that; names file and line.
    """
    form = '{"instruction": ..., "wanted": ..., "right": {KIND: ANSWER}, "wrong": {KIND: ANSWER}}'
    return [case for cases in read_jsonl(path, _cases, form) for case in cases]


def _cases(_: int, line: str) -> list[Case]:
    raw = json.loads(line)
    about = (str(raw["instruction"]), str(raw["wanted"]))
    return [
        Case(*about, str(answer), right, str(kind))
        for right, key in ((True, "right"), (False, "wrong"))
        for kind, answer in dict(raw[key]).items()
    ]


def calibrate(
    judge: Judge, cases: Sequence[Case], progress: Callable[[int, int, str], None] | None = None
) -> Calibration:
    """Let a judge answer every case, and count its errors."""
    errors: Counter[str] = Counter()
    wrongly = {True: 0, False: 0}
    for number, case in enumerate(cases, 1):
        verdict, _ = judge.states(case.instruction, case.wanted, case.answer)
        if verdict != case.right:
            errors[case.kind] += 1
            wrongly[case.right] += 1
        if progress is not None:
            progress(number, len(cases), case.kind)
    kinds = Counter(case.kind for case in cases)
    right = sum(case.right for case in cases)
    return Calibration(
        judge=judge.label,
        right=right,
        wrong=len(cases) - right,
        refused=wrongly[True],
        accepted=wrongly[False],
        by_kind={kind: (errors[kind], count) for kind, count in sorted(kinds.items())},
    )
