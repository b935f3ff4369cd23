"""GRPO with real parts: engine, sandboxed environment, learner, checkpoints."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest
from fixtures.rollouts import make_task

from model.checkpoint import Checkpoints
from model.engine import Engine
from rl.groups import BatchConfig, group_samples, make_minibatches, sampling_metrics, teaches
from rl.learner import Learner, LearnerConfig, OptimizerConfig
from rl.metrics import Metrics, read_metrics
from rl.policy import Policy
from rl.pool import EnvPool
from rl.rollout import RolloutLimits
from rl.train import GRPOConfig, collect, episode_seed, task_at, train_grpo
from synth.errors import CallerError, InfrastructureError
from synth.types import Criterion, Rubric, Trajectory, Turn, Verdict

LIMITS = RolloutLimits(max_turns=3, max_new_per_turn=40, max_len=640)
CONFIG = GRPOConfig(
    steps=3,
    groups_per_step=2,
    group_size=8,
    slots=16,
    limits=LIMITS,
    batch=BatchConfig(row_length=640, rows=1, minibatches=1),
    learner=LearnerConfig(optimizer=OptimizerConfig(learning_rate=3e-3)),
)


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def record(reward: float | None, finish="answer", version=0, sample=0) -> Trajectory:
    """A trajectory of two prompt tokens and three sampled ones."""
    return Trajectory(
        task_id="t",
        env_id="e",
        sample=sample,
        seed=0,
        turns=(
            Turn(role="prompt", text="", start=0, end=2),
            Turn(role="assistant", text="", start=2, end=5, policy_version=version),
        ),
        token_ids=(5, 6, 7, 8, 9),
        logprobs=(0.0, 0.0, -1.0, -2.0, -3.0),
        loss_mask=(0, 0, 1, 1, 1),
        finish_reason=finish,
        verdict=None if reward is None else Verdict(passed=bool(reward)),
        error="sandbox" if reward is None else None,
    )


# --- what a batch is made of ------------------------------------------------------------------


def test_rule_5_a_group_of_equal_rewards_gives_nothing_but_its_reward_is_logged():
    equal, mixed = [record(1.0)] * 4, [record(1.0), record(0.0)] * 2
    assert not teaches(equal)
    assert teaches(mixed)
    numbers = sampling_metrics([equal, mixed])
    assert (numbers["reward"], numbers["groups"], numbers["groups_kept"]) == (0.75, 2, 1)
    assert numbers["groups_all_passed"] == 1


def test_rule_6_truncated_episodes_leave_numerator_and_denominator_but_are_counted():
    group = [record(1.0), record(0.0), record(0.0, "length"), record(0.0, "length")]
    ((batch,),) = make_minibatches(BatchConfig(row_length=32, rows=1), [group], 0)
    assert batch.token_count == 2 * 3  # the denominator of the loss
    in_loss = np.unique(batch.advantages[batch.weights > 0])
    np.testing.assert_allclose(in_loss, [-0.577, 1.732], atol=1e-3)  # the two cut ones shape the baseline
    numbers = sampling_metrics([group])
    assert (numbers["truncated"], numbers["truncated_tokens"], numbers["sampled_tokens"]) == (0.5, 6, 12)


def test_infrastructure_errors_are_outside_baseline_and_loss():
    with_error = group_samples(BatchConfig(), [record(1.0), record(0.0), record(None, "error")], 0)
    without = group_samples(BatchConfig(), [record(1.0), record(0.0)], 0)
    assert [s.advantages.tolist() for s in with_error] == [s.advantages.tolist() for s in without]
    assert sampling_metrics([[record(None, "error"), record(1.0)]])["reward"] == 1.0


def test_rule_9_stale_turns_are_refused_at_admission():
    group = [record(1.0, version=3), record(0.0, version=5)]
    with pytest.raises(ValueError, match="2 versions old, at most 1"):
        group_samples(BatchConfig(max_staleness=1), group, 5)
    assert len(group_samples(BatchConfig(max_staleness=2), group, 5)) == 2


def test_the_sequence_of_tasks_and_seeds_depends_on_its_keys_only():
    tasks = list(range(5))
    first = [task_at(tasks, 1, i) for i in range(15)]
    assert first == [task_at(tasks, 1, i) for i in range(15)]
    assert all(sorted(first[e : e + 5]) == tasks for e in (0, 5, 10))
    assert first[:5] != first[5:10]
    keys = itertools.product((0, 1), (0, 1), (0, 1), "ab", (0, 1))
    seeds = {episode_seed(*key) for key in keys}
    assert len(seeds) == 32


# --- whole runs -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unbroken(half_trained, pool, twins, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    return train_grpo(CONFIG, half_trained, twins, pool, folder), folder


def test_rule_3_sampler_and_trainer_agree(unbroken):
    for row in read_metrics(unbroken[1] / "train.jsonl"):
        assert row["sampler_trainer_gap"] <= 1e-5


def test_rule_3_sampler_and_trainer_agree_to_the_bit_where_a_run_asks_for_it(
    unbroken, half_trained, pool, twins, run_dir
):
    config = CONFIG.model_copy(update={"steps": 1, "batch_invariant": True})
    trained = train_grpo(config, half_trained, twins, pool, run_dir)
    gap = [row["sampler_trainer_gap"] for row in read_metrics(run_dir / "train.jsonl")]
    plain = [row["sampler_trainer_gap"] for row in read_metrics(unbroken[1] / "train.jsonl")]
    # nearly always 0; a sum in the middle between two float32 numbers may fall to either side
    assert max(gap) < max(plain) / 4
    assert not Policy.load(run_dir / "policy").config.batch_invariant, "how it was run is no part of it"
    assert trained.config.batch_invariant
    with pytest.raises(CallerError, match="rounds to float32"):
        train_grpo(config, half_trained.running(compute_dtype="bfloat16"), twins, pool, run_dir)


def test_a_run_leaves_its_trajectories_metrics_and_policy(unbroken, half_trained):
    policy, folder = unbroken
    assert policy.version == 3
    assert [row["step"] for row in read_metrics(folder / "train.jsonl")] == [0, 1, 2]
    files = sorted((folder / "trajectories").iterdir())
    assert [f.name for f in files] == [f"step-0000{i}.jsonl" for i in range(3)]
    for version, file in enumerate(files):
        for line in file.read_text().splitlines():
            trajectory = Trajectory.from_json(line)
            assert {t.policy_version for t in trajectory.turns if t.role == "assistant"} == {version}
    same(type(policy).load(folder / "policy").params, policy.params)


def test_a_step_s_line_says_all_that_a_team_looks_at(unbroken, bundle):
    """The metrics that issues ask for by name; errors of tools stand there only where some happened."""
    rows = read_metrics(unbroken[1] / "train.jsonl")
    first_level = next(iter(bundle.manifest.taxonomy), "none")
    names = {
        "reward", "reward_kept", f"pass/{first_level}", "groups", "groups_kept",
        "entropy", "kl", "clip_high", "clip_low", "ratio_mean", "ratio_max", "sampler_trainer_gap",
        "staleness", "staleness_max", "turns", "truncated", "infrastructure_errors",
        "tokens_per_second", "sampled_tokens_per_second", "seconds_sampling", "seconds_learning",
        "memory_gib", "mfu", "skipped", "loss", "grad_norm",
    }  # fmt: skip
    taught = [row for row in rows if row["groups_kept"]]
    assert taught
    for row in taught:
        assert names <= set(row), sorted(names - set(row))
    assert "seconds_saving" in rows[-1], "of the step before"


class Killed(Exception):
    pass


def kill_at_second_call(patch, owner, name):
    original, calls = getattr(owner, name), []

    def wrapped(*args, **kwargs):
        calls.append(name)
        if len(calls) == 2:
            raise Killed
        return original(*args, **kwargs)

    patch.setattr(owner, name, wrapped)


def lines(folder):
    """Metrics without what a clock or a memory meter says."""
    rows, measured = read_metrics(folder / "train.jsonl"), ("second", "memory", "mfu")
    return [{k: v for k, v in row.items() if not any(word in k for word in measured)} for row in rows]


@pytest.mark.parametrize(
    ("owner", "moment"), [(Learner, "update"), (Metrics, "write"), (Checkpoints, "save")]
)
def test_a_killed_run_goes_on_to_the_same_end(
    owner, moment, unbroken, half_trained, pool, twins, run_dir, monkeypatch
):
    """Killed in its second step: before learning, before the metrics, before the checkpoint."""
    with monkeypatch.context() as patch:
        kill_at_second_call(patch, owner, moment)
        with pytest.raises(Killed):
            train_grpo(CONFIG, half_trained, twins, pool, run_dir)
    policy = train_grpo(CONFIG, half_trained, twins, pool, run_dir)
    same(policy.params, unbroken[0].params)
    assert lines(run_dir) == lines(unbroken[1])
    for file in (unbroken[1] / "trajectories").iterdir():
        assert (run_dir / "trajectories" / file.name).read_text() == file.read_text()


def test_a_finished_run_is_not_repeated(unbroken, half_trained, pool, twins):
    before = (unbroken[1] / "train.jsonl").read_bytes()
    policy = train_grpo(CONFIG, half_trained, twins, pool, unbroken[1])
    same(policy.params, unbroken[0].params)
    assert (unbroken[1] / "train.jsonl").read_bytes() == before


def test_wrong_calls_are_refused_in_one_line(unbroken, half_trained, pool, twins, run_dir):
    with pytest.raises(CallerError, match="at least one task"):
        train_grpo(CONFIG, half_trained, [], pool, run_dir)
    with pytest.raises(CallerError, match="another config, policy or tasks"):
        train_grpo(CONFIG, half_trained, twins[:1], pool, unbroken[1])
    narrow = CONFIG.model_copy(update={"batch": BatchConfig(row_length=100)})
    with pytest.raises(CallerError, match="row_length 100"):
        train_grpo(narrow, half_trained, twins, pool, run_dir)


@pytest.mark.parametrize("fields", [{"top_p": 0.9}, {"limits": {"top_k": 20}}])
def test_draws_from_a_part_of_the_vocabulary_are_refused(fields):
    with pytest.raises(ValueError, match=r"top_[pk]: tokens drawn .* can't be trained on"):
        GRPOConfig.model_validate(fields)


def test_rule_5_dropped_groups_are_refilled_up_to_the_cap(half_trained, pool, bundle, run_dir):
    """Nobody can pass these tasks: every round is sampled, nothing is learned, the reward is logged."""
    never = Rubric(criteria=(Criterion(field="answer", check="equals", expected="never"),))
    wrong = [make_task(bundle, book, verifier=never) for book in (2, 5)]
    config = CONFIG.model_copy(update={"steps": 1, "groups_per_step": 2, "max_rounds": 3})
    policy = train_grpo(config, half_trained, wrong, pool, run_dir)
    (row,) = read_metrics(run_dir / "train.jsonl")
    assert (row["groups"], row["groups_kept"], row["reward"]) == (6, 0, 0.0)
    same(policy.params, half_trained.params)


def test_a_broken_sandbox_is_tried_once_more(half_trained, pool, twins, monkeypatch):
    config, eos = half_trained.config, half_trained.tokenizer.eos_id
    engine = Engine(config, half_trained.params, slots=16, max_len=640, eos_id=eos)
    whole, opened = EnvPool.open, []

    def breaks_three_times(self, task):
        opened.append(task.id)
        if len(opened) <= 3:
            raise InfrastructureError("no process left")
        return whole(self, task)

    config = CONFIG.model_copy(update={"groups_per_step": 1, "max_rounds": 1})
    plain, _ = collect(config, 0, 0, twins, engine, half_trained, pool)
    monkeypatch.setattr(EnvPool, "open", breaks_three_times)
    mended, _ = collect(config, 0, 0, twins, engine, half_trained, pool)
    assert len(opened) == CONFIG.group_size + 3
    assert mended == plain


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_grpo_raises_the_pass_rate_in_a_real_environment(seed, half_trained, pool, twins, run_dir):
    """From below 0.2 to above 0.8: the policy knows two answers and comes to give the right one."""
    config = GRPOConfig(
        seed=seed,
        steps=32,
        groups_per_step=4,
        slots=32,
        limits=LIMITS,
        batch=BatchConfig(row_length=640, rows=1),
        learner=LearnerConfig(optimizer=OptimizerConfig(learning_rate=2e-3)),
    )
    train_grpo(config, half_trained, twins, pool, run_dir)
    rewards = [row["reward"] for row in read_metrics(run_dir / "train.jsonl")]
    assert rewards[0] < 0.2
    assert np.mean(rewards[-4:]) > 0.8
