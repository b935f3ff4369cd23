"""The parts of the benchmark that its figures stand on; the measuring itself is run by hand."""

from __future__ import annotations

import time

import pytest
from bench_async import SLOW, WAYS, SlowPool, config
from fixtures.make import write_library
from fixtures.rollouts import make_task

from synth.env.bundle import read_bundle


def test_a_slow_tool_waits_and_says_what_the_tool_says(tmp_path):
    bundle = read_bundle(write_library(tmp_path))
    with SlowPool({bundle.manifest.env_id: bundle.path}) as pool:
        episode = pool.open(make_task(bundle, 1))
        start = time.monotonic()
        result = episode.call("get_book", {"book_id": "B-1"})
        assert time.monotonic() - start >= SLOW[0]
        assert result.error_code is None
        episode.close()


@pytest.mark.parametrize("way", WAYS)
def test_the_ways_differ_in_nothing_else(way):
    one, other = config(way, 5).model_dump(), config("on_policy", 5).model_dump()
    one["batch"].pop("max_staleness"), other["batch"].pop("max_staleness")
    assert {name for name in one if one[name] != other[name]} <= {"sampling"}
