"""From sampled groups to what the learner reads: which groups teach, and their packed minibatches.

In: groups of :class:`synth.types.Trajectory`, G samples of one task each. Out: micro-batches for
:mod:`rl.learner`, and the numbers of the sampling side. Here GRPO meets the trajectory; packing and
learning know of neither.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl.advantages import Baseline, group_advantages, informative, overlong_penalty
from rl.batch import Batch, Sample, micro_batches, pack
from rl.learner import Config
from rl.rewards import group_rewards, reward, staleness, trainable
from synth.types import Trajectory

Group = list[Trajectory]


class BatchConfig(Config):
    """How groups become batches."""

    minibatches: int = 2  # optimizer steps a training step (ours, measured: fewer steps to the same reward)
    max_staleness: int = 0  # how many versions old a sampled turn may be when it is trained on
    normalise: bool = True  # divide advantages by the group's standard deviation (GRPO)
    baseline: Baseline = "mean"  # "leave_one_out": RLOO
    overlong_buffer: int = 0  # tokens before the limit that cost reward; DAPO: a fifth of the limit
    overlong_limit: int = 1024  # tokens; the rollout's max_len
    row_length: int = 1536  # columns of a packed row (ours, measured: a shared group of 8 fills one)
    rows: int = 1  # rows of a micro-batch (ours: no rows of padding, least memory)
    share_prompts: bool = True  # ours: groups of 8 with long prompts cost a third


def teaches(group: Group) -> bool:
    """Whether a group gives a gradient: rewards that differ, and tokens to put it on."""
    return informative(group_rewards(group)) and any(map(trainable, group))


def make_minibatches(config: BatchConfig, groups: Sequence[Group], version: int) -> list[list[Batch]]:
    """Groups as micro-batches, split into minibatches by whole groups.

    Raises:
        ValueError: a turn was sampled by a policy more than ``max_staleness`` versions old (rule 9).
    """
    parts = [groups[i :: config.minibatches] for i in range(config.minibatches)]
    minibatches = []
    for part in parts:
        samples = [sample for group in part for sample in group_samples(config, group, version)]
        if samples:
            batch = pack(samples, config.row_length, share_prompts=config.share_prompts)
            minibatches.append(micro_batches(batch, config.rows))
    return minibatches


def group_samples(config: BatchConfig, group: Group, version: int) -> list[Sample]:
    """The trainable members of a group with their advantages; the others only shaped the baseline."""
    samples = []
    lengths = np.array([len(t.token_ids) for t in group])
    rewards = group_rewards(group) + overlong_penalty(lengths, config.overlong_limit, config.overlong_buffer)
    advantages = group_advantages(rewards, normalise=config.normalise, baseline=config.baseline)
    for trajectory, advantage in zip(group, advantages, strict=True):
        if not trainable(trajectory):
            continue
        age = staleness(trajectory, version)
        if age > config.max_staleness:
            raise ValueError(
                f"{trajectory.task_id}: {age} versions old, at most {config.max_staleness} allowed"
            )
        samples.append(
            Sample(
                ids=np.array(trajectory.token_ids, np.int32),
                weights=np.array(trajectory.loss_mask, np.float32),
                logprobs=np.array(trajectory.logprobs, np.float32),
                advantages=np.full(len(trajectory.token_ids), advantage, np.float32),
                prompt_length=trajectory.turns[0].end,
                group=trajectory.task_id,
            )
        )
    return samples


def sampling_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """The raw reward over everything sampled, dropped groups too, and what became of the episodes."""
    episodes = [trajectory for group in groups for trajectory in group]
    rewards = [r for r in map(reward, episodes) if r is not None]
    count = max(len(episodes), 1)
    tokens = [sum(t.loss_mask) for t in episodes]
    truncated = [t.finish_reason == "length" for t in episodes]
    return {
        "reward": float(np.mean(rewards)) if rewards else 0.0,
        "groups": len(groups),
        "groups_kept": sum(map(teaches, groups)),
        "groups_all_passed": sum(all(reward(t) == 1.0 for t in group) for group in groups),
        "groups_all_failed": sum(all(reward(t) == 0.0 for t in group) for group in groups),
        "truncated": sum(truncated) / count,
        "truncated_tokens": sum(n for n, cut in zip(tokens, truncated, strict=True) if cut),
        "sampled_tokens": sum(tokens),
        "infrastructure_errors": sum(reward(t) is None for t in episodes),
        "turns": sum(sum(turn.role == "assistant" for turn in t.turns) for t in episodes) / count,
    }
