"""What a user of the driver holds: requests, handles on turns, and sessions of several turns.

In: token ids. Out: chunks of sampled tokens, each with log-probabilities and the version of the weights
that drew them. All of it may be used from any thread; the decoding happens in :mod:`model.driver`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from model.rows import pieces
from model.sampling import Sampling

if TYPE_CHECKING:
    from model.driver import Driver

FinishReason = Literal["stop", "length", "cancelled", "error"]


class Busy(RuntimeError):
    """Too many turns wait for a slot already; try again later."""


@dataclasses.dataclass(frozen=True)
class Request:
    """One turn of one conversation, with nothing kept after it.

    Args:
        ids: the prompt; at least one token, fewer than the engine's ``max_len``.
        max_new: tokens at most; the slot's room bounds them too.
        seed: 64 bits. With the same weights, ids and ``sampling`` the same seed gives the same tokens,
            whatever else is decoded beside it.
        stop_ids: tokens that end the turn besides the engine's ``eos_id`` (at most 7). The one that
            ended it is the last token returned.
    """

    ids: Sequence[int]
    max_new: int
    seed: int = 0
    sampling: Sampling = dataclasses.field(default_factory=Sampling)
    stop_ids: Sequence[int] = ()


class Chunk(NamedTuple):
    """Some tokens of a turn; ``version``: the policy version of the weights that drew them.

    ``logprobs`` are of the distribution drawn from (nats).
    """

    tokens: list[int]
    logprobs: list[float]
    version: int


@dataclasses.dataclass(frozen=True)
class Result:
    """A whole turn; the three lists have equal length."""

    tokens: list[int]
    logprobs: list[float]
    versions: list[int]
    finish_reason: FinishReason

    @property
    def stopped(self) -> bool:
        """The last token ended the turn."""
        return self.finish_reason == "stop"


OnChunk = Callable[[Chunk | None], None]


class Handle:
    """A turn that is being decoded: iterate over its chunks, or wait for its result.

    ``on_chunk`` is called in the driver's thread with each chunk, and with None when the turn has ended;
    it must return at once and may call the driver.
    """

    def __init__(self, driver: Driver, session: Session, on_chunk: OnChunk | None):
        self.session = session
        self.finish_reason: FinishReason | None = None
        self.error: BaseException | None = None
        self._driver, self._on_chunk = driver, on_chunk
        self._chunks: list[Chunk] = []
        self._news: queue.SimpleQueue[Chunk | None] = queue.SimpleQueue()
        self._ended = threading.Event()

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    def cancel(self) -> None:
        """End the turn after the current dispatch. Tokens drawn so far stay part of the session."""
        self._driver._cancel(self)

    def wait(self, timeout: float | None = None) -> bool:
        """Whether the turn has ended within so many seconds."""
        return self._ended.wait(timeout)

    def result(self, timeout: float | None = None) -> Result:
        """The whole turn; after :meth:`cancel` what there was of it.

        Raises:
            TimeoutError: it hasn't ended within so many seconds.
            RuntimeError: the driver broke; its cause is attached.
        """
        if not self._ended.wait(timeout):
            raise TimeoutError(f"the turn hasn't ended within {timeout} s")
        if self.error is not None:
            raise RuntimeError(f"the driver failed: {self.error}") from self.error
        assert self.finish_reason is not None
        chunks = self._chunks
        return Result(
            tokens=[token for chunk in chunks for token in chunk.tokens],
            logprobs=[logp for chunk in chunks for logp in chunk.logprobs],
            versions=[chunk.version for chunk in chunks for _ in chunk.tokens],
            finish_reason=self.finish_reason,
        )

    def __iter__(self) -> Iterator[Chunk]:
        """The chunks as they come, for one reader."""
        while (chunk := self._news.get()) is not None:
            yield chunk
        if self.error is not None:
            raise RuntimeError(f"the driver failed: {self.error}") from self.error

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        """The chunks as they come, for one reader in an event loop; leaving early cancels the turn."""
        loop, here = asyncio.get_running_loop(), asyncio.Queue[Chunk | None]()

        def forward(chunk: Chunk | None) -> None:
            loop.call_soon_threadsafe(here.put_nowait, chunk)

        self._driver._listen(self, forward)
        try:
            while (chunk := await here.get()) is not None:
                yield chunk
        finally:
            if not self.done:
                self.cancel()
        if self.error is not None:
            raise RuntimeError(f"the driver failed: {self.error}") from self.error

    # --- called by the driver ---

    def _push(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self._news.put(chunk)
        if self._on_chunk is not None:
            self._on_chunk(chunk)

    def _finish(self, reason: FinishReason, error: BaseException | None = None) -> None:
        self.finish_reason, self.error = reason, error
        self._ended.set()
        self._news.put(None)
        if self._on_chunk is not None:
            self._on_chunk(None)


class Session:
    """A conversation that keeps its slot and cache between turns; made by :meth:`Driver.session`.

    ``append`` and ``generate`` take turns: neither may be called while a turn is being decoded.
    Between turns the slot may be lent to others when slots are short; the next turn then computes the
    sequence again, in the same steps as before, so that not a bit of it changes.
    """

    def __init__(self, driver: Driver, seed: int):
        self.seed = seed
        self.turn: Handle | None = None  # the last one asked for
        self._driver = driver
        self._books = Books()

    @property
    def length(self) -> int:
        """Known tokens."""
        return self._books.length

    @property
    def ids(self) -> list[int]:
        """All known tokens, in order."""
        return [int(token) for segment in self._books.history for token in segment.ids]

    def append(self, ids: Sequence[int]) -> None:
        """Add a message: the prompt at first, then what a tool said. Only these tokens are computed.

        They are computed at once when the session has its slot, whether or not a turn follows.

        Raises:
            ValueError: no tokens, or no room for them and one more.
        """
        self._driver._append(self, ids)

    def generate(
        self,
        max_new: int,
        sampling: Sampling | None = None,
        stop_ids: Sequence[int] = (),
        on_chunk: OnChunk | None = None,
    ) -> Handle:
        """Sample a turn; see :class:`Request`.

        Raises:
            Busy: too many turns wait for a slot.
            ValueError: nothing was appended yet, or too many stop tokens.
        """
        return self._driver._generate(self, max_new, sampling or Sampling(), stop_ids, on_chunk)

    def close(self) -> None:
        """Give the slot back; a turn that is being decoded is cancelled."""
        self._driver._close_session(self)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# --- the driver's books -------------------------------------------------------------------------------


@dataclasses.dataclass(eq=False)
class Segment:
    """Tokens that were computed in one way. A cache made again the same way is the same to the bit.

    ``version``: of the weights that computed it; None: not computed yet.
    """

    kind: Literal["prompt", "told", "sampled"]
    ids: np.ndarray
    version: int | None = None


@dataclasses.dataclass(eq=False)
class Op:
    """One piece of catching up: prefill a prompt, feed a piece, or take known tokens in place of draws."""

    kind: Literal["prompt", "feed", "force"]
    ids: np.ndarray
    segment: Segment


@dataclasses.dataclass(eq=False)
class Turn:
    """A turn that was asked for; ``kept`` of its tokens are in the session's history already."""

    handle: Handle
    left: int
    sampling: Sampling
    stop_ids: tuple[int, ...]
    tokens: list[int] = dataclasses.field(default_factory=list)
    kept: int = 0
    cancelled: bool = False


@dataclasses.dataclass(eq=False)
class Books:
    """What the driver knows of a session; guarded by the driver's lock."""

    history: list[Segment] = dataclasses.field(default_factory=list)
    todo: deque[Op] = dataclasses.field(default_factory=deque)  # of a session with a slot
    slot: int | None = None
    turn: Turn | None = None
    ticket: int = 0  # place in the order in which slots were given
    used: int = 0  # when it was last used, in rounds
    closed: bool = False
    close_after: bool = False  # a single request: closed with its turn

    @property
    def length(self) -> int:
        sampled = len(self.turn.tokens) - self.turn.kept if self.turn else 0
        return sum(len(segment.ids) for segment in self.history) + sampled

    def keep_sampled(self, version: int) -> None:
        """Move the turn's new tokens into the history."""
        if self.turn and len(self.turn.tokens) > self.turn.kept:
            ids = np.array(self.turn.tokens[self.turn.kept :], np.int32)
            self.history.append(Segment("sampled", ids, version))
            self.turn.kept = len(self.turn.tokens)

    def start_again(self, version: int, *, exactly: bool) -> None:
        """List what has to be computed in a fresh slot: the same steps, or all tokens as one prompt."""
        self.keep_sampled(version)
        same = all(segment.version in (None, version) for segment in self.history)
        if not (exactly and same):
            ids = np.concatenate([segment.ids for segment in self.history])
            self.history = [Segment("prompt", ids)]
        self.todo = deque(op for segment in self.history for op in ops(segment))


def ops(segment: Segment) -> Iterator[Op]:
    """The steps that compute a segment."""
    if segment.kind == "prompt":
        yield Op("prompt", segment.ids, segment)
    elif segment.kind == "told":
        for piece in pieces(segment.ids):
            yield Op("feed", piece, segment)
    else:
        yield Op("force", segment.ids, segment)


def as_ids(ids: Sequence[int] | np.ndarray, vocab_size: int) -> np.ndarray:
    """Ids as an array; raises ValueError when there are none or one is no token."""
    array: Any = np.asarray(ids)
    if array.ndim != 1 or not len(array):
        raise ValueError("at least one token is needed")
    if array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= vocab_size:
        raise ValueError(f"token ids must be whole numbers from 0 to {vocab_size - 1}")
    return array.astype(np.int32)
