"""A tiny stage for the tests of the pipelines: squares a number, or fails as its payload says.

A module of its own, so that worker processes can import it. Every call leaves a line in ``<run>/calls.txt``
(in the file that ``AGENT_WORLD_TEST_CALLS`` names, when the run folder isn't local): what was really done.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from beam_jobs.stage import Element, Output, Retry, Stage
from beam_jobs.store import LocalStore, Store
from synth.errors import EnvironmentFault, InfrastructureError


@contextmanager
def tools() -> Iterator[list[str]]:
    """A bench whose opening and closing show in the environment's log."""
    _log("open")
    yield []
    _log("close")


def _log(what: str) -> None:
    if "AGENT_WORLD_TEST_BENCH" in os.environ:
        with open(os.environ["AGENT_WORLD_TEST_BENCH"], "a") as log:
            log.write(f"{what}\n")


def work(store: Store, payload: dict[str, Any], bench: list[str]) -> Output:
    n, trouble = payload["n"], payload.get("trouble")
    bench.append(str(n))
    with open(calls_file(store), "a") as calls:
        calls.write(f"{n}\n")
    if trouble == "poison":
        raise ValueError(f"{n} is poison")
    if trouble == "broken":
        raise EnvironmentFault(f"{n} is broken")
    if trouble == "down":
        raise InfrastructureError("the sandbox died")
    if trouble == "shaky" and times_done(store, n) < 3:
        raise InfrastructureError("the sandbox died")
    if trouble == "endless":
        while True:
            time.sleep(0.01)
    if trouble == "mass killer" or (trouble == "killer" and times_done(store, n) < 2):
        os._exit(9)
    time.sleep(payload.get("sleep", 0.0))
    path, folder = f"squares/{n}.txt", f"folders/{n}"
    store.write(path, f"{n * n}\n")
    store.write_folder(folder, lambda where: _fill(where, n, payload.get("sleep", 0.0)))
    return Output((path, folder), {"squares": 1, "sum": n * n})


def _fill(where: Path, n: int, sleep: float) -> None:
    where.mkdir()
    for part in range(4):
        (where / f"{part}.txt").write_text(f"{n * n}\n")
        time.sleep(sleep / 4)


STAGE = Stage("squares", version=1, work=work, retry=Retry(attempts=3, wait=0.01), tools=tools)


def elements(numbers: range, stage: Stage = STAGE, **trouble: str) -> list[Element]:
    """Elements for the numbers; ``n3="poison"`` makes trouble of number 3."""
    made = []
    for n in numbers:
        payload = {"n": n, "trouble": trouble.get(f"n{n}")}
        made.append(Element(str(n), stage.key(payload), f"number {n}", payload))
    return made


def calls_file(store: Store) -> Path:
    return (
        store.root / "calls.txt"
        if isinstance(store, LocalStore)
        else Path(os.environ["AGENT_WORLD_TEST_CALLS"])
    )


def times_done(store: Store, n: int) -> int:
    calls = calls_file(store)
    return calls.read_text().splitlines().count(str(n)) if calls.exists() else 0
