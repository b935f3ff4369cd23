"""What the engine's callers hold of sequences: prefixes, slots in shards, and messages in pieces.

In: token ids. Out: rows (small NumPy arrays, changed in place) that :mod:`model.decoding` is told of, and the
sizes in which prompts and messages are computed: a few, so that few programs are compiled, and fixed by the
length alone, so that a sequence computed again is the same to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from model.decoding import STEPS, Rows
from model.kvcache import Cache

PREFILL_BUCKETS = (64, 128, 256, 384, 512, 640, 768, 1024)  # ours: at most a third of padding from 128 on
APPEND_BUCKETS = (32, 64, 128)  # longer messages go in pieces of the last
LONG_PIECE = 512  # and what is longer than this in pieces of this
STOPS = 8  # ids that end a turn, at most


class Prefix(NamedTuple):
    """A prefilled sequence: cache of one slot (B = 1) for all tokens but the last, which is pending.

    ``first``: tokens drawn by ``prefill_multisampling``, one a sample, with their log-probabilities and
    the samples' keys; empty otherwise.
    """

    cache: Cache
    ids: np.ndarray
    first: np.ndarray
    logprobs: np.ndarray
    keys: np.ndarray


class Shard(NamedTuple):
    """Slots that decode together. ``rows`` (NumPy) is changed in place."""

    cache: Cache
    rows: Rows


class DecodeState(NamedTuple):
    """All slots. A call that is given one uses it up and hands back the next."""

    shards: tuple[Shard, ...]


def pieces(ids: Sequence[int] | np.ndarray) -> Iterator[np.ndarray]:
    """A message in the pieces in which it is fed; they depend on its length alone."""
    left = np.asarray(ids, np.int32)
    while len(left):
        size = LONG_PIECE if len(left) >= LONG_PIECE else APPEND_BUCKETS[-1]
        yield left[:size]
        left = left[size:]


def prefix_of(cache: Cache, ids: np.ndarray) -> Prefix:
    nothing = np.zeros(0, np.int32)
    return Prefix(cache, ids, nothing, nothing.astype(np.float32), np.zeros((0, 2), np.uint32))


def free_rows(count: int) -> Rows:
    """Rows of free slots."""
    return Rows(
        pending=np.zeros(count, np.int32),
        length=np.zeros(count, np.int32),
        left=np.zeros(count, np.int32),
        keys=np.zeros((count, 2), np.uint32),
        temperature=np.ones(count, np.float32),
        top_k=np.zeros(count, np.int32),
        top_p=np.ones(count, np.float32),
        stops=np.full((count, STOPS), -1, np.int32),
        forced=np.full((count, STEPS), -1, np.int32),
    )


def free_row(rows: Rows, row: int) -> None:
    """Give a row back."""
    rows.length[row], rows.left[row], rows.pending[row] = 0, 0, 0
    rows.temperature[row], rows.top_k[row], rows.top_p[row] = (
        1.0,
        0,
        1.0,
    )  # a cut costs all its neighbours time
