"""Packing: from samples of any length to rows of one fixed length, with segment ids.

In: :class:`Sample` objects (token ids, per-token weight, the sampler's log-probabilities, an
advantage). Out: a :class:`Batch` of R rows and T columns, and its fixed-shape micro-batches. The
trainer that reads a batch is blind to the algorithm: whatever an algorithm decides about a token
rides on the sample as ``weights``, ``logprobs`` and ``advantages``.

Column t holds an *input* token and, beside it, everything about the token that it predicts
(``targets``). Rows hold several segments; a token sees only earlier tokens of its own segment
(rule 4: packed equals unpacked). With ``share_prompts`` the members of a group become one segment:
their common prompt once, then each member's continuation as a *branch*:

    segment   1 1 1 1 1 1 1 1 1 1 0 0
    branch    0 0 0 1 1 1 1 2 2 2 0 0      a branch sees branch 0 (the prompt) and itself
    position  0 1 2 3 4 5 6 3 4 5 0 0      positions go on from the prompt

The prompt's last token predicts a different token in each branch, so it is the first token of every
branch and the shared part is one token shorter.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from model.block_attention import key_blocks


@dataclass(frozen=True)
class Sample:
    """One sequence to learn from; the four arrays have equal length N.

    ``weights[i]``, ``logprobs[i]`` and ``advantages[i]`` belong to token ``ids[i]`` as a prediction
    (so index 0, which nothing predicts, never counts). ``prompt_length`` tokens at the start may be
    shared with other samples of equal ``group``.
    """

    ids: Int[np.ndarray, " N"]
    weights: Float[np.ndarray, " N"]
    logprobs: Float[np.ndarray, " N"]
    advantages: Float[np.ndarray, " N"]
    prompt_length: int = 1
    group: Hashable = None


def text_sample(ids: Sequence[int], weights: Sequence[float]) -> Sample:
    """A sample for next-token prediction: a loss weight for each token, nothing else."""
    zeros = np.zeros(len(ids), np.float32)
    return Sample(np.asarray(ids, np.int32), np.asarray(weights, np.float32), zeros, zeros)


class Batch(NamedTuple):
    """Packed rows, a JAX pytree. All arrays are [R, T]; padding has segment 0 and weight 0.

    ``key_blocks`` [R, n, m]: see :func:`with_key_blocks`.
    """

    tokens: Any
    targets: Any
    positions: Any
    segment_ids: Any
    branch_ids: Any
    weights: Any
    logprobs: Any
    advantages: Any
    key_blocks: Any = None

    @property
    def rows(self) -> int:
        return self.tokens.shape[0]

    @property
    def token_count(self) -> float:
        """Sum of the weights: the denominator of token-level means."""
        return float(np.sum(self.weights))


FIELDS = tuple(name for name in Batch._fields if name != "key_blocks")  # what packing writes
_INTEGER_FIELDS = ("tokens", "targets", "positions", "segment_ids", "branch_ids")


@dataclass(frozen=True)
class _Piece:
    """A run of columns to copy: inputs ``ids[start:stop]`` of one sample, as one branch."""

    sample: Sample
    start: int
    stop: int  # exclusive, at most N - 1: the last token is only ever a target
    branch: int

    def __len__(self) -> int:
        return self.stop - self.start


Segment = list[_Piece]  # pieces that lie side by side and may see each other (branches apart)
Row = list[Segment]


def _segments(samples: Sequence[Sample], length: int, share_prompts: bool) -> Iterator[Segment]:
    """Turn samples into segments: lists of pieces that must lie side by side in one row."""
    if not share_prompts:
        for sample in samples:
            yield [_Piece(sample, 0, len(sample.ids) - 1, 0)]
        return
    groups: dict[Hashable, list[Sample]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault(("alone", index) if sample.group is None else sample.group, []).append(sample)
    for members in groups.values():
        yield from _branched(members, length)


def _branched(members: Sequence[Sample], length: int) -> Iterator[Segment]:
    """One group as segments of a shared prompt and as many branches as fit in a row."""
    first = members[0]
    prompt = first.ids[: first.prompt_length]
    for member in members:
        if not np.array_equal(member.ids[: member.prompt_length], prompt):
            raise ValueError(f"group {member.group!r}: its samples have different prompts")
        if np.any(member.weights[: member.prompt_length] != 0):
            raise ValueError(f"group {member.group!r}: a shared prompt can't carry loss")
    shared = _Piece(first, 0, len(prompt) - 1, 0)
    pieces: list[_Piece] = [shared]
    for member in members:
        branch = _Piece(member, len(prompt) - 1, len(member.ids) - 1, len(pieces))
        if len(pieces) > 1 and sum(map(len, pieces)) + len(branch) > length:
            yield pieces
            pieces, branch = [shared], _Piece(member, branch.start, branch.stop, 1)
        pieces.append(branch)
    yield pieces


def _fit(segments: list[Segment], length: int) -> list[Row]:
    """First-fit decreasing. Ties keep their order, so it is deterministic."""
    rows: list[Row] = []
    room: list[int] = []
    for segment in sorted(segments, key=lambda pieces: -sum(map(len, pieces))):
        size = sum(map(len, segment))
        if size > length:
            raise ValueError(f"a sample of {size + 1} tokens doesn't fit in a row of {length}")
        row = next((i for i, free in enumerate(room) if free >= size), None)
        if row is None:
            rows.append([])
            room.append(length)
            row = len(rows) - 1
        rows[row].append(segment)
        room[row] -= size
    return rows


def empty(rows: int, length: int) -> Batch:
    """A batch of padding only."""
    shape = (rows, length)
    return Batch(**{
        name: np.zeros(shape, np.int32 if name in _INTEGER_FIELDS else np.float32) for name in FIELDS
    })  # fmt: skip


def plan(samples: Sequence[Sample], length: int, *, share_prompts: bool = False) -> list[Row]:
    """Decide which samples share a row of ``length`` columns: first-fit decreasing, deterministic.

    Args:
        samples: at least two tokens each.
        length: T, the row length in tokens.
        share_prompts: members of a group share one copy of their prompt.

    Raises:
        ValueError: a sample is longer than a row, or a group's prompts differ or carry loss.
    """
    return _fit(list(_segments(samples, length, share_prompts)), length)


def fill(rows: Sequence[Row], length: int, *, at_least: int = 0) -> Batch:
    """Write planned rows into arrays, and rows of padding up to ``at_least`` rows."""
    batch = empty(max(len(rows), at_least), length)
    for r, row in enumerate(rows):
        column = 0
        for number, segment in enumerate(row, start=1):
            for piece in segment:
                _write(batch, r, column, number, piece)
                column += len(piece)
    return batch


def pack(samples: Sequence[Sample], length: int, *, share_prompts: bool = False) -> Batch:
    """:func:`plan` and :func:`fill` in one."""
    return fill(plan(samples, length, share_prompts=share_prompts), length)


def _write(batch: Batch, r: int, column: int, segment: int, piece: _Piece) -> None:
    """Copy one piece into row ``r``, from ``column`` on."""
    sample, here = piece.sample, slice(column, column + len(piece))
    this, following = slice(piece.start, piece.stop), slice(piece.start + 1, piece.stop + 1)
    batch.tokens[r, here] = sample.ids[this]
    batch.targets[r, here] = sample.ids[following]
    batch.positions[r, here] = np.arange(piece.start, piece.stop)
    batch.segment_ids[r, here] = segment
    batch.branch_ids[r, here] = piece.branch
    batch.weights[r, here] = sample.weights[following]
    batch.logprobs[r, here] = sample.logprobs[following]
    batch.advantages[r, here] = sample.advantages[following]


def with_key_blocks(batch: Batch) -> Batch:
    """On a CPU: with the blocks of keys that its attention has to look at; elsewhere as it is."""
    if jax.default_backend() != "cpu":
        return batch
    return batch._replace(key_blocks=key_blocks(batch.segment_ids, batch.branch_ids))


def take_rows(batch: Batch, which: Any) -> Batch:
    """Some rows of a batch, by a slice or by indices."""
    return Batch(**{name: getattr(batch, name)[which] for name in FIELDS})


def micro_batches(batch: Batch, rows: int) -> list[Batch]:
    """Cut a batch into micro-batches of exactly ``rows`` rows (one compiled shape); the last is padded."""
    cut = []
    for start in range(0, batch.rows, rows):
        part = take_rows(batch, slice(start, start + rows))
        if part.rows < rows:
            padding = empty(rows - part.rows, batch.tokens.shape[1])
            joined = {name: np.concatenate([getattr(b, name) for b in (part, padding)]) for name in FIELDS}
            part = Batch(**joined)
        cut.append(part)
    return cut
