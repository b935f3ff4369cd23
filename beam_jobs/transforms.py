"""The transforms that all pipelines share: try an element, keep its receipt, or send a dead letter.

    elements -> Reshuffle -> Attempt -+-> receipts (also on disk)
                                      +-> dead letters -> one file

An element that fails never stops the others. Only an
:class:`~synth.errors.InfrastructureError` is tried again (with a wait that doubles): the same
input gives the same caller's or environment's fault every time. The number of times that each thing
was counted is a Beam counter in the namespace of the stage, for the runner's own monitoring;
our summaries read the receipts (:mod:`beam_jobs.stage`).
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from beam_jobs import io
from beam_jobs.options import build_options, make_runner, quiet
from beam_jobs.stage import Element, Output, Retry, Stage
from synth.errors import CallerError, EnvironmentFault, InfrastructureError

with quiet():
    import apache_beam as beam
    from apache_beam.metrics.metric import Metrics
    from apache_beam.pvalue import PCollection, TaggedOutput

DEAD = "dead"
FAULTS: dict[type[Exception], io.Fault] = {
    CallerError: "caller",
    EnvironmentFault: "environment",
    InfrastructureError: "infrastructure",
}


class Attempted(NamedTuple):
    """The two ends of an attempt."""

    receipts: PCollection[io.Receipt]
    dead: PCollection[io.DeadLetter]


class _AttemptFn(beam.DoFn):
    def __init__(self, stage: Stage, run: Path) -> None:
        self.stage, self.run = stage, run

    def process(self, element: Element) -> Iterator[Any]:
        stage = self.stage
        receipt = io.finished(self.run, stage.name, element.name, element.key)
        if receipt is None:  # a runner may replay a bundle: what was finished stays finished
            start, attempts = time.monotonic(), [0]
            try:
                output = with_retry(stage, self.run, element, attempts)
                receipt = io.Receipt(
                    stage=stage.name,
                    name=element.name,
                    key=element.key,
                    outputs={path: io.fingerprint(self.run / path) for path in output.paths},
                    counters=output.counters,
                    seconds=round(time.monotonic() - start, 3),
                )
                io.write_receipt(self.run, receipt)
            except Exception as err:
                letter = dead_letter(stage, element, err, attempts[0])
                Metrics.counter(stage.name, f"dead_{letter.fault}").inc()
                yield TaggedOutput(DEAD, letter)
                return
        Metrics.counter(stage.name, "done").inc()
        for name, count in receipt.counters.items():
            Metrics.counter(stage.name, name).inc(count)
        yield receipt


class Attempt(beam.PTransform):
    """Runs a stage's work on each element: ``elements | Attempt(stage, run)`` -> Attempted."""

    def __init__(self, stage: Stage, run: Path) -> None:
        super().__init__(label=f"Attempt({stage.name})")
        self.stage, self.run = stage, run

    def expand(self, pcoll: PCollection[Element]) -> Attempted:
        tried: Any = (
            pcoll
            | "Spread" >> beam.Reshuffle()
            | beam.ParDo(_AttemptFn(self.stage, self.run)).with_outputs(DEAD, main="receipts")
        )
        return Attempted(tried.receipts, tried[DEAD])


class WriteDeadLetters(beam.PTransform):
    """Gathers the letters of this run into the stage's one file (see io.update_dead_letters)."""

    def __init__(self, stage: str, run: Path, tried: Sequence[str]) -> None:
        super().__init__(label="WriteDeadLetters")
        self.stage, self.run, self.tried = stage, run, tuple(tried)

    def expand(self, pcoll: PCollection[io.DeadLetter]) -> Any:
        stage, run, tried = self.stage, self.run, self.tried
        return (
            pcoll
            | beam.combiners.ToList()
            | beam.Map(lambda letters: io.update_dead_letters(run, stage, tried, letters))
        )


def run_pipeline(stage: Stage, elements: Sequence[Element], run: Path, options: Sequence[str]) -> None:
    """Build and run the pipeline of a stage, and wait for its end.

    Raises:
        CallerError: a bad option.
        InfrastructureError: the runner failed; what was finished until then is kept.
    """
    with quiet():
        parsed = build_options(options)
        runner = make_runner(parsed, run / "logs" / f"{stage.name}-workers.log")
        pipeline = beam.Pipeline(runner=runner, options=parsed)
        attempted: Any = pipeline | beam.Create(list(elements)) | Attempt(stage, run)
        _ = attempted.dead | WriteDeadLetters(stage.name, run, [e.name for e in elements])
        try:
            state = pipeline.run().wait_until_finish()
        except Exception as err:
            if _interrupted(err):
                raise KeyboardInterrupt from None
            last = str(err).strip().splitlines()[-1:] or [type(err).__name__]
            raise InfrastructureError(f"{stage.name}: the Beam runner failed: {last[0]}") from err
    if state not in ("DONE", None):
        raise InfrastructureError(f"{stage.name}: the Beam job ended in state {state}")


def _interrupted(err: BaseException | None) -> bool:
    """Whether Ctrl-C is behind an error (Beam wraps it when it falls into an element's work)."""
    while err is not None:
        if isinstance(err, KeyboardInterrupt):
            return True
        err = err.__cause__ or err.__context__
    return False


def with_retry(stage: Stage, run: Path, element: Element, attempts: list[int]) -> Output:
    """Call the stage's work, again after an infrastructure error; ``attempts[0]`` counts the calls."""
    retry: Retry = stage.retry
    while True:
        attempts[0] += 1
        try:
            return stage.work(run, element.payload)
        except InfrastructureError:
            if attempts[0] >= retry.attempts:
                raise
        time.sleep(retry.wait * 2 ** (attempts[0] - 1))


def dead_letter(stage: Stage, element: Element, err: Exception, attempts: int) -> io.DeadLetter:
    """Say what went wrong, whose fault it is, and where."""
    fault: io.Fault = "program"  # an exception that no one foresaw is ours
    for kind, name in FAULTS.items():
        fault = name if isinstance(err, kind) else fault
    frames = traceback.extract_tb(err.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno} {frames[-1].name}" if frames else ""
    return io.DeadLetter(
        stage=stage.name,
        name=element.name,
        key=element.key,
        input=element.input,
        fault=fault,
        error=type(err).__name__,
        message=str(err)[:2000],
        where=where,
        attempts=max(1, attempts),
    )
