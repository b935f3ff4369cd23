"""Where a step's groups come from: sampled when they are asked for, or while the step before is trained on.

In: a function that samples the groups of a step with given weights (:func:`rl.train.collect` and an engine).
Out: those groups, in the order of steps. The trainer asks for groups and doesn't know which kind it has.

    on_policy   sample s | train s | sample s+1 | train s+1     nothing is ever stale
    one_ahead   sample s | train s              | train s+1     step s+1 is sampled by the policy of step s,
                           sample s+1             sample s+2    in a thread, while that is trained

    in_flight   sample ..................................       nothing waits: rl/in_flight.py
                train s | train s+1 | train s+2

The first two are functions of the run's seed alone, never of timing: a killed run that goes on makes the
same groups again. For that :class:`OneAhead` needs the weights that sampled the batch it is at (``behind``),
which are one step older than those that the trainer holds; a checkpoint keeps both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from rl.groups import Group

Params = Any
Sampled = tuple[list[Group], int]  # all groups of a step, and the next position in the sequence of tasks


class Sample(Protocol):
    """Samples the groups of a step. ``version`` counts the steps that ``params`` have been trained for.

    ``check`` is to be called now and then; it raises when the sampling isn't wanted any more.
    """

    def __call__(
        self, step: int, position: int, params: Params, version: int, check: Callable[..., None]
    ) -> Sampled: ...


class OnPolicy:
    """Samples step s with the weights of step s.

    Args:
        sample: see :class:`Sample`.
        check: called between rounds; may raise to end the run.
    """

    behind: Params | None = None  # nothing beside the train state is needed to go on
    pending: tuple[int, ...] = ()

    def __init__(self, sample: Sample, check: Callable[..., None]):
        self._sample, self._check = sample, check

    def groups(self, step: int, position: int, params: Params) -> Sampled:
        """Groups of ``step``, which starts at ``position`` and whose policy has ``params``."""
        return self._sample(step, position, params, step, self._check)

    def __enter__(self) -> OnPolicy:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Unwanted(Exception):
    """Ends a sampling thread whose run has ended."""


class OneAhead:
    """Samples step s + 1 in a thread with the weights of step s, while the caller trains on step s.

    Args:
        sample, check: as in :class:`OnPolicy`; both are called in the thread.
        steps: of the whole run; nothing is sampled for later ones.
        behind: when a run goes on, the weights one step older than those it goes on with.
    """

    pending: tuple[int, ...] = ()

    def __init__(self, sample: Sample, check: Callable[..., None], steps: int, behind: Params | None = None):
        self._sample, self._check, self._steps = sample, check, steps
        self.behind = behind
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sampling")
        self._next: Future[Sampled] | None = None
        self._unwanted = threading.Event()

    def groups(self, step: int, position: int, params: Params) -> Sampled:
        """As :meth:`OnPolicy.groups`, to be called with one step after the other."""
        if self._next is None:  # the first of this process
            first = (params, step) if self.behind is None else (self.behind, step - 1)
            self._start(step, position, *first)
        assert self._next is not None
        groups, position = self._next.result()
        self.behind = params
        if step + 1 < self._steps:
            self._start(step + 1, position, params, step)
        return groups, position

    def _start(self, step: int, position: int, params: Params, version: int) -> None:
        self._next = self._thread.submit(self._sample, step, position, params, version, self._wanted)

    def _wanted(self, *_: object) -> None:
        self._check()
        if self._unwanted.is_set():
            raise _Unwanted

    def __enter__(self) -> OneAhead:
        return self

    def __exit__(self, *_: object) -> None:
        self._unwanted.set()
        self._thread.shutdown(wait=True)
