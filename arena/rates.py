"""Pass rates with intervals: the arithmetic of the arena, pure functions over numbers.

A task's samples are not independent of each other, so a task is the unit of every interval here:
the bootstrap draws whole tasks, and a score interval counts tasks, never episodes.
Comes from: rewards grouped by task (:mod:`arena.evaluate`). Goes to: ``Rate`` records and the ranking of
weak environments (:mod:`arena.diagnose`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from synth.types import Rate

RESAMPLES = 2_000  # percentiles of a 95% interval settle to about 0.01 (ours, measured on 20 to 100 tasks)
Z95 = 1.959963984540054  # two-sided 95% quantile of the normal distribution


def wilson(passed: float, n: float, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval of a proportion (Wilson 1927).

    Args:
        passed: share of successes, 0 to 1 (may be a mean of task means).
        n: number of independent units; 0 gives (0, 1), the interval of knowing nothing.
    """
    if n <= 0:
        return 0.0, 1.0
    centre = passed + z * z / (2 * n)
    spread = z * math.sqrt(passed * (1 - passed) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low = 0.0 if passed <= 0.0 else max(0.0, (centre - spread) / scale)
    high = 1.0 if passed >= 1.0 else min(1.0, (centre + spread) / scale)
    return low, high


def bootstrap(means_P: Sequence[float], seed: int, resamples: int = RESAMPLES) -> tuple[float, float]:
    """95% percentile interval of the mean of ``means_P`` by drawing tasks with replacement.

    Args:
        means_P: one pass rate a task, length P.
        seed: of NumPy's generator: same seed, same interval.
    """
    values_P = np.asarray(means_P, dtype=np.float64)
    rng = np.random.default_rng(seed)
    picks_RP = rng.integers(0, len(values_P), size=(resamples, len(values_P)))
    low, high = np.percentile(values_P[picks_RP].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def rate(rewards: Mapping[str, Sequence[float]], seed: int) -> Rate:
    """Pass rate of a set of tasks: the mean over tasks of each task's mean reward.

    Where all tasks have one and the same mean (all failed, all passed, a single task) the bootstrap has no
    spread and would claim certainty; Wilson's interval over the number of tasks stands in there.

    Args:
        rewards: task id -> rewards of its episodes (0.0 or 1.0), infrastructure errors already left out;
            tasks with no episode left don't count.
        seed: of the bootstrap.
    """
    means_P = [float(np.mean(values)) for values in rewards.values() if len(values)]
    episodes = sum(len(values) for values in rewards.values())
    if not means_P:
        return Rate(passed=0.0, low=0.0, high=1.0, tasks=0, episodes=0)
    passed = float(np.mean(means_P))
    if len(set(means_P)) == 1:
        low, high = wilson(passed, len(means_P))
    else:
        low, high = bootstrap(means_P, seed)
    return Rate(passed=passed, low=low, high=high, tasks=len(means_P), episodes=episodes)


def rise(
    before: Mapping[str, Sequence[float]], after: Mapping[str, Sequence[float]], seed: int
) -> tuple[float, float, float]:
    """Paired rise of the pass rate over the tasks that both rounds measured.

    Returns:
        (rise, low, high): mean over tasks of (after - before) with its 95% bootstrap interval; a low above 0
        means that the rise clears the start. (0, -1, 1) when no task was measured twice.
    """
    shared = sorted(t for t in before if len(before[t]) and len(after.get(t, ())))
    if not shared:
        return 0.0, -1.0, 1.0
    gains_P = [float(np.mean(after[t]) - np.mean(before[t])) for t in shared]
    return float(np.mean(gains_P)), *bootstrap(gains_P, seed)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate that at least one of k samples passes, from c passes in n samples.

    ``1 - C(n - c, k) / C(n, k)``; from Chen et al. 2021, "Evaluating Large Language Models Trained on Code"
    (the HumanEval paper), section 2.1.

    Raises:
        ValueError: k is not in 1..n, or c not in 0..n.
    """
    if not 1 <= k <= n or not 0 <= c <= n:
        raise ValueError(f"pass@{k} needs 1 <= k <= n and 0 <= c <= n, got n={n}, c={c}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def mean_pass_at_k(rewards: Mapping[str, Sequence[float]], samples: int) -> dict[str, float]:
    """pass@k for k in 1..samples, each the mean over the tasks that have at least k episodes left."""
    result: dict[str, float] = {}
    for k in range(1, samples + 1):
        scores = [pass_at_k(len(v), round(sum(v)), k) for v in rewards.values() if len(v) >= k]
        if scores:
            result[str(k)] = float(np.mean(scores))
    return result
