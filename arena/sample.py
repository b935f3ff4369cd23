"""Choose what is measured: held-out environments, fresh tasks, and the guard between them and training.

Comes from: manifests of all bundles and the verified tasks. Goes to: the tasks of an arena round.
Nothing that training has seen may be measured: :func:`assert_held_out` is called before every evaluation.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from synth.errors import CallerError
from synth.grow import lineage, root_of
from synth.types import Manifest, Task


@dataclass(frozen=True)
class Split:
    """Environment ids, each list sorted; the two have nothing in common."""

    train: tuple[str, ...]
    arena: tuple[str, ...]


def split_environments(manifests: Sequence[Manifest], seed: int) -> Split:
    """Split environments into training and arena, class by class.

    A class (first level of the taxonomy) in which themes carry ``spec.arena = true`` holds out exactly those.
    In any other class one environment is drawn with the seed, if another one is left to train on. Later
    versions of an environment (:mod:`synth.grow`) have no say: they go where the first one goes.

    Raises:
        CallerError: two manifests share an id, or nothing is left to measure or to train on.
    """
    classes: dict[str, list[Manifest]] = defaultdict(list)
    first = {root_of(m): m for m in sorted(manifests, key=lambda m: (-len(lineage(m)), m.env_id))}
    for manifest in sorted(first.values(), key=root_of):
        classes[manifest.taxonomy[0] if manifest.taxonomy else "unclassified"].append(manifest)
    ids = [m.env_id for m in manifests]
    if len(set(ids)) < len(ids):
        raise CallerError("two environments share one env_id; give each bundle an id of its own")
    held_out: set[str] = set()
    for name, members in sorted(classes.items()):
        marked = {root_of(m) for m in members if m.theme.spec.get("arena")}
        if not marked and len(members) > 1:
            marked = {root_of(random.Random(f"{seed}:{name}").choice(members))}
        held_out |= {m.env_id for m in manifests if root_of(m) in marked}
    split = Split(tuple(sorted(set(ids) - held_out)), tuple(sorted(held_out)))
    if not split.arena or not split.train:
        side = "measure" if not split.arena else "train on"
        raise CallerError(
            f"no environment is left to {side} (classes: {', '.join(sorted(classes)) or 'none'}); "
            "add environments, or mark held-out themes with spec.arena"
        )
    return split


def assert_held_out(
    train_env_ids: Iterable[str],
    arena_env_ids: Iterable[str],
    tasks: Iterable[Task],
    train_tasks: Iterable[Task] = (),
) -> None:
    """Refuse to measure on anything that training sees.

    Args:
        train_env_ids: environments that training uses.
        arena_env_ids: environments that are measured.
        tasks: the tasks about to be measured.
        train_tasks: the tasks that training uses, if known here.

    Raises:
        CallerError: an environment is on both sides, a task is of an environment of the other side,
            or one task (by id, or by instruction word for word) is on both sides.
    """
    train_ids, arena_ids, learnt = set(train_env_ids), set(arena_env_ids), list(train_tasks)
    mend = "measure only environments and tasks that training never sees"
    if both := sorted(train_ids & arena_ids):
        raise CallerError(f"environment {both[0]} is in training and in the arena; {mend}")
    seen = {task.id for task in learnt} | {task.instruction for task in learnt}
    for task in tasks:
        if task.env_id not in arena_ids:
            raise CallerError(f"task {task.id} is of {task.env_id}, which is not held out; {mend}")
        if task.id in seen or task.instruction in seen:
            raise CallerError(f"task {task.id} is in training and in the arena; {mend}")
    for task in learnt:
        if task.env_id in arena_ids:
            raise CallerError(f"training task {task.id} is of {task.env_id}, which is held out; {mend}")


def choose_tasks(tasks: Sequence[Task], count: int, seed: int) -> list[Task]:
    """Draw ``count`` tasks, spread evenly over environments, then over patterns within each.

    Environments take turns; within an environment its patterns take turns; within a pattern the seed decides.
    The result is sorted by task id, and holds all tasks when ``count`` is at least their number.
    """
    rng = random.Random(f"choose:{seed}")
    queues: dict[str, dict[str, list[Task]]] = defaultdict(lambda: defaultdict(list))
    for task in sorted(tasks, key=lambda t: t.id):
        queues[task.env_id][task.pattern].append(task)
    turns: list[list[Task]] = []  # per environment, tasks in the order in which they are drawn
    for env_id in sorted(queues):
        piles = [queues[env_id][pattern] for pattern in sorted(queues[env_id])]
        for pile in piles:
            rng.shuffle(pile)
        rng.shuffle(piles)
        turns.append(_take_turns(piles))
    return sorted(_take_turns(turns)[:count], key=lambda t: t.id)


def _take_turns(piles: Sequence[Sequence[Task]]) -> list[Task]:
    """First of each pile, then second of each, and so on."""
    longest = max((len(pile) for pile in piles), default=0)
    return [pile[i] for i in range(longest) for pile in piles if i < len(pile)]
