"""Programmatic tasks: a solution program over the tools and a verifier program over the outcome.

The author writes an instruction, ``solve(call)`` with loops, branches or aggregation, and
``verify(initial, final, answer)``, which derives what is right from the initial rows, not from the
tools. The solution runs in the sandbox; its return value is the reference answer and its calls are the
gold chain. A draft is kept when the verifier passes the gold outcome and fails a do-nothing one.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from synth.author.base import Author, ProgramDraft
from synth.env.bundle import Bundle
from synth.env.episode import EnvServer, VerifierServer
from synth.leaks import find_leaks
from synth.tasks_graph import WRITE_KINDS, task_id, world_of
from synth.types import Difficulty, Guide, Program, Task
from synth.verify import state_change

ATTEMPTS = 12  # drafts a wanted task before giving up (ours)
MAX_CALLS = 8  # ours: episodes of the shipped policy end after 8 turns


def make_tasks(
    bundle: Bundle,
    server: EnvServer,
    author: Author,
    seed: int,
    count: int,
    guide: Guide | None = None,
    verifier_server: VerifierServer | None = None,
    reject: Callable[[str], None] | None = None,
) -> list[Task]:
    """Up to ``count`` programmatic tasks, deterministic for the same bundle, author, seed and guide."""
    world = world_of(bundle)
    note = reject or (lambda reason: None)
    tasks: dict[str, Task] = {}
    own = verifier_server is None
    verifiers = verifier_server or VerifierServer()
    try:
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
            if task is not None and task.instruction not in tasks:
                tasks[task.instruction] = task
    finally:
        if own:
            verifiers.close()
    return list(tasks.values())


def _run(
    bundle: Bundle, server: EnvServer, verifiers: VerifierServer, draft: ProgramDraft, seed: int,
    guide: Guide | None, note: Callable[[str], None],
) -> Task | None:  # fmt: skip
    manifest = bundle.manifest
    with server.open(seed) as episode:
        result = episode.run_solution(draft.solution, max_calls=MAX_CALLS)
        if result.error is not None or not result.calls or result.answer is None:
            note("program: " + (result.error or "no calls").split(":")[0])
            return None
        final = episode.snapshot()
    gold = verifiers.run(
        draft.verifier, bundle.state, final, result.answer, manifest.tables, manifest.audit_tables
    )
    idle = verifiers.run(
        draft.verifier, bundle.state, bundle.state, None, manifest.tables, manifest.audit_tables
    )
    if not gold.passed or idle.passed:
        note("verifier: gold fails" if not gold.passed else "verifier: no-op passes")
        return None
    if find_leaks(draft.instruction, bundle.tools, manifest.tables, result.answer, given=draft.given):
        note("leak")
        return None
    kinds = [next(t for t in bundle.tools if t.name == c.tool).meta["kind"] for c in result.calls]
    changed = state_change(bundle.state, final, manifest.tables, manifest.audit_tables)
    if guide is not None and guide.changes_state is not None and guide.changes_state != bool(changed):
        note("guide")
        return None
    return Task(
        id=task_id(manifest.env_id, "program", draft.instruction, manifest.digest),
        env_id=manifest.env_id,
        env_digest=manifest.digest,
        route="program",
        instruction=draft.instruction,
        reference_answer=result.answer,
        verifier=Program(code=draft.verifier),
        chain=tuple(result.calls),
        solution=draft.solution,
        difficulty=Difficulty(
            steps=len(result.calls), tools=len({c.tool for c in result.calls}),
            writes=sum(k in WRITE_KINDS for k in kinds),
            branch=draft.branch, loop=draft.loop, aggregate=draft.aggregate,
        ),
        changes_state=bool(changed),
        pattern=draft.pattern,
        seed=seed,
        guide_id=guide.id if guide else None,
    )  # fmt: skip
