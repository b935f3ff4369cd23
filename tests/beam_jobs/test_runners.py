"""The runner changes nothing but the speed, and a killed run leaves nothing half-written."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import squares
from portable import portable

from beam_jobs import io
from beam_jobs.options import build_options
from beam_jobs.stage import run_stage
from beam_jobs.store import LocalStore, fingerprint
from synth.themes import builtin

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


DASK = ["--runner=apache_beam.runners.dask.dask_runner.DaskRunner"]


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
    letters = [io.read_dead_letters(LocalStore(tmp_path / run), "squares") for run in "ab"]
    assert [plain_letter(x) for x in letters[0]] == [plain_letter(x) for x in letters[1]]
    assert capfd.readouterr() == ("", ""), "worker processes speak to a log file"


def check_same(tmp_path: Path, options: list[str]) -> None:
    """The squares stage gives what it gives in this process, dead letters too."""
    every = squares.elements(range(6), n4="poison")
    plain = run_stage(squares.STAGE, every, tmp_path / "a")
    other = run_stage(squares.STAGE, every, tmp_path / "b", options=options)
    assert outputs(tmp_path / "a") == outputs(tmp_path / "b")
    assert (plain.done, plain.dead, plain.counters) == (other.done, other.dead, other.counters)
    letters = [io.read_dead_letters(LocalStore(tmp_path / run), "squares") for run in "ab"]
    assert [plain_letter(x) for x in letters[0]] == [plain_letter(x) for x in letters[1]]


def plain_letter(letter: io.DeadLetter) -> io.DeadLetter:
    return letter.model_copy(update={"seconds": 0.0})


def test_dask_makes_the_same_files(tmp_path: Path) -> None:
    pytest.importorskip("dask.distributed", reason="pip install '.[dask]'")
    check_same(tmp_path, DASK)


def test_the_portable_runner_makes_the_same_files_in_other_processes(tmp_path: Path) -> None:
    with portable(tmp_path / "services") as options:
        check_same(tmp_path, options)


ENVIRONMENTS = """
import sys
from arena.cli import main

themes, run, options = sys.argv[1], sys.argv[2], sys.argv[3:]
for words in (
    ["synth", "complexify", run, "--themes", themes],
    ["synth", "tools", run, "--themes", themes],
    ["tasks", run, "--count=4"],
    ["synth", "pack", run, "--per-shard=2"],
):
    if main([*words, *options]):
        sys.exit(1)
"""
PARTS = ("databases", "bundles", "checks", "tasks", "solutions", "packed")


def environments(run: Path, options: list[str], kill_at: tuple[int, float] | None = None) -> int:
    """The commands of all four stages in a process of their own; its exit status.

    ``kill_at``: so many receipts, and so many seconds after the last of them, it is killed.
    """
    themes = run.parent / "themes.jsonl"
    themes.write_text("".join(theme.to_json() + "\n" for theme in builtin("demo")[:3]))
    command = [sys.executable, "-c", ENVIRONMENTS, str(themes), str(run), *options]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        while kill_at and receipts(run) < kill_at[0]:
            assert process.poll() is None
            time.sleep(0.02)
        return process.wait(kill_at and kill_at[1])
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def receipts(run: Path) -> int:
    return len(list(run.glob("receipts/*/*.json")))


def prints(run: Path) -> dict[str, str]:
    return {part: fingerprint(run / part) for part in PARTS}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_bundles_and_tasks_are_the_same_bytes_on_every_runner(tmp_path: Path) -> None:
    assert environments(tmp_path / "memory", []) == 0
    expected = prints(tmp_path / "memory")
    assert environments(tmp_path / "processes", TWO_WORKERS) == 0
    assert prints(tmp_path / "processes") == expected
    with portable(tmp_path / "services") as options:
        assert environments(tmp_path / "portable", options) == 0
    assert prints(tmp_path / "portable") == expected
    pytest.importorskip("dask.distributed", reason="the others passed; Dask needs pip install '.[dask]'")
    assert environments(tmp_path / "dask", DASK) == 0
    assert prints(tmp_path / "dask") == expected


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("options", [[], TWO_WORKERS], ids=["in-memory", "two-processes"])
def test_bundles_and_tasks_are_the_same_bytes_after_five_kills(tmp_path: Path, options: list[str]) -> None:
    start = time.monotonic()
    assert environments(tmp_path / "whole", options) == 0
    work, chance = receipts(tmp_path / "whole"), random.Random(len(options))
    each = (time.monotonic() - start) / work
    for point in sorted(chance.sample(range(work - 1), 5)):  # what is done stays: each gets further
        at = (point, chance.uniform(0.0, each))
        assert environments(tmp_path / "killed", options, at) == -signal.SIGKILL
        wait_for_workers(tmp_path / "killed")
    assert environments(tmp_path / "killed", options) == 0
    assert prints(tmp_path / "killed") == prints(tmp_path / "whole")
    assert not list((tmp_path / "killed/tmp").iterdir())


def test_a_worker_that_is_killed_costs_one_attempt_and_the_stage_goes_on(tmp_path: Path) -> None:
    elements = squares.elements(range(4), n2="killer")  # kills its first worker
    summary = run_stage(squares.STAGE, elements, tmp_path, options=TWO_WORKERS)
    assert (summary.done, summary.dead) == (4, 0)
    assert len(outputs(tmp_path)) == 4 * 5
    assert not list(tmp_path.glob("started/squares/*"))


def test_an_element_that_kills_every_worker_becomes_a_dead_letter(tmp_path: Path) -> None:
    elements = squares.elements(range(4), n2="mass killer")
    summary = run_stage(squares.STAGE, elements, tmp_path, options=[*TWO_WORKERS, "--attempts=2"])
    assert (summary.done, summary.dead) == (3, 1)
    (letter,) = io.read_dead_letters(LocalStore(tmp_path), "squares")
    assert (letter.name, letter.fault, letter.error) == ("2", "infrastructure", "WorkersDied")
    assert letter.message == "2 workers died while they were at 2"
    assert squares.times_done(LocalStore(tmp_path), 2) == 2


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
