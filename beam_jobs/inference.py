"""Stages whose author is a language model, as Beam's RunInference: the one seam to a model.

The model that Beam loads, once a process, is the client of :mod:`beam_jobs.models`. Apart from
:mod:`beam_jobs.transforms`, because importing RunInference takes a second that other stages needn't pay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from beam_jobs import models
from beam_jobs.attempt import Bench
from beam_jobs.options import quiet
from beam_jobs.stage import Element, Stage
from beam_jobs.store import Store
from beam_jobs.transforms import Ended, end

if TYPE_CHECKING:
    from synth.author.llm import LLM

with quiet():
    from apache_beam.ml.inference.base import ModelHandler, RunInference


class AuthorHandler(ModelHandler[Element, Ended, "LLM"]):
    """An element's work, with all that it asks, is one inference.

    The model is this process's client. Sandboxes are not shared: each handler, that is each thread, has a
    bench of its own.
    """

    def __init__(self, stage: Stage, store: Store, author: str) -> None:
        self.stage, self.store, self.author = stage, store, author
        self._bench: Bench | None = None
        super().__init__(max_batch_size=1)  # elements are long: a bundle that fails should cost one

    def load_model(self) -> LLM:
        return models.client(self.author)

    def run_inference(
        self, batch: Sequence[Element], model: LLM, inference_args: dict[str, Any] | None = None
    ) -> list[Ended]:
        self._bench = self._bench or Bench(self.stage)
        return [end(self.stage, self.store, element, self._bench) for element in batch]

    def get_metrics_namespace(self) -> str:
        return self.stage.name


def ask(stage: Stage, store: Store, author: str) -> RunInference:
    """Elements -> receipts and dead letters."""
    return RunInference(AuthorHandler(stage, store, author))
