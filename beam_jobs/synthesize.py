"""Task synthesis as a pipeline: bundles and orders -> verified tasks and worked solutions.

In:  ``<run>/bundles/<env_id>/`` and :class:`Order` records: how many tasks of an environment, with which
     seed, and (from the arena's diagnosis) which guide they must obey.
Out: ``<run>/tasks/<env_id>.<tag>.jsonl``, one :class:`synth.types.Task` a line, and
     ``<run>/solutions/<env_id>.<tag>.jsonl``, one distinct passing scripted attempt a line
     ({"task_id", "calls": [{"tool", "arguments"}], "answer"}), which :mod:`rl.data` makes demonstrations of.

An element is one environment under one tag, because its sandbox is opened once for all its tasks.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beam_jobs import io
from beam_jobs.stage import Element, Output, Progress, Stage, Summary, load_author, run_stage
from synth.errors import CallerError
from synth.types import Guide, Manifest, SynthesisRequest, Task


@dataclass(frozen=True)
class Order:
    """How many tasks are wanted of an environment, and what they are like.

    ``program_share`` of them are programmatic, the rest graph tasks of at most ``max_steps`` calls.
    """

    env_id: str
    count: int
    seed: int
    guide: Guide | None = None
    program_share: float = 0.5  # ours: the paper states no share
    max_steps: int = 4  # ours: see synth.tasks_graph.MAX_STEPS


def orders(requests: Iterable[SynthesisRequest], seed: int) -> list[Order]:
    """What the arena asks for, as orders; each gets its own seed so that equal guides differ."""
    return [
        Order(r.env_id, r.count, seed + n, r.guide, max_steps=r.guide.max_steps)
        for n, r in enumerate(requests)
    ]


def work(run: Path, payload: dict[str, Any]) -> Output:
    """Write, gate and filter the tasks of one environment."""
    from synth.env.bundle import read_bundle
    from synth.env.episode import EnvServer, VerifierServer
    from synth.solver import ScriptedSolver, filter_solvable

    path = run / "bundles" / payload["env_id"]
    bundle = read_bundle(path)
    counters: Counter[str] = Counter()
    with EnvServer(path) as server, VerifierServer() as judge:
        drafts = _draft(bundle, server, judge, payload, counters)
        sound = _gate(bundle, server, judge, drafts, counters)
        solver = ScriptedSolver(error_rate=payload["error_rate"], seed=payload["orders"][0]["seed"])
        solved = filter_solvable(bundle, server, sound, solver, judge)
    counters["dropped_unsolved"] = len(sound) - len(solved)
    for kept in solved:
        counters["kept"] += 1
        counters[f"kept_{kept.task.route}"] += 1
        counters["kept_changing_state"] += kept.task.changes_state
    name = f"{payload['env_id']}.{payload['tag']}.jsonl"
    solutions = _distinct(attempt for kept in solved for attempt in kept.passing)
    counters["solutions"] = len(solutions)
    io.write_lines(run, f"tasks/{name}", (kept.task.to_json() for kept in solved))
    io.write_lines(run, f"solutions/{name}", solutions)
    return Output((f"tasks/{name}", f"solutions/{name}"), {k: n for k, n in counters.items() if n})


def _draft(
    bundle: Any, server: Any, judge: Any, payload: dict[str, Any], counters: Counter[str]
) -> list[Task]:
    """Both routes over all orders; a task whose id came before is dropped, a discarded draw is counted."""
    from synth import tasks_graph, tasks_program

    def reject(reason: str) -> None:
        words = (word for word in reason.split() if "." not in word)  # names of tools would be endless
        counters[f"redrawn: {' '.join(words)}"] += 1

    author = load_author(payload["author"])
    drafts: dict[str, Task] = {}
    for order in payload["orders"]:
        guide = None if order["guide"] is None else Guide.model_validate(order["guide"])
        seed, by_program = order["seed"], int(order["count"] * order["program_share"])
        by_graph = order["count"] - by_program
        made = tasks_graph.make_tasks(
            bundle, server, author, seed, by_graph, guide, order["max_steps"], reject=reject
        )
        made += tasks_program.make_tasks(
            bundle, server, author, seed, by_program, guide, verifier_server=judge, reject=reject
        )
        counters["asked"] += order["count"]
        counters["drafted"] += len(made)
        for task in made:
            counters["dropped_duplicate"] += task.id in drafts
            drafts.setdefault(task.id, task)
    return list(drafts.values())


def _gate(bundle: Any, server: Any, judge: Any, drafts: list[Task], counters: Counter[str]) -> list[Task]:
    """The tasks that pass every gate; the others are counted by the first gate that they fail."""
    from synth.admission import check_task

    sound = []
    for task in drafts:
        faults = check_task(server, bundle, task, judge)
        if faults:
            counters[f"dropped_{faults[0].gate}"] += 1
        else:
            sound.append(task)
    return sound


def _distinct(attempts: Iterable[Any]) -> list[str]:
    """Passing attempts as JSON lines, equal ones once: most repeat the gold chain."""
    lines = {}
    for attempt in attempts:
        calls = [call.model_dump(mode="json", include={"tool", "arguments"}) for call in attempt.calls]
        lines[json.dumps({"task_id": attempt.task_id, "calls": calls, "answer": attempt.answer})] = None
    return list(lines)


STAGE = Stage("synthesize", version=1, work=work)


def elements(
    run: Path, wanted: Sequence[Order], *, tag: str, author: str, error_rate: float
) -> list[Element]:
    """One element an environment: all its orders under ``tag``.

    What decides the tasks: the environment's digest, the orders, the author and its version, the solver.

    Raises:
        CallerError: an order names an environment that has no bundle.
    """
    made, author_id = [], load_author(author).name
    for env_id in dict.fromkeys(order.env_id for order in wanted):
        path = run / "bundles" / env_id / "manifest.json"
        if not path.exists():
            raise CallerError(f"no bundle of environment {env_id} in {run / 'bundles'}; validate it first")
        digest = Manifest.from_json(path.read_bytes(), where=str(path)).digest
        payload = {
            "env_id": env_id,
            "tag": tag,
            "orders": [_plain(order) for order in wanted if order.env_id == env_id],
            "author": author,
            "error_rate": error_rate,
        }
        key = STAGE.key(payload, digest=digest, author_id=author_id)
        made.append(Element(f"{env_id}.{tag}", key, f"bundles/{env_id}", payload))
    return made


def _plain(order: Order) -> dict[str, Any]:
    return {
        "count": order.count,
        "seed": order.seed,
        "guide": None if order.guide is None else order.guide.model_dump(mode="json"),
        "program_share": order.program_share,
        "max_steps": order.max_steps,
    }


def run(
    run_dir: str | Path,
    wanted: Sequence[Order],
    *,
    tag: str,
    author: str = "offline",
    error_rate: float = 0.3,
    options: Sequence[str] = (),
    progress: Progress | None = None,
) -> Summary:
    """Synthesize the tasks that are missing. Errors: see :func:`beam_jobs.stage.run_stage`.

    Args:
        run_dir: the run folder, with its bundles.
        wanted: the orders; see :func:`orders` for what the arena asks.
        tag: names the files, e.g. ``train``, ``heldout``, ``evolve1``.
        author: who words tasks and writes programs.
        error_rate: of the scripted solver behind the 2-of-5 filter (source: synth.solver.ERROR_RATE).
        options: Beam options as on a command line.
        progress: see :func:`beam_jobs.stage.run_stage`.
    """
    todo = elements(Path(run_dir), wanted, tag=tag, author=author, error_rate=error_rate)
    return run_stage(STAGE, todo, run_dir, options=options, progress=progress)
