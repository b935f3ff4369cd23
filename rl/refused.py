"""Refused updates: how many in a row are borne, and what is left behind when there were too many.

In: for each optimizer step, whether it was applied, and its minibatch. Out: nothing while things go
well; after ``limit`` refusals in a row an :class:`UpdatesRefused`, and the last minibatch on disk.

One refusal is a bad batch and harmless, the state stayed as it was. Many in a row mean that training
has stopped without saying so. The count is of this process: a run that is resumed starts at 0, the
total of all refusals is in the train state and the metrics (``skipped``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rl.batch import FIELDS, Batch
from synth.errors import InfrastructureError


class UpdatesRefused(InfrastructureError):
    """Too many optimizer steps in a row had a loss or a gradient that isn't finite."""


class Refusals:
    """Counts refusals in a row.

    Args:
        limit: refusals in a row that end the run; 0 bears any number.
        folder: where the last refused minibatch is written; None writes nothing.
    """

    def __init__(self, limit: int, folder: Path | None = None):
        self.limit, self.folder, self.in_a_row = limit, folder, 0

    def saw(
        self, applied: bool, numbers: dict[str, float], micro: Sequence[Batch], logp: Sequence[np.ndarray]
    ) -> None:
        """Record one optimizer step.

        Args:
            applied: whether the state changed.
            numbers: ``loss`` and ``grad_norm``, for the message.
            micro: the step's micro-batches.
            logp: the trainer's log-probabilities of their targets; only needed when not applied.

        Raises:
            UpdatesRefused: this was the last refusal that is borne.
        """
        self.in_a_row = 0 if applied else self.in_a_row + 1
        if not self.limit or self.in_a_row < self.limit:
            return
        arrays = {field: np.concatenate([getattr(batch, field) for batch in micro]) for field in FIELDS}
        arrays["trainer_logprobs"] = np.concatenate(logp)
        where = f"is in {self._dump(arrays)}" if self.folder else "was not kept, for want of a folder"
        raise UpdatesRefused(
            f"{self.in_a_row} updates in a row were refused (loss {numbers['loss']}, gradient norm "
            f"{numbers['grad_norm']}); not finite where a token counts: {_blame(arrays)}; the last batch "
            f"{where}; resume with a lower learner.optimizer.learning_rate, or without what made this batch"
        )

    def _dump(self, arrays: dict[str, np.ndarray]) -> Path:
        assert self.folder is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "refused-batch.npz"
        temporary = path.with_name("refused-batch.tmp.npz")
        np.savez_compressed(temporary, **arrays)  # pyright: ignore[reportArgumentType]
        os.replace(temporary, path)
        return path


def _blame(arrays: dict[str, np.ndarray]) -> str:
    """Which arrays hold what isn't finite, and on how many of the tokens that count."""
    on = arrays["weights"] != 0  # NaN too
    counts = {
        name: int(np.sum(~np.isfinite(values[on])))
        for name, values in arrays.items()
        if np.issubdtype(values.dtype, np.floating)
    }
    found = [f"{name} ({count} of {int(on.sum())})" for name, count in counts.items() if count]
    return ", ".join(found) or "nothing in the batch, so the gradient itself"
