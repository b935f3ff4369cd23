"""The provider's limits, kept by all threads and processes that share a model's folder.

Requests at once are lock files, which a killed process lets go of; requests and tokens a minute are times in
one small file. When the provider asks for a pause, everybody pauses. Locks need a local disk, as the store.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from synth.author.settings import Settings

LOOK = 0.05  # seconds between two looks for a free place (ours: far below any reply)
LONGEST = 120.0  # seconds that a provider's pause may last (ours)
STALE = 3600.0  # seconds ahead that no real schedule reaches: the clock was set back


@dataclass(frozen=True)
class Room:
    """Places for requests at once; a context manager that takes one."""

    folder: Path
    places: int

    @contextmanager
    def place(self) -> Iterator[None]:
        """Wait for a place, and hold it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        while True:
            for number in range(self.places):
                with open(self.folder / f"place-{number:03d}", "w") as file:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        continue
                    try:
                        yield
                    finally:  # also of a child that was forked meanwhile
                        fcntl.flock(file, fcntl.LOCK_UN)
                    return
            time.sleep(LOOK)


@dataclass(frozen=True)
class Pace:
    """Keeps requests and tokens apart, so that no more than so many leave in a minute.

    Attributes:
        sleep: waits; tests pass one that notes.
    """

    folder: Path
    requests: float | None
    tokens: float | None
    sleep: Callable[[float], None] = time.sleep

    def wait(self, tokens: int) -> None:
        """Wait for this request's turn.

        Args:
            tokens: what the request can come to, in and out.
        """
        with self._times() as times:
            now = time.time()
            start = max([now, *(t for t in times.values() if t < now + STALE)])
            times["request"] = start + (60.0 / self.requests if self.requests else 0.0)
            times["tokens"] = start + (60.0 * tokens / self.tokens if self.tokens else 0.0)
        if start > now:
            self.sleep(start - now)

    def pause(self, seconds: float) -> None:
        """The provider wants to be left alone for a while: all requests wait."""
        if seconds > 0:
            with self._times() as times:
                times["pause"] = max(times["pause"], time.time() + min(seconds, LONGEST))

    @contextmanager
    def _times(self) -> Iterator[dict[str, float]]:
        """The next times that requests may leave, read and written under a lock."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "pace.json", "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            times = {"request": 0.0, "tokens": 0.0, "pause": 0.0, **_read(file.read())}
            yield times
            file.truncate(0)
            file.write(json.dumps(times))


def limits_of(settings: Settings, sleep: Callable[[float], None]) -> tuple[Room, Pace]:
    """The limits that settings state, in the folder of their store."""
    folder = settings.folder / "locks"
    pace = Pace(folder, settings.requests_per_minute, settings.tokens_per_minute, sleep)
    return Room(folder, settings.concurrency), pace


def _read(text: str) -> dict[str, float]:
    try:
        value = json.loads(text)
        return {name: float(t) for name, t in value.items()}
    except (ValueError, TypeError, AttributeError):  # empty, or a process was killed while it wrote
        return {}
