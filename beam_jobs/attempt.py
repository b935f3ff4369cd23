"""One element on a worker: attempts, waits, the time limit, and what is said when it is given up.

No Beam here. :mod:`beam_jobs.transforms` calls :func:`attempt` from its DoFn, which holds a :class:`Bench`
for as long as it lives: what a stage's work needs and is dear to start (a sandbox for verifiers, the
choice of a sandbox, the author) is opened once, not once an element.

Only an :class:`~synth.errors.InfrastructureError` is tried again, with a wait that doubles: the same input
gives the same caller's or environment's fault every time. An element that is out of time isn't tried again
in the same run either, because it would hold the worker as long once more.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from beam_jobs import io
from beam_jobs.stage import Element, Output, Stage
from beam_jobs.store import Store
from synth.errors import CallerError, EnvironmentFault, InfrastructureError

LONGEST_WAIT = 30.0  # seconds between two attempts
GRACE = 20.0  # seconds for work to end after its time is up; a call into a sandbox ends within 10
FAULTS: dict[type[Exception], io.Fault] = {
    CallerError: "caller",
    EnvironmentFault: "environment",
    InfrastructureError: "infrastructure",
}


class TimeLimitExceeded(InfrastructureError):
    """An element was at work for longer than ``--element_timeout``."""


class WorkersDied(InfrastructureError):
    """An element took its worker with it, time and again."""


class _Stop(BaseException):
    """Ends the thread of an element that is out of time; no ``except Exception`` holds it up."""


class Bench:
    """What the elements of a stage share on one worker (``Stage.tools``); opened when first used."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._stack, self._tools, self._open = stage, ExitStack(), None, False
        self._lock = threading.Lock()

    def tools(self) -> Any:
        with self._lock:
            if not self._open:
                self._tools = self._stack.enter_context(self._stage.tools())
                self._open = True
            return self._tools

    def close(self) -> None:
        """Close; the next use opens anew."""
        with self._lock:
            self._open, self._tools = False, None
            self._stack.close()


def attempt(stage: Stage, store: Store, element: Element, bench: Bench) -> io.Receipt | io.DeadLetter:
    """Do an element; its receipt or letter is in the run folder before it is returned.

    Raises:
        InfrastructureError: not even the letter could be written.
    """
    start, attempts = time.monotonic(), [0]
    try:
        deaths = io.begin(store, stage.name, element.name, element.key)
        if deaths >= stage.retry.attempts:
            raise WorkersDied(f"{deaths} workers died while they were at {element.name}")
        output = _with_retry(stage, store, element, bench, attempts)
        receipt = io.Receipt(
            stage=stage.name,
            name=element.name,
            key=element.key,
            outputs={path: store.fingerprint(path) for path in output.paths},
            counters=output.counters,
            seconds=round(time.monotonic() - start, 3),
        )
        io.write_receipt(store, receipt)
        io.end(store, stage.name, element.name)
        return receipt
    except Exception as err:
        letter = _dead_letter(stage, element, err, attempts[0], time.monotonic() - start)
        io.delete_receipt(store, stage.name, element.name)  # its outputs are harmed or half replaced
        io.write_dead_letter(store, letter)
        io.end(store, stage.name, element.name)
        return letter


def _with_retry(stage: Stage, store: Store, element: Element, bench: Bench, attempts: list[int]) -> Output:
    """Call the stage's work, again after an infrastructure error; ``attempts[0]`` counts the calls."""
    while True:
        attempts[0] += 1
        try:
            return _within(stage.seconds, stage, store, element, bench)
        except TimeLimitExceeded:
            raise
        except InfrastructureError:
            bench.close()  # its sandboxes may be what is broken
            if attempts[0] >= stage.retry.attempts:
                raise
        time.sleep(min(LONGEST_WAIT, stage.retry.wait * 2 ** (attempts[0] - 1)))


def _within(seconds: float, stage: Stage, store: Store, element: Element, bench: Bench) -> Output:
    """The work, in a thread of its own, so that it can be left when its time is up.

    Raises:
        TimeLimitExceeded: it is stopped between two lines of Python; what is stuck elsewhere for more than
            GRACE seconds is abandoned (whatever it may still write is what a later attempt writes too).
    """
    done: list[Output] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(stage.work(store, element.payload, bench.tools()))
        except BaseException as err:
            failed.append(err)

    thread = threading.Thread(target=run, name=f"{stage.name}:{element.name}", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        _stop(thread, bench)
        raise TimeLimitExceeded(f"{element.name} was not done within {seconds:g} s")
    if failed:
        raise failed[0]
    return done[0]


def _stop(thread: threading.Thread, bench: Bench) -> None:
    deadline = time.monotonic() + GRACE
    with contextlib.suppress(Exception):
        bench.close()  # what waits for a sandbox on the bench wakes up
    while thread.is_alive() and time.monotonic() < deadline:
        ident = ctypes.c_ulong(thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(_Stop))
        thread.join(1.0)


def _dead_letter(
    stage: Stage, element: Element, err: Exception, attempts: int, seconds: float
) -> io.DeadLetter:
    """Say what went wrong, whose fault it is, and where."""
    fault: io.Fault = "program"  # an exception that no one foresaw is ours
    for kind, name in FAULTS.items():
        fault = name if isinstance(err, kind) else fault
    frames = traceback.extract_tb(err.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno} {frames[-1].name}" if frames else ""
    return io.DeadLetter(
        stage=stage.name,
        name=element.name,
        key=element.key,
        input=element.input,
        payload=element.payload,
        fault=fault,
        error=type(err).__name__,
        message=str(err)[:2000],
        where=where,
        attempts=max(1, attempts),
        seconds=round(seconds, 3),
    )
