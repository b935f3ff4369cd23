"""Two worker processes against one: the same environments, mined, validated and given tasks.

    python tests/bench/bench_beam.py [--environments 400] [--tasks 6] [--ceiling] [--json]

Start-up is left out: each side first does two environments in its own run folder, and the time that this
took beyond their work is taken off (importing Beam, starting workers, each stage's pipeline). Both sides run
in one invocation, one after the other, in fresh processes, and must leave the same bytes. A machine with
other work to do makes the ratio meaningless; the load is printed with it, and the processor seconds of both
sides, which say whether the second worker does work that one alone would not have. ``--ceiling`` also starts
two one-worker runs at the same time, which share nothing but the machine: 2 x the time of one / the time of
both bounds what any division of the work can give here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from beam_jobs.store import fingerprint

GOAL = 1.7
PARTS = ("databases", "bundles", "tasks", "solutions")
SIDE = """
import json, sys, time
from beam_jobs import scale
from beam_jobs.report import STAGES
run, count, workers, tasks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
options = ["--direct_running_mode=multi_processing", f"--direct_num_workers={workers}"]
start = time.monotonic()
summaries = scale.build(run, count, workers=1, tasks=tasks, seed=0, options=options)[:3]
print(json.dumps({
    "seconds": sum(s.seconds for s in summaries),
    "work": sum(s.work_seconds for s in summaries),
    "dead": sum(s.dead for s in summaries),
    "stages": {s.stage: round(s.seconds, 1) for s in summaries},
}))
"""


def side(run: Path, count: int, workers: int, tasks: int) -> dict[str, Any]:
    """Wall, work and processor seconds of one side, in a process of its own (with all its children)."""
    command = [sys.executable, "-c", SIDE, str(run), str(count), str(workers), str(tasks)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    made = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(made.stdout.splitlines()[-1]) | {"cpu": cpu}


def ceiling(count: int, tasks: int, room: Path, alone: float) -> float:
    """2 x ``alone`` / the seconds of the slower of two one-worker runs of ``count`` environments at once."""
    runs = [[sys.executable, "-c", SIDE, str(room / name), str(count), "1", str(tasks)] for name in "ab"]
    started = [subprocess.Popen(run, stdout=subprocess.PIPE, text=True) for run in runs]
    made = [json.loads(process.communicate()[0].splitlines()[-1]) for process in started]
    return 2 * alone / max(one["seconds"] for one in made)


def measure(count: int, tasks: int, room: Path, bound: bool = False) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "environments": count,
        "tasks_drafted": tasks,
        "load_before": os.getloadavg()[0],
    }
    net = {}
    for workers in (1, 2):
        warm = side(room / f"warm{workers}", 2, workers, tasks)
        start_up = max(0.0, warm["seconds"] - warm["work"] / workers)
        whole = side(room / f"run{workers}", count, workers, tasks)
        net[workers] = whole["seconds"] - start_up
        figures[f"seconds_{workers}"] = round(whole["seconds"], 1)
        figures[f"start_up_{workers}"] = round(start_up, 1)
        figures[f"cpu_seconds_{workers}"] = round(whole["cpu"], 1)
        figures[f"stages_{workers}"] = whole["stages"]
        figures[f"dead_{workers}"] = whole["dead"]
    for part in PARTS:
        same = fingerprint(room / "run1" / part) == fingerprint(room / "run2" / part)
        assert same, f"{part} differ between one and two workers"
    if bound:
        alone = figures["seconds_1"]
        figures["ceiling_two_runs_side_by_side"] = round(ceiling(count, tasks, room / "both", alone), 3)
    figures["load_after"] = os.getloadavg()[0]
    for workers, seconds in net.items():
        figures[f"environments_a_minute_{workers}"] = round(60 * count / seconds, 1)
    figures["environments_a_minute_a_core"] = round(60 * count / net[2] / 2, 2)
    ratio = round(net[1] / net[2], 3)
    return {
        "name": "beam",
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "figures": figures,
        "ratios": {"two_workers/one": ratio},
        "goals": {"two_workers/one": GOAL},
        "met": ratio >= GOAL,
    }


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--environments", type=int, default=400)
    parser.add_argument("--tasks", type=int, default=6)
    parser.add_argument("--ceiling", action="store_true", help="also two one-worker runs side by side")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    ours = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as room:
        result = measure(ours.environments, ours.tasks, Path(room), ours.ceiling)
    if ours.json:
        print(json.dumps(result))
    else:
        for name, value in {**result["figures"], **result["ratios"]}.items():
            print(f"{name:32} {value}")
        print(f"goal {GOAL}: {'met' if result['met'] else 'missed'} ({time.monotonic() - start:.0f} s)")
    return 0 if result["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
