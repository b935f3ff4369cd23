"""What a step of JetStream's Engine API returns: tokens, validity and lengths in one array.

The fields are those of ``jetstream.engine.engine_api.ResultTokens`` (google-jetstream 0.2.2) and
``log_prob`` of its later versions. :func:`model.jetstream.register` makes JetStream take this for its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import jax
import numpy as np
from flax import struct


class SlotData(NamedTuple):
    """Results of one slot: tokens, valid and log_prob [samples, N], lengths [samples]."""

    tokens: Any
    valid: Any
    lengths: Any
    log_prob: Any


@struct.dataclass
class ResultTokens:
    """N new tokens of each of B slots.

    ``data`` is [B, 2N + 1]: the tokens, whether each is real, and how many tokens were drawn since the
    prompt, these included (JetStream's orchestrator holds it against ``max_tokens``); the three ``_idx`` say
    which columns. ``log_prob`` is [B, N], of the distribution drawn from (nats).
    """

    data: Any
    tokens_idx: tuple[int, int] = struct.field(pytree_node=False)
    valid_idx: tuple[int, int] = struct.field(pytree_node=False)
    length_idx: tuple[int, int] = struct.field(pytree_node=False)
    samples_per_slot: int = struct.field(pytree_node=False)
    log_prob: Any = None

    @classmethod
    def of(cls, tokens: np.ndarray, valid: np.ndarray, lengths: np.ndarray, log_prob: np.ndarray) -> Self:
        """From arrays [B, N], [B, N], [B] and [B, N]."""
        n = tokens.shape[1]
        data = np.concatenate([tokens, valid, lengths[:, None]], axis=1).astype(np.int32)
        return cls(data, (0, n), (n, 2 * n), (2 * n, 2 * n + 1), 1, log_prob)

    def copy_to_host_async(self) -> None:
        """Start copying to the host's memory, if it isn't there."""
        for array in (self.data, self.log_prob):
            if isinstance(array, jax.Array):
                array.copy_to_host_async()

    def convert_to_numpy(self) -> Self:
        """The same in the host's memory."""
        log_prob = None if self.log_prob is None else np.asarray(self.log_prob)
        return self.replace(data=np.asarray(self.data), log_prob=log_prob)  # pyright: ignore[reportAttributeAccessIssue]

    def get_result_at_slot(self, slot: int) -> SlotData:
        """The rows of one slot."""
        rows = slice(slot * self.samples_per_slot, (slot + 1) * self.samples_per_slot)
        return SlotData(
            tokens=self.data[rows, slice(*self.tokens_idx)],
            valid=self.data[rows, slice(*self.valid_idx)],
            lengths=self.data[rows, slice(*self.length_idx)][:, 0],
            log_prob=None if self.log_prob is None else self.log_prob[rows],
        )
