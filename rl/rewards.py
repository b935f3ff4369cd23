"""Rewards: from a trajectory's verdict to the number that GRPO sees.

In: finished :class:`synth.types.Trajectory` records. Out: 1.0, 0.0 or ``None`` a trajectory, and
whether its tokens may be trained on. The reward is outcome-only, as in the paper: no shaping.

Two kinds of episode carry no loss, for two different reasons:

* *Infrastructure errors* (``error`` set, or no verdict, or a verdict with ``error``): we don't know
  what the answer was worth. Reward ``None``: outside the group's mean, tried again once.
* *Truncated* (``finish_reason == "length"``): the policy ran out of tokens. It didn't pass, so its
  0.0 stays in the group's baseline, but its tokens are masked in the numerator and the denominator
  of the loss (rule 6; DAPO's overlong filtering).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from synth.types import Trajectory


def reward(trajectory: Trajectory) -> float | None:
    """1.0 passed, 0.0 failed, ``None`` when the infrastructure failed."""
    if trajectory.error is not None or trajectory.verdict is None:
        return None
    return trajectory.verdict.reward


def trainable(trajectory: Trajectory) -> bool:
    """Whether the sampled tokens may enter the loss: a known reward, and not cut off by length."""
    return reward(trajectory) is not None and trajectory.finish_reason != "length"


def group_rewards(group: Sequence[Trajectory]) -> Float[np.ndarray, " G"]:
    """Rewards of one group in sample order; NaN where the infrastructure failed."""
    values = [reward(t) for t in group]
    return np.array([math.nan if v is None else v for v in values], dtype=np.float64)


def staleness(trajectory: Trajectory, version: int) -> int:
    """How many versions older than ``version`` the oldest sampled turn is (rule 9).

    Raises:
        ValueError: a sampled turn carries no version.
    """
    sampled = [turn.policy_version for turn in trajectory.turns if turn.role == "assistant"]
    known = [v for v in sampled if v is not None]
    if len(known) < len(sampled):
        raise ValueError(f"{trajectory.task_id}#{trajectory.sample}: a sampled turn has no policy_version")
    return max((version - v for v in known), default=0)
