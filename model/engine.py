"""Batched decoding with a slot a sequence: prefill, insert, generate, append, free.

The method names and their meaning are those of JetStream's Engine API (prefill, insert,
bulk_insert, generate, free_resource), with ``append`` for the next message of an episode. The
difference: the state of the slots lives inside the engine, and one ``generate`` call decodes many
tokens in a loop on the device.

What a slot holds: n known tokens, keys and values of the first n - 1 of them in the cache, and
the n-th, pending, which the next step feeds. Sampling, appending and prefilling all keep that.

Neighbours don't matter, to the last bit: every array shape that meets a slot's numbers is fixed
(a sequence is prefilled and extended by itself; slots decode in shards of a fixed size with a
cache of a fixed length) and a slot's random numbers come from its seed and the position alone.
Shards also keep both cores busy and let a shard without active slots cost nothing.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial

import jax
import numpy as np
from flax import nnx

from model import decoding
from model.config import ModelConfig
from model.kvcache import Cache, init_cache, put_slot
from model.transformer import make_graphdef

PREFILL_BUCKETS = (64, 128, 256, 384, 512, 640, 768, 1024)  # ours: at most a third of padding from 128 on
APPEND_BUCKETS = (32, 64, 128)  # longer messages go in pieces of the last


@dataclasses.dataclass(frozen=True)
class Prefix:
    """A prefilled prompt: cache of one slot (B = 1) for all tokens but the last."""

    cache: Cache
    ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Generation:
    """What ``generate`` sampled for one slot.

    ``stopped``: the last token is the end of the turn; else max_new or the slot's room ran out.
    ``logprobs`` are of the distribution sampled from (nats).
    """

    tokens: list[int]
    logprobs: list[float]
    stopped: bool


@lru_cache
def _compiled(config: ModelConfig, max_len: int, eos_id: int) -> tuple:
    """The jitted functions; kept, so that another engine of the same shapes compiles nothing."""
    graphdef = make_graphdef(config)
    return (
        jax.jit(partial(decoding.prefill, graphdef, config, max_len)),
        jax.jit(put_slot, donate_argnums=0),
        jax.jit(partial(decoding.extend, graphdef), donate_argnums=1),
        jax.jit(partial(decoding.decode, graphdef, eos_id), donate_argnums=1),
    )


class Engine:
    """Decodes up to ``slots`` sequences at a time.

    Args:
        config, params: the policy; see :func:`update_weights`.
        slots: sequences at a time; a multiple of ``shard`` or less than it.
        max_len: tokens a slot can hold.
        eos_id: the token that ends a turn.
        shard: slots that decode together (ours, measured).
        version: stamped policy version of ``params``.
    """

    def __init__(
        self,
        config: ModelConfig,
        params: nnx.State,
        *,
        slots: int = 64,
        max_len: int = 1024,
        eos_id: int,
        shard: int = 32,
        version: int = 0,
    ):
        self.config, self.params, self.version = config, params, version
        self.slots, self.max_len, self.eos_id = slots, max_len, eos_id
        self._shard = min(shard, slots)
        if slots % self._shard:
            raise ValueError(f"slots={slots} is no multiple of shard={self._shard}")
        self._caches = [init_cache(config, self._shard, max_len) for _ in range(slots // self._shard)]
        self._lengths = np.zeros(slots, np.int32)  # known tokens; 0: free
        self._pending = np.zeros(slots, np.int32)
        self._pool = ThreadPoolExecutor(min(len(self._caches), os.cpu_count() or 1))
        self._prefill, self._insert, self._extend, self._decode = _compiled(config, max_len, eos_id)

    # --- the life of a slot ---

    def prefill(self, ids: Sequence[int]) -> Prefix:
        """Run a prompt once; insert the result into as many slots as want it.

        Raises:
            ValueError: the prompt is empty or leaves no room for a token.
        """
        if not 0 < len(ids) < self.max_len:
            raise ValueError(f"a prompt must have 1 to {self.max_len - 1} tokens, this one has {len(ids)}")
        known = ids[:-1]
        size = next((b for b in PREFILL_BUCKETS if len(known) <= b <= self.max_len), self.max_len)
        tokens = np.zeros((1, size), np.int32)
        tokens[0, : len(known)] = known
        return Prefix(self._prefill(self.params, tokens), tuple(ids))

    def insert(self, prefix: Prefix, slot: int) -> None:
        """Start a sequence in a free slot."""
        self.bulk_insert(prefix, [slot])

    def bulk_insert(self, prefix: Prefix, slots: Sequence[int]) -> None:
        """Start the same sequence in several free slots: the members of a group."""
        for slot in slots:
            if self._lengths[slot]:
                raise ValueError(f"slot {slot} is in use; free it first")
            shard, row = divmod(slot, self._shard)
            self._caches[shard] = self._insert(self._caches[shard], prefix.cache, row)
            self._lengths[slot] = len(prefix.ids)
            self._pending[slot] = prefix.ids[-1]

    def append(self, slot: int, ids: Sequence[int]) -> None:
        """Add a message to a slot's sequence, after what was sampled.

        Raises:
            ValueError: the slot is free, or the message leaves no room for a token.
        """
        self._check_used(slot)
        start, end = int(self._lengths[slot]), int(self._lengths[slot]) + len(ids)
        if end >= self.max_len:
            raise ValueError(
                f"slot {slot}: {end} tokens don't fit into {self.max_len} with room for one more"
            )
        if not ids:
            return
        shard, row = divmod(slot, self._shard)
        feed, at = [int(self._pending[slot]), *ids[:-1]], start - 1
        while feed:
            size = next((b for b in APPEND_BUCKETS if len(feed) <= b), APPEND_BUCKETS[-1])
            piece, feed = feed[:size], feed[size:]
            tokens = np.zeros((1, size), np.int32)
            tokens[0, : len(piece)] = piece
            at_1 = np.array([at], np.int32)
            self._caches[shard] = self._extend(self.params, self._caches[shard], tokens, at_1, row)
            at += len(piece)
        self._lengths[slot], self._pending[slot] = end, ids[-1]

    def append_many(self, messages: dict[int, Sequence[int]]) -> None:
        """:meth:`append` for several slots; shards go side by side. Same result in any order."""
        shards: dict[int, list[int]] = {}
        for slot in messages:
            shards.setdefault(slot // self._shard, []).append(slot)

        def extend(slots: list[int]) -> None:
            for slot in slots:
                self.append(slot, messages[slot])

        list(self._pool.map(extend, shards.values()))

    def free_resource(self, slot: int) -> None:
        """Give a slot back."""
        self._lengths[slot] = 0

    def length(self, slot: int) -> int:
        """Known tokens of a slot; 0 when free."""
        return int(self._lengths[slot])

    @property
    def max_concurrent_decodes(self) -> int:
        """JetStream's word for ``slots``."""
        return self.slots

    def update_weights(self, params: nnx.State, version: int) -> None:
        """Decode with other weights of the same shapes from now on.

        Raises:
            RuntimeError: a slot is in use; its cache belongs to the old weights.
        """
        if self._lengths.any():
            raise RuntimeError("free all slots before update_weights")
        self.params, self.version = params, version

    def _check_used(self, slot: int) -> None:
        if not self._lengths[slot]:
            raise ValueError(f"slot {slot} holds no sequence; insert one first")

    # --- sampling ---

    def generate(
        self,
        slots: Sequence[int],
        seeds: Sequence[int],
        *,
        temperature: float = 1.0,
        max_new: int | Sequence[int] = 96,
    ) -> list[Generation]:
        """Sample a turn in each of the given slots: until its end, ``max_new`` tokens or a full slot.

        Args:
            slots: which; each holds a sequence.
            seeds: of the episodes (64 bits); token at position p comes from fold_in(key(seed), p).
            temperature: 0 is greedy.
            max_new: one limit, or one a slot.

        Returns:
            in the order of ``slots``. The sampled tokens are part of the slots' sequences now.
        """
        limits = [max_new] * len(slots) if isinstance(max_new, int) else list(max_new)
        room = np.zeros(self.slots, np.int32)
        keys = np.zeros((self.slots, 2), np.uint32)
        for slot, seed, limit in zip(slots, seeds, limits, strict=True):
            self._check_used(slot)
            room[slot] = max(0, min(limit, self.max_len - int(self._lengths[slot])))
            keys[slot] = (seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF
        out = {slot: Generation([], [], False) for slot in slots}
        temperature_ = np.float32(temperature)
        wanted = sorted({slot // self._shard for slot in slots})
        for part in self._pool.map(lambda s: self._run_shard(s, room, keys, temperature_), wanted):
            out.update({slot: generation for slot, generation in part.items() if slot in out})
        return [out[slot] for slot in slots]

    def _run_shard(
        self, shard: int, room: np.ndarray, keys: np.ndarray, temperature
    ) -> dict[int, Generation]:
        """Decode one shard until all of its slots have ended."""
        first = shard * self._shard
        mine = slice(first, first + self._shard)
        left, pending, lengths = room[mine].copy(), self._pending[mine], self._lengths[mine]
        tokens: list[list[int]] = [[] for _ in left]
        logprobs: list[list[float]] = [[] for _ in left]
        while left.any():
            at = np.maximum(lengths - 1, 0)  # a free slot writes at 0, which nobody reads
            self._caches[shard], *result = self._decode(
                self.params, self._caches[shard], pending, at, left, keys[mine], temperature
            )
            new_tokens, new_logprobs, counts = (np.asarray(x) for x in result)
            for row, count in enumerate(counts):
                if count:
                    tokens[row] += new_tokens[row, :count].tolist()
                    logprobs[row] += new_logprobs[row, :count].tolist()
                    pending[row] = tokens[row][-1]
                    left[row] = 0 if tokens[row][-1] == self.eos_id else left[row] - count
            lengths += counts
        return {
            first + row: Generation(ids, logprobs[row], bool(ids) and ids[-1] == self.eos_id)
            for row, ids in enumerate(tokens)
        }
