"""How fast a program could at best be on a slice: its work over what a chip can do.

In: :class:`model.hlo.Work` of one device. Out: seconds for each of the three resources. The slowest bounds
the time from below when all three work at once; their sum is what comes out when nothing overlaps. Nothing
here was measured on a TPU: no kernel reaches the peak, so real times lie above.
"""

from __future__ import annotations

import dataclasses

from model.chips import Slice, exchange_seconds
from model.config import ModelConfig
from model.hlo import Work


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Seconds of one run on one chip, by resource."""

    compute: float
    hbm: float
    interconnect: float

    @property
    def bound(self) -> float:
        return max(self.compute, self.hbm, self.interconnect)

    @property
    def serial(self) -> float:
        return self.compute + self.hbm + self.interconnect

    @property
    def limit(self) -> str:
        times = {"compute": self.compute, "HBM": self.hbm, "interconnect": self.interconnect}
        return max(times, key=lambda name: times[name])


def roofline(work: Work, slice_: Slice, mesh) -> Roofline:
    """Of one run of a program."""
    chip = slice_.chip
    exchange = exchange_seconds(list(work.collectives.values()), slice_, mesh)
    return Roofline(work.flops / chip.flops, work.bytes / chip.bandwidth, exchange)


def forward_flops(config: ModelConfig, rows: int, length: int) -> float:
    """Products of one forward with scores over whole rows, by formula: two FLOPs a multiply-add.

    Attention counts the causal half. The embedding's look-up, norms and the softmax are left out.
    """
    c = config
    heads = (c.n_heads + c.n_kv_heads) * c.head_dim
    layer = (
        2 * c.d_model * heads + 3 * c.d_model * c.d_ff
    )  # weights in products: q and o, k and v, three of mlp
    attention = 2 * c.n_heads * c.head_dim * length / 2
    token = c.n_layers * (layer + attention) + c.d_model * c.vocab_size
    return 2.0 * token * rows * length


def train_flops(config: ModelConfig, rows: int, length: int, reference: bool = True) -> float:
    """Of a GRPO gradient: forward, twice that backward, and the reference's forward for the KL term.

    What remat computes again isn't among them.
    """
    return forward_flops(config, rows, length) * (4 if reference else 3)
