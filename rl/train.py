"""GRPO, top to bottom: sample groups, keep those that teach, one update, log, save; again.

In: a policy, tasks, a pool of their environments, a run folder. Out: a better policy. The run folder:

    config.json               what was asked, and a fingerprint of policy and tasks
    trajectories/step-N.jsonl every episode of step N, dropped groups too
    train.jsonl, tensorboard/ metrics
    checkpoints/              parameters, optimizer, position in the tasks (Orbax)
    policy/                   the result, when all steps are done

A step is committed by its checkpoint. A killed run starts again after the last committed step and
does the lost steps over with the same outcome: the order of tasks comes from (seed, epoch), every
episode's seed from (seed, step, task, sample), and files of uncommitted steps are replaced.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from pydantic import model_validator

from model.checkpoint import Checkpoints
from model.engine import Engine
from rl.algorithms import with_algorithm
from rl.groups import BatchConfig, Group, make_minibatches, sampling_metrics, teaches
from rl.learner import Config, Learner, LearnerConfig
from rl.metrics import Metrics, write_atomically
from rl.policy import Policy
from rl.rewards import reward
from rl.rollout import EnvPool, EpisodeJob, RolloutLimits, run_episodes
from synth.errors import CallerError
from synth.types import Task

Report = Callable[[int, dict[str, Any]], None]  # step, its metrics


class GRPOConfig(Config):
    """One training run."""

    algorithm: str = "grpo"  # a name of rl/algorithms.py: fills in knobs of learner and batch left open
    seed: int = 0
    steps: int = 20
    groups_per_step: int = 8  # ours: with 8 samples each they fill 64 slots
    group_size: int = 8  # paper
    max_rounds: int = 2  # sampling rounds a step; later rounds refill for dropped groups (ours)
    slots: int = 64
    checkpoint_every: int = 1
    limits: RolloutLimits = RolloutLimits()
    batch: BatchConfig = BatchConfig()
    learner: LearnerConfig = LearnerConfig()

    @model_validator(mode="before")
    @classmethod
    def _named(cls, fields: Any) -> Any:
        return with_algorithm(fields) if isinstance(fields, dict) else fields


def train_grpo(
    config: GRPOConfig,
    policy: Policy,
    tasks: Sequence[Task],
    pool: EnvPool,
    run_dir: str | Path,
    progress: Report | None = None,
) -> Policy:
    """Train ``policy`` on ``tasks``; or go on where a killed run of the same folder stopped.

    Args:
        policy: where training starts, and the reference of the KL term.
        tasks: never the ones that are measured.
        progress: called after each step.

    Raises:
        CallerError: no tasks, a config that can't work, or a folder of another run.
    """
    run_dir = Path(run_dir)
    _check(config, tasks)
    _claim(run_dir, config, policy, tasks)
    updates = config.steps * config.batch.minibatches
    learner = Learner(policy.score, config.learner, updates, dump_to=run_dir / "refused")
    state, position, first = learner.init(policy.params), 0, 0
    with Checkpoints(run_dir / "checkpoints") as checkpoints:
        saved = checkpoints.restore_latest(state)
        if saved is not None:
            first, state, position = saved.step, saved.state, saved.meta["position"]
        metrics = Metrics(run_dir, "train")
        metrics.truncate(first)
        engine = _engine(config, policy)
        for step in range(first, config.steps):
            started = time.monotonic()
            engine.update_weights(state.params, policy.version + step)
            groups, position = collect(config, step, position, tasks, engine, policy, pool)
            sampled = time.monotonic()
            _write_groups(run_dir, step, groups)
            numbers = sampling_metrics(groups)
            batches = make_minibatches(config.batch, [g for g in groups if teaches(g)], engine.version)
            if batches:
                state, update = learner.update(state, batches, policy.params)
                numbers |= update
            numbers |= {"seconds_sampling": sampled - started, "seconds_learning": time.monotonic() - sampled}
            metrics.write(step, numbers)
            if (step + 1) % config.checkpoint_every == 0 or step + 1 == config.steps:
                checkpoints.save(step + 1, state, {"position": position})
            if progress:
                progress(step, numbers)
        metrics.close()
    trained = policy.with_params(state.params, policy.version + config.steps)
    trained.save(run_dir / "policy")
    return trained


# --- sampling ---------------------------------------------------------------------------------


def collect(
    config: GRPOConfig,
    step: int,
    position: int,
    tasks: Sequence[Task],
    engine: Engine,
    policy: Policy,
    pool: EnvPool,
) -> tuple[list[Group], int]:
    """Sample until ``groups_per_step`` groups teach something, or ``max_rounds`` rounds are done (rule 5).

    Returns:
        All groups that were sampled, those without a gradient among them, and the next position.
    """
    groups: list[Group] = []
    for _ in range(config.max_rounds):
        missing = config.groups_per_step - sum(map(teaches, groups))
        if missing <= 0:
            break
        jobs = [
            EpisodeJob(task, sample, episode_seed(config.seed, step, place, task.id, sample))
            for place in range(position, position + missing)
            for task in [task_at(tasks, config.seed, place)]
            for sample in range(config.group_size)
        ]
        position += missing
        done = run_episodes(engine, policy.template, jobs, pool, config.limits)
        broken = [i for i, trajectory in enumerate(done) if reward(trajectory) is None]
        if broken:  # the infrastructure's fault: once more, with the same seeds
            again = run_episodes(engine, policy.template, [jobs[i] for i in broken], pool, config.limits)
            for i, trajectory in zip(broken, again, strict=True):
                done[i] = trajectory
        groups += [done[i : i + config.group_size] for i in range(0, len(done), config.group_size)]
    return groups, position


def task_at(tasks: Sequence[Task], seed: int, position: int) -> Task:
    """The task at a position of the endless, reshuffled sequence."""
    epoch, place = divmod(position, len(tasks))
    return tasks[int(np.random.default_rng([seed, epoch]).permutation(len(tasks))[place])]


def episode_seed(seed: int, step: int, place: int, task_id: str, sample: int) -> int:
    """64 bits from (seed, step, place, task, sample) and nothing else.

    The place in the sequence of tasks tells two groups of one task in one step apart.
    """
    digest = hashlib.sha256(f"{seed}/{step}/{place}/{task_id}/{sample}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


# --- the run folder -----------------------------------------------------------------------------------


def _engine(config: GRPOConfig, policy: Policy) -> Engine:
    return Engine(
        policy.config,
        policy.params,
        slots=config.slots,
        max_len=config.limits.max_len,
        eos_id=policy.tokenizer.eos_id,
        version=policy.version,
    )


def _check(config: GRPOConfig, tasks: Sequence[Task]) -> None:
    if not tasks:
        raise CallerError("training needs at least one task; make some with `agent-world tasks`")
    if config.batch.row_length < config.limits.max_len:
        raise CallerError(
            f"batch.row_length {config.batch.row_length} is below limits.max_len {config.limits.max_len}: "
            "the longest episode would not fit in a row; raise batch.row_length"
        )


def _claim(run_dir: Path, config: GRPOConfig, policy: Policy, tasks: Sequence[Task]) -> None:
    """Write config.json, or check that the one there belongs to this run."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(policy.params):
        digest.update(np.asarray(leaf).tobytes())
    for task in tasks:
        digest.update(f"{task.id} {task.env_digest}\n".encode())
    asked = {"config": config.model_dump(mode="json"), "fingerprint": digest.hexdigest()}
    path = run_dir / "config.json"
    if not path.exists():
        write_atomically(path, json.dumps(asked, indent=1) + "\n")
        return
    saved = json.loads(path.read_text())
    try:  # a folder of an older version lacks fields that have come since: they had today's defaults
        same = GRPOConfig.model_validate(saved["config"]) == config
    except ValueError:
        same = False
    if not same or saved["fingerprint"] != asked["fingerprint"]:
        raise CallerError(
            f"{path}: this folder belongs to a run with another config, policy or tasks; "
            "give another folder, or remove this one"
        )


def _write_groups(run_dir: Path, step: int, groups: Sequence[Group]) -> None:
    lines = [trajectory.to_json() + "\n" for group in groups for trajectory in group]
    write_atomically(run_dir / "trajectories" / f"step-{step:05d}.jsonl", "".join(lines))
