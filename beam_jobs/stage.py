"""One stage of synthesis as a pipeline over a run folder: what is asked, run, and reported.

A stage is a name, a version and a work function. :func:`run_stage` gets its elements, leaves out
those that are done (see :mod:`beam_jobs.io`), sends the rest through one Beam pipeline
(:mod:`beam_jobs.transforms`) and reports from what lies on disk afterwards. So the report
of a run that was killed and started again equals that of an unbroken one.

Beam is imported only when something is left to do: that import costs 0.8 s, the pipeline itself
0.1 s (ours, measured on 2 cores).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beam_jobs import io
from synth.errors import CallerError

if TYPE_CHECKING:
    from synth.author.base import Author

Progress = Callable[[int, int, str], None]  # finished, all, name of what finished last


@dataclass(frozen=True)
class Element:
    """One unit of work. It is plain data, so that any runner can carry it to any worker."""

    name: str  # names the outputs; unique within the stage
    key: str  # content hash of all that decides the outputs (io.content_key)
    input: str  # where it comes from, for dead letters
    payload: dict[str, Any]  # JSON-able arguments of the work function


@dataclass(frozen=True)
class Output:
    """What a work function wrote (paths relative to the run folder) and counted."""

    paths: tuple[str, ...]
    counters: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Retry:
    """Attempts for an InfrastructureError, and the wait in seconds before the second; it doubles.

    Defaults (ours): a sandbox that died under memory pressure is back within a second or two.
    """

    attempts: int = 3
    wait: float = 0.5


@dataclass(frozen=True)
class Stage:
    """A named step. Raise ``version`` when its outputs change for the same inputs.

    ``work(run, payload)`` must be a module-level function. It writes through :mod:`beam_jobs.io`
    and raises from :mod:`synth.errors`; it may run twice, even at once, and then must write the same.
    """

    name: str
    version: int
    work: Callable[[Path, dict[str, Any]], Output]
    retry: Retry = Retry()

    def key(self, payload: dict[str, Any], **more: str) -> str:
        """The key of an element: its payload, this stage and version, and what else decides the outputs."""
        return io.content_key(stage=self.name, version=self.version, payload=payload, more=more)


@dataclass(frozen=True)
class Summary:
    """What a run of a stage came to. ``counters`` adds up over done and skipped elements."""

    stage: str
    total: int
    done: int  # finished by this run
    skipped: int  # were finished already
    dead: int  # see <run>/dead_letters/<stage>.jsonl
    seconds: float
    counters: dict[str, int]
    outputs: tuple[str, ...]  # of done and skipped elements, relative to the run folder

    def line(self) -> str:
        """One line for the screen; reasons (counters with a colon in their names) are left out."""
        parts = [f"{self.done} done", f"{self.skipped} skipped"] if self.skipped else [f"{self.done} done"]
        if self.dead:
            parts.append(f"{self.dead} dead")
        parts += [f"{name} {count}" for name, count in sorted(self.counters.items()) if ":" not in name]
        return f"{self.stage}: {', '.join(parts)} ({self.seconds:.1f} s)"


def run_stage(
    stage: Stage,
    elements: Sequence[Element],
    run_dir: str | Path,
    *,
    options: Sequence[str] = (),
    progress: Progress | None = None,
) -> Summary:
    """Do what is missing of a stage.

    Args:
        stage: what to run.
        elements: all elements of the stage, also those that may be done.
        run_dir: the run folder; made if missing.
        options: Beam options as on a command line (see :mod:`beam_jobs.options`).
        progress: called with (finished, all, name) as elements finish, from a thread of its own.

    Raises:
        CallerError: a bad option, an unsafe or repeated name.
        InfrastructureError: the runner itself failed.
    """
    start = time.monotonic()
    run = io.open_run(run_dir)
    _check_names(stage, elements)
    before = {e.name for e in elements if io.finished(run, stage.name, e.name, e.key)}
    missing = [e for e in elements if e.name not in before]
    io.update_dead_letters(run, stage.name, before, ())
    if missing:
        from beam_jobs import transforms

        with _reported(run, stage, elements, before, progress):
            transforms.run_pipeline(stage, missing, run, options)
    receipts = [io.read_receipt(run, stage.name, e.name) for e in elements]
    good = [r for r, e in zip(receipts, elements, strict=True) if r is not None and r.key == e.key]
    counters: Counter[str] = Counter()
    for receipt in good:
        counters.update(receipt.counters)
    return Summary(
        stage=stage.name,
        total=len(elements),
        done=len(good) - len(before),
        skipped=len(before),
        dead=len(elements) - len(good),
        seconds=time.monotonic() - start,
        counters=dict(counters),
        outputs=tuple(path for receipt in good for path in receipt.outputs),
    )


def load_author(name: str) -> Author:
    """The author that a name stands for; called on the worker, so that only the name travels.

    Raises:
        CallerError: no such author.
    """
    if name == "offline":
        from synth.author.offline import OfflineAuthor

        return OfflineAuthor()
    raise CallerError(f"no author {name!r}; the authors are: offline")


def _check_names(stage: Stage, elements: Sequence[Element]) -> None:
    for name, times in Counter(e.name for e in elements).items():
        if times > 1:
            raise CallerError(f"{stage.name}: {name} is asked for {times} times; names must differ")
        if not io.SAFE_NAME.fullmatch(name):
            raise CallerError(f"{stage.name}: {name!r} can't name a file; use letters, digits, '.', '_', '-'")


@contextmanager
def _reported(
    run: Path, stage: Stage, elements: Sequence[Element], before: set[str], progress: Progress | None
) -> Iterator[None]:
    """Watch the receipts appear and pass it on: the one thing that works alike on every runner."""
    if progress is None:
        yield
        return
    over = threading.Event()
    waiting = {e.name: e.key for e in elements if e.name not in before}

    def look() -> None:
        for name, key in list(waiting.items()):
            receipt = io.read_receipt(run, stage.name, name)
            if receipt is not None and receipt.key == key:
                del waiting[name]
                progress(len(elements) - len(waiting), len(elements), name)

    def watch() -> None:
        while not over.wait(0.2):
            look()

    progress(len(before), len(elements), "")
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        look()
        if waiting:  # dead or cut short: the bar ends all the same
            progress(len(elements), len(elements), "")
