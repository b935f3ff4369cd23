"""Tasks done by script, and the 2-of-5 filter over them.

:class:`ScriptedSolver` stands where a model's ReAct loop would: it knows the gold chain and,
at a stated rate, makes one mistake of a kind that agents make. Attempts are really executed
and really judged, but **how often a task is solved this way measures the stated error rate
and how forgiving the task is, not how difficult it is**; so tasks carry the solver's label
(``scripted:error_rate=0.3``) beside their ``solve_rate``. With a model as solver the same filter
is the paper's: keep what is solved in at least 2 of 5 attempts.

Tasks come from the task stages after :func:`synth.admission.check_task`; what passes goes
to the task files, and the passing attempts to :mod:`rl.data` as demonstrations.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from synth.env import state as states
from synth.errors import InfrastructureError
from synth.gates import Progress
from synth.replay import Replay, perturbed, replay
from synth.types import Check, Task, ToolStep, Verdict
from synth.verify import canonical, verify

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
        """Try a task once, in a fresh episode.

        Raises:
            InfrastructureError: a sandbox died; this was no attempt.
        """
        rng = random.Random(f"{self.seed}/{task.id}/{number}")
        steps: list[ToolStep | None] = list(task.chain)
        mistake = None
        if rng.random() < self.error_rate:
            mistake = _slip(bundle, steps, rng)
        taken = tuple(step for step in steps if step is not None)
        run = replay(server, taken, task.seed)
        answer = task.reference_answer
        if mistake == "wrong_answer":
            answer = rng.choice(perturbed(answer))
        elif mistake is not None:
            gold = replay(server, task.chain, task.seed)
            answer = _answer_read_from(steps, run, gold, answer)
        verdict = _judge(task, bundle, run, answer, verifier_server)
        return Attempt(task.id, number, mistake, taken, answer, verdict)


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
            others = _other_values(bundle, step, name)
            if others:
                wrong = {**step.arguments, name: rng.choice(others)}
                steps[index] = ToolStep(tool=step.tool, arguments=wrong)
                return kind
    return "wrong_answer"


def _other_values(bundle: Bundle, step: ToolStep, parameter: str) -> list[Any]:
    """Other values of the column that a parameter takes its values from, in a fixed order."""
    inputs = next((tool.meta.get("inputs", {}) for tool in bundle.tools if tool.name == step.tool), {})
    table, _, column = str(inputs.get(parameter, "")).partition(".")
    schema = next((t for t in bundle.manifest.tables if t.name == table), None)
    if schema is None or column not in [c.name for c in schema.columns]:
        return []
    values = {canonical(row[column]): row[column] for row in states.rows(bundle.state, table)}
    values.pop(canonical(step.arguments[parameter]), None)
    return [values[key] for key in sorted(values) if values[key] is not None]


def _answer_read_from(steps: Sequence[ToolStep | None], run: Replay, gold: Replay, answer: Any) -> Any:
    """The answer as a solver reads it off ``run``: at the place where the gold run had it.

    None where that place is empty now. An answer that stood nowhere (it was counted or computed)
    comes out near, and wrong.
    """
    if isinstance(answer, list) and answer:
        return [_answer_read_from(steps, run, gold, item) for item in answer]
    places = [(i, path) for i, r in enumerate(gold.results) for path in _paths(r.value, answer)]
    if not places:
        return perturbed(answer)[0]
    index, path = places[-1]
    position = sum(step is not None for step in steps[:index])
    if steps[index] is None or position >= len(run.results):
        return None
    value = run.results[position].value
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return None if isinstance(value, list | dict) else value


def _paths(value: Any, wanted: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if canonical(value) == canonical(wanted):
        yield path
    elif isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _paths(item, wanted, (*path, key))


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
) -> list[Solved]:
    """Keep the tasks that ``solver`` solves in at least ``need`` of ``attempts`` attempts.

    An infrastructure error is no attempt: the same attempt is made again.

    Returns:
        The kept tasks in their order; ``solve_rate`` is passes / attempts.

    Raises:
        InfrastructureError: one task met more than 3 infrastructure errors.
    """
    kept = []
    for done, task in enumerate(tasks):
        made = _attempts(bundle, server, task, solver, verifier_server, attempts)
        passing = tuple(attempt for attempt in made if attempt.verdict.passed)
        if len(passing) >= need:
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
