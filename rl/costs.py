"""What a step costs: floating-point operations by formula, the machine's peak by name, memory.

In: a model's sizes and packed batches. Out: numbers for the metrics. Model FLOPs utilisation (MFU) is the
FLOPs that the update needs over those that the machine could have done in that time (PaLM, appendix B):
padding, recomputation and sampling count as time but not as work. A peak is either published or measured
here, and :class:`Peak` says which.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model.config import ModelConfig
from rl.batch import Batch
from rl.learner import LearnerConfig

# bf16 TFLOP/s of one device, dense, from the makers' data sheets; the keys start ``Device.device_kind``
PUBLISHED = {
    "TPU v4": 275.0,
    "TPU v5 lite": 197.0,
    "TPU v5e": 197.0,
    "TPU v5": 459.0,  # v5p calls itself so
    "TPU v6": 918.0,
    "NVIDIA A100": 312.0,
    "NVIDIA H100": 989.0,
    "NVIDIA H200": 989.0,
}
SIZE = 1024  # of the matrices that measure a CPU (ours: 20 ms, far beyond its caches' start-up costs)


@dataclass(frozen=True)
class Peak:
    """FLOP/s of all local devices together, and where the figure is from."""

    flops: float
    name: str


@lru_cache
def machine_peak() -> Peak:
    """The peak of this machine: published for known accelerators, else a matrix product timed once."""
    device = jax.local_devices()[0]
    for kind, tera in PUBLISHED.items():
        if device.device_kind.startswith(kind):
            count = jax.local_device_count()
            return Peak(tera * 1e12 * count, f"{count} x {kind}, {tera:g} TFLOP/s in bf16, published")
    x = jnp.ones((SIZE, SIZE), jnp.float32)
    product = jax.jit(jnp.matmul)
    product(x, x).block_until_ready()
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        product(x, x).block_until_ready()
        seconds.append(time.perf_counter() - start)
    rate = 2 * SIZE**3 / min(seconds)
    return Peak(rate, f"{rate / 1e9:.0f} GFLOP/s, a float32 matrix product of {SIZE} timed on this machine")


def forward_flops(config: ModelConfig, tokens: float, seen: float) -> float:
    """FLOPs of one forward with the logits of every token.

    Args:
        tokens: how many.
        seen: positions that they attend to, summed over the tokens.
    """
    heads = config.n_heads + config.n_kv_heads
    layer = 2 * config.d_model * heads * config.head_dim + 3 * config.d_model * config.d_ff
    matrices = config.n_layers * layer + config.vocab_size * config.d_model
    attention = 2 * config.n_layers * config.n_heads * config.head_dim  # scores, and the mix of values
    return 2 * (matrices * tokens + attention * seen)


def update_flops(config: ModelConfig, minibatches: Sequence[Sequence[Batch]], forwards: int) -> float:
    """FLOPs that an update needs: a forward and a backward (twice a forward), and ``forwards`` more."""
    tokens = seen = 0.0
    for micro in minibatches:
        for batch in micro:
            real = np.asarray(batch.segment_ids) > 0
            tokens += real.sum()
            seen += (np.asarray(batch.positions)[real] + 1.0).sum()
    return (3 + forwards) * forward_flops(config, tokens, seen)


def memory() -> dict[str, float]:
    """Most memory that was in use so far, GiB: of this process, and of its fullest accelerator."""
    found = {"memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}
    stats = [device.memory_stats() for device in jax.local_devices() if device.platform != "cpu"]
    used = [s["peak_bytes_in_use"] for s in stats if s and "peak_bytes_in_use" in s]
    return found | ({"memory_device_gib": max(used) / 2**30} if used else {})


def step_costs(
    config: ModelConfig,
    learning: LearnerConfig,
    minibatches: Sequence[Sequence[Batch]],
    sampled_tokens: float,
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    """Rates of one training step, memory, and the MFU of its update with the peak that it refers to.

    Args:
        minibatches: that were trained on; none is an update of no work.
        seconds: of the phases ``seconds_sampling`` (or waiting for samples) and ``seconds_learning``.
    """
    forwards = int(learning.kl_weight != 0) + int(learning.mismatch.on)
    peak, flops = machine_peak(), update_flops(config, minibatches, forwards)
    sampling, learned = seconds["seconds_sampling"], seconds["seconds_learning"]
    return memory() | {
        "sampled_tokens_per_second": sampled_tokens / max(sampling, 1e-9),
        "tokens_per_second": sampled_tokens / max(sampling + learned, 1e-9),
        "mfu": flops / max(learned, 1e-9) / peak.flops,
        "mfu_peak": peak.name,
    }
