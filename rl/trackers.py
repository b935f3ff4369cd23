"""Metrics shown in Trackio or Weights & Biases too, for who has one of them.

In: rows of numbers from :class:`rl.metrics.Metrics`. Out: a run of the tracker. Like TensorBoard's files it
is a view, never the truth: a training that goes on after a kill starts a new run of the tracker, whose first
rows are those that ``train.jsonl`` kept, so no step is doubled or lost there either.

Nothing leaves the machine unless asked: Trackio keeps a local database (``TRACKIO_DIR`` says where), W&B
writes offline runs into the run folder (``WANDB_MODE=online`` sends them; ``wandb sync`` does later).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from pathlib import Path
from typing import Any, Literal, Protocol

from synth.errors import CallerError

Tracker = Literal["trackio", "wandb"]
PROJECT = "agent-world"


class Log(Protocol):
    """What both packages offer, for the run that was begun last."""

    def log(self, numbers: Any, step: int) -> None: ...
    def finish(self) -> None: ...


def check(tracker: Tracker | None) -> None:
    """Refuse a tracker whose package is absent, before any work is done.

    Raises:
        CallerError: pip install it.
    """
    if tracker is not None and importlib.util.find_spec(tracker) is None:
        raise CallerError(
            f"tracker {tracker}: the package isn't installed; pip install 'agent-world[{tracker}]'"
        )


def start(tracker: Tracker, folder: Path) -> Log:
    """A new run of the tracker, named after the last three parts of the run folder's path."""
    check(tracker)
    package: Any = importlib.import_module(tracker)
    name = "-".join(folder.resolve().parts[-3:]).strip("/")
    where = {"dir": str(folder), "mode": os.environ.get("WANDB_MODE", "offline")}
    package.init(project=PROJECT, name=name, **(where if tracker == "wandb" else {}))
    return package
