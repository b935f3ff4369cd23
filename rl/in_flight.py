"""Sampling that never stops: episodes run on while the learner trains, and take its new weights in mid-turn.

In: a driver, and the jobs of a group for each place in the endless sequence of tasks. Out: for each step the
groups that have ended, those begun first before the others; the rest run on under the next weights.

    episodes   a a a a . b b b b b . c c c c c c ...      no step waits for the slowest episode
    weights    v0      | v1          | v2                 swapped between two dispatches, nothing is drained

Every token's log-probability is of the weights that drew it, every turn carries the oldest version of its
tokens. Staleness is bounded at both ends (rule 9): no more groups are begun than steps may still use
within ``max_staleness``, and a step waits for every group that would be too old for the next one. So nothing
that was sampled is ever thrown away for its age.

Which group falls into which step is a matter of timing. So a killed run goes on (groups that were begun and
not trained on are sampled anew, none is lost or done twice), but not to the same numbers: who wants those
takes ``one_ahead`` or ``on_policy`` (:mod:`rl.asynchronous`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Protocol

from rl.asynchronous import Params, Sampled
from rl.groups import teaches
from rl.jobs import EpisodeJob
from rl.rewards import reward
from synth.types import Trajectory

NextJob = Callable[[], EpisodeJob | None]
Stream = Callable[[NextJob], Generator[tuple[int, Trajectory], None, None]]


class Weights(Protocol):
    """What is needed of a :class:`model.driver.Driver`."""

    @property
    def version(self) -> int: ...
    def update_weights(self, params: Any, version: int) -> None: ...
    def close(self) -> None: ...


@dataclass(eq=False)
class _Group:
    place: int
    step: int  # when it began: none of its tokens is of older weights
    jobs: list[EpisodeJob]
    done: dict[int, Trajectory] = field(default_factory=dict)
    retried: set[int] = field(default_factory=set)

    @property
    def ended(self) -> bool:
        return len(self.done) == len(self.jobs)

    @property
    def trajectories(self) -> list[Trajectory]:
        return [self.done[member] for member in range(len(self.jobs))]

    @property
    def useless(self) -> bool:
        """It gives no gradient (rule 5)."""
        return self.ended and not teaches(self.trajectories)


class InFlight:
    """Samples in a thread from the first call of :meth:`groups` to the end of the run.

    Args:
        driver: its weights are changed here; it is closed at the end.
        stream: runs jobs as long as there are some, see :func:`rl.rollout.stream_episodes`.
        jobs_at: place, step -> the jobs of the group at that place, begun in that step.
        check: called now and then while the trainer waits; may raise to end the run.
        steps: of the whole run; nothing is begun that no step would use.
        wanted: teaching groups a step.
        max_rounds: a step takes at most ``wanted`` times this many groups when too few of them teach.
        max_staleness: how many steps a token's weights may be old when it is trained on; 1 or more.
        pending: places that a run which goes on had begun and not trained on.
    """

    behind: Params | None = None  # what samples is the train state's own weights

    def __init__(
        self,
        driver: Weights,
        stream: Stream,
        jobs_at: Callable[[int, int], list[EpisodeJob]],
        check: Callable[..., None],
        *,
        steps: int,
        wanted: int,
        max_rounds: int,
        max_staleness: int,
        pending: Sequence[int] = (),
    ):
        self._driver, self._stream, self._jobs_at, self._check = driver, stream, jobs_at, check
        self._first_version = driver.version
        self._steps, self._wanted, self._max_staleness = steps, wanted, max_staleness
        self._at_most = wanted * max_rounds
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._stop = False
        self._step, self._position = 0, 0
        self._left: tuple[int, ...] = tuple(pending)
        self._again = deque(pending)  # places to begin before all others
        self._groups: list[_Group] = []  # begun and not taken, in order
        self._waiting: deque[tuple[_Group, int]] = deque()  # members to run
        self._running: list[tuple[_Group, int]] = []  # by the number that the stream gives them

    @property
    def pending(self) -> tuple[int, ...]:
        """Places begun and not taken when :meth:`groups` returned last."""
        return self._left

    def groups(self, step: int, position: int, params: Params) -> Sampled:
        """Groups for ``step``; what runs goes on with ``params``. Call it with one step after the other.

        Args:
            position: of the first group to begin; only the first call's counts.
        """
        self._driver.update_weights(params, self._first_version + step)
        with self._changed:
            self._step = step
            if self._thread is None:
                self._position = position
                self._thread = threading.Thread(target=self._main, name="in-flight", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            while (taken := self._take()) is None:
                if self._failure is not None:
                    raise self._failure
                self._changed.wait(0.2)
                self._check()
            self._groups = [group for group in self._groups if group not in taken]
            self._left = (*(group.place for group in self._groups), *self._again)
            return [group.trajectories for group in taken], self._position

    def _take(self) -> list[_Group] | None:
        """What the step trains on, or None when it has to wait."""
        due = [g for g in self._groups if self._step - g.step >= self._max_staleness]
        ended = [g for g in self._groups if g.ended]
        teaching = sum(not g.useless for g in ended)
        if not all(g.ended for g in due) or (teaching < self._wanted and len(ended) < self._at_most):
            return None
        taken, teaching = [], 0
        for group in ended:
            if group in due or teaching < self._wanted:
                taken.append(group)
                teaching += not group.useless
        return taken

    # --- the thread -------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._stop or self._waiting or self._room())
                    if self._stop:
                        return
                    self._running = []
                with closing(self._stream(self._next_job)) as stream:
                    for number, trajectory in stream:
                        if self._book(*self._running[number], trajectory):
                            return
        except BaseException as err:
            with self._changed:
                self._failure = err
                self._changed.notify_all()

    def _room(self) -> bool:
        """Whether another group may begin."""
        useful = sum(not group.useless for group in self._groups)
        usable = min(self._max_staleness + 1, self._steps - self._step) * self._wanted
        return useful < usable and len(self._groups) < self._at_most + self._max_staleness * self._wanted

    def _next_job(self) -> EpisodeJob | None:
        with self._changed:
            if self._stop or not (self._waiting or self._room()):
                return None
            if not self._waiting:
                self._begin()
            group, member = self._waiting.popleft()
            self._running.append((group, member))
            return group.jobs[member]

    def _begin(self) -> None:
        if self._again:
            place = self._again.popleft()
        else:
            place = self._position
            self._position += 1
        group = _Group(place, self._step, self._jobs_at(place, self._step))
        self._groups.append(group)
        self._waiting.extend((group, member) for member in range(len(group.jobs)))

    def _book(self, group: _Group, member: int, trajectory: Trajectory) -> bool:
        """Keep an episode; one that the infrastructure broke runs once more. True: nobody wants the rest."""
        with self._changed:
            if reward(trajectory) is None and member not in group.retried:
                group.retried.add(member)
                self._waiting.appendleft((group, member))
            else:
                group.done[member] = trajectory
                self._changed.notify_all()
            return self._stop

    def __enter__(self) -> InFlight:
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._stop = True
            self._changed.notify_all()
        self._driver.close()  # ends the turns that are being decoded, so the thread need not wait for them
        if self._thread is not None:
            self._thread.join()
