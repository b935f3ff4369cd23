"""Rounds of continuous batching: who gets a slot, what each shard computes, who gets the tokens.

In: sessions with something to compute. Out: tokens to their handles. The books change under the lock of
:class:`model.driver.Driver` (:meth:`Scheduler.plan`, :meth:`Scheduler.deliver`); :meth:`Scheduler.compute`,
which takes the time, runs without it, a thread a shard.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, OrderedDict, deque

import numpy as np
from flax import nnx

from model.decoding import STEPS, Sampled
from model.engine import Engine
from model.rows import Prefix, Shard, free_row, pieces
from model.sampling import key_of
from model.sessions import Chunk, FinishReason, Op, Session, Turn


@dataclasses.dataclass(eq=False)
class Prompt:
    """A prompt on its way through prefill, chunk by chunk; then kept for others with the same one."""

    ids: np.ndarray
    prefix: Prefix | None = None
    used: bool = False
    computed: int = 0  # tokens, in this round

    @property
    def ready(self) -> bool:
        return self.prefix is not None and len(self.prefix.ids) == len(self.ids)


@dataclasses.dataclass(eq=False)
class Work:
    """One row's share of a round: things to compute first, then what to decode."""

    session: Session
    row: int
    before: list[Op]
    force: Op | None = None  # tokens to replay this round
    turn: Turn | None = None  # to decode this round


@dataclasses.dataclass(eq=False)
class Round:
    """What to compute: prompts by their next chunk, and work by shard."""

    prompts: list[Prompt]
    shards: dict[int, list[Work]]


class Scheduler:
    """The books of the driver; see its arguments there."""

    def __init__(self, engine: Engine, steps: int, prompts: int, chunks: int):
        self.engine = engine
        self.steps, self._keep, self._chunks = steps, max(prompts, chunks), chunks
        self.shards: list[Shard] = list(engine.init_decode_state().shards)
        self.tenants: list[Session | None] = [None] * engine.slots
        self.sessions: set[Session] = set()
        self.waiting: deque[Session] = deque()
        self.counts: Counter[str] = Counter()
        self._tickets = 0
        self._prompts: OrderedDict[bytes, Prompt] = OrderedDict()
        self._wanted: set[bytes] = set()  # by the round that is being planned

    # --- under the lock ---

    def plan(self) -> Round:
        """Settle cancellations, hand out slots and list the round's work."""
        for session in [s for s in self.sessions if s._books.closed or s._books.turn]:
            if session._books.turn is not None and session._books.turn.cancelled:
                self.end_turn(session, "cancelled")
            if session._books.closed and session._books.turn is None:
                self.leave(session)
        self._admit()
        round, self._wanted = Round([], {}), set()
        tenants = [(slot, session) for slot, session in enumerate(self.tenants) if session is not None]
        # who got a slot first gets its prompt first: by slot, the high ones would starve
        for slot, session in sorted(tenants, key=lambda pair: pair[1]._books.ticket):
            number, row = divmod(slot, self.engine.shard)
            work = self._work(session, row, round.prompts)
            if work is not None:
                round.shards.setdefault(number, []).append(work)
        for key in [key for key, prompt in self._prompts.items() if not prompt.ready]:
            if key not in self._wanted:  # whoever asked has left
                del self._prompts[key]
        self.counts["rounds"] += bool(round.prompts or round.shards)
        return round

    def _admit(self) -> None:
        """Slots for waiting turns, first come, first served."""
        while self.waiting:
            slot = next((slot for slot, tenant in enumerate(self.tenants) if tenant is None), None)
            if slot is None:
                idle = [s for s in self.tenants if s is not None and s._books.turn is None]
                if not idle:
                    return
                oldest = min(idle, key=lambda s: (s._books.used, s._books.slot))
                slot = oldest._books.slot
                self.vacate(oldest)
                self.counts["evictions"] += 1
            assert slot is not None
            session = self.waiting.popleft()
            session._books.slot = slot
            self._tickets += 1
            session._books.ticket = self._tickets
            self.tenants[slot] = session
            session._books.start_again(self.engine.version, exactly=True)

    def _work(self, session: Session, row: int, prompts: list[Prompt]) -> Work | None:
        """What a session computes in this round, or None when it waits or has nothing to do."""
        books = session._books
        work = Work(session, row, [])
        while books.todo:
            op = books.todo[0]
            if op.kind == "force":
                work.force = op
                return work
            if op.kind == "prompt":
                prompt = self._prompt(op.ids, prompts)
                if not prompt.ready:
                    return None
                self.counts["shared"] += len(op.ids) if prompt.used else 0
                prompt.used = True
            work.before.append(books.todo.popleft())
            if sum(len(x.ids) for x in work.before if x.kind == "feed") >= STEPS * 8:
                break
        if not books.todo:
            work.turn = books.turn
        return work if work.before or work.turn else None

    def _prompt(self, ids: np.ndarray, prompts: list[Prompt]) -> Prompt:
        """A prompt's entry; puts it into the round when it isn't ready and there is room."""
        key = ids.tobytes()
        self._wanted.add(key)
        prompt = self._prompts.get(key)
        if prompt is None:
            prompt = self._prompts[key] = Prompt(ids)
        if prompt.ready:
            self._prompts.move_to_end(key)
        elif prompt not in prompts and len(prompts) < self._chunks:
            prompts.append(prompt)
        return prompt

    def deliver(self, round: Round, results: dict[int, Sampled]) -> None:
        """Book what was computed and hand the tokens out."""
        for number, works in round.shards.items():
            for work in works:
                self._book(work, results[number])
        for prompt in round.prompts:
            self.counts["prefilled"] += prompt.computed
            self._prompts.move_to_end(prompt.ids.tobytes())
        finished = [key for key, prompt in self._prompts.items() if prompt.ready]
        for key in finished[: max(0, len(finished) - self._keep)]:
            del self._prompts[key]

    def _book(self, work: Work, sampled: Sampled) -> None:
        books = work.session._books
        books.used = self.counts["rounds"]
        for op in work.before:
            op.segment.version = self.engine.version
            self.counts["appended"] += len(op.ids) if op.kind == "feed" else 0
        count = int(sampled.counts[work.row])
        if work.force is not None:
            op = books.todo[0]
            self.counts["replayed"] += count
            op.ids = op.ids[count:]
            op.segment.version = self.engine.version
            if not len(op.ids):
                books.todo.popleft()
        elif work.turn is not None and count:
            turn = work.turn
            tokens = sampled.tokens[work.row, :count].tolist()
            turn.tokens += tokens
            turn.left -= count
            self.counts["decoded"] += count
            stopped = tokens[-1] == self.engine.eos_id or tokens[-1] in turn.stop_ids
            chunk = Chunk(tokens, sampled.logprobs[work.row, :count].tolist(), self.engine.version)
            if stopped or turn.left <= 0:
                self.end_turn(work.session, "stop" if stopped else "length", chunk)
            else:
                turn.handle._push(chunk)

    def end_turn(
        self,
        session: Session,
        reason: FinishReason,
        chunk: Chunk | None = None,
        error: BaseException | None = None,
    ) -> None:
        """The turn's tokens become history; its handle learns of the end."""
        books = session._books
        turn = books.turn
        assert turn is not None
        books.keep_sampled(self.engine.version)
        books.turn = None
        if books.slot is None:
            self.waiting.remove(session)
        else:
            number, row = divmod(books.slot, self.engine.shard)
            self.shards[number].rows.left[row] = 0
        self.counts["cancelled" if reason == "cancelled" else "finished"] += 1
        books.closed |= books.close_after
        if chunk is not None:
            turn.handle._push(chunk)
        turn.handle._finish(reason, error)
        if books.closed and books.turn is None:
            self.leave(session)

    def leave(self, session: Session) -> None:
        """A closed session's slot is free."""
        self.sessions.discard(session)
        if session._books.slot is not None:
            self.vacate(session)

    def vacate(self, session: Session) -> None:
        """Take a session's slot away; what it knows stays in its history."""
        books = session._books
        assert books.slot is not None
        number, row = divmod(books.slot, self.engine.shard)
        free_row(self.shards[number].rows, row)
        self.tenants[books.slot] = None
        books.slot = None
        books.todo.clear()

    def update_weights(self, params: nnx.State, version: int, keep_caches: bool) -> None:
        """Other weights from the next round on; see :meth:`model.driver.Driver.update_weights`."""
        old = self.engine.version
        for session in self.sessions:
            session._books.keep_sampled(old)
        self.engine.update_weights(params, version)
        self._prompts.clear()
        if keep_caches:
            return
        for slot, session in enumerate(self.tenants):
            if session is None:
                continue
            books = session._books
            if books.length >= self.engine.max_len:  # full: nothing can follow
                continue
            number, row = divmod(slot, self.engine.shard)
            free_row(self.shards[number].rows, row)
            books.start_again(version, exactly=False)

    # --- without the lock ---

    def compute(self, round: Round) -> dict[int, Sampled]:
        """The round's work; shards side by side."""
        threads = self.engine.threads
        list(threads.map(self._prefill, round.prompts))
        numbers = list(round.shards)
        done = threads.map(lambda number: self._run_shard(number, round.shards[number]), numbers)
        return dict(zip(numbers, done, strict=True))

    def _prefill(self, prompt: Prompt) -> None:
        """The next chunk of a prompt; the chunks are those of :meth:`Engine.prefill_ids`."""
        engine, first = self.engine, self.engine.prefill_chunk_size + 1
        if prompt.prefix is None:
            part = prompt.ids[:first]
            prompt.prefix = engine.prefill_ids(engine.params, part)
        else:
            part = next(pieces(prompt.ids[len(prompt.prefix.ids) :]))
            prompt.prefix = engine.extend_prefix(engine.params, prompt.prefix, part)
        prompt.computed = len(part)

    def _run_shard(self, number: int, works: list[Work]) -> Sampled:
        engine, shard = self.engine, self.shards[number]
        forced = None
        for work in works:
            for op in work.before:
                if op.kind == "prompt":
                    prefix = self._prompts[op.ids.tobytes()].prefix
                    assert prefix is not None
                    shard = engine.put(shard, prefix, work.row)
                else:
                    shard = engine.feed(engine.params, shard, work.row, op.ids)
            rows = shard.rows
            if work.force is not None:
                part = work.force.ids[:STEPS]
                forced = np.full((engine.shard, STEPS), -1, np.int32) if forced is None else forced
                forced[work.row, : len(part)] = part
                rows.left[work.row] = min(len(part), self.steps)
                rows.stops[work.row] = -1
            elif work.turn is not None and not rows.left[work.row]:
                engine.set_sampling(rows, work.row, work.turn.sampling, work.turn.stop_ids)
                rows.keys[work.row] = key_of(work.session.seed)
                rows.left[work.row] = work.turn.left
        self.shards[number], sampled = engine.step(engine.params, shard, self.steps, forced)
        return sampled
