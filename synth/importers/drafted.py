"""A drafted program becomes a task: run once, judged by a verifier that never asks the server.

The verifier derives the answer from the states (:func:`synth.importers.facts.logical`, which it carries) and
compares what changed with what the right branch changes.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass

from synth.env.verifier import VerifierServer
from synth.errors import InfrastructureError
from synth.importers.facts import logical
from synth.importers.readings import records as read_records
from synth.importers.whole_tables import Source
from synth.importers.workshop import Workshop
from synth.replay import replay
from synth.tasks_graph import task_id
from synth.types import Difficulty, Program, Task, ToolStep
from synth.verify import state_change

MAX_CALLS = 8  # as synth.tasks_program
VERIFIER = """\
import json

{facts}

TABLE = {table!r}
WANTED = {wanted!r}  # branch -> what it changes
TABLES = {tables!r}


def same(a, b):
    numbers = [isinstance(x, (int, float)) and not isinstance(x, bool) for x in (a, b)]
    return abs(a - b) < 0.005 if all(numbers) else type(a) is type(b) and a == b


def expected(found):
{body}


def verify(initial, final, answer):
    found = logical({{name: initial.rows(name) for name in TABLES}}, initial.files)[TABLE]
    right, branch = expected(found)
    changed = json.dumps(initial.diff(final), sort_keys=True)
    return [
        ("answer", same(answer, right), ""),
        ("state", changed == WANTED[branch], f"changed {{changed[:200]}}"),
    ]
"""


@dataclass(frozen=True)
class Draft:
    """A program before it was run; ``branches`` are the writes of each branch."""

    instruction: str
    body: str  # of solve, after ``found`` is set
    expected: str  # of the verifier: returns (answer, branch)
    branches: dict[str, list[ToolStep]]
    pattern: str
    branch: bool = False
    loop: bool = False
    aggregate: bool = True


def task_of_draft(shop: Workshop, verifiers: VerifierServer, source: Source, draft: Draft, seed: int) -> Task:
    """Run a draft.

    Raises:
        ValueError: it does not hold; the text says why.
    """
    server, manifest = shop.server, shop.server.bundle.manifest
    wanted = {name: _change(shop, steps, seed) for name, steps in draft.branches.items()}
    if len(set(wanted.values())) < len(wanted):
        raise ValueError("both branches change the same")
    solution = f"{inspect.getsource(read_records)}\n\ndef solve(call):\n    {source.code}\n    {draft.body}\n"
    solution = "from __future__ import annotations\nfrom typing import Any\n\n\n" + solution
    facts = (
        inspect.getsource(logical)
        .replace("dict[str, list[dict[str, Any]]]", "dict")
        .replace("dict[str, bytes]", "dict")
    )
    code = VERIFIER.format(
        facts=facts,
        table=source.table,
        wanted=wanted,
        tables=[t.name for t in manifest.tables],
        body=draft.expected,
    )
    with server.open(seed) as episode:
        result = episode.run_solution(solution, max_calls=MAX_CALLS)
        final = episode.snapshot() if result.error is None and episode.dead is None else None
    if final is None or not result.calls or result.answer is None:
        raise ValueError(f"the solution failed: {result.error}")
    gold = verifiers.run(
        code, server.bundle.state, final, result.answer, manifest.tables, manifest.audit_tables
    )
    if not gold.passed:
        wrong = "; ".join(f"{c.name} {c.detail}" for c in gold.checks if not c.passed)
        raise ValueError(f"the verifier fails the solution: {gold.error or wrong}")
    changed = bool(state_change(server.bundle.state, final, manifest.tables, manifest.audit_tables))
    writing = sum(not server.tools[c.tool].read_only for c in result.calls) if changed else 0
    return Task(
        id=task_id(manifest.env_id, "program", draft.instruction, manifest.digest),
        env_id=manifest.env_id, env_digest=manifest.digest, route="program", instruction=draft.instruction,
        reference_answer=result.answer, verifier=Program(code=code), chain=tuple(result.calls),
        solution=solution,
        difficulty=Difficulty(
            steps=len(result.calls), tools=len({c.tool for c in result.calls}), writes=writing,
            branch=draft.branch, loop=draft.loop, aggregate=draft.aggregate,
        ),
        changes_state=changed, pattern=draft.pattern, seed=seed,
    )  # fmt: skip


def _change(shop: Workshop, steps: list[ToolStep], seed: int) -> str:
    """What writes change, as the verifier will see it."""
    if not steps:
        return "{}"
    try:
        run = replay(shop.server, steps, seed)
    except InfrastructureError as err:
        raise ValueError(f"a write took the server down: {err}") from None
    failed = next((r for r in run.results if not r.ok), None)
    if failed is not None or run.final is None:
        raise ValueError(f"a write does not work: {failed.error_message if failed else ''}")
    manifest = shop.server.bundle.manifest
    change = state_change(shop.server.bundle.state, run.final, manifest.tables, manifest.audit_tables)
    if not change:
        raise ValueError("a write without effect")
    return json.dumps(change, sort_keys=True)
