"""Many environments in one command, with the offline author, and a report that says what they are worth.

    python -m beam_jobs.scale RUN --environments 1000 --workers 2 --tasks 8
    python -m beam_jobs.scale RUN --environments 1000 --json > report.json

Built-in themes come again and again under new names (``airports--002``): mining seeds its samples with the
name, so where a source has more rows than a sample, each variant holds other real rows under much the same
schema. That is volume, not variety, and :mod:`beam_jobs.report` counts it as such. A killed run goes on
where it was.

``Memory`` looks at this process and its workers every two seconds: the report has the peak and the median of
each quarter of the run, which shows whether it is flat.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from beam_jobs import mine, pack, synthesize, validate
from beam_jobs.report import report
from beam_jobs.stage import Summary
from synth.errors import AgentWorldError, CallerError
from synth.themes import builtin
from synth.types import Theme

LOOK = 2.0  # seconds between two looks at the memory


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


def build(run: str, count: int, *, workers: int, tasks: int, seed: int, beam: Sequence[str]) -> list[Summary]:
    """All stages; what is done is skipped."""
    options = list(beam)
    if workers > 1:
        options += ["--direct_running_mode=multi_processing", f"--direct_num_workers={workers}"]
    wanted = themes(count)
    summaries = [mine.run(run, wanted, seed=seed, options=options)]
    _say(summaries[-1])
    summaries.append(validate.run(run, wanted, seed=seed, options=options))
    _say(summaries[-1])
    orders = [synthesize.Order(env_id, tasks, seed) for env_id in synthesize.environments(run)]
    summaries.append(synthesize.run(run, orders, tag="train", options=options))
    _say(summaries[-1])
    summaries.append(pack.run(run, options=options))
    _say(summaries[-1])
    return summaries


def _say(summary: Summary) -> None:
    print(summary.line(), file=sys.stderr, flush=True)


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m beam_jobs.scale", allow_abbrev=False)
    parser.add_argument("run", help="the run folder; a path or gs://BUCKET/PREFIX")
    parser.add_argument("--environments", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--tasks", type=int, default=8, help="to draft for each environment")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="the report as one JSON object")
    ours, beam = parser.parse_known_args(list(words))
    start = time.monotonic()
    try:
        with Memory() as memory:
            summaries = build(
                ours.run,
                ours.environments,
                workers=ours.workers,
                tasks=ours.tasks,
                seed=ours.seed,
                beam=beam,
            )
        seconds = time.monotonic() - start
        figures = report(ours.run, workers=ours.workers, seconds=seconds) | memory.figures()
    except AgentWorldError as err:
        print(f"error: {err}", file=sys.stderr)
        return 2 if isinstance(err, CallerError) else 1
    figures["wall_seconds"] = {s.stage: round(s.seconds, 1) for s in summaries}
    figures["whole_run"] = not any(s.skipped for s in summaries)  # else seconds are of the last part only
    if ours.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name.replace('_', ' '):36} {value}")
    return 1 if any(s.dead for s in summaries) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
