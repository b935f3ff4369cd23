"""From sampled groups to what the learner reads: which groups teach, and their packed minibatches.

In: groups of :class:`synth.types.Trajectory`, G samples of one task each. Out: micro-batches for
:mod:`rl.learner`, and the numbers of the sampling side. Here GRPO meets the trajectory; packing and
learning know of neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from rl.advantages import Baseline, group_advantages, informative, overlong_penalty
from rl.batch import Batch, Sample, micro_batches, pack
from rl.learner import Config
from rl.rewards import group_rewards, reward, staleness, trainable
from synth.types import Trajectory, Turn

Group = list[Trajectory]
ERRORS = (  # a call's error codes that are the same in every environment (synth.env.episode, rl.rollout)
    "malformed_call", "unknown_tool", "invalid_arguments", "tool_failed", "output_too_large", "timeout",
)  # fmt: skip


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
        samples.append(sample_of(trajectory, advantage))
    return samples


def sample_of(trajectory: Trajectory, advantage: float) -> Sample:
    """A trajectory as packing takes it, every token with the same advantage."""
    return Sample(
        ids=np.array(trajectory.token_ids, np.int32),
        weights=np.array(trajectory.loss_mask, np.float32),
        logprobs=np.array(trajectory.logprobs, np.float32),
        advantages=np.full(len(trajectory.token_ids), advantage, np.float32),
        prompt_length=trajectory.turns[0].end,
        group=trajectory.task_id,
    )


def sampling_metrics(
    groups: Sequence[Group], version: int | None = None, classes: Mapping[str, str] | None = None
) -> dict[str, float]:
    """The raw reward over everything sampled, dropped groups too, and what became of the episodes.

    Args:
        groups: of one step.
        version: of the policy that will be trained on them, for their staleness.
        classes: env_id -> class, for the pass rate of each.
    """
    episodes = [trajectory for group in groups for trajectory in group]
    count = max(len(episodes), 1)
    tokens = [sum(t.loss_mask) for t in episodes]
    truncated = [t.finish_reason == "length" for t in episodes]
    kept = [trajectory for group in groups if teaches(group) for trajectory in group]
    numbers = {
        "reward": mean_reward(episodes) or 0.0,
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
    if kept:
        numbers["reward_kept"] = mean_reward(kept) or 0.0  # of the groups that are trained on
    if version is not None:
        ages = [staleness(t, version) for t in kept] or [0]
        numbers |= {"staleness": sum(ages) / len(ages), "staleness_max": max(ages)}
    for name in sorted(set((classes or {}).values())):
        rate = mean_reward([t for t in episodes if (classes or {}).get(t.env_id) == name])
        if rate is not None:
            numbers[f"pass/{name}"] = rate
    errors = Counter(kind for t in episodes for turn in t.turns if (kind := error_kind(turn)))
    return numbers | {f"tool_error/{kind}": number / count for kind, number in sorted(errors.items())}


def mean_reward(episodes: Sequence[Trajectory]) -> float | None:
    """Over the episodes whose reward is known; None where none is."""
    known = [r for r in map(reward, episodes) if r is not None]
    return float(np.mean(known)) if known else None


def error_kind(turn: Turn) -> str | None:
    """What went wrong with a call: one of :data:`ERRORS`, "refused" by a rule of the environment, or None.

    The codes of environments' own rules are as many as there are tools; they count as one kind.
    """
    if turn.role != "tool" or not turn.error:
        return None
    return turn.error if turn.error in ERRORS else "refused"
