"""GRPO, top to bottom: sample groups, keep those that teach, one update, log, save; again.

In: a policy, tasks, a pool of their environments, a run folder. Out: a better policy. The run folder:

    config.json               what was asked, and a fingerprint of policy and tasks
    trajectories/step-N.jsonl every episode of step N, dropped groups too
    train.jsonl, tensorboard/ metrics
    checkpoints/              parameters, optimizer, position in the tasks (Orbax)
    policy/                   the result, when all steps are done

A step is committed by its checkpoint. A killed run starts again after the last committed step and
does the lost steps over with the same outcome: the order of tasks comes from (seed, epoch), every
episode's seed from (seed, step, task, sample), and files of uncommitted steps are replaced. SIGTERM
ends a run with its last whole step saved (:mod:`rl.faults`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from pydantic import model_validator

from model.checkpoint import Checkpoints
from model.driver import Driver
from model.engine import Engine
from rl.adapters import LoraConfig, save_trained, trained_part
from rl.algorithms import with_algorithm
from rl.asynchronous import OneAhead, OnPolicy, Sampled
from rl.copies import on_host, rounded
from rl.costs import step_costs
from rl.faults import Preempted, Preemption, naming_full_disk
from rl.groups import BatchConfig, Group, make_minibatches, sampling_metrics, teaches
from rl.in_flight import InFlight
from rl.jobs import refuse_cut_off
from rl.learner import Config, Learner, LearnerConfig
from rl.metrics import Metrics, Phases
from rl.place import Place, Unwritten, naming_lost_process
from rl.policy import Policy
from rl.rewards import reward
from rl.rollout import (
    EnvPool,
    EpisodeJob,
    Progress,
    RolloutLimits,
    run_episodes,
    stream_episodes,
)
from rl.run_folder import Standing, claim, fingerprint, restore, save, write_groups
from rl.trackers import Tracker
from rl.trackers import check as check_tracker
from synth.errors import CallerError
from synth.types import Task, Trajectory

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
    # "one_ahead": a batch is sampled while the one before is trained on (rl/asynchronous.py); its turns are
    # one version old, so batch.max_staleness must be 1 or more
    # "in_flight": sampling never stops and takes new weights in mid-turn (rl/in_flight.py); not bit-equal on
    # resume, max_staleness of 2 or more lets it wait less
    sampling: Literal["on_policy", "one_ahead", "in_flight"] = "on_policy"
    checkpoint_every: int = 1
    # sampler and trainer agree to the bit, for 3.5 times the sampling's processor time (model/exact.py)
    batch_invariant: bool = False
    limits: RolloutLimits = RolloutLimits()
    batch: BatchConfig = BatchConfig()
    learner: LearnerConfig = LearnerConfig()
    lora: LoraConfig | None = None  # train an adapter instead of all weights

    @model_validator(mode="before")
    @classmethod
    def _named(cls, fields: Any) -> Any:
        return with_algorithm(refuse_cut_off(fields)) if isinstance(fields, dict) else fields


def train_grpo(
    config: GRPOConfig,
    policy: Policy,
    tasks: Sequence[Task],
    pool: EnvPool,
    run_dir: str | Path,
    progress: Report | None = None,
    place: Place | None = None,
    tracker: Tracker | None = None,
    settled: bool = False,
) -> Policy:
    """Train ``policy`` on ``tasks``; or go on where a killed run of the same folder stopped.

    Args:
        policy: where training starts, and the reference of the KL term.
        tasks: never the ones that are measured.
        progress: called after each step.
        place: a mesh, a rollout slice beside it, and the processes that share them; without it one device.
            Not part of what a run is: it may go on elsewhere.
        tracker: shows the metrics besides TensorBoard (:mod:`rl.trackers`).
        settled: a step's checkpoint is on disk before ``progress`` hears of it, which copies the folder, say.

    Raises:
        CallerError: no tasks, a config that can't work, or a folder of another run.
    """
    run_dir = Path(run_dir)
    place = place or Place()
    _check(config, tasks, place)
    if config.batch_invariant:
        policy = policy.running(batch_invariant=True)
    check_tracker(tracker)
    reference = place.cut(policy.params)
    owner = fingerprint(on_host(reference), tasks)
    place.first_then_others(lambda: claim(run_dir, config, owner))
    dtype = policy.config.dtype
    # where the same devices train, the copy to sample with is made when its turn comes
    first = None if place.shared else place.to_sampler(reference, dtype)
    policy = policy.with_params(first, policy.version)
    start, full = trained_part(config.lora, reference, config.seed)
    if config.lora is None:  # an adapter's base is merged with it before it is rounded
        reference = rounded(reference, dtype)
    updates = config.steps * config.batch.minibatches
    with (
        Checkpoints(run_dir / "checkpoints") as checkpoints,
        Preemption() as preemption,
        naming_full_disk(run_dir, checkpoints.latest_step),
        naming_lost_process(place, checkpoints.latest_step),
    ):
        donate = config.sampling == "on_policy"  # one step ahead, a thread still samples with the old weights
        check, refused = place.agreed(preemption), run_dir / "refused" if place.first else None
        score = partial(policy.score, branches=config.batch.share_prompts)
        learner = Learner(
            score, config.learner, updates, refused, check, donate=donate, mesh=place.mesh, full=full
        )
        at = restore(checkpoints, Standing(0, learner.init(start), 0), _ahead(config, policy))
        to_sample = lambda state: place.to_sampler(full(state.params, reference), dtype)  # noqa: E731
        metrics = Metrics(run_dir, "train", tracker=tracker) if place.first else Unwritten()
        metrics.truncate(at.step)
        packing = config.batch.model_copy(update={"rows": place.rows(config.batch.rows)})
        engine, classes = _engine(config, policy, place), _classes(tasks, pool)

        def sample(step: int, position: int, params: Any, version: int, check: Progress) -> Sampled:
            engine.update_weights(params, policy.version + version)
            sampled = collect(config, step, position, tasks, engine, policy, pool, check, place)
            if place.shared:
                engine.release()
            return sampled

        sampler_of = {
            "on_policy": lambda: OnPolicy(sample, preemption.check),
            "one_ahead": lambda: OneAhead(sample, preemption.check, config.steps, at.behind),
            "in_flight": lambda: _in_flight(
                config, tasks, engine, policy, pool, preemption.check, at.pending
            ),
        }
        try:
            phases = Phases()
            with sampler_of[config.sampling]() as sampler:
                for step in range(at.step, config.steps):
                    version = policy.version + step
                    groups, position = sampler.groups(step, at.position, to_sample(at.state))
                    phases.end("sampling")
                    if place.first:
                        write_groups(run_dir, step, groups)
                    numbers = sampling_metrics(groups, version, classes)
                    state, batches = at.state, make_minibatches(packing, _teaching(groups), version)
                    if batches:
                        state, update = learner.update(state, batches, reference)
                        numbers |= update
                    phases.end("learning")
                    at = Standing(step + 1, state, position, sampler.behind, sampler.pending)
                    tokens = numbers["sampled_tokens"]
                    costs = step_costs(policy.config, config.learner, batches, tokens, phases.seconds)
                    metrics.write(step, numbers | phases.seconds | costs)
                    if at.step % config.checkpoint_every == 0 or at.step == config.steps:
                        save(checkpoints, at)
                    if settled:
                        checkpoints.wait()
                    if progress:
                        progress(step, numbers)
                    phases.end("saving")
                    check()
            checkpoints.wait()
        except Preempted:
            save(checkpoints, at)
            checkpoints.wait()
            raise
        finally:
            metrics.close()
        weights, version = full(at.state.params, reference), policy.version + config.steps
        adapter = place.whole(at.state.params) if config.lora else None
        leaves = [leaf for leaf in on_host(weights) if place.first]
        if place.first:
            save_trained(run_dir, config.lora, adapter)
            whole = jax.tree.unflatten(jax.tree.structure(weights), leaves)
            policy.with_params(whole, version).save(run_dir / "policy")
        trained = policy.with_params(to_sample(at.state), version)
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
    progress: Progress | None = None,
    shared: Place | None = None,
) -> tuple[list[Group], int]:
    """Sample until ``groups_per_step`` groups teach something, or ``max_rounds`` rounds are done (rule 5).

    Returns:
        All groups that were sampled, those without a gradient among them, and the next position.
    """

    def run(jobs: Sequence[EpisodeJob]) -> list[Trajectory]:
        return run_episodes(engine, policy.template, jobs, pool, config.limits, progress=progress)

    shared, groups = shared or Place(), []
    for _ in range(config.max_rounds):
        missing = config.groups_per_step - sum(map(teaches, groups))
        if missing <= 0:
            break
        jobs = [
            job
            for place in range(position, position + missing)
            for job in group_jobs(config, tasks, step, place)
        ]
        position += missing
        done = shared.episodes(jobs, run)
        broken = [i for i, trajectory in enumerate(done) if reward(trajectory) is None]
        if broken:  # the infrastructure's fault: once more, with the same seeds
            retried = [jobs[i] for i in broken]
            for i, trajectory in zip(broken, shared.episodes(retried, run), strict=True):
                done[i] = trajectory
        groups += [done[i : i + config.group_size] for i in range(0, len(done), config.group_size)]
    return groups, position


def group_jobs(config: GRPOConfig, tasks: Sequence[Task], step: int, place: int) -> list[EpisodeJob]:
    """The group at a position of the sequence of tasks, begun in ``step``."""
    task = task_at(tasks, config.seed, place)
    return [
        EpisodeJob(task, sample, episode_seed(config.seed, step, place, task.id, sample))
        for sample in range(config.group_size)
    ]


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


def _teaching(groups: Sequence[Group]) -> list[Group]:
    return [group for group in groups if teaches(group)]


def _in_flight(
    config: GRPOConfig,
    tasks: Sequence[Task],
    engine: Engine,
    policy: Policy,
    pool: EnvPool,
    check: Progress,
    pending: Sequence[int],
) -> InFlight:
    driver = Driver(engine)
    return InFlight(
        driver,
        lambda next_job: stream_episodes(driver, policy.template, next_job, pool, config.limits),
        lambda place, step: group_jobs(config, tasks, step, place),
        check,
        steps=config.steps,
        wanted=config.groups_per_step,
        max_rounds=config.max_rounds,
        max_staleness=config.batch.max_staleness,
        pending=pending,
    )


def _ahead(config: GRPOConfig, policy: Policy) -> Any:
    """Weights of the shapes that a checkpoint holds beside the train state, if it does."""
    return policy.params if config.sampling == "one_ahead" else None


# --- metrics ------------------------------------------------------------------------------------------


def _classes(tasks: Sequence[Task], pool: EnvPool) -> dict[str, str]:
    """The class (first level of the taxonomy) of each environment."""
    ids = {task.env_id for task in tasks}
    return {env_id: next(iter(pool.bundle(env_id).manifest.taxonomy), "none") for env_id in sorted(ids)}


# --- beginnings ----------------------------------------------------------------------------------------


def _engine(config: GRPOConfig, policy: Policy, place: Place) -> Engine:
    together = place.rollout is not None and place.rollout.size > 1
    return Engine(
        policy.config,
        policy.params,
        slots=config.slots,
        max_len=config.limits.max_len,
        eos_id=policy.tokenizer.eos_id,
        version=policy.version,
        shard=config.slots if together else None,
    )


def _check(config: GRPOConfig, tasks: Sequence[Task], place: Place) -> None:
    if not tasks:
        raise CallerError("training needs at least one task; make some with `agent-world tasks`")
    if config.batch.row_length < config.limits.max_len:
        raise CallerError(
            f"batch.row_length {config.batch.row_length} is below limits.max_len {config.limits.max_len}: "
            "the longest episode would not fit in a row; raise batch.row_length"
        )
    if config.sampling != "on_policy" and place.processes > 1:
        raise CallerError(
            f'sampling = "{config.sampling}" works in one process; with several use "on_policy" '
            "(who samples what would be a matter of each one's timing)"
        )
    if config.sampling != "on_policy" and place.shared:
        raise CallerError(
            f'sampling = "{config.sampling}" overlaps with training, but the rollout slice is the mesh; '
            'give it devices beside the mesh (train --mesh fsdp=4 --rollout tensor=4), or use "on_policy"'
        )
    if config.sampling != "on_policy" and config.batch.max_staleness < 1:
        raise CallerError(
            f'sampling = "{config.sampling}" trains on turns that are a version old, but '
            "batch.max_staleness is 0; set it to 1 or more"
        )
