"""One stage of synthesis as a pipeline over a run folder: what is asked, run, and reported.

A stage is a name, a version and a work function. :func:`run_stage` gets its elements, leaves out
those that are done (see :mod:`beam_jobs.io`), sends the rest through one Beam pipeline
(:mod:`beam_jobs.transforms`) and reports from what lies on disk afterwards. So the report
of a run that was killed and started again equals that of an unbroken one.

Beam is imported only when something is left to do: that import costs 0.8 s, the pipeline itself
0.1 s (ours, measured on 2 cores).
"""

from __future__ import annotations

import dataclasses
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beam_jobs import io
from beam_jobs.options import JobOptions, split_options
from beam_jobs.store import LocalStore, Store, in_threads, open_store
from beam_jobs.workers import WorkerDied
from synth.errors import CallerError, InfrastructureError

Progress = Callable[[int, int, str], None]  # finished, all, name of what finished last
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


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

    ``work(store, payload, tools)`` must be a module-level function. It writes through the store and raises
    from :mod:`synth.errors`; it may run twice, even at once, and then must write the same.

    Attributes:
        tools: opens what elements share on a worker (sandboxes, the author); its value is ``work``'s third
            argument. Opened once a worker, anew after an infrastructure error.
        seconds: time limit of one attempt at one element (ours: the slowest of the demo takes 20 s on a
            busy machine; the limit is there for what hangs).
    """

    name: str
    version: int
    work: Callable[[Store, dict[str, Any], Any], Output]
    retry: Retry = Retry()
    tools: Callable[[], AbstractContextManager[Any]] = nullcontext
    seconds: float = 1800.0

    def key(self, payload: dict[str, Any], **more: str) -> str:
        """The key of an element: its payload, this stage and version, and what else decides the outputs."""
        return io.content_key(stage=self.name, version=self.version, payload=payload, more=more)

    def with_options(self, job: JobOptions) -> Stage:
        """The stage as the user's options want it."""
        retry = dataclasses.replace(self.retry, attempts=job.attempts or self.retry.attempts)
        return dataclasses.replace(self, retry=retry, seconds=job.element_timeout or self.seconds)


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
    work_seconds: float = 0.0  # on all workers together, over done and skipped elements
    left_dead: int = 0  # of the dead: died of their content before, and weren't tried (--retry-dead does)

    def line(self) -> str:
        """One line for the screen; reasons (counters with a colon in their names) are left out."""
        parts = [f"{self.done} done", f"{self.skipped} skipped"] if self.skipped else [f"{self.done} done"]
        if self.dead:
            left = f" ({self.left_dead} from before; --retry-dead tries again)" if self.left_dead else ""
            parts.append(f"{self.dead} dead{left}")
        parts += [f"{name} {count}" for name, count in sorted(self.counters.items()) if ":" not in name]
        return f"{self.stage}: {', '.join(parts)} ({self.seconds:.1f} s)"


def run_stage(
    stage: Stage,
    elements: Sequence[Element],
    run_dir: str | Path | Store,
    *,
    options: Sequence[str] = (),
    progress: Progress | None = None,
) -> Summary:
    """Do what is missing of a stage.

    An element that died of its content (any fault but the infrastructure's) stays dead as long as its key is
    the same, unless ``--retry-dead`` is among the options.

    Args:
        stage: what to run.
        elements: all elements of the stage, also those that may be done.
        run_dir: the run folder, made if missing: a path, or ``gs://BUCKET/PREFIX``.
        options: ours and Beam's, as on a command line (see :mod:`beam_jobs.options`).
        progress: called with (finished, all, name) as elements finish, from a thread of its own.

    Raises:
        CallerError: a bad option, an unsafe or repeated name.
        InfrastructureError: the runner or the storage failed.
    """
    start = time.monotonic()
    store = open_store(run_dir)
    if isinstance(store, LocalStore):
        store.prepare()
    job, beam_options = split_options(options)
    stage = stage.with_options(job)
    _check_names(stage, elements)
    before = {r.name for r in _each(elements, lambda e: io.finished(store, stage.name, e.name, e.key))}
    letters = io.fold_dead_letters(store, stage.name)  # from here on a loose letter is of this run
    left = set() if job.retry_dead else _dead_of_content(letters, elements) - before
    missing = [e for e in elements if e.name not in before | left]
    if missing:
        from beam_jobs import transforms

        with _reported(store, stage, elements, before | left, progress):
            io.acquit(store, stage.name)
            while missing:
                try:
                    transforms.run_pipeline(stage, missing, store, beam_options)
                    break
                except WorkerDied as err:
                    suspects = io.acquit(store, stage.name, [io.this_worker(pid) for pid in err.pids])
                    left_over = _not_ended(store, stage, missing)
                    if not suspects and len(left_over) == len(missing):
                        raise  # no element is to blame and none was done: another round would end alike
                    missing = left_over
    receipts = _each(elements, lambda e: io.read_receipt(store, stage.name, e.name))
    keys = {e.name: e.key for e in elements}
    good = [r for r in receipts if r.key == keys[r.name] and r.name not in left]
    io.fold_dead_letters(store, stage.name, [r.name for r in good])
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
        work_seconds=round(sum(receipt.seconds for receipt in good), 3),
        left_dead=len(left),
    )


def _not_ended(store: Store, stage: Stage, elements: Sequence[Element]) -> list[Element]:
    """The elements that have neither a receipt of their key nor a letter of this run."""
    letters = io.loose_names(store, stage.name)
    alive = [e for e in elements if e.name not in letters]
    keys = {r.name: r.key for r in _each(alive, lambda e: io.read_receipt(store, stage.name, e.name))}
    return [e for e in alive if keys.get(e.name) != e.key]


def _each(elements: Sequence[Element], ask: Callable[[Element], io.Receipt | None]) -> list[io.Receipt]:
    """Receipts of the elements that have one, in order."""
    return [receipt for receipt in in_threads(ask, elements) if receipt is not None]


def _dead_of_content(letters: Sequence[io.DeadLetter], elements: Sequence[Element]) -> set[str]:
    """Elements that would only die again: same key, and the fault is not the infrastructure's."""
    dead = {letter.name: letter.key for letter in letters if letter.fault != "infrastructure"}
    return {e.name for e in elements if dead.get(e.name) == e.key}


def _check_names(stage: Stage, elements: Sequence[Element]) -> None:
    for name, times in Counter(e.name for e in elements).items():
        if times > 1:
            raise CallerError(f"{stage.name}: {name} is asked for {times} times; names must differ")
        if not SAFE_NAME.fullmatch(name):
            raise CallerError(f"{stage.name}: {name!r} can't name a file; use letters, digits, '.', '_', '-'")


@contextmanager
def _reported(
    store: Store, stage: Stage, elements: Sequence[Element], over: set[str], progress: Progress | None
) -> Iterator[None]:
    """Watch receipts and dead letters appear and pass it on: the one thing that works on every runner."""
    if progress is None:
        yield
        return
    ended = threading.Event()
    waiting = {e.name: e.key for e in elements if e.name not in over}
    old = waiting.keys() & io.receipt_names(
        store, stage.name
    )  # made with another key, so a name says nothing

    def look() -> None:
        there = io.receipt_names(store, stage.name) | io.loose_names(store, stage.name)
        for name in sorted(there & waiting.keys()):
            if name in old:
                receipt = io.read_receipt(store, stage.name, name)
                if receipt is None or receipt.key != waiting[name]:
                    continue
            del waiting[name]
            progress(len(elements) - len(waiting), len(elements), name)

    def watch() -> None:
        while not ended.wait(0.2 if isinstance(store, LocalStore) else 2.0):
            with suppress(InfrastructureError):  # only the bar: the next look may see more
                look()

    progress(len(over), len(elements), "")
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        with suppress(InfrastructureError):
            look()
        if waiting:  # cut short: the bar ends all the same
            progress(len(elements), len(elements), "")
