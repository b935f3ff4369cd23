"""The transforms that all pipelines share: each element ends as a receipt or as a dead letter.

    elements -> Reshuffle -> Attempt -+-> receipts      (each also in the run folder at once)
                                      +-> dead letters  (likewise)

Where the author is a language model, ``Attempt`` goes through RunInference (:mod:`beam_jobs.inference`).
An element that fails never stops the others (:mod:`beam_jobs.attempt`). The number of times that each
thing was counted is a Beam counter in the namespace of the stage, and the seconds an element took a
distribution, for the runner's own monitoring; our summaries read the run folder (:mod:`beam_jobs.stage`).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from beam_jobs import io, models
from beam_jobs.attempt import Bench, attempt
from beam_jobs.options import build_options, make_runner, quiet, spread
from beam_jobs.stage import Element, Stage
from beam_jobs.store import Store
from beam_jobs.workers import WorkerDied, watched
from synth.errors import InfrastructureError

with quiet():
    import apache_beam as beam
    from apache_beam.metrics.metric import Metrics
    from apache_beam.pvalue import PCollection, TaggedOutput

DEAD = "dead"


class Attempted(NamedTuple):
    """The two ends of an attempt."""

    receipts: PCollection[io.Receipt]
    dead: PCollection[io.DeadLetter]


Ended = io.Receipt | io.DeadLetter


def end(stage: Stage, store: Store, element: Element, bench: Bench) -> Ended:
    """Do an element. A runner may replay a bundle: what was finished stays finished."""
    ended = io.finished(store, stage.name, element.name, element.key)
    return ended or attempt(stage, store, element, bench)


def counted(stage: Stage, ended: Ended) -> Any:
    """Beam counters of an element that has ended, and where it goes."""
    if isinstance(ended, io.DeadLetter):
        Metrics.counter(stage.name, f"dead_{ended.fault}").inc()
        return TaggedOutput(DEAD, ended)
    Metrics.counter(stage.name, "done").inc()
    Metrics.distribution(stage.name, "milliseconds").update(int(1000 * ended.seconds))
    for name, count in ended.counters.items():
        Metrics.counter(stage.name, name).inc(count)
    return ended


class _AttemptFn(beam.DoFn):
    """Holds a bench from setup to teardown; a killed worker's sandboxes end with its sockets."""

    def __init__(self, stage: Stage, store: Store) -> None:
        self.stage, self.store = stage, store

    def setup(self) -> None:
        self.bench = Bench(self.stage)
        # what is imported stays; a search every 700 objects took a twentieth of the time (ours, measured)
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000)

    def process(self, element: Element) -> Iterator[Ended]:
        yield end(self.stage, self.store, element, self.bench)

    def teardown(self) -> None:
        self.bench.close()


class Attempt(beam.PTransform):
    """Runs a stage's work on each element: ``elements | Attempt(stage, store)`` -> Attempted.

    ``author`` names the language model that the work asks, if it asks one.
    """

    def __init__(self, stage: Stage, store: Store, author: str | None = None) -> None:
        super().__init__(label=f"Attempt({stage.name})")
        self.stage, self.store, self.author = stage, store, author

    def expand(self, pcoll: PCollection[Element]) -> Attempted:
        spread: Any = pcoll | "Spread" >> beam.Reshuffle()
        if self.author is None:
            ended = spread | beam.ParDo(_AttemptFn(self.stage, self.store))
        else:
            from beam_jobs.inference import ask

            ended = spread | "Ask" >> ask(self.stage, self.store, self.author)
        ended = ended | "Count" >> beam.Map(partial(counted, self.stage)).with_outputs(DEAD, main="receipts")
        return Attempted(ended.receipts, ended[DEAD])


def build(pipeline: beam.Pipeline, stage: Stage, elements: Sequence[Element], store: Store) -> Attempted:
    """Put a stage into a pipeline; its steps are ``Elements`` and ``Attempt(<stage>)``.

    The elements of a stage have one author: a run is asked for with one.
    """
    authors = {str(element.payload.get("author", "")) for element in elements}
    author = next((name for name in authors if models.is_model(name)), None)
    return pipeline | "Elements" >> beam.Create(list(elements)) | Attempt(stage, store, author)


def run_pipeline(stage: Stage, elements: Sequence[Element], store: Store, options: Sequence[str]) -> None:
    """Build and run the pipeline of a stage, and wait for its end.

    Raises:
        CallerError: a bad option.
        WorkerDied: a local worker process did; what was finished until then is kept.
        InfrastructureError: the runner failed; likewise.
    """
    with quiet():
        parsed = build_options(options)
        spread(parsed, len(elements))
        runner, workers = make_runner(parsed, store, stage.name)
        pipeline = beam.Pipeline(runner=runner, options=parsed)
        build(pipeline, stage, elements, store)
        try:
            state = watched(lambda: _run(pipeline), workers) if workers else _run(pipeline)
        except WorkerDied:
            raise
        except Exception as err:
            if _interrupted(err):
                raise KeyboardInterrupt from None
            last = str(err).strip().splitlines()[-1:] or [type(err).__name__]
            raise InfrastructureError(f"{stage.name}: the Beam runner failed: {last[0]}") from err
    if state not in ("DONE", None):
        raise InfrastructureError(f"{stage.name}: the Beam job ended in state {state}")


def _run(pipeline: Any) -> str | None:
    """Run, wait, and close what DaskRunner leaves open: its client, and the cluster if it made one."""
    result = pipeline.run()
    try:
        return result.wait_until_finish()
    finally:
        client = getattr(result, "client", None)
        if client is not None:
            client.close() if client.cluster is None else client.shutdown()


def _interrupted(err: BaseException | None) -> bool:
    """Whether Ctrl-C is behind an error (Beam wraps it when it falls into an element's work)."""
    while err is not None:
        if isinstance(err, KeyboardInterrupt):
            return True
        err = err.__cause__ or err.__context__
    return False
