"""The engine: JetStream's Engine API over our transformer, with a slot a sequence.

In: weights and tokens. Out: caches, and sampled tokens with their log-probabilities. The contract is
``jetstream.engine.engine_api.Engine`` of google-jetstream 0.2.2 (``prefill``, ``insert``, ``generate``, ...)
with ``prefill_multisampling``, ``bulk_insert`` and ``free_resource`` of its later versions. Nothing here
imports JetStream: :func:`model.jetstream.register` makes the two classes known to it where it is installed.

State is passed in and handed back (:class:`DecodeState`); who wants it kept uses :class:`model.slots.Slots`
or, with threads, :class:`model.driver.Driver`.

Neighbours don't matter, to the last bit: every array shape that meets a slot's numbers is fixed
(a sequence is prefilled and extended by itself; slots decode in shards of a fixed size with a
cache of a fixed length) and a slot's random numbers come from its seed and the position alone.
Shards also keep both cores busy and let a shard without active slots cost nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model import decoding
from model.config import ModelConfig
from model.decoding import STEPS, Rows, Sampled
from model.kvcache import Cache, init_cache, put_slot
from model.results import ResultTokens
from model.rows import (
    APPEND_BUCKETS,
    LONG_PIECE,
    PREFILL_BUCKETS,
    STOPS,
    DecodeState,
    Prefix,
    Shard,
    free_row,
    free_rows,
    pieces,
    prefix_of,
)
from model.sampling import Sampling, key_of
from model.transformer import make_graphdef

SHARD = 32  # slots that decode together at most; ours, measured: see README.md
SMALL = 8_000_000  # parameters; in float32 as much as the caches of a server's processor hold


class _Programs(NamedTuple):
    prefill: Any
    insert: Any
    extend: Any
    decode: Any
    first: Any


@lru_cache
def _compiled(config: ModelConfig, max_len: int) -> _Programs:
    """The jitted functions; kept, so that another engine of the same shapes compiles nothing."""
    graphdef = make_graphdef(config)
    return _Programs(
        jax.jit(partial(decoding.prefill, graphdef, config, max_len)),
        jax.jit(put_slot, donate_argnums=0),
        jax.jit(partial(decoding.extend, graphdef), donate_argnums=1),
        jax.jit(partial(decoding.decode, graphdef), donate_argnums=1),
        jax.jit(partial(decoding.first_tokens, graphdef)),
    )


class Engine:
    """Decodes up to ``slots`` sequences at a time.

    Args:
        config, params: the policy; see :meth:`update_weights`.
        slots: sequences at a time; a multiple of ``shard`` or less than it.
        max_len: tokens a slot can hold.
        eos_id: the token that ends a turn.
        shard: slots that decode together. None: at most :data:`SHARD`, and for weights that fit into a CPU's
            caches two shards at least, which keep two cores busy (ours, measured, 32 slots x 64 tokens: 3.3M
            parameters 86 ms as two shards, 134 as one; 135M 3.7 s and 3.4 s). All, where the weights are
            cut over devices: one thread must start those programs, two would wait for each other's exchanges.
        version: stamped policy version of ``params``.
        tokenizer: for :meth:`build_tokenizer`; only a JetStream server needs it.
        sampling, seed: how :meth:`generate` draws; each sequence that is inserted has a stream of its own.
        steps: tokens a :meth:`generate` call gives each slot, at most :data:`model.decoding.STEPS`.
            JetStream's orchestrator counts tokens between calls: with 1 its limits are exact.
    """

    def __init__(
        self,
        config: ModelConfig,
        params: nnx.State,
        *,
        slots: int = 64,
        max_len: int = 1024,
        eos_id: int,
        shard: int | None = None,
        version: int = 0,
        tokenizer: Any = None,
        sampling: Sampling | None = None,
        seed: int = 0,
        steps: int = 1,
    ):
        self.config, self.version = config, version
        self.params: Any = params
        self.slots, self.max_len, self.eos_id = slots, max_len, eos_id
        self.shard = min(shard or self._usual_shard(), slots)
        if slots % self.shard:
            raise ValueError(f"slots={slots} is no multiple of shard={self.shard}")
        if not 1 <= steps <= STEPS:
            raise ValueError(f"steps={steps}: must be 1 to {STEPS}")
        self.tokenizer, self.sampling, self.steps = tokenizer, sampling or Sampling(), steps
        self.threads = ThreadPoolExecutor(min(slots // self.shard, os.cpu_count() or 1))
        self._run = _compiled(config, max_len)
        self._rng = np.random.default_rng(seed)
        self._freed: set[int] = set()
        self._prompt_lengths = np.zeros(slots, np.int32)
        self._spare: list[DecodeState] = []

    def update_weights(self, params: nnx.State, version: int) -> None:
        """Decode with other weights of the same shapes from the next call on.

        Caches belong to the weights that made them: :class:`model.slots.Slots` refuses to mix them,
        :class:`model.driver.Driver` keeps or makes them anew by choice.
        """
        self.params, self.version = params, version

    def release(self) -> None:
        """Give the memory of weights and free caches back, for a trainer on the same devices.

        :meth:`update_weights` wakes the engine up.
        """
        self.params = None
        self._spare.clear()

    # --- prefill ---

    def prefill(
        self,
        *,
        params: nnx.State,
        existing_prefix: Prefix | None = None,
        padded_tokens: Any,
        true_length: int,
    ) -> Prefix:
        """The cache of a prompt, or of a known sequence with more tokens after it.

        Args:
            existing_prefix: what came before; it stays usable. Only the new tokens are computed.
            padded_tokens: [T]; what is past ``true_length`` doesn't count. A negative id in front (the
                start token that JetStream's orchestrator adds, of a policy that has none) is dropped.

        Raises:
            ValueError: no tokens, or no room for one more.
        """
        ids = np.asarray(padded_tokens)[:true_length].astype(np.int32)
        ids = ids[1:] if len(ids) and ids[0] < 0 else ids
        if existing_prefix is None:
            return self.prefill_ids(params, ids)
        return self.extend_prefix(params, existing_prefix, ids)

    def prefill_ids(self, params: nnx.State, ids: Sequence[int] | np.ndarray) -> Prefix:
        """:meth:`prefill` of a sequence given as ids; more than :attr:`prefill_chunk_size` go in chunks."""
        ids = np.asarray(ids, np.int32)
        if not 0 < len(ids) < self.max_len:
            raise ValueError(f"a prompt must have 1 to {self.max_len - 1} tokens, this one has {len(ids)}")
        head = ids[: self.prefill_chunk_size + 1]
        size = next(b for b in (*PREFILL_BUCKETS, self.max_len) if len(head) - 1 <= min(b, self.max_len))
        tokens = np.zeros((1, min(size, self.max_len)), np.int32)
        tokens[0, : len(head) - 1] = head[:-1]
        prefix = prefix_of(self._run.prefill(params, tokens), head)
        return prefix if len(head) == len(ids) else self.extend_prefix(params, prefix, ids[len(head) :])

    def extend_prefix(self, params: nnx.State, prefix: Prefix, ids: Sequence[int] | np.ndarray) -> Prefix:
        """A longer prefix; ``prefix`` itself stays as it is."""
        known, ids = np.asarray(prefix.ids), np.asarray(ids, np.int32)
        whole = np.concatenate([known, ids])
        self.check_room(len(known), len(ids))
        cache = jax.tree.map(jnp.copy, prefix.cache)
        at, pending = len(known) - 1, known[-1:]
        for piece in pieces(ids):
            cache = self._extend(params, cache, np.concatenate([pending, piece[:-1]]), at, 0)
            at, pending = at + len(piece), piece[-1:]
        return prefix_of(cache, whole)

    def prefill_multisampling(
        self,
        *,
        params: nnx.State,
        existing_prefix: Prefix | None = None,
        padded_tokens: Any,
        true_length: int,
        num_samples: int = 1,
        rng: Any = None,
    ) -> tuple[Prefix, ResultTokens]:
        """One prefill and ``num_samples`` first tokens; :meth:`bulk_insert` puts sample i into the i-th slot.

        Args:
            rng: a jax key; None draws from the engine's own stream.
        """
        prefix = self.prefill(
            params=params,
            existing_prefix=existing_prefix,
            padded_tokens=padded_tokens,
            true_length=true_length,
        )
        if rng is None:
            keys = np.stack([self._new_key() for _ in range(num_samples)])
        else:
            keys = np.asarray(jax.vmap(jax.random.key_data)(jax.random.split(_typed(rng), num_samples)))
        how = (
            np.float32(self.sampling.temperature),
            np.int32(self.sampling.top_k),
            np.float32(self.sampling.top_p),
        )
        length = len(prefix.ids)
        cache, tokens, logprobs = self._run.first(
            params, prefix.cache, np.int32(prefix.ids[-1]), np.int32(length), keys.astype(np.uint32), *how
        )
        tokens, logprobs = np.asarray(tokens), np.asarray(logprobs)
        prefix = Prefix(cache, prefix.ids, tokens, logprobs, keys)
        lengths = np.full(num_samples, 1, np.int32)
        return prefix, ResultTokens.of(tokens[:, None], np.ones((num_samples, 1)), lengths, logprobs[:, None])

    # --- slots ---

    def init_decode_state(self) -> DecodeState:
        """All slots free."""
        if self._spare:
            return self._spare.pop()
        shards = [
            Shard(init_cache(self.config, self.shard, self.max_len, self._cut_over), free_rows(self.shard))
            for _ in range(self.slots // self.shard)
        ]
        return DecodeState(tuple(shards))

    def _usual_shard(self) -> int:
        if self.params is not None and self._cut_over is not None and self._cut_over.size > 1:
            return self.slots
        if self.config.parameters <= SMALL and self.slots <= 2 * SHARD and self.slots % 2 == 0:
            return self.slots // 2
        return next(n for n in range(min(SHARD, self.slots), 0, -1) if self.slots % n == 0)

    @property
    def _cut_over(self) -> jax.sharding.Mesh | None:
        """The mesh over which the weights are cut, and so the caches."""
        where = jax.tree.leaves(self.params)[0].sharding
        return where.mesh if isinstance(where, jax.sharding.NamedSharding) else None  # pyright: ignore[reportReturnType]

    def recycle(self, state: DecodeState) -> None:
        """Give back a state that nobody uses any more; :meth:`init_decode_state` takes its memory."""
        for shard in state.shards:
            for name, value in free_rows(self.shard)._asdict().items():
                getattr(shard.rows, name)[...] = value
        self._spare = [state]

    def insert(self, prefix: Prefix, decode_state: DecodeState, slot: int) -> DecodeState:
        """Start a sequence in a slot."""
        return self.bulk_insert(prefix, decode_state, [slot])

    def bulk_insert(self, prefix: Prefix, decode_state: DecodeState, slots: Sequence[int]) -> DecodeState:
        """Start the same sequence in several slots, each with its own first token (if drawn) and stream."""
        shards = list(decode_state.shards)
        first = np.asarray(prefix.first)
        if len(first) and len(first) != len(slots):
            raise ValueError(f"{len(first)} samples were drawn for this prefix, {len(slots)} slots given")
        for sample, slot in enumerate(slots):
            number, row = divmod(int(slot), self.shard)
            self._freed.discard(int(slot))
            self._prompt_lengths[slot] = len(prefix.ids)
            shards[number] = self.put(shards[number], prefix, row)
            rows = shards[number].rows
            rows.keys[row] = np.asarray(prefix.keys)[sample] if len(first) else self._new_key()
            if len(first):
                rows.pending[row] = first[sample]
                rows.length[row] += 1
            self.set_sampling(rows, row, self.sampling, ())
            ended = len(first) and first[sample] == self.eos_id
            rows.left[row] = 0 if ended else self.max_len - rows.length[row]
        return DecodeState(tuple(shards))

    def put(self, shard: Shard, prefix: Prefix, row: int) -> Shard:
        """A prefix into a row; nothing is drawn for it until its ``left`` is set."""
        cache = self._run.insert(shard.cache, prefix.cache, row)
        shard.rows.length[row], shard.rows.pending[row] = len(prefix.ids), prefix.ids[-1]
        shard.rows.left[row] = 0
        return Shard(cache, shard.rows)

    def feed(self, params: nnx.State, shard: Shard, row: int, piece: np.ndarray) -> Shard:
        """Add one of a message's :func:`pieces` to a row's sequence."""
        rows = shard.rows
        tokens = np.concatenate([rows.pending[row : row + 1], piece[:-1]])
        cache = self._extend(params, shard.cache, tokens, int(rows.length[row]) - 1, row)
        rows.length[row] += len(piece)
        rows.pending[row] = piece[-1]
        return Shard(cache, rows)

    def set_sampling(self, rows: Rows, row: int, sampling: Sampling, stop_ids: Sequence[int]) -> None:
        """How a row draws, and which ids end its turn besides ``eos_id``."""
        rows.temperature[row], rows.top_k[row] = sampling.temperature, sampling.top_k
        rows.top_p[row] = sampling.top_p
        rows.stops[row] = -1
        rows.stops[row, : len(stop_ids) + 1] = [self.eos_id, *stop_ids]

    def check_stops(self, stop_ids: Sequence[int]) -> None:
        """Raises ValueError when there are more stop tokens than a row can hold."""
        if len(stop_ids) >= STOPS:
            raise ValueError(f"{len(stop_ids)} stop tokens; at most {STOPS - 1}")

    def check_room(self, length: int, more: int, what: str = "the prefix") -> None:
        """Raises ValueError when ``more`` tokens after ``length`` leave no room for another one."""
        if length + more >= self.max_len:
            raise ValueError(
                f"{what}: {length + more} tokens don't fit into {self.max_len} with room for one more"
            )

    # --- decoding ---

    def generate(self, params: nnx.State, decode_state: DecodeState) -> tuple[DecodeState, ResultTokens]:
        """Up to ``steps`` tokens for each slot that has a sequence and hasn't ended."""
        for slot in self._freed:
            free_row(decode_state.shards[slot // self.shard].rows, slot % self.shard)
        self._freed.clear()
        parts = list(self.threads.map(lambda s: self.step(params, s, self.steps), decode_state.shards))
        lengths = np.concatenate([shard.rows.length for shard, _ in parts]) - self._prompt_lengths
        tokens, logprobs, counts = (
            np.concatenate(x) for x in zip(*(sampled for _, sampled in parts), strict=True)
        )
        n = self.steps
        valid = np.arange(n) < counts[:, None]
        result = ResultTokens.of(tokens[:, :n], valid, lengths, logprobs[:, :n])
        return DecodeState(tuple(shard for shard, _ in parts)), result

    def step(
        self, params: nnx.State, shard: Shard, limit: int, forced: np.ndarray | None = None
    ) -> tuple[Shard, Sampled]:
        """Decode one shard: up to ``limit`` tokens a row; rows end by their stops, ``left`` or room.

        Args:
            forced: [B, STEPS] tokens to take instead of a draw, -1 where to draw.
        """
        rows = shard.rows
        if not rows.left.any():
            nothing = np.zeros((len(rows.left), STEPS), np.int32)
            return shard, Sampled(nothing, nothing.astype(np.float32), np.zeros_like(rows.left))
        given = rows if forced is None else rows._replace(forced=forced)
        cache, sampled = self._run.decode(params, shard.cache, given, np.int32(limit))
        tokens, logprobs, counts = (np.asarray(x) for x in sampled)
        rows.length[...] += counts
        rows.left[...] -= counts
        for row in np.flatnonzero(counts):
            rows.pending[row] = tokens[row, counts[row] - 1]
            if rows.pending[row] in rows.stops[row]:
                rows.left[row] = 0
        return Shard(cache, rows), Sampled(tokens, logprobs, counts)

    def free_resource(self, slot: int) -> None:
        """Stop decoding a slot from the next :meth:`generate` on; its memory is reused by the next insert."""
        self._freed.add(int(slot))

    # --- what JetStream asks ---

    def load_params(self, *args: Any, **kwargs: Any) -> nnx.State:
        """The weights, which the engine was made with."""
        return self.params

    def get_prefix_destination_sharding(self) -> jax.sharding.Sharding:
        """Where a prefix must lie to be inserted: whole, on each device of the mesh."""
        return jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())

    def get_tokenizer(self) -> Any:
        """JetStream's description of the tokenizer; needs the extra ``jetstream``."""
        from model.jetstream import tokenizer_parameters

        return tokenizer_parameters()

    def build_tokenizer(self, metadata: Any) -> Any:
        """The policy's tokenizer as JetStream's; needs the extra ``jetstream``."""
        from model.jetstream import make_tokenizer

        return make_tokenizer(self.tokenizer, self.eos_id)

    @property
    def max_concurrent_decodes(self) -> int:
        """JetStream's word for ``slots``."""
        return self.slots

    @property
    def samples_per_slot(self) -> int:
        """One; a group takes a slot a member."""
        return 1

    @property
    def max_prefill_length(self) -> int:
        """Tokens of the longest prompt, as one of JetStream's own bucket sizes (powers of 2 from 16)."""
        return 1 << (self.max_len.bit_length() - 1)

    @property
    def prefill_chunk_size(self) -> int:
        """Tokens that are prefilled in one call."""
        return min(PREFILL_BUCKETS[-1], self.max_len)

    @property
    def use_chunked_prefill(self) -> bool:
        """Whether a prompt can be longer than a chunk."""
        return self.max_len > self.prefill_chunk_size

    @property
    def mesh(self) -> jax.sharding.Mesh:
        """The devices that the weights lie on."""
        devices = sorted(jax.tree.leaves(self.params)[0].devices(), key=lambda device: device.id)
        return jax.sharding.Mesh(np.array(devices), ("x",))

    @property
    def colocated_cpus(self) -> None:
        """None: nothing is computed beside the devices."""
        return None

    # --- inside ---

    def _new_key(self) -> np.ndarray:
        return key_of(int(self._rng.integers(2**63)))

    def _extend(self, params: nnx.State, cache: Cache, ids: np.ndarray, at: int, row: int) -> Cache:
        size = next(b for b in (*APPEND_BUCKETS, LONG_PIECE) if len(ids) <= b)
        tokens = np.zeros((1, size), np.int32)
        tokens[0, : len(ids)] = ids
        return self._run.extend(params, cache, tokens, np.array([at], np.int32), row)


def _typed(rng: Any) -> Any:
    return rng if jnp.issubdtype(rng.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(rng)
