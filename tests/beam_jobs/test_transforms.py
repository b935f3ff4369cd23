"""The shared transforms in a pipeline of their own: typed ends, Beam counters, a replayed bundle."""

from __future__ import annotations

from pathlib import Path

import apache_beam as beam
import squares
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.testing.util import assert_that, is_not_empty

from beam_jobs import io
from beam_jobs.options import build_options, make_runner
from beam_jobs.store import LocalStore
from beam_jobs.transforms import Attempt


def attempt(store: LocalStore, numbers: range, **trouble: str) -> dict[str, int]:
    """Run ``Attempt`` over the numbers; the Beam counters of the stage."""
    options = build_options([])
    runner, _ = make_runner(options, store, "squares")
    pipeline = beam.Pipeline(runner=runner, options=options)
    ends = pipeline | beam.Create(squares.elements(numbers, **trouble)) | Attempt(squares.STAGE, store)
    assert_that(ends.receipts | "types" >> beam.Filter(lambda r: isinstance(r, io.Receipt)), is_not_empty())
    result = pipeline.run()
    result.wait_until_finish()
    found = result.metrics().query(MetricsFilter().with_namespace("squares"))
    (took,) = found["distributions"]
    assert took.key.metric.name == "milliseconds"
    counted = {counter.key.metric.name: counter.committed for counter in found["counters"]}
    assert took.committed.count == counted["done"]
    return counted


def test_beam_counters_say_what_the_receipts_and_letters_say(tmp_path: Path) -> None:
    run = LocalStore(tmp_path)
    run.prepare()
    counted = attempt(run, range(5), n1="poison", n2="down", n3="broken")
    assert counted == {
        "done": 2,
        "squares": 2,
        "sum": 0 + 16,
        "dead_program": 1,
        "dead_infrastructure": 1,
        "dead_environment": 1,
    }
    receipts = [io.read_receipt(run, "squares", str(n)) for n in range(5)]
    assert sum(r.counters["sum"] for r in receipts if r is not None) == counted["sum"]
    assert [letter.name for letter in io.read_dead_letters(run, "squares")] == ["1", "2", "3"]


def test_a_replayed_bundle_does_nothing_twice(tmp_path: Path) -> None:
    run = LocalStore(tmp_path)
    run.prepare()
    first, again = attempt(run, range(3)), attempt(run, range(3))
    assert first == again
    assert [squares.times_done(run, n) for n in range(3)] == [1, 1, 1]
