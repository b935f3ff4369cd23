"""The body of ``agent-world mutate``: mutation score of a run's verifiers, and leaks in its instructions.

Comes from: bundles and tasks of a run folder. Prints; writes nothing. Tasks made for another version of their
environment are left out and counted.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from arena.commands import bar, screen
from arena.folder import RunFolder
from beam_jobs.mirror import mirrored
from synth.errors import CallerError
from synth.mutation import GOAL, KINDS, Score
from synth.types import Task

SHOWN = 12  # survivors that are printed; all are in the JSON


def run_mutate(root: Path, tag: str | None, most: int | None, seed: int, as_json: bool) -> int:
    """Score the verifiers of a run; 1 below :data:`synth.mutation.GOAL` or when a gold outcome fails.

    Raises:
        CallerError: the run has no tasks (of that tag).
    """
    with mirrored(root, ("bundles/*", "tasks/*")) as here:
        return _mutate(here.root, tag, most, seed, as_json)


def _mutate(root: Path, tag: str | None, most: int | None, seed: int, as_json: bool) -> int:
    """:func:`run_mutate` in a local folder."""
    run = RunFolder(root)
    by_env: dict[str, list[Task]] = defaultdict(list)
    for task in sorted(run.tasks(tag).values(), key=lambda t: t.id):
        by_env[task.env_id].append(task)
    if not by_env:
        raise CallerError(
            f"{root}: no tasks{f' of tag {tag}' if tag else ''}; run 'agent-world tasks {root}'"
        )
    rng = random.Random(f"mutate:{seed}")
    if most is not None:
        by_env = {e: rng.sample(tasks, min(most, len(tasks))) for e, tasks in by_env.items()}
    total, left_out, leaking = Score(), 0, []
    rows = []
    for env_id, tasks in by_env.items():
        score, other, leaks = _environment(root / "bundles" / env_id, tasks, seed)
        rows.append((env_id, score))
        total += score
        left_out += other
        leaking += leaks
    met = total.value >= GOAL and not total.gold_fails
    if as_json:
        print(json.dumps(_figures(total) | {"left_out": left_out, "leaking": leaking, "met": met}))
        return 0 if met else 1
    _show(rows, total)
    print(f"{len(leaking)} of {total.tasks} instructions say a name from inside or the answer")
    for line in leaking[:SHOWN]:
        print(f"  {line}")
    if left_out:
        print(f"{left_out} tasks are of another version of their environment and were left out")
    print(
        f"mutation score {total.value:.4f} ({total.refused.total():,} of {total.made.total():,} wrong "
        f"outcomes refused, {total.tasks} tasks; goal {GOAL})"
    )
    return 0 if met else 1


def _environment(path: Path, tasks: Sequence[Task], seed: int) -> tuple[Score, int, list[str]]:
    """(score, tasks of other versions, instructions that leak) of one environment."""
    from synth.env.bundle import read_bundle
    from synth.env.episode import VerifierServer
    from synth.env.serving import open_environment
    from synth.leaks import task_leaks
    from synth.mutation import score

    found, bundle = Score(), read_bundle(path)
    ours = [task for task in tasks if task.env_digest == bundle.manifest.digest]
    with open_environment(path) as server, VerifierServer() as judge, bar(path.name) as report:
        for done, task in enumerate(ours, 1):
            found += score(server, bundle, task, judge, seed)
            report(done, len(ours), task.id)
    leaks = ((task, task_leaks(task, bundle.tools, bundle.manifest.tables)) for task in ours)
    lines = [f"{task.id}: {', '.join(found)}" for task, found in leaks if found]
    return found, len(tasks) - len(ours), lines


def _figures(total: Score) -> dict[str, object]:
    return {
        "score": round(total.value, 4),
        "goal": GOAL,
        "tasks": total.tasks,
        "mutants": total.made.total(),
        "by_kind": {k: {"made": total.made[k], "refused": total.refused[k]} for k in KINDS},
        "survivors": [{"task": t, "kind": k, "what": w} for t, k, w in total.survivors],
        "gold_fails": total.gold_fails,
    }


def _show(rows: Sequence[tuple[str, Score]], total: Score) -> None:
    """A table by environment, one by kind, and some of what passed."""
    console = screen()
    table = Table("environment", "tasks", "wrong outcomes", "refused", "what passed")
    for env_id, found in rows:
        passed = Counter(kind for _, kind, _ in found.survivors)
        words = ", ".join(f"{kind} {n}" for kind, n in passed.most_common())
        table.add_row(env_id, str(found.tasks), str(found.made.total()), f"{found.value:.3f}", words)
    console.print(table)
    kinds = Table("kind", "made", "refused", "what it is")
    for kind, words in KINDS.items():
        made = total.made[kind]
        rate = f"{total.refused[kind] / made:.3f}" if made else "-"
        kinds.add_row(kind, str(made), rate, words)
    console.print(kinds)
    for task_id, kind, what in total.survivors[:SHOWN]:
        console.print(Text(f"passed: {task_id}: {kind}: {what}"))
    if total.gold_fails:
        print(f"the right outcome does not pass: {', '.join(total.gold_fails[:SHOWN])}")
