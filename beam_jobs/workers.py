"""The worker processes of ``multi_processing``, watched: Beam's local runner waits forever for a dead one.

Each worker writes its process number to a file before it becomes Python, and keeps to its share of the
processors, with its sandboxes (:func:`shares`). :func:`watched` runs the
pipeline in a thread and looks whether those processes live; when one has died (killed, out of memory, a
crash in C) it ends the others and raises :class:`WorkerDied`. :func:`beam_jobs.stage.run_stage` then
goes on with what is missing.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from beam_jobs.store import process_start
from synth.errors import InfrastructureError

WORKER = "apache_beam.runners.worker.sdk_worker_main"
LOOK = 0.3  # seconds between two looks
FAREWELL = 10.0  # seconds: workers leave before the runner when all is done


class WorkerDied(InfrastructureError):
    """Worker processes ended before their work did.

    Attributes:
        pids: those that ended by themselves; the elements that they were at are suspects.
    """

    def __init__(self, pids: list[int]) -> None:
        super().__init__(f"{len(pids)} worker process(es) died: {', '.join(map(str, pids))}")
        self.pids = pids


def shares(count: int) -> list[str]:
    """The processors of each of ``count`` workers, as ``taskset`` takes them; none where one would have none.

    A worker and its sandbox take turns, so together they keep one processor busy. Left to the kernel, at
    times both pairs stand on one processor while the other idles: ours, measured, 150 environments took two
    workers 46 s instead of 42.
    """
    if not hasattr(os, "sched_getaffinity") or shutil.which("taskset") is None:
        return []
    processors = sorted(os.sched_getaffinity(0))
    size = len(processors) // count
    if count < 2 or not size:
        return []
    return [",".join(map(str, processors[n * size : (n + 1) * size])) for n in range(count)]


class Workers:
    """The worker processes of one pipeline.

    Args:
        log: where what they print goes; None: nowhere.
        count: how many there will be.
    """

    def __init__(self, log: Path | None, count: int) -> None:
        self._shares = shares(count)
        handle, name = tempfile.mkstemp(prefix="agent-world-workers-")
        os.close(handle)
        self._file, self._log = Path(name), log
        self._born: dict[int, str] = {}

    def command(self) -> str:
        """The shell command that starts a worker."""
        if self._log is not None:
            self._log.parent.mkdir(parents=True, exist_ok=True)
        said, pids = shlex.quote(str(self._log or os.devnull)), shlex.quote(str(self._file))
        begin = "exec"
        if self._shares:  # a worker's number is that of its line
            mine = f"n=$(grep -nx $$ {pids} | cut -d: -f1); set -- {' '.join(self._shares)}"
            begin = f"{mine}; shift $(((n - 1) % {len(self._shares)})); exec taskset -c $1"
        # its threads would spin beside a worker that needs none
        begin = f"export OPENBLAS_NUM_THREADS=1; {begin}"
        return f"echo $$ >>{pids}; {begin} {shlex.quote(sys.executable)} -m {WORKER} >>{said} 2>&1"

    def dead(self) -> list[int]:
        """Process numbers of workers that started and are gone."""
        for line in self._file.read_text().split():
            self._born.setdefault(int(line), process_start(int(line)))
        return [pid for pid, born in self._born.items() if not born or process_start(pid) != born]

    def kill(self) -> None:
        """End those that live."""
        gone = self.dead()
        for pid in self._born.keys() - set(gone):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        self._file.unlink(missing_ok=True)


def watched(call: Callable[[], Any], workers: Workers) -> Any:
    """The result of ``call``, which runs a pipeline on those workers.

    Raises:
        WorkerDied: one died; ``call`` may still hang in its thread, and is left there.
    """
    results: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as err:
            errors.append(err)

    thread = threading.Thread(target=run, name="pipeline", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(LOOK)
            dead = workers.dead()
            if dead and thread.is_alive():
                thread.join(FAREWELL)
                if thread.is_alive():
                    raise WorkerDied(dead)
    except BaseException:  # also Ctrl-C
        workers.kill()
        raise
    finally:
        workers.close()
    if errors:
        raise errors[0]
    return results[0]
