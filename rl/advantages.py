"""What a sample is worth in its group: advantages and the shaping of over-long ones, pure NumPy.

In: the rewards of one group, G samples of one task. Out: one advantage a sample, later spread over
the sample's tokens by :mod:`rl.batch`. NaN marks a sample without a reward (infrastructure error):
it takes no part in the baseline and gets advantage 0.

    mean, normalised     (reward - mean) / (std + eps)         GRPO (DeepSeekMath, section 4.1.2), DAPO, GSPO
    mean                 reward - mean                         Dr. GRPO
    leave one out        reward - mean of the others           RLOO (Ahmadian et al., 2024)

``std`` is the population's. Leaving one out is the second times G / (G - 1).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Float, Int

Group = Float[np.ndarray, " G"]
Baseline = Literal["mean", "leave_one_out"]
EPSILON = 1e-6  # as in verl; far smaller than any standard deviation of 0/1 rewards


def informative(rewards_G: Group) -> bool:
    """Whether a group gives a gradient: at least two known rewards that differ (rule 5)."""
    known = rewards_G[~np.isnan(rewards_G)]
    return known.size >= 2 and bool(known.max() > known.min())


def group_advantages(
    rewards_G: Float[np.ndarray, " G"], *, normalise: bool = True, baseline: Baseline = "mean"
) -> Float[np.ndarray, " G"]:
    """Advantages of one group.

    Args:
        rewards_G: one reward a sample, NaN where unknown.
        normalise: divide by the group's standard deviation (GRPO: yes).
        baseline: what is taken off: the mean of all known rewards, or of the other known ones.

    Returns:
        Centred (and scaled) rewards; all zeros for a group that is not :func:`informative`.
    """
    rewards_G = np.asarray(rewards_G, dtype=np.float64)
    if not informative(rewards_G):
        return np.zeros_like(rewards_G)
    known = ~np.isnan(rewards_G)
    centred = rewards_G - rewards_G[known].mean()
    if baseline == "leave_one_out":
        centred = centred * known.sum() / (known.sum() - 1)
    scale = rewards_G[known].std() + EPSILON if normalise else 1.0
    return np.where(known, centred / scale, 0.0)


def overlong_penalty(lengths_G: Int[np.ndarray, " G"], limit: int, buffer: int) -> Float[np.ndarray, " G"]:
    """DAPO's soft punishment of length, to add to the rewards; lengths in tokens.

    0 up to ``limit - buffer`` tokens, then falling in a straight line to -1 at ``limit``, and -1 beyond.

    Args:
        lengths_G: tokens of each sample, counted as ``limit`` counts them.
        limit: the length at which a sample is cut off.
        buffer: how long before it the punishment begins; 0 punishes nothing (DAPO: a fifth of ``limit``).

    Raises:
        ValueError: a buffer below 0 or above the limit.
    """
    if not 0 <= buffer <= limit:
        raise ValueError(f"overlong buffer {buffer} must lie between 0 and the limit {limit}")
    lengths_G = np.asarray(lengths_G, dtype=np.float64)
    if buffer == 0:
        return np.zeros_like(lengths_G)
    return np.clip((limit - buffer - lengths_G) / buffer, -1.0, 0.0)
