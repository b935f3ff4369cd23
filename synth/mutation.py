"""How strong is a verifier? Wrong outcomes of each kind that agents hand in, and how many it takes.

Comes from: a task with its bundle and its live environment. Goes to: ``agent-world mutate``, which prints the
mutation score (wrong outcomes refused / wrong outcomes made), and to tests. :mod:`synth.task_gates`
admits a task with a few of these; here all kinds are tried, several of each.

An outcome is (final state, answer). A mutant whose change of the state and whose answer are those of the gold
run is no mistake and isn't counted (two orders of harmless calls, another name for the same row). Nothing is
decided by the verifier under test: what is wrong is known from how it was made.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from synth.errors import InfrastructureError
from synth.mutants import Mutator
from synth.types import Task
from synth.verify import verify

if TYPE_CHECKING:
    from synth.env.bundle import Bundle
    from synth.env.episode import VerifierServer
    from synth.env.serving import ServerLike
    from synth.env.state import State

KINDS = {
    "no-op": "nothing was done: no answer, an idle one, or the right one over an untouched state",
    "truncated": "the last calls are missing, or the end of the answer",
    "wrong-entity": "one argument, or the answer, is another value of its column",
    "off-by-one": "a number, a numbered key or a date of the answer, or a written amount, is one off",
    "swapped-field": "two values of the answer or of a call changed places, or another field was read",
    "injected-text": "the answer talks to the judge",
    "side-effect": "all as asked, and one more value changed in the same tables or in others",
}
GOAL = 0.95  # of the score over all tasks (issue text)


@dataclass
class Score:
    """Wrong outcomes by kind; sums of scores add up."""

    made: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    survivors: list[tuple[str, str, str]] = field(default_factory=list)  # task id, kind, what
    tasks: int = 0
    gold_fails: list[str] = field(default_factory=list)  # tasks whose right outcome does not pass

    @property
    def value(self) -> float:
        """Refused / made; 1.0 when nothing was made."""
        return self.refused.total() / self.made.total() if self.made else 1.0

    def __iadd__(self, other: Score) -> Score:
        self.made += other.made
        self.refused += other.refused
        self.survivors += other.survivors
        self.gold_fails += other.gold_fails
        self.tasks += other.tasks
        return self


def score(
    server: ServerLike, bundle: Bundle, task: Task, verifier_server: VerifierServer | None, seed: int = 0
) -> Score:
    """Judge the gold outcome and every mutant of one task.

    Raises:
        InfrastructureError: a sandbox died.
        CallerError: the verifier can't be evaluated.
    """
    found = Score(tasks=1)
    bench = Mutator(server, bundle, task, random.Random(f"mutate:{seed}:{task.id}"))

    def passes(final: State, answer: Any) -> bool:
        verdict = verify(task, bundle, bundle.state, final, answer, verifier_server)
        if verdict.error is not None:
            raise InfrastructureError(f"task {task.id}: verifier: {verdict.error}")
        return verdict.passed

    if bench.gold.final is None or not passes(bench.gold.final, task.reference_answer):
        found.gold_fails.append(task.id)
        return found
    for kind, what, final, answer in bench.mutants():
        found.made[kind] += 1
        if passes(final, answer):
            found.survivors.append((task.id, kind, what))
        else:
            found.refused[kind] += 1
    return found
