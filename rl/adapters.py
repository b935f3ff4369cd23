"""What of a policy is trained: all of it, or a LoRA adapter beside it (``[lora]`` of a training's config).

In: the reference's weights. Out: what the optimizer changes, and how the weights to score and sample with are
made of it. With an adapter moments and checkpoints are small, the reference of the KL term needs no second
copy of the weights, and the result is written merged (``policy/``) and in PEFT's layout (``adapter/``).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import jax
from pydantic import Field

from model.adapter import TARGETS, make_adapter, merge_adapter, save_adapter
from rl.optimizer import Config, Params

Target = Literal["q", "k", "v", "o", "gate", "up", "down"]
Full = Callable[[Params, Params], Params]  # what is trained, the reference -> all weights


class LoraConfig(Config):
    """An adapter. Rank and alpha are PEFT's and TRL's usual ones; no figure of ours stands behind them."""

    rank: int = Field(16, ge=1)
    alpha: float = Field(32.0, gt=0)
    targets: tuple[Target, ...] = TARGETS


def trained_part(lora: LoraConfig | None, reference: Params, seed: int) -> tuple[Params, Full]:
    """What is trained, at its beginning, and how all weights are made of it."""
    if lora is None:
        return reference, lambda params, reference: params
    scale = lora.alpha / lora.rank
    start = make_adapter(reference, lora.rank, seed, lora.targets)
    return start, jax.jit(lambda adapter, reference: merge_adapter(reference, adapter, scale))


def save_trained(run_dir: Path, lora: LoraConfig | None, params: Params) -> None:
    """Keep an adapter beside the merged policy; nothing to do without one."""
    if lora is not None:
        save_adapter(run_dir / "adapter", params, lora.rank, lora.alpha)
