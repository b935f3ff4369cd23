"""Sampling that never stops: which groups a step gets, how old they are, what a resumed run begins with."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.checkpoint import Checkpoints
from rl.data import token_versions
from rl.faults import Preempted
from rl.in_flight import InFlight
from rl.learner import LearnerConfig, OptimizerConfig
from rl.metrics import read_metrics
from rl.rollout import EpisodeJob, RolloutLimits
from rl.train import GRPOConfig, train_grpo
from synth.types import Trajectory, Turn, Verdict

SIZE = 2  # members of a group


class World:
    """Stands in for driver and rollouts: episodes begin with the version there is and end in a random order.

    Args:
        useless: places whose members all fail, so that they teach nothing.
        slow: places whose episodes end only when nothing else runs.
        broken: (place, member) of episodes that the infrastructure breaks once.
    """

    def __init__(self, seed: int = 0, slots: int = 6, useless=(), slow=(), broken=()):
        self.rng, self.slots, self.version = random.Random(seed), slots, 10
        self.useless, self.slow, self.broken = set(useless), set(slow), set(broken)
        self.begun: list[tuple[int, int]] = []  # place, step that it was begun in
        self.closed = False

    def update_weights(self, params: Any, version: int) -> None:
        assert params == f"w{version - 10}"
        self.version = version

    def close(self) -> None:
        self.closed = True

    def jobs_at(self, place: int, step: int) -> list[EpisodeJob]:
        self.begun.append((place, step))
        return [EpisodeJob(place, member, 0) for member in range(SIZE)]  # pyright: ignore[reportArgumentType]

    def stream(self, next_job):
        running, number = [], 0
        while True:
            while len(running) < self.slots and (job := next_job()):
                running.append((number, job, self.version))
                number += 1
            if not running:
                return
            quick = [run for run in running if run[1].task not in self.slow] or running
            run = self.rng.choice(quick)
            running.remove(run)
            time.sleep(self.rng.random() * 0.001)
            yield run[0], self.trajectory(*run[1:])

    def trajectory(self, job: EpisodeJob, version: int) -> Trajectory:
        place, member = job.task, job.sample
        lost = (place, member) in self.broken
        self.broken.discard((place, member))
        passed = member == 0 and place not in self.useless
        return Trajectory(
            task_id=str(place),
            env_id="e",
            sample=member,
            seed=0,
            turns=(Turn(role="assistant", text="", start=0, end=1, policy_version=version),),
            token_ids=(5,),
            logprobs=(-1.0,),
            loss_mask=(1,),
            finish_reason="error" if lost else "answer",
            verdict=None if lost else Verdict(passed=passed),
            error="sandbox" if lost else None,
        )

    def sampler(self, steps=5, wanted=2, max_rounds=2, max_staleness=1, check=lambda: None, pending=()):
        return InFlight(
            self, self.stream, self.jobs_at, check,
            steps=steps, wanted=wanted, max_rounds=max_rounds, max_staleness=max_staleness, pending=pending,
        )  # fmt: skip


def run(sampler: InFlight, steps: int, first: int = 0, position: int = 0) -> list[list[int]]:
    """The places that each step trained on."""
    taken = []
    with sampler:
        for step in range(first, steps):
            groups, position = sampler.groups(step, position, f"w{step}")
            assert all(len(group) == SIZE and group[0].task_id == group[1].task_id for group in groups)
            for group in groups:
                for trajectory in group:
                    version = trajectory.turns[0].policy_version
                    assert version is not None
                    assert step + 10 - version <= sampler._max_staleness
            taken.append([int(group[0].task_id) for group in groups])
    return taken


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    wanted=st.integers(1, 3),
    max_staleness=st.integers(1, 3),
    useless=st.sets(st.integers(0, 20), max_size=6),
    slow=st.sets(st.integers(0, 20), max_size=6),
)
def test_rule_9_whatever_ends_first_nothing_is_too_old_lost_or_trained_on_twice(
    seed, wanted, max_staleness, useless, slow
):
    world = World(seed, useless=useless, slow=slow)
    taken = run(world.sampler(steps=5, wanted=wanted, max_staleness=max_staleness), 5)
    places = [place for step in taken for place in step]
    assert len(places) == len(set(places))
    for step in taken:
        teaching = [place for place in step if place not in useless]
        assert len(teaching) >= wanted or len(step) >= 2 * wanted, "refilled for groups without a gradient"
    assert world.closed


def test_a_slow_group_is_waited_for_only_when_it_would_be_too_old():
    world = World(slots=8, slow=[0])
    with world.sampler(steps=6, wanted=1, max_staleness=2) as sampler:
        first = [int(sampler.groups(step, 0, f"w{step}")[0][0][0].task_id) for step in range(2)]
        assert 0 not in first
        groups, _ = sampler.groups(2, 0, "w2")
    assert "0" in {group[0].task_id for group in groups}


def test_a_run_that_goes_on_begins_with_what_was_begun_and_not_trained_on():
    world = World(seed=3, slow=[1])
    with world.sampler(steps=6, max_staleness=3) as sampler:
        groups, position = sampler.groups(0, 0, "w0")
        pending = sampler.pending
    trained = {int(group[0].task_id) for group in groups}
    assert set(pending) == set(range(position)) - trained
    again = World()
    taken = run(again.sampler(steps=6, max_staleness=3, pending=pending), 6, first=1, position=position)
    assert [place for place, _ in again.begun][: len(pending)] == list(pending)
    assert not trained & {place for step in taken for place in step}


def test_nothing_is_begun_that_no_step_would_use():
    world = World(useless=[2])
    run(world.sampler(steps=3, wanted=2, max_staleness=2), 3)
    assert len(world.begun) == 3 * 2 + 1


def test_an_episode_that_the_infrastructure_broke_runs_once_more():
    world = World(broken=[(0, 0), (1, 1)])
    with world.sampler(steps=2) as sampler:
        groups, _ = sampler.groups(0, 0, "w0")
        assert all(trajectory.verdict is not None for group in groups for trajectory in group)


def test_what_goes_wrong_in_the_thread_reaches_the_trainer():
    world = World()

    def broken(next_job):
        raise ValueError("no sandbox")
        yield

    world.stream = broken
    with pytest.raises(ValueError, match="no sandbox"):
        run(world.sampler(), 1)
    assert world.closed


def test_a_check_ends_the_waiting():
    world, asked = World(), threading.Event()

    def check():
        asked.set()
        raise Preempted

    def stuck(next_job):
        next_job()
        assert asked.wait(60)
        yield 0, world.trajectory(world.jobs_at(0, 0)[0], 10)

    world.stream = stuck
    with pytest.raises(Preempted):
        run(world.sampler(check=check), 1)


# --- with real episodes -----------------------------------------------------------------------------------

CONFIG = GRPOConfig.model_validate({
    "steps": 4,
    "groups_per_step": 2,
    "group_size": 8,
    "slots": 16,
    "sampling": "in_flight",
    "limits": RolloutLimits(max_turns=3, max_new_per_turn=40, max_len=640),
    "batch": {"row_length": 640, "rows": 1, "minibatches": 1, "max_staleness": 2},
    "learner": LearnerConfig(optimizer=OptimizerConfig(learning_rate=3e-3)),
})  # fmt: skip


class Killed(Exception):
    pass


def test_a_real_run_in_flight_goes_on_after_a_kill(half_trained, pool, twins, run_dir, monkeypatch):
    save, calls = Checkpoints.save, []

    def killed(self, *args):
        calls.append(1)
        if len(calls) == 3:
            raise Killed
        save(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", killed)
        with pytest.raises(Killed):
            train_grpo(CONFIG, half_trained, twins, pool, run_dir)
    policy = train_grpo(CONFIG, half_trained, twins, pool, run_dir)
    assert policy.version == 4
    rows = read_metrics(run_dir / "train.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert all(row["staleness_max"] <= 2 for row in rows)
    versions = set()
    for file in sorted((run_dir / "trajectories").iterdir()):
        for line in file.read_text().splitlines():
            trajectory = Trajectory.from_json(line)
            drew = token_versions(trajectory)
            versions |= set(drew)
            assert [version is not None for version in drew] == [bool(on) for on in trajectory.loss_mask]
            for turn in trajectory.turns:
                if turn.role == "assistant":
                    assert turn.policy_version == min(drew[turn.start : turn.end])
    assert versions <= {0, 1, 2, 3, None}
    assert len(versions) > 2
