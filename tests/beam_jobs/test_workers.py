"""Worker processes keep to their share of the processors, and are known by their numbers."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from beam_jobs import workers
from beam_jobs.workers import Workers, shares

PROBE = """
import json, os
mine = {"processors": sorted(os.sched_getaffinity(0)), "threads": os.environ["OPENBLAS_NUM_THREADS"]}
print(json.dumps(mine), flush=True)
"""


@pytest.fixture
def processors(monkeypatch):
    """Makes this machine one of so many processors."""

    def make(*numbers: int) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(numbers), raising=False)
        monkeypatch.setattr(workers.shutil, "which", lambda name: f"/usr/bin/{name}")

    return make


def test_workers_share_the_processors_evenly_and_none_twice(processors):
    processors(0, 1, 2, 3, 5)
    assert shares(2) == ["0,1", "2,3"]
    assert shares(5) == ["0", "1", "2", "3", "5"]


@pytest.mark.parametrize("count", [1, 3])
def test_one_worker_has_all_and_more_workers_than_processors_are_left_to_the_kernel(processors, count):
    processors(0, 1)
    assert shares(count) == []


def test_without_taskset_nothing_is_pinned(processors, monkeypatch):
    processors(0, 1)
    monkeypatch.setattr(workers.shutil, "which", lambda name: None)
    assert shares(2) == []


@pytest.mark.skipif(not shares(2), reason="needs taskset and two processors")
def test_workers_that_start_at_once_stand_on_different_processors(tmp_path, monkeypatch):
    (tmp_path / "probe.py").write_text(PROBE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(workers, "WORKER", "probe")
    pool = Workers(tmp_path / "log", 2)
    started = [subprocess.Popen(pool.command(), shell=True) for _ in range(2)]
    assert [process.wait() for process in started] == [0, 0]
    found = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert {one["threads"] for one in found} == {"1"}
    first, second = (set(one["processors"]) for one in found)
    assert first
    assert second
    assert not first & second
    assert sorted(pool.dead()) == sorted(process.pid for process in started)
    pool.close()
