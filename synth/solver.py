"""Tasks done by script, and the 2-of-5 filter over them.

:class:`ScriptedSolver` stands where a model's ReAct loop would: it knows the gold chain and,
at a stated rate, makes one mistake of a kind that agents make. Attempts are really executed
and really judged (those of one task that are equal to the letter once), but **how often a task is solved
this way measures the stated error rate and how forgiving the task is, not how difficult it is**; so tasks
carry the solver's label
(``scripted:error_rate=0.3``) beside their ``solve_rate``. With a model as solver the same filter
is the paper's: keep what is solved in at least 2 of 5 attempts.

Tasks come from the task stages after :func:`synth.admission.check_task`; what passes goes
to the task files, and the passing attempts to :mod:`rl.data` as demonstrations.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from synth.env.series import in_series
from synth.errors import CallerError, InfrastructureError
from synth.gates import Progress
from synth.replay import Replay, answer_read_from, other_values, perturbed, replay
from synth.types import Check, Task, ToolStep, Verdict
from synth.verify import verify

if TYPE_CHECKING:
    from synth.env.bundle import Bundle
    from synth.env.episode import VerifierServer
    from synth.env.serving import ServerLike

ERROR_RATE = 0.3  # ours: about 1 attempt in 3 goes wrong, so that the filter has work to do
ATTEMPTS, NEED = 5, 2  # the paper's filter
MAX_BREAKDOWNS = 3  # ours: infrastructure errors of one task before the filter gives up


# --- the scripted solver ------------------------------------------------------------------------


@dataclass(frozen=True)
class Attempt:
    """One executed try at a task."""

    task_id: str
    number: int
    mistake: str | None  # None, or which mistake was made on purpose (it may have done no harm)
    calls: tuple[ToolStep, ...]
    answer: Any
    verdict: Verdict


class Solver(Protocol):
    """Who tries tasks: a script here, a model's ReAct loop elsewhere."""

    @property
    def label(self) -> str: ...

    def attempt(
        self,
        bundle: Bundle,
        server: ServerLike,
        task: Task,
        number: int,
        verifier_server: VerifierServer | None,
    ) -> Attempt: ...


@dataclass(frozen=True)
class ScriptedSolver:
    """Replays the gold chain and, at ``error_rate`` a task and attempt, makes one mistake.

    The mistakes: ``wrong_entity`` (one argument is another value of its column),
    ``skipped_step``, ``wrong_answer``. After the first two the answer is read where the gold run had it,
    from what the tools now return. Which mistake, and where, depends on the seed, the task and
    the attempt's number only, never on order or time.
    """

    error_rate: float = ERROR_RATE
    seed: int = 0
    _known: dict[str, _Known] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def label(self) -> str:
        return f"scripted:error_rate={self.error_rate}"

    def attempt(
        self,
        bundle: Bundle,
        server: ServerLike,
        task: Task,
        number: int,
        verifier_server: VerifierServer | None,
    ) -> Attempt:
        """Try a task once, from a fresh start; what was tried to the letter before is not executed again.

        Raises:
            InfrastructureError: a sandbox died; this was no attempt.
        """
        rng = random.Random(f"{self.seed}/{task.id}/{number}")
        steps: list[ToolStep | None] = list(task.chain)
        mistake = None
        if rng.random() < self.error_rate:
            mistake = _slip(bundle, steps, rng)
        taken = tuple(step for step in steps if step is not None)
        known = self._known_of(task)
        run = known.replay(server, taken)
        answer = task.reference_answer
        if mistake == "wrong_answer":
            answer = rng.choice(perturbed(answer))
        elif mistake is not None:
            answer = answer_read_from(steps, run, known.replay(server, task.chain), answer)
        verdict = known.judge(bundle, taken, run, answer, verifier_server)
        return Attempt(task.id, number, mistake, taken, answer, verdict)

    def _known_of(self, task: Task) -> _Known:
        """What is known of the task at hand; of others nothing is kept."""
        key = f"{task.env_digest}/{task.to_json()}"
        if key not in self._known:
            self._known.clear()
        return self._known.setdefault(key, _Known(task))


class _Known:
    """Outcomes of what was done with one task. Its gates have shown that the same calls give the same, so
    the attempts that repeat the gold chain, most of them, are one. A timeout or a broken sandbox is none."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._replays: dict[str, Replay] = {}
        self._verdicts: dict[str, Verdict] = {}

    def replay(self, server: ServerLike, steps: Sequence[ToolStep]) -> Replay:
        key = _letter(steps)
        run = self._replays.get(key) or replay(in_series(server), steps, self._task.seed)
        if run.final is not None:
            self._replays[key] = run
        return run

    def judge(
        self,
        bundle: Bundle,
        steps: Sequence[ToolStep],
        run: Replay,
        answer: Any,
        verifier_server: VerifierServer | None,
    ) -> Verdict:
        """The verdict on an answer after those steps."""
        key = f"{_letter(steps)} {answer!r}"
        verdict = self._verdicts.get(key) or _judge(self._task, bundle, run, answer, verifier_server)
        if run.final is not None and verdict.error is None:
            self._verdicts[key] = verdict
        return verdict


def _letter(steps: Sequence[ToolStep]) -> str:
    return " ".join(step.model_dump_json() for step in steps)


def _slip(bundle: Bundle, steps: list[ToolStep | None], rng: random.Random) -> str:
    """Make one mistake in ``steps`` (a skipped one becomes None) and name it."""
    kind = rng.choice(["wrong_entity", "skipped_step", "wrong_answer"])
    if kind == "skipped_step" and steps:
        steps[rng.randrange(len(steps))] = None
        return kind
    if kind == "wrong_entity":
        slots = [(i, name) for i, step in enumerate(steps) if step for name in sorted(step.arguments)]
        rng.shuffle(slots)
        for index, name in slots:
            step = steps[index]
            assert step is not None
            others = other_values(bundle, step, name)
            if others:
                wrong = {**step.arguments, name: rng.choice(others)}
                steps[index] = ToolStep(tool=step.tool, arguments=wrong)
                return kind
    return "wrong_answer"


def _judge(
    task: Task, bundle: Bundle, run: Replay, answer: Any, verifier_server: VerifierServer | None
) -> Verdict:
    if run.final is None:
        return Verdict(passed=False, checks=(Check(name="episode", passed=False, detail="a tool timed out"),))
    return verify(task, bundle, bundle.state, run.final, answer, verifier_server)


# --- the filter -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Solved:
    """A task that passed the filter, with its rate and label set, and the attempts that solved it."""

    task: Task
    passing: tuple[Attempt, ...]


def filter_solvable(
    bundle: Bundle,
    server: ServerLike,
    tasks: Sequence[Task],
    solver: Solver,
    verifier_server: VerifierServer | None,
    attempts: int = ATTEMPTS,
    need: int = NEED,
    progress: Progress | None = None,
    most: int | None = None,
) -> list[Solved]:
    """Keep the tasks that ``solver`` solves in at least ``need`` of ``attempts`` attempts.

    An infrastructure error is no attempt: the same attempt is made again.

    Args:
        most: and in at most so many. With a solver as strong as the policy, ``attempts - 1`` leaves out
            what teaches nothing: a group whose rewards are all equal gives no gradient. None: no bound.

    Returns:
        The kept tasks in their order; ``solve_rate`` is passes / attempts.

    Raises:
        CallerError: no number of passes can meet ``need`` and ``most``.
        InfrastructureError: one task met more than 3 infrastructure errors.
    """
    if not need <= (attempts if most is None else min(most, attempts)):
        bound = attempts if most is None else min(most, attempts)
        raise CallerError(
            f"filter: no task is solved at least {need} and at most {bound} times; mend the bounds"
        )
    kept = []
    for done, task in enumerate(tasks):
        made = _attempts(bundle, server, task, solver, verifier_server, attempts)
        passing = tuple(attempt for attempt in made if attempt.verdict.passed)
        if need <= len(passing) <= (attempts if most is None else most):
            update = {"solve_rate": len(passing) / attempts, "solver": solver.label}
            kept.append(Solved(task.model_copy(update=update), passing))
        if progress:
            progress(done + 1, len(tasks), task.id)
    return kept


def _attempts(
    bundle: Bundle,
    server: ServerLike,
    task: Task,
    solver: Solver,
    verifier_server: VerifierServer | None,
    count: int,
) -> list[Attempt]:
    made: list[Attempt] = []
    breakdowns = 0
    while len(made) < count:
        try:
            attempt = solver.attempt(bundle, server, task, len(made), verifier_server)
            problem = attempt.verdict.error
        except InfrastructureError as err:
            attempt, problem = None, str(err)
        if attempt is not None and problem is None:
            made.append(attempt)
            continue
        breakdowns += 1
        if breakdowns > MAX_BREAKDOWNS:
            raise InfrastructureError(f"task {task.id}: {breakdowns} infrastructure errors, last: {problem}")
    return made
