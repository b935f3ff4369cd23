"""Slots kept by hand: the simplest user of the engine, for one thread.

In: prompts, messages and seeds. Out: whole turns. ``Slots`` keeps the engine's state and the books of
which slot holds what; :meth:`Slots.generate` decodes a turn in each of the given slots and returns when all
have ended. With many conversations at a time use :class:`model.driver.Driver`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from flax import nnx

from model.decoding import STEPS
from model.engine import Engine
from model.rows import Prefix, Shard, free_row, pieces
from model.sampling import Sampling, key_of


@dataclasses.dataclass(frozen=True)
class Generation:
    """What was sampled for one slot.

    ``stopped``: the last token is the end of the turn; else max_new or the slot's room ran out.
    ``logprobs`` are of the distribution sampled from (nats).
    """

    tokens: list[int]
    logprobs: list[float]
    stopped: bool


class Slots:
    """An engine with its slots; all are free at first."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self._shards: list[Shard] = list(engine.init_decode_state().shards)

    def prefill(self, ids: Sequence[int]) -> Prefix:
        """Run a prompt once; insert the result into as many slots as want it.

        Raises:
            ValueError: the prompt is empty or leaves no room for a token.
        """
        return self.engine.prefill_ids(self.engine.params, ids)

    def insert(self, prefix: Prefix, slot: int) -> None:
        """Start a sequence in a free slot."""
        self.bulk_insert(prefix, [slot])

    def bulk_insert(self, prefix: Prefix, slots: Sequence[int]) -> None:
        """Start the same sequence in several free slots: the members of a group."""
        for slot in slots:
            if self.length(slot):
                raise ValueError(f"slot {slot} is in use; free it first")
            number, row = divmod(slot, self.engine.shard)
            self._shards[number] = self.engine.put(self._shards[number], prefix, row)

    def append(self, slot: int, ids: Sequence[int]) -> None:
        """Add a message to a slot's sequence, after what was sampled.

        Raises:
            ValueError: the slot is free, or the message leaves no room for a token.
        """
        self._check_used(slot)
        self.engine.check_room(self.length(slot), len(ids), f"slot {slot}")
        number, row = divmod(slot, self.engine.shard)
        for piece in pieces(ids):
            self._shards[number] = self.engine.feed(self.engine.params, self._shards[number], row, piece)

    def append_many(self, messages: dict[int, Sequence[int]]) -> None:
        """:meth:`append` for several slots; shards go side by side. Same result in any order."""
        shards: dict[int, list[int]] = {}
        for slot in messages:
            shards.setdefault(slot // self.engine.shard, []).append(slot)

        def extend(slots: list[int]) -> None:
            for slot in slots:
                self.append(slot, messages[slot])

        list(self.engine.threads.map(extend, shards.values()))

    def free_resource(self, slot: int) -> None:
        """Give a slot back."""
        number, row = divmod(slot, self.engine.shard)
        free_row(self._shards[number].rows, row)

    def length(self, slot: int) -> int:
        """Known tokens of a slot; 0 when free."""
        number, row = divmod(slot, self.engine.shard)
        return int(self._shards[number].rows.length[row])

    def update_weights(self, params: nnx.State, version: int) -> None:
        """Decode with other weights of the same shapes from now on.

        Raises:
            RuntimeError: a slot is in use; its cache belongs to the old weights.
        """
        if any(shard.rows.length.any() for shard in self._shards):
            raise RuntimeError("free all slots before update_weights")
        self.engine.update_weights(params, version)

    def _check_used(self, slot: int) -> None:
        if not self.length(slot):
            raise ValueError(f"slot {slot} holds no sequence; insert one first")

    def generate(
        self,
        slots: Sequence[int],
        seeds: Sequence[int],
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        max_new: int | Sequence[int] = 96,
    ) -> list[Generation]:
        """Sample a turn in each of the given slots: until its end, ``max_new`` tokens or a full slot.

        Args:
            slots: which; each holds a sequence.
            seeds: of the episodes (64 bits); token at position p comes from fold_in(key(seed), p).
            temperature, top_k, top_p: see :class:`model.sampling.Sampling`.
            max_new: one limit, or one a slot.

        Returns:
            in the order of ``slots``. The sampled tokens are part of the slots' sequences now.
        """
        limits = [max_new] * len(slots) if isinstance(max_new, int) else list(max_new)
        how = Sampling(temperature, top_k, top_p)
        for slot, seed, limit in zip(slots, seeds, limits, strict=True):
            self._check_used(slot)
            number, row = divmod(slot, self.engine.shard)
            rows = self._shards[number].rows
            self.engine.set_sampling(rows, row, how, ())
            rows.left[row] = max(0, min(limit, self.engine.max_len - int(rows.length[row])))
            rows.keys[row] = key_of(seed)
        out: dict[int, tuple[list[int], list[float]]] = {}
        for part in self.engine.threads.map(self._run_shard, range(len(self._shards))):
            out.update(part)
        made = []
        for slot in slots:
            tokens, logprobs = out.get(slot, ([], []))
            made.append(Generation(tokens, logprobs, tokens[-1:] == [self.engine.eos_id]))
        return made

    def _run_shard(self, number: int) -> dict[int, tuple[list[int], list[float]]]:
        """Decode one shard until all of its slots have ended."""
        out: dict[int, tuple[list[int], list[float]]] = {}
        while self._shards[number].rows.left.any():
            self._shards[number], new = self.engine.step(self.engine.params, self._shards[number], STEPS)
            for row in np.flatnonzero(new.counts):
                tokens, logprobs = out.setdefault(number * self.engine.shard + int(row), ([], []))
                tokens += new.tokens[row, : new.counts[row]].tolist()
                logprobs += new.logprobs[row, : new.counts[row]].tolist()
        return out
