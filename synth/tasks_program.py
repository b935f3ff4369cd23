"""Programmatic tasks: a solution program over the tools and a verifier program over the outcome.

The author writes an instruction, ``solve(call)`` with loops, branches or aggregation, and
``verify(initial, final, answer)``, which derives what is right from the initial rows, not from the
tools. The solution runs in the sandbox; its return value is the reference answer and its calls are the
gold chain. A draft is kept when the verifier passes the gold outcome and fails a do-nothing one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from synth.author.base import Author, ProgramDraft
from synth.env.bundle import Bundle
from synth.env.episode import VerifierServer
from synth.env.series import in_series
from synth.env.serving import ServerLike
from synth.env.state import State
from synth.leaks import find_leaks
from synth.replay import perturbed
from synth.tasks_graph import WRITE_KINDS, intent, task_id, world_of
from synth.types import Difficulty, Guide, Program, Task, ToolStep, Verdict
from synth.verify import canonical, state_change

ATTEMPTS = 12  # drafts a wanted task before giving up (ours)
MAX_CALLS = 8  # ours: episodes of the shipped policy end after 8 turns


def make_tasks(
    bundle: Bundle,
    server: ServerLike,
    author: Author,
    seed: int,
    count: int,
    guide: Guide | None = None,
    verifier_server: VerifierServer | None = None,
    reject: Callable[[str], None] | None = None,
    calls: tuple[int, int] | None = None,
) -> list[Task]:
    """Up to ``count`` programmatic tasks, deterministic for the same bundle, author, seed and guide.

    Args:
        calls: fewest and most calls of a solution (synth.difficulty); None: any number up to MAX_CALLS.
    """
    world, server = world_of(bundle), in_series(server)  # the gates prove what comes of a draft
    note = reject or (lambda reason: None)
    tasks: dict[str, Task] = {}
    intents: set[str] = set()
    own = verifier_server is None
    verifiers = verifier_server or VerifierServer()
    try:
        world.bench = TrialBench(bundle, server, verifiers)
        for attempt in range(count * ATTEMPTS):
            if len(tasks) == count:
                break
            rng = random.Random(
                f"program:{seed}:{bundle.manifest.digest}:{guide.id if guide else ''}:{attempt}"
            )
            draft = author.write_program(world, guide, rng)
            if draft is None:
                note("no such program here")
                continue
            task = _run(bundle, server, verifiers, draft, rng.randrange(1_000_000), guide, note)
            if task is not None and calls and not calls[0] <= task.difficulty.steps <= calls[1]:
                note("difficulty")
                continue
            if task is not None and task.instruction not in tasks:
                if intent(task) in intents:
                    note("duplicate intent")
                    continue
                intents.add(intent(task))
                tasks[task.instruction] = task
    finally:
        if own:
            verifiers.close()
    return list(tasks.values())


def _run(
    bundle: Bundle, server: ServerLike, verifiers: VerifierServer, draft: ProgramDraft, seed: int,
    guide: Guide | None, note: Callable[[str], None],
) -> Task | None:  # fmt: skip
    manifest = bundle.manifest
    trial = TrialBench(bundle, server, verifiers).run(draft, seed)
    if trial.error is not None or trial.final is None:
        note("program: " + (trial.error or "no calls").split(":")[0])
        return None
    if not trial.gold.passed or trial.idle.passed:
        note("verifier: gold fails" if not trial.gold.passed else "verifier: no-op passes")
        return None
    if trial.leaks:
        note("leak")
        return None
    kinds = [next(t for t in bundle.tools if t.name == c.tool).meta["kind"] for c in trial.calls]
    changed = state_change(bundle.state, trial.final, manifest.tables, manifest.audit_tables)
    if guide is not None and guide.changes_state is not None and guide.changes_state != bool(changed):
        note("guide")
        return None
    return Task(
        id=task_id(manifest.env_id, "program", draft.instruction, manifest.digest),
        env_id=manifest.env_id,
        env_digest=manifest.digest,
        route="program",
        instruction=draft.instruction,
        reference_answer=trial.answer,
        verifier=Program(code=draft.verifier),
        chain=tuple(trial.calls),
        solution=draft.solution,
        difficulty=Difficulty(
            steps=len(trial.calls), tools=len({c.tool for c in trial.calls}),
            writes=sum(k in WRITE_KINDS for k in kinds),
            branch=draft.branch, loop=draft.loop, aggregate=draft.aggregate,
        ),
        changes_state=bool(changed),
        pattern=draft.pattern,
        seed=seed,
        guide_id=guide.id if guide else None,
    )  # fmt: skip


# --- trying a draft -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """One run of a draft's solution; the verifier runs when it is first asked for."""

    bench: TrialBench
    draft: ProgramDraft
    answer: Any
    calls: list[ToolStep]
    final: State | None  # None: it failed, or did nothing
    error: str | None

    @cached_property
    def _verdicts(self) -> list[Verdict]:
        start = self.bench.bundle.state
        return self.bench.judge(self.draft, [(self.final or start, self.answer), (start, None)])

    @property
    def gold(self) -> Verdict:
        """The verifier on what the solution did and answered."""
        return self._verdicts[0]

    @property
    def idle(self) -> Verdict:
        """The verifier on an agent that does and says nothing."""
        return self._verdicts[1]

    @cached_property
    def leaks(self) -> list[str]:
        bundle = self.bench.bundle
        tables, given = bundle.manifest.tables, self.draft.given
        return find_leaks(self.draft.instruction, bundle.tools, tables, self.answer, given=given)


@dataclass(frozen=True)
class TrialBench:
    """Tries drafts in the sandbox; see :class:`synth.author.base.Bench`."""

    bundle: Bundle
    server: ServerLike
    verifiers: VerifierServer

    def run(self, draft: ProgramDraft, seed: int) -> Trial:
        with self.server.open(seed) as episode:
            result = episode.run_solution(draft.solution, max_calls=MAX_CALLS)
            failed = result.error is not None or not result.calls or result.answer is None
            final = None if failed else episode.snapshot()
        return Trial(self, draft, result.answer, result.calls, final, result.error)

    def judge(self, draft: ProgramDraft, outcomes: list[tuple[State, Any]]) -> list[Verdict]:
        """The draft's verifier on (final state, answer) pairs."""
        manifest = self.bundle.manifest
        return self.verifiers.run_all(
            draft.verifier, self.bundle.state, outcomes, manifest.tables, manifest.audit_tables
        )

    def faults(self, draft: ProgramDraft, seed: int) -> list[str]:
        """What keeps a draft from being a task, also the wrong answers that its verifier takes."""
        trial = self.run(draft, seed)
        if trial.error is not None:
            return [f"the solution failed after {len(trial.calls)} calls: {trial.error}"]
        if trial.final is None:
            return ["the solution made no calls or returned None"]
        found = []
        if not trial.gold.passed:
            wrong = "; ".join(f"{c.name}: {c.detail}" for c in trial.gold.checks if not c.passed)
            found.append(f"the verifier fails the solution, which answers {canonical(trial.answer)}: {wrong}")
        else:
            wrong = perturbed(trial.answer)
            verdicts = self.judge(draft, [(trial.final, answer) for answer in wrong])
            taken = [a for a, verdict in zip(wrong, verdicts, strict=True) if verdict.passed]
            found += [f"the verifier passes the wrong answer {canonical(a)}" for a in taken]
        if trial.idle.passed:
            found.append("the verifier passes an agent that does nothing and answers nothing")
        return found + [f"the instruction gives away {leak}" for leak in trial.leaks]
