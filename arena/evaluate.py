"""Evaluate a policy on tasks of held-out environments: episodes in, an ArenaReport out.

Comes from: a policy with its engine, tasks chosen by :mod:`arena.sample`, environments served by
``rl.rollout.EnvPool``. Goes to: the report and the trajectories that :mod:`arena.diagnose` reads.

An episode whose infrastructure failed is neither passed nor failed: it is left out of every rate and counted.
An episode cut off by length or turns did not solve its task: it counts as failed, with its own finish reason.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from arena.rates import mean_pass_at_k, rate
from rl.rewards import reward
from synth.types import ArenaReport, Rate, Task, Trajectory

Taxonomy = Mapping[str, Sequence[str]]  # env_id -> (first level, second level)


def class_of(taxonomy: Taxonomy, env_id: str) -> str:
    """First level of an environment's taxonomy path."""
    path = taxonomy.get(env_id, ())
    return path[0] if path else "unclassified"


def episode_name(trajectory: Trajectory) -> str:
    """``task_id#sample``: how reports, evidence and ``agent-world view`` name an episode."""
    return f"{trajectory.task_id}#{trajectory.sample}"


def episode_seed(seed: int, task_id: str, sample: int) -> int:
    """Sampling seed of one episode (31 bits): depends on nothing but the three arguments."""
    digest = hashlib.sha256(f"{seed}:{task_id}:{sample}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def rewards_by_task(trajectories: Iterable[Trajectory]) -> dict[str, list[float]]:
    """Task id -> rewards of its episodes, infrastructure errors left out."""
    grouped: dict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        value = reward(trajectory)
        grouped[trajectory.task_id]  # a task all of whose episodes broke is still listed
        if value is not None:
            grouped[trajectory.task_id].append(value)
    return dict(grouped)


def score(
    trajectories: Sequence[Trajectory],
    tasks: Sequence[Task],
    samples: int,
    round: str,
    taxonomy: Taxonomy,
    seed: int = 0,
) -> ArenaReport:
    """Count finished episodes into an ArenaReport; pure, so a report can be made again from its episodes.

    Args:
        trajectories: any order; each names a task of ``tasks``.
        samples: episodes a task, k of the largest pass@k.
        round: name of the round, such as "before training".
        taxonomy: env_id -> taxonomy path; the first level is the class.
        seed: of the bootstrap.
    """
    by_id = {task.id: task for task in tasks}
    rewards = rewards_by_task(trajectories)

    def rates(group: Callable[[Task], str]) -> dict[str, Rate]:
        parts: dict[str, dict[str, list[float]]] = defaultdict(dict)
        for task_id, values in rewards.items():
            parts[group(by_id[task_id])][task_id] = values
        return {name: rate(parts[name], seed) for name in sorted(parts)}

    return ArenaReport(
        round=round,
        overall=rate(rewards, seed),
        per_class=rates(lambda task: class_of(taxonomy, task.env_id)),
        per_environment=rates(lambda task: task.env_id),
        per_pattern=rates(lambda task: task.pattern),
        pass_at_k=mean_pass_at_k(rewards, samples),
        finish_reasons=dict(sorted(Counter(t.finish_reason for t in trajectories).items())),
        failures=tuple(episode_name(t) for t in trajectories if reward(t) == 0.0),
        infrastructure_errors=sum(reward(t) is None for t in trajectories),
    )


def evaluate(
    policy: Any,
    engine: Any,
    tasks: Sequence[Task],
    pool: Any,
    samples: int,
    round: str,
    taxonomy: Taxonomy,
    seed: int = 0,
    limits: Any = None,
    progress: Callable[..., None] | None = None,
) -> tuple[ArenaReport, list[Trajectory]]:
    """Run ``samples`` episodes of every task and score them.

    Args:
        policy: ``rl.policy.Policy``; its template speaks to the engine.
        engine: ``model.engine.Engine`` with the policy's weights.
        pool: ``rl.rollout.EnvPool`` that serves every ``task.env_id``.
        limits: ``rl.rollout.RolloutLimits``; None takes its defaults.
        progress: passed on to ``run_episodes``.

    Returns:
        The report, and the trajectories in the order of tasks, then samples.
    """
    from rl.rollout import EpisodeJob, RolloutLimits, run_episodes  # JAX loads only when episodes run

    jobs = [
        EpisodeJob(task=task, sample=sample, seed=episode_seed(seed, task.id, sample))
        for task in tasks
        for sample in range(samples)
    ]
    trajectories = run_episodes(
        engine, policy.template, jobs, pool, limits or RolloutLimits(), progress=progress
    )
    return score(trajectories, tasks, samples, round, taxonomy, seed), trajectories
