"""The folder of a training run: whose it is, where the run stands, what was sampled.

In: a run's config, policy and tasks; its train state after a step. Out: ``config.json`` (a folder belongs to
one run), ``checkpoints/`` (Orbax) and ``trajectories/``. Files appear whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from model.checkpoint import Checkpoints
from rl.groups import Group
from rl.metrics import write_atomically
from rl.optimizer import Config, TrainState
from synth.errors import CallerError
from synth.types import Task


class Standing(NamedTuple):
    """Where a run stands between two steps: what a checkpoint holds."""

    step: int  # steps that are done
    state: TrainState
    position: int  # of the next task in their endless sequence
    behind: Any = None  # sampling one step ahead: the weights that sample the next step
    pending: tuple[int, ...] = ()  # sampling in flight: positions before ``position`` still to be trained on


def save(checkpoints: Checkpoints, at: Standing) -> None:
    """Make a step count; nothing happens when it does already. On disk after ``checkpoints.wait()``."""
    checkpoints.wait()
    if at.step == (checkpoints.latest_step() or 0):
        return
    state = at.state if at.behind is None else {"state": at.state, "behind": at.behind}
    checkpoints.save(at.step, state, {"position": at.position, "pending": list(at.pending)})


def restore(checkpoints: Checkpoints, start: Standing, behind: Any = None) -> Standing:
    """The newest checkpoint, or ``start``.

    Args:
        behind: weights of the right shapes when the run samples one step ahead, else None.
    """
    saved = checkpoints.restore_latest(
        start.state if behind is None else {"state": start.state, "behind": behind}
    )
    if saved is None:
        return start
    position, pending = saved.meta["position"], tuple(saved.meta.get("pending", ()))  # older ones have none
    if behind is None:
        return Standing(saved.step, saved.state, position, None, pending)
    return Standing(saved.step, saved.state["state"], position, saved.state["behind"], pending)


def fingerprint(weights: Iterable[np.ndarray], tasks: Sequence[Task]) -> str:
    """What a run starts from: its policy's arrays, and its tasks."""
    digest = hashlib.sha256()
    for array in weights:
        digest.update(array.tobytes())
    for task in tasks:
        digest.update(f"{task.id} {task.env_digest}\n".encode())
    return digest.hexdigest()


def claim(run_dir: Path, config: Config, owner: str) -> None:
    """Write config.json, or check that the one there belongs to this run.

    Args:
        owner: the run's :func:`fingerprint`.

    Raises:
        CallerError: it belongs to another one.
    """
    asked = {"config": config.model_dump(mode="json"), "fingerprint": owner}
    path = run_dir / "config.json"
    if not path.exists():
        write_atomically(path, json.dumps(asked, indent=1) + "\n")
        return
    saved = json.loads(path.read_text())
    try:  # a folder of an older version lacks fields that have come since: they had today's defaults
        same = type(config).model_validate(saved["config"]) == config
    except ValueError:
        same = False
    if not same or saved["fingerprint"] != asked["fingerprint"]:
        raise CallerError(
            f"{path}: this folder belongs to a run with another config, policy or tasks; "
            "give another folder, or remove this one"
        )


def write_groups(run_dir: Path, step: int, groups: Sequence[Group]) -> None:
    """Every episode of a step, dropped groups too."""
    lines = [trajectory.to_json() + "\n" for group in groups for trajectory in group]
    write_atomically(run_dir / "trajectories" / f"step-{step:05d}.jsonl", "".join(lines))
