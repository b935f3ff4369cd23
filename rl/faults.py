"""What ends a run from outside: preemption (SIGTERM) and a full disk. Both leave its last whole step on disk.

In: a signal, or an error on its way up. Out: an :class:`InfrastructureError` with one clear line, raised
where nothing is half done. A killed run needs none of this (``kill -9`` asks nobody); it goes on from its
last checkpoint all the same, and so does a run that was ended here.
"""

from __future__ import annotations

import errno
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from synth.errors import InfrastructureError

FULL = (errno.ENOSPC, errno.EDQUOT)
FULL_WORDS = ("no space left on device", "disk quota exceeded")  # how TensorStore and Orbax pass it on


class Preempted(InfrastructureError):
    """SIGTERM came. ``exit_code`` is what a shell reports of a process that the signal ended."""

    exit_code = 128 + signal.SIGTERM

    def __init__(self) -> None:
        super().__init__("stopped by SIGTERM; the last whole step is saved, the same command goes on from it")


class DiskFull(InfrastructureError):
    """A file of the run could not be written for want of space."""


class Preemption:
    """From SIGTERM on, :meth:`check` raises. A context manager that takes the signal while it is open.

    The handler itself does nothing but remember, so no file is left half-written: a run calls ``check``
    between rounds of its episodes, between micro-batches and between steps. The grace time that it needs
    is the longest of these, plus one checkpoint.
    """

    def __init__(self) -> None:
        self.came = False
        self._before: Any = None

    def check(self, *_: object) -> None:
        """Go on, or raise :class:`Preempted`. Takes and ignores what a progress callback is told."""
        if self.came:
            raise Preempted

    def __enter__(self) -> Preemption:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handler
            self._before = signal.signal(signal.SIGTERM, self._arrived)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        self.came = True


@contextmanager
def naming_full_disk(run_dir: Path, last_good: Callable[[], int | None]) -> Iterator[None]:
    """Turn any error that comes from a full disk into a :class:`DiskFull` that names what is safe.

    Args:
        run_dir: what the message points to.
        last_good: the newest whole checkpoint.
    """
    try:
        yield
    except Exception as err:
        if not is_full_disk(err):
            raise
        step = last_good()
        safe = "no step was saved yet" if step is None else f"its checkpoint of step {step} is whole"
        raise DiskFull(
            f"{run_dir}: no space left on the disk; {safe}; free some and give the same command again"
        ) from err


def is_full_disk(err: BaseException | None) -> bool:
    """Whether an error, or what it was raised from, says that a disk or a quota is full."""
    while err is not None:
        if isinstance(err, OSError) and err.errno in FULL:
            return True
        if any(words in str(err).lower() for words in FULL_WORDS):
            return True
        err = err.__cause__ or err.__context__
    return False
