"""The driver: continuous batching of many conversations over the engine's slots, in a thread of its own.

    with Driver(engine) as driver:
        handle = driver.submit(Request(ids, max_new=64, seed=1))
        for chunk in handle: ...                  # .tokens .logprobs .version
        session = driver.session(seed=2)          # keeps slot and cache while its tool runs
        session.append(prompt_ids)
        turn = session.generate(max_new=64).result()
        session.append(observation_ids)           # only these are prefilled, while others decode
        driver.update_weights(params, version=7)  # between two dispatches, nothing is drained

The thread goes in rounds: take what was asked for, give slots to turns that wait (first come, first served;
when there is no free one, the idle session used longest ago loses its slot), then in every shard at once
prefill, feed and decode ``steps`` tokens a slot, and hand out what was sampled. So a tool call of one session
overlaps with the others' decoding, and no turn waits for another's end.

What is sampled depends on neither time nor neighbours: see :mod:`model.engine`. A session that lost its slot
is computed again in the same steps (prompt, fed pieces, and its own tokens taken in place of draws, through
the same programs), so not a bit changes. Only a change of weights makes timing matter.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence

from flax import nnx

from model.decoding import STEPS
from model.engine import Engine
from model.rows import DecodeState
from model.sampling import Sampling
from model.scheduler import Scheduler
from model.sessions import (
    Books,
    Busy,
    Chunk,
    FinishReason,
    Handle,
    OnChunk,
    Request,
    Result,
    Segment,
    Session,
    Turn,
    as_ids,
    ops,
)

__all__ = ["Busy", "Chunk", "Driver", "Handle", "Request", "Result", "Sampling", "Session", "Stats"]


@dataclasses.dataclass(frozen=True)
class Stats:
    """Counts since the start, and what is going on now."""

    slots: int
    slots_used: int
    sessions: int  # open ones
    decoding: int  # turns that have a slot
    waiting: int  # turns that have none
    prefilled: int = 0  # prompt tokens computed
    shared: int = 0  # prompt tokens taken from a prefill that another session had asked for
    appended: int = 0  # tokens of messages after the prompt
    kept: int = 0  # tokens whose cache was there already when a message was appended
    decoded: int = 0  # sampled tokens
    replayed: int = 0  # sampled tokens computed again after an eviction
    evictions: int = 0
    finished: int = 0
    cancelled: int = 0
    rounds: int = 0
    version: int = 0


COUNTS = tuple(
    field.name for field in dataclasses.fields(Stats) if field.default == 0 and field.name != "version"
)


class Driver:
    """Decodes turns of many conversations; safe to use from any thread. A context manager.

    Args:
        engine: its slots belong to the driver until :meth:`close`.
        steps: tokens a slot gets in a round, at most :data:`model.decoding.STEPS` (ours, measured: fewer
            cost dispatches, more let ended slots wait).
        max_waiting: turns without a slot; one more raises :class:`Busy`.
        prompts: prefilled prompts kept for the next session with the same one, each as large as a slot.
        chunks: prefill chunks a round, so that long prompts don't hold up decoding.
    """

    def __init__(
        self, engine: Engine, *, steps: int = 8, max_waiting: int = 1024, prompts: int = 8, chunks: int = 4
    ):
        if not 1 <= steps <= STEPS:
            raise ValueError(f"steps={steps}: must be 1 to {STEPS}")
        self.engine = engine
        self._max_waiting = max_waiting
        self._scheduler = Scheduler(engine, steps, prompts, chunks)
        self._weights: tuple[nnx.State, int, bool] | None = None
        self._changed = threading.Condition(threading.RLock())
        self._closing = self._news = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="driver", daemon=True)
        self._thread.start()

    # --- what users call ---

    def submit(self, request: Request, on_chunk: OnChunk | None = None) -> Handle:
        """Decode one turn; its slot is freed when it ends.

        Raises:
            Busy: ``max_waiting`` turns wait already.
            ValueError: the prompt is empty, too long or holds what is no token.
        """
        session = self.session(request.seed)
        session._books.close_after = True
        try:
            session.append(request.ids)
            return session.generate(request.max_new, request.sampling, request.stop_ids, on_chunk)
        except BaseException:
            session.close()
            raise

    def session(self, seed: int = 0) -> Session:
        """A conversation of several turns; close it when it is over."""
        with self._changed:
            self._check_alive()
            session = Session(self, seed)
            self._scheduler.sessions.add(session)
            return session

    def update_weights(self, params: nnx.State, version: int, *, keep_caches: bool = True) -> None:
        """Draw every further token with other weights; returns when that is so.

        Args:
            keep_caches: go on with keys and values that the old weights made (fast; the usual choice for
                asynchronous training), or compute them again with the new ones before the next token.
        """
        with self._changed:
            self._check_alive()
            self._weights = (params, version, keep_caches)
            self._wake()
            if threading.current_thread() is not self._thread:
                self._changed.wait_for(lambda: self._weights is None or self._failure or self._closing)

    @property
    def version(self) -> int:
        """Policy version of the weights that draw now."""
        return self.engine.version

    def stats(self) -> Stats:
        with self._changed:
            used = [session for session in self._scheduler.tenants if session is not None]
            return Stats(
                slots=self.engine.slots,
                slots_used=len(used),
                sessions=len(self._scheduler.sessions),
                decoding=sum(session._books.turn is not None for session in used),
                waiting=len(self._scheduler.waiting),
                version=self.engine.version,
                **{name: self._scheduler.counts[name] for name in COUNTS},
            )

    def close(self) -> None:
        """Cancel what is going on and end the thread; the engine is free for another driver then."""
        with self._changed:
            self._closing = True
            self._wake()
        self._thread.join()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what sessions and handles call ---

    def _append(self, session: Session, ids: Sequence[int]) -> None:
        array = as_ids(ids, self.engine.config.vocab_size)
        with self._changed:
            books = self._check_idle(session)
            self.engine.check_room(books.length, len(array), "the session")
            segment = Segment("told" if books.history else "prompt", array)
            books.history.append(segment)
            if books.slot is not None:
                books.todo.extend(ops(segment))
                self._scheduler.counts["kept"] += books.length - len(array)
                self._wake()

    def _generate(
        self,
        session: Session,
        max_new: int,
        sampling: Sampling,
        stop_ids: Sequence[int],
        on_chunk: OnChunk | None,
    ) -> Handle:
        self.engine.check_stops(stop_ids)
        with self._changed:
            books = self._check_idle(session)
            if not books.history:
                raise ValueError("append a prompt before generate")
            handle = session.turn = Handle(self, session, on_chunk)
            room = min(max_new, self.engine.max_len - books.length)
            if books.slot is None and room > 0:
                if len(self._scheduler.waiting) >= self._max_waiting:
                    raise Busy(
                        f"{len(self._scheduler.waiting)} turns wait for a slot already; try again later"
                    )
                self._scheduler.waiting.append(session)
            if room > 0:
                books.turn = Turn(handle, room, sampling, tuple(stop_ids))
                self._wake()
        if room <= 0:
            handle._finish("length")
        return handle

    def _cancel(self, handle: Handle) -> None:
        with self._changed:
            turn = handle.session._books.turn
            if turn is not None and turn.handle is handle:
                turn.cancelled = True
                self._wake()

    def _close_session(self, session: Session) -> None:
        with self._changed:
            session._books.closed = True
            if session._books.turn is not None:
                session._books.turn.cancelled = True
            elif session._books.slot is None:
                self._scheduler.sessions.discard(session)
            self._wake()

    def _listen(self, handle: Handle, on_chunk: OnChunk) -> None:
        """Hand a handle's chunks to ``on_chunk``, those that came before first."""
        with self._changed:
            for chunk in handle._chunks:
                on_chunk(chunk)
            handle._on_chunk = on_chunk
            if handle.done:
                on_chunk(None)

    def _wake(self) -> None:
        self._news = True
        self._changed.notify_all()

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise RuntimeError(f"the driver failed: {self._failure}") from self._failure
        if self._closing:
            raise RuntimeError("the driver is closed")

    def _check_idle(self, session: Session) -> Books:
        self._check_alive()
        if session._books.closed:
            raise RuntimeError("the session is closed")
        if session._books.turn is not None:
            raise RuntimeError("a turn is being decoded; wait for its end")
        return session._books

    # --- the thread ---

    def _main(self) -> None:
        scheduler = self._scheduler
        try:
            while True:
                with self._changed:
                    if self._weights is not None:
                        scheduler.update_weights(*self._weights)
                        self._weights = None
                        self._wake()
                    if self._closing:
                        break
                    self._news = False
                    round = scheduler.plan()  # may tell users of ended turns, who may ask for more
                    if not round.prompts and not round.shards:
                        if not self._news:
                            self._changed.wait()
                        continue
                results = scheduler.compute(round)
                with self._changed:
                    scheduler.deliver(round, results)
        except BaseException as err:  # nobody else would tell those who wait
            self._end("error", err)
        else:
            self._end("cancelled", None)

    def _end(self, reason: FinishReason, error: BaseException | None) -> None:
        with self._changed:
            self._failure, self._closing = error, True
            for session in list(self._scheduler.sessions):
                session._books.closed = True
                if session._books.turn is not None:
                    self._scheduler.end_turn(session, reason, error=error)
                else:
                    self._scheduler.leave(session)
            if error is None:
                self.engine.recycle(DecodeState(tuple(self._scheduler.shards)))
            self._wake()
