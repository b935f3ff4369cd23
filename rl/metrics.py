"""Metrics of a run: one JSON line a step, mirrored to TensorBoard and, if asked, to a tracker.

In: a dictionary of numbers a step. Out: ``metrics.jsonl`` (the truth) and ``tensorboard/`` (a view
of it; :mod:`rl.trackers` has more). A resumed run calls :meth:`Metrics.truncate` with the first step that
it will do again: later lines are cut off with an atomic rename and the views are written anew from the
lines that stay, so that no step is doubled or lost after ``kill -9``.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from rl import trackers


def write_atomically(path: Path, text: str) -> None:
    """Replace a file's content so that a reader (or a crash) sees the old text or the new, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a metrics file, in order; a half-written last line is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


class Phases:
    """Where a step's time goes: seconds of each phase, one after the other.

    A phase keeps its figure until it ends again, so what comes after a step's metrics (saving them) shows
    in those of the next step.
    """

    def __init__(self) -> None:
        self._at = time.monotonic()
        self.seconds: dict[str, float] = {}

    def end(self, name: str) -> None:
        """The phase ``name`` ends now; the next one begins."""
        now = time.monotonic()
        self.seconds[f"seconds_{name}"] = now - self._at
        self._at = now


class Metrics:
    """Writer of one run's metrics.

    Args:
        folder: the run folder.
        prefix: name of the stage, for files and TensorBoard tags (``train`` gives ``train.jsonl``).
        tensorboard: whether to mirror to ``folder/tensorboard/<prefix>``.
        tracker: where to mirror to besides.
    """

    def __init__(
        self,
        folder: Path,
        prefix: str = "metrics",
        *,
        tensorboard: bool = True,
        tracker: trackers.Tracker | None = None,
    ):
        self.path = Path(folder) / f"{prefix}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._tensorboard_folder = Path(folder) / "tensorboard" / prefix if tensorboard else None
        self._writer: SummaryWriter | None = None
        self._tracker: trackers.Tracker | None = tracker
        self._log: trackers.Log | None = None

    def truncate(self, step: int) -> None:
        """Keep only the lines of steps below ``step``."""
        kept = [row for row in read_metrics(self.path) if row["step"] < step]
        write_atomically(self.path, "".join(_line(row) for row in kept))
        self.close()
        if self._tensorboard_folder is not None:
            shutil.rmtree(self._tensorboard_folder, ignore_errors=True)
        for row in kept:
            self._mirror(row)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Append one step; numbers go to TensorBoard too."""
        row = {"step": step, **values}
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(_line(row))
        self._mirror(row)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._log is not None:
            self._log.finish()
            self._log = None

    def _mirror(self, row: Mapping[str, Any]) -> None:
        numbers = {
            name: value
            for name, value in row.items()
            if name != "step" and isinstance(value, int | float) and math.isfinite(value)
        }
        if self._tensorboard_folder is not None:
            if self._writer is None:
                self._writer = SummaryWriter(str(self._tensorboard_folder))
            for name, value in numbers.items():
                self._writer.add_scalar(name, value, row["step"])
        if self._tracker is not None:
            if self._log is None:
                self._log = trackers.start(self._tracker, self.path.parent)
            self._log.log(numbers, step=row["step"])


def _line(row: Mapping[str, Any]) -> str:
    """JSON has no NaN and no infinity: such a number is written as null (and left out of TensorBoard)."""
    finite = {name: None if _lost(value) else value for name, value in row.items()}
    return json.dumps(finite, default=float, allow_nan=False) + "\n"


def _lost(value: Any) -> bool:
    return hasattr(value, "__float__") and not math.isfinite(value)
