"""Task synthesis as a pipeline: bundles and orders -> verified tasks and worked solutions.

In:  ``<run>/bundles/<env_id>/`` and :class:`Order` records: how many tasks of an environment, with which
     seed, and (from the arena's diagnosis) which guide they must obey.
Out: ``<run>/tasks/<env_id>.<tag>.jsonl``, one :class:`synth.types.Task` a line, and
     ``<run>/solutions/<env_id>.<tag>.jsonl``, one distinct passing scripted attempt a line
     ({"task_id", "calls": [{"tool", "arguments"}], "answer"}), which :mod:`rl.data` makes demonstrations of.

An element is one environment under one tag, because it is opened once for all its tasks.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beam_jobs.models import open_author, spent
from beam_jobs.stage import Element, Output, Progress, Stage, Summary, run_stage
from beam_jobs.store import Store, in_threads, open_store, write_lines
from synth.difficulty import guide_of, level_of
from synth.errors import CallerError
from synth.types import Guide, Manifest, SynthesisRequest, Task

if TYPE_CHECKING:
    from synth.env.verifier import VerifierServer


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
    calls: tuple[int, int] | None = None  # of a program's solution; see synth.difficulty


def orders(requests: Iterable[SynthesisRequest], seed: int) -> list[Order]:
    """What the arena asks for, as orders; each gets its own seed so that equal guides differ."""
    return [
        Order(r.env_id, r.count, seed + n, r.guide, max_steps=r.guide.max_steps)
        for n, r in enumerate(requests)
    ]


def at_level(order: Order, name: str) -> Order:
    """The order with the knobs of a level of difficulty. Errors: see :func:`synth.difficulty.level_of`."""
    level, guide = level_of(name), guide_of(name)
    return replace(
        order,
        guide=guide,
        program_share=level.program_share,
        max_steps=guide.max_steps,
        calls=level.calls,
    )


@contextmanager
def tools() -> Iterator[VerifierServer]:
    """What verifies, in a sandbox that stays open for all elements of a worker; a forked child each time.
    Environments get processes of their own in that sandbox, because code of one must never meet another's."""
    from synth.env.episode import VerifierServer
    from synth.env.sandbox import pick_provider
    from synth.env.zygote import Nest

    with Nest(pick_provider()) as nest, VerifierServer(nest) as judge:
        yield judge


def work(store: Store, payload: dict[str, Any], judge: VerifierServer) -> Output:
    """Write, gate and filter the tasks of one environment."""
    from synth.env.serving import open_environment
    from synth.solver import ATTEMPTS, ScriptedSolver, filter_solvable

    counters: Counter[str] = Counter()
    with (
        store.local(f"bundles/{payload['env_id']}") as path,
        open_environment(path, provider=judge.provider) as server,
    ):
        bundle = server.bundle
        author = open_author(payload["author"])
        drafts = _draft(bundle, server, judge, author, payload, counters)
        sound = _gate(bundle, server, judge, drafts, counters)
        seed = payload["orders"][0]["seed"]
        chosen = payload.get("solver")
        tries = author if chosen is None else open_author(chosen)
        own = getattr(tries, "solver", None)  # an author that is a model tries the tasks itself
        solver = own(seed) if own else ScriptedSolver(error_rate=payload["error_rate"], seed=seed)
        most = payload.get("most")  # a share; 1e-9, as 0.6 * 5 could fall short of 3
        bound = None if most is None else int(most * ATTEMPTS + 1e-9)
        solved = filter_solvable(bundle, server, sound, solver, judge, most=bound)
    counters["dropped_unsolved"] = len(sound) - len(solved)
    for kept in solved:
        counters["kept"] += 1
        counters[f"kept_{kept.task.route}"] += 1
        counters["kept_changing_state"] += kept.task.changes_state
    name = f"{payload['env_id']}.{payload['tag']}.jsonl"
    solutions = _distinct(attempt for kept in solved for attempt in kept.passing)
    counters["solutions"] = len(solutions)
    write_lines(store, f"tasks/{name}", (kept.task.to_json() for kept in solved))
    write_lines(store, f"solutions/{name}", solutions)
    counters.update(spent(author))
    if tries is not author:
        counters.update(spent(tries))
    return Output((f"tasks/{name}", f"solutions/{name}"), {k: n for k, n in counters.items() if n})


def _draft(
    bundle: Any, server: Any, judge: Any, author: Any, payload: dict[str, Any], counters: Counter[str]
) -> list[Task]:
    """Both routes over all orders; a discarded draw is counted.

    A task is dropped when its id came before, or when an earlier order has one of its route that asks the
    same in other words (:func:`synth.tasks_graph.intent`; within an order the routes see to that).
    """
    from synth import tasks_graph, tasks_program

    def reject(reason: str) -> None:
        words = (word for word in reason.split() if "." not in word)  # names of tools would be endless
        counters[f"redrawn: {' '.join(words)}"] += 1

    drafts: dict[str, Task] = {}
    asked: set[tuple[str, str]] = set()  # by the orders before
    for order in payload["orders"]:
        guide = None if order["guide"] is None else Guide.model_validate(order["guide"])
        seed, by_program = order["seed"], int(order["count"] * order["program_share"])
        by_graph = order["count"] - by_program
        made = tasks_graph.make_tasks(
            bundle, server, author, seed, by_graph, guide, order["max_steps"], reject=reject
        )
        made += tasks_program.make_tasks(
            bundle, server, author, seed, by_program, guide,
            verifier_server=judge, reject=reject, calls=order.get("calls"),
        )  # fmt: skip
        counters["asked"] += order["count"]
        counters["drafted"] += len(made)
        for task in made:
            known = task.id in drafts or (task.route, tasks_graph.intent(task)) in asked
            counters["dropped_duplicate"] += known
            if not known:
                drafts[task.id] = task
        asked |= {(task.route, tasks_graph.intent(task)) for task in made}
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


STAGE = Stage("synthesize", version=1, work=work, tools=tools)


def elements(
    store: Store,
    wanted: Sequence[Order],
    *,
    tag: str,
    author: str,
    error_rate: float,
    most: float | None = None,
    solver: str | None = None,
) -> list[Element]:
    """One element an environment: all its orders under ``tag``.

    What decides the tasks: the environment's digest, the orders, the author and its version, the solver.

    Raises:
        CallerError: an order names an environment that has no bundle, or ``most`` lets no task through.
    """
    from synth.solver import ATTEMPTS, NEED

    if most is not None and not NEED / ATTEMPTS <= most <= 1:
        raise CallerError(
            f"--most {most}: a task must be solved {NEED} of {ATTEMPTS} times; give {NEED / ATTEMPTS} to 1"
        )
    made, author_id = [], open_author(author).name
    env_ids = list(dict.fromkeys(order.env_id for order in wanted))
    digests = in_threads(lambda env_id: _digest(store, env_id), env_ids)
    for env_id, digest in zip(env_ids, digests, strict=True):
        payload = {
            "env_id": env_id,
            "tag": tag,
            "orders": [_plain(order) for order in wanted if order.env_id == env_id],
            "author": author,
            "error_rate": error_rate,
        }
        if most is not None:  # only then, so that receipts of before hold
            payload["most"] = most
        if solver is not None:  # likewise
            payload |= {"solver": solver, "solver_id": open_author(solver).name}
        if len(payload["orders"]) > 1:  # likewise: since then, orders don't repeat each other
            payload["distinct"] = "intent"
        key = STAGE.key(payload, digest=digest, author_id=author_id)
        made.append(Element(f"{env_id}.{tag}", key, f"bundles/{env_id}", payload))
    return made


def environments(run_dir: str | Path | Store) -> list[str]:
    """Ids of all environments of a run that have a bundle."""
    return open_store(run_dir).names("bundles")


def _digest(store: Store, env_id: str) -> str:
    try:
        with store.local(f"bundles/{env_id}") as path:
            manifest = path / "manifest.json"
            return Manifest.from_json(manifest.read_bytes(), where=str(manifest)).digest
    except FileNotFoundError:
        raise CallerError(
            f"no bundle of environment {env_id} in {store.url}/bundles; validate it first"
        ) from None


def _plain(order: Order) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "count": order.count,
        "seed": order.seed,
        "guide": None if order.guide is None else order.guide.model_dump(mode="json"),
        "program_share": order.program_share,
        "max_steps": order.max_steps,
    }
    if order.calls is not None:  # only then, so that receipts of before hold
        plain["calls"] = list(order.calls)
    return plain


def run(
    run_dir: str | Path | Store,
    wanted: Sequence[Order],
    *,
    tag: str,
    author: str = "offline",
    error_rate: float = 0.3,
    most: float | None = None,
    solver: str | None = None,
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
        most: drop tasks that the solver solves in more than this share of its attempts; None: keep them.
        solver: a model that tries the tasks ("llm:<path of its settings>"); None: the author's own solver.
        options: Beam options as on a command line.
        progress: see :func:`beam_jobs.stage.run_stage`.
    """
    store = open_store(run_dir)
    todo = elements(store, wanted, tag=tag, author=author, error_rate=error_rate, most=most, solver=solver)
    return run_stage(STAGE, todo, run_dir, options=options, progress=progress)
