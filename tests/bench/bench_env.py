"""Episodes and calls a second on one core: ours in every sandbox, AWM's way, and plain ``exec``.

    python tests/bench/bench_env.py [--bundle PATH] [--seconds 5] [--json]

All sides run in one invocation, pinned to one core (sandbox included), one after the other in turns; each
figure is the best of its turns, so that other work on the machine counts least. An episode is: open a fresh
isolated
state, ten calls (eight reads, two writes), verify the final state against the expected difference, close.
"Calls"
are measured inside one episode. The bound runs the same tool code by ``exec`` in this process: no isolation,
no process, no socket. AWM's way starts a FastAPI server as a process for each episode and talks HTTP.
"""

# ruff: noqa: E402 (the paths first)

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS), str(TESTS / "synth" / "env")]  # the root first: it holds synth

import httpx
from fixtures.make import write_library
from inprocess import InProcess

from synth.env import sandbox
from synth.env.bundle import Bundle
from synth.env.episode import ArgumentChecks, EnvServer
from synth.env.sandbox import UnsafeLocal
from synth.env.state import State
from synth.types import Criterion, Rubric, Task, ToolStep
from synth.verify import state_change, verify

GOALS = {"episodes/s": 300.0, "calls/s": 8000.0, "bound/ours for calls": 2.0, "ours/awm for opens": 100.0}
READS = [
    ToolStep(tool="get_book", arguments={"book_id": "B-1"}),
    ToolStep(tool="search_books", arguments={"genre": "travel"}),
]
WRITES = [ToolStep(tool="lend_book", arguments={"book_id": f"B-{n}", "member_id": "M-1"}) for n in (1, 2)]
STEPS = [*READS, *READS, *READS, WRITES[0], *READS, WRITES[1]]


def best(seconds: float, turns: int, action: Callable[[], int]) -> float:
    """The highest rate over several turns; ``action`` says how many things it did."""
    rates = []
    for _ in range(turns):
        start, done = time.perf_counter(), 0
        while (spent := time.perf_counter() - start) < seconds / turns:
            done += action()
        rates.append(done / spent)
    return max(rates)


def task_of(bundle: Bundle, final: State) -> Task:
    """A task that expects what the ten steps leave behind."""
    from synth.types import Difficulty

    manifest = bundle.manifest
    change = state_change(bundle.state, final, manifest.tables, manifest.audit_tables)
    assert change
    return Task(
        id="bench", env_id=manifest.env_id, env_digest=manifest.digest, route="graph", instruction="",
        reference_answer="ok", changes_state=True, pattern="bench", seed=0,
        difficulty=Difficulty(steps=10, tools=3),
        verifier=Rubric(criteria=(
            Criterion(field="answer", check="text", expected="ok"),
            Criterion(field="state", check="diff", expected=change),
        )),
    )  # fmt: skip


def ours(path: Path, provider: Any, seconds: float) -> dict[str, float]:
    with EnvServer(path, provider=provider) as server:
        with server.open(0) as episode:
            for step in STEPS:
                assert episode.call(step.tool, step.arguments).ok, step
            task = task_of(server.bundle, episode.snapshot())

        def open_close() -> int:
            server.open(0).close()
            return 1

        def whole() -> int:
            with server.open(0) as episode:
                for step in STEPS:
                    episode.call(step.tool, step.arguments)
                verdict = verify(task, server.bundle, server.bundle.state, episode.snapshot(), "ok", None)
            assert verdict.passed
            return 1

        figures = {"opens/s": best(seconds, 5, open_close), "episodes/s": best(seconds, 5, whole)}
        with server.open(0) as episode:

            def calls() -> int:
                for step in READS * 50:
                    episode.call(step.tool, step.arguments)
                return 100

            figures["calls/s"] = best(seconds, 5, calls)
    if provider.name in ("landlock", "unsafe-local"):  # the others' processes are not counted as ours
        figures["processor us an episode"] = processor(path, provider, task)
    return figures


def processor(path: Path, provider: Any, task: Task, episodes: int = 200) -> float:
    """Processor microseconds of a whole episode, server and sandbox together: steadier than the
    clock on a busy machine. The start of the server is measured by itself and taken off."""

    def spent(count: int) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with EnvServer(path, provider=provider) as server:
            start = time.process_time()
            for _ in range(count):
                with server.open(0) as episode:
                    for step in STEPS:
                        episode.call(step.tool, step.arguments)
                    final = episode.snapshot()
                assert verify(task, server.bundle, server.bundle.state, final, "ok", None).passed
            ours = time.process_time() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return ours + (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)

    start = min(spent(0) for _ in range(3))
    return 1e6 * (min(spent(episodes) for _ in range(3)) - start) / episodes


def bound(path: Path, seconds: float) -> dict[str, float]:
    from synth.env.bundle import read_bundle

    bundle = read_bundle(path)
    checks = ArgumentChecks(bundle.tools)
    final = InProcess(bundle, 0, checks)
    for step in STEPS:
        final.call(step.tool, step.arguments)
    task = task_of(bundle, final.snapshot())

    def open_close() -> int:
        InProcess(bundle, 0, checks)
        return 1

    def whole() -> int:
        episode = InProcess(bundle, 0, checks)
        for step in STEPS:
            episode.call(step.tool, step.arguments)
        assert verify(task, bundle, bundle.state, episode.snapshot(), "ok", None).passed
        return 1

    episode = InProcess(bundle, 0, checks)

    def calls() -> int:
        for step in READS * 50:
            episode.call(step.tool, step.arguments)
        return 100

    actions = {"opens/s": open_close, "episodes/s": whole, "calls/s": calls}
    return {name: best(seconds, 5, action) for name, action in actions.items()}


def awm(path: Path, seconds: float) -> dict[str, float]:
    """One FastAPI process an episode."""
    script = Path(__file__).with_name("fastapi_env.py")
    with tempfile.TemporaryDirectory() as room:

        def start() -> tuple[subprocess.Popen[bytes], httpx.Client]:
            db = Path(room) / "work.sqlite"
            shutil.copyfile(path / "state" / "data.sqlite", db)
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            server = subprocess.Popen([sys.executable, str(script), str(path), str(db), str(port)])
            client = httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False)
            while True:
                try:
                    client.get("/health")
                    return server, client
                except httpx.TransportError:
                    time.sleep(0.005)

        def stop(server: subprocess.Popen[bytes], client: httpx.Client) -> None:
            client.close()
            server.kill()
            server.wait()

        def open_close() -> int:
            stop(*start())
            return 1

        server, client = start()

        def calls() -> int:
            for step in READS * 5:
                client.post(f"/tools/{step.tool}", json=step.arguments)
            return 10

        rate = best(seconds, 3, calls)
        stop(server, client)

        def whole() -> int:
            server, client = start()
            for step in STEPS:
                assert client.post(f"/tools/{step.tool}", json=step.arguments).status_code == 200
            final = State((Path(room) / "work.sqlite").read_bytes(), {})
            assert b"LN-9001" in final.tables
            stop(server, client)
            return 1

        return {
            "opens/s": best(seconds, 2, open_close),
            "episodes/s": best(seconds, 2, whole),
            "calls/s": rate,
        }


def measure(path: Path, seconds: float) -> dict[str, Any]:
    """All sides, and what is missing."""
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    os.environ.pop("PYTHONSTARTUP", None)
    figures: dict[str, Any] = {"load before": os.getloadavg()[0], "bound (exec)": bound(path, seconds)}
    missing = []
    for name in ("bwrap", "landlock", "gvisor", "unsafe-local"):
        if name != "unsafe-local" and (why := sandbox._why_not(name)):
            missing.append(f"{name}: {why}")
            continue
        kind = UnsafeLocal() if name == "unsafe-local" else sandbox.provider(name)
        figures[name] = ours(path, kind, seconds)
    try:
        import fastapi  # noqa: F401

        figures["awm"] = awm(path, seconds)
    except ImportError:
        missing.append("fastapi: pip install fastapi")
    figures["load after"] = os.getloadavg()[0]
    strongest = next((n for n in ("bwrap", "landlock") if n in figures), "unsafe-local")
    mine = figures[strongest]
    ratios = {
        "episodes/s": mine["episodes/s"],
        "calls/s": mine["calls/s"],
        "bound/ours for calls": figures["bound (exec)"]["calls/s"] / mine["calls/s"],
    }
    if "awm" in figures:
        ratios["ours/awm for opens"] = mine["opens/s"] / figures["awm"]["opens/s"]
    met = all(
        name in ratios and (ratios[name] <= goal if name.startswith("bound") else ratios[name] >= goal)
        for name, goal in GOALS.items()
    )
    return {
        "name": "env", "machine": f"{platform.machine()}, one core, Linux {platform.release()}",
        "sandbox": strongest,
        "figures": figures, "ratios": ratios, "goals": GOALS, "met": met, "missing": missing,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bundle", type=Path, help="a library bundle; by default the tests' own")
    parser.add_argument("--seconds", type=float, default=5.0, help="a figure")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as room:
        report = measure(options.bundle or write_library(Path(room)), options.seconds)
    for name, row in report["figures"].items():
        print(
            name,
            json.dumps({k: round(v, 1) for k, v in row.items()}) if isinstance(row, dict) else round(row, 2),
        )
    print("ratios", json.dumps({k: round(v, 2) for k, v in report["ratios"].items()}), "met", report["met"])
    if options.json:
        print(json.dumps(report))
    return 0 if report["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
