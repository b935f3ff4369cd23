"""The runner changes nothing but the speed, and a killed run leaves nothing half-written."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import squares

from beam_jobs import io
from beam_jobs.options import build_options
from beam_jobs.stage import run_stage

TWO_WORKERS = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]

SLOW_RUN = """
import sys
import squares
from beam_jobs.stage import Element, run_stage

elements = []
for n in range(20):
    payload = {"n": n, "sleep": 0.1}
    elements.append(Element(str(n), squares.STAGE.key(payload), f"number {n}", payload))
summary = run_stage(squares.STAGE, elements, sys.argv[1], options=sys.argv[2:])
print(summary.done, summary.skipped, summary.dead)
"""


def outputs(run: Path) -> dict[str, str]:
    """Every file of the outputs and its text."""
    found = [p for part in ("squares", "folders") for p in (run / part).rglob("*") if p.is_file()]
    return {p.relative_to(run).as_posix(): p.read_text() for p in found}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--runner=DirectRunner"], id="direct"),
        pytest.param(["--runner=BundleBasedDirectRunner"], id="bundle-based"),
        pytest.param(TWO_WORKERS, id="two-processes"),
    ],
)
def test_every_runner_makes_the_same_files(
    tmp_path: Path, options: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    every = squares.elements(range(6), n4="poison")
    plain = run_stage(squares.STAGE, every, tmp_path / "a")
    other = run_stage(squares.STAGE, every, tmp_path / "b", options=options)
    assert outputs(tmp_path / "a") == outputs(tmp_path / "b")
    assert len(outputs(tmp_path / "a")) == 5 * 5
    assert (plain.done, plain.dead, plain.counters) == (other.done, other.dead, other.counters)
    letters = [io.read_dead_letters(tmp_path / run, "squares") for run in "ab"]
    assert letters[0] == letters[1]
    assert capfd.readouterr() == ("", ""), "worker processes speak to a log file"


def test_the_default_runner_is_in_this_process_and_needs_no_download() -> None:
    from apache_beam.options.pipeline_options import StandardOptions

    for args in ([], ["--runner=DirectRunner"], ["--runner", "direct"]):
        assert build_options(args).view_as(StandardOptions).runner == "FnApiRunner"
    assert build_options(["--runner=DataflowRunner"]).view_as(StandardOptions).runner == "DataflowRunner"


@pytest.mark.parametrize("options", [[], TWO_WORKERS], ids=["in-memory", "two-processes"])
def test_kill_9_leaves_nothing_half_written_and_the_next_run_ends_the_work(
    tmp_path: Path, options: list[str]
) -> None:
    command = [sys.executable, "-c", SLOW_RUN, str(tmp_path), *options]
    process = subprocess.Popen(command)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("receipts/squares/*.json"))) < 4:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for_workers(tmp_path)

    left = outputs(tmp_path)
    assert set(left.values()) <= {f"{n * n}\n" for n in range(20)}
    for folder in (tmp_path / "folders").iterdir():
        assert len(list(folder.iterdir())) == 4, "a folder appears whole or not at all"
    receipts = len(list((tmp_path / "receipts/squares").glob("*.json")))
    assert 4 <= receipts < 20

    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert again.stdout.split() == [str(20 - receipts), str(receipts), "0"]
    assert len(outputs(tmp_path)) == 20 * 5
    assert not list((tmp_path / "tmp").iterdir()), "the litter of the killed run was swept"
    done = (tmp_path / "calls.txt").read_text().split()
    assert len(done) <= 20 + 2, "what was finished wasn't done again"


def wait_for_workers(run: Path) -> None:
    """Until the killed driver's worker processes are gone (they end by themselves)."""
    mark = str(run / "logs").encode()
    deadline = time.monotonic() + 30
    while any(mark in output for output in open_files()):
        assert time.monotonic() < deadline, "a worker process outlived its driver"
        time.sleep(0.1)


def open_files() -> list[bytes]:
    """Targets of the standard error of every Python process that we may look at."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/2"):
        try:
            found.append(str(link.readlink()).encode())
        except OSError:
            continue
    return found
