"""Many environments in one command, with the offline author, and a report that says what they are worth.

    agent-world synth scale RUN --environments 1000 --workers 2 --tasks 8
    agent-world synth scale RUN --environments 1000 --json > report.json

Built-in themes come again and again under new names (``airports--002``): mining seeds its samples with the
name, so where a source has more rows than a sample, each variant holds other real rows under much the same
schema. That is volume, not variety, and :mod:`beam_jobs.report` counts it as such. A killed run goes on
where it was.

``Memory`` looks at this process and its workers every two seconds: the report has the peak and the median of
each quarter of the run, which shows whether it is flat.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from beam_jobs import mine, pack, synthesize, validate
from beam_jobs.report import report
from beam_jobs.stage import Progress, Summary
from synth.themes import builtin
from synth.types import Theme

LOOK = 2.0  # seconds between two looks at the memory
Bar = Callable[[str], AbstractContextManager[Progress | None]]


@contextmanager
def _no_bar(label: str) -> Iterator[None]:
    yield None


def themes(count: int) -> list[Theme]:
    """``count`` themes: the built-in ones, then variants of them that differ in their id only."""
    base = builtin()
    made = []
    for number in range(count):
        turn, which = divmod(number, len(base))
        theme = base[which]
        made.append(theme if not turn else theme.model_copy(update={"id": f"{theme.id}--{turn:03d}"}))
    return made


class Memory:
    """Resident memory of this process and all its descendants, in MB, sampled by a thread."""

    def __init__(self) -> None:
        self.samples: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def figures(self) -> dict[str, Any]:
        quarter = max(1, len(self.samples) // 4)
        parts = [self.samples[i * quarter : (i + 1) * quarter] for i in range(4)]
        return {
            "peak_mb": round(max(self.samples, default=0.0)),
            "median_mb_by_quarter": [round(median(part)) for part in parts if part],
        }

    def _watch(self) -> None:
        while True:
            self.samples.append(tree_mb(os.getpid()))
            if self._over.wait(LOOK):
                return


def tree_mb(root: int) -> float:
    """Resident memory of a process and its descendants in MB; shared pages count in each."""
    parents: dict[int, int] = {}
    pages: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)], pages[int(entry.name)] = int(fields[1]), int(fields[21])

    def inside(pid: int) -> bool:
        while pid and pid != root:
            pid = parents.get(pid, 0)
        return pid == root

    return sum(n for pid, n in pages.items() if inside(pid)) * os.sysconf("SC_PAGE_SIZE") / 1e6


def build(
    run: str | Path,
    count: int,
    *,
    workers: int,
    tasks: int,
    seed: int,
    options: Sequence[str] = (),
    bar: Bar = _no_bar,
    said: Callable[[Summary], object] = lambda summary: None,
) -> list[Summary]:
    """All stages; what is done is skipped.

    Args:
        workers: worker processes; one runs in this process.
        tasks: to draft for each environment.
        options: ours and Beam's, see :mod:`beam_jobs.options`.
        bar: opens the progress display of a stage.
        said: gets each stage's summary when it is over.
    """
    options, wanted, summaries = list(options), themes(count), []
    if workers > 1:
        options += ["--direct_running_mode=multi_processing", f"--direct_num_workers={workers}"]

    def orders() -> list[synthesize.Order]:
        return [synthesize.Order(env_id, tasks, seed) for env_id in synthesize.environments(run)]

    stages: dict[str, Callable[..., Summary]] = {
        "mine": partial(mine.run, run, wanted, seed=seed),
        "validate": partial(validate.run, run, wanted, seed=seed),
        "synthesize": lambda **how: synthesize.run(run, orders(), tag="train", **how),
        "pack": partial(pack.run, run),
    }
    for name, stage in stages.items():
        with bar(name) as progress:
            summaries.append(stage(options=options, progress=progress))
        said(summaries[-1])
    return summaries


def measured(
    run: str | Path, count: int, *, workers: int, **how: Any
) -> tuple[dict[str, Any], list[Summary]]:
    """:func:`build`, and the report of it with memory and seconds; see there for the arguments and errors."""
    start = time.monotonic()
    with Memory() as memory:
        summaries = build(run, count, workers=workers, **how)
    seconds = time.monotonic() - start
    figures = report(run, workers=workers, seconds=seconds) | memory.figures()
    figures["wall_seconds"] = {s.stage: round(s.seconds, 1) for s in summaries}
    figures["whole_run"] = not any(s.skipped for s in summaries)  # else seconds are of the last part only
    return figures, summaries
