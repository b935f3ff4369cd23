"""A tiny stage for the tests of the pipelines: squares a number, or fails as its payload says.

A module of its own, so that worker processes can import it. Every call leaves a line in
``<run>/calls.txt``: what was really done.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from beam_jobs import io
from beam_jobs.stage import Element, Output, Retry, Stage
from synth.errors import EnvironmentFault, InfrastructureError


def work(run: Path, payload: dict[str, Any]) -> Output:
    n, trouble = payload["n"], payload.get("trouble")
    with open(run / "calls.txt", "a") as calls:
        calls.write(f"{n}\n")
    if trouble == "poison":
        raise ValueError(f"{n} is poison")
    if trouble == "broken":
        raise EnvironmentFault(f"{n} is broken")
    if trouble == "down":
        raise InfrastructureError("the sandbox died")
    if trouble == "shaky" and times_done(run, n) < 3:
        raise InfrastructureError("the sandbox died")
    time.sleep(payload.get("sleep", 0.0))
    path, folder = f"squares/{n}.txt", f"folders/{n}"
    io.write_file(run, path, f"{n * n}\n")
    io.write_folder(run, folder, lambda where: _fill(where, n, payload.get("sleep", 0.0)))
    return Output((path, folder), {"squares": 1, "sum": n * n})


def _fill(where: Path, n: int, sleep: float) -> None:
    where.mkdir()
    for part in range(4):
        (where / f"{part}.txt").write_text(f"{n * n}\n")
        time.sleep(sleep / 4)


STAGE = Stage("squares", version=1, work=work, retry=Retry(attempts=3, wait=0.01))


def elements(numbers: range, stage: Stage = STAGE, **trouble: str) -> list[Element]:
    """Elements for the numbers; ``n3="poison"`` makes trouble of number 3."""
    made = []
    for n in numbers:
        payload = {"n": n, "trouble": trouble.get(f"n{n}")}
        made.append(Element(str(n), stage.key(payload), f"number {n}", payload))
    return made


def times_done(run: Path, n: int) -> int:
    calls = run / "calls.txt"
    return calls.read_text().splitlines().count(str(n)) if calls.exists() else 0
