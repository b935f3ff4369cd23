"""Group-relative advantages (GRPO), pure NumPy.

In: the rewards of one group, G samples of one task. Out: one advantage a sample, later spread over
the sample's tokens by :mod:`rl.batch`. NaN marks a sample without a reward (infrastructure error):
it takes no part in the baseline and gets advantage 0.

    advantage_g = (reward_g - mean) / (std + eps)          DeepSeekMath, equation 3

``std`` is the population's; with ``normalise=False`` only the mean is taken off (Dr. GRPO).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

Group = Float[np.ndarray, " G"]
EPSILON = 1e-6  # as in TRL and verl; smaller than any standard deviation of 0/1 rewards


def informative(rewards_G: Group) -> bool:
    """Whether a group gives a gradient: at least two known rewards that differ (rule 5)."""
    known = rewards_G[~np.isnan(rewards_G)]
    return known.size >= 2 and bool(known.max() > known.min())


def group_advantages(
    rewards_G: Float[np.ndarray, " G"], *, normalise: bool = True
) -> Float[np.ndarray, " G"]:
    """Advantages of one group.

    Args:
        rewards_G: one reward a sample, NaN where unknown.
        normalise: divide by the group's standard deviation (GRPO: yes).

    Returns:
        Centred (and scaled) rewards; all zeros for a group that is not :func:`informative`.
    """
    rewards_G = np.asarray(rewards_G, dtype=np.float64)
    if not informative(rewards_G):
        return np.zeros_like(rewards_G)
    known = ~np.isnan(rewards_G)
    centred = rewards_G - rewards_G[known].mean()
    scale = rewards_G[known].std() + EPSILON if normalise else 1.0
    return np.where(known, centred / scale, 0.0)
