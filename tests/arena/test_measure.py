"""A whole arena round with real parts: a random tiny policy, sandboxed environments, files on disk."""

import json

import pytest
from arena_samples import save_tiny_policy
from arena_samples import task as make_task
from fixtures.make import library, parking

from arena.commands import run_evolve
from arena.evolve import read_requests
from arena.folder import RunFolder, write_records
from arena.measure import run_arena
from arena.training import read_config, run_train
from rl.rollout import RolloutLimits
from synth.env.bundle import write_bundle
from synth.errors import CallerError
from synth.types import ToolStep

LIMITS = RolloutLimits(max_turns=2, max_new_per_turn=8, max_len=1024)


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return save_tiny_policy(tmp_path_factory.mktemp("policy"), "Lend a book to a member.")


@pytest.fixture
def run(tmp_path):
    """The library is held out, the car park trains; both are of one class."""
    measured, trains = library(), parking().model_copy(update={"taxonomy": ("Culture", "Car parks")})
    measured = measured.model_copy(
        update={"theme": measured.theme.model_copy(update={"spec": {"arena": True}})}
    )
    digests = {}
    for env in (measured, trains):
        digests[env.env_id] = write_bundle(env, tmp_path / "bundles" / env.env_id).digest
    step = ToolStep(tool="search_books", arguments={"genre": "travel"})
    tasks = [
        make_task(f"library.{n}", "library", (step,), pattern="find", env_digest=digests["library"])
        for n in range(3)
    ]
    write_records(tmp_path / "tasks" / "library.heldout.jsonl", tasks)
    garage = make_task("parking.0", "parking", env_digest=digests["parking"])
    write_records(tmp_path / "tasks" / "parking.train.jsonl", [garage])
    return RunFolder(tmp_path)


def test_a_round_is_measured_saved_diagnosed_and_asked_about(run, policy, capsys):
    code = run_arena(run.root, policy, name="before training", samples=2, as_json=True, limits=LIMITS)
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == 0
    (stage,) = run.rounds()
    report, episodes = stage.report(), stage.episodes()
    assert printed["round"] == report.round == "before training"
    assert [(t.task_id, t.sample) for t in episodes] == [
        (f"library.{n}", s) for n in range(3) for s in (0, 1)
    ]
    assert report.infrastructure_errors == 0
    assert list(report.per_class) == ["Culture"]
    assert report.overall.passed == 0.0  # random weights
    assert report.overall.high < 1.0
    assert (run.root / "report.html").exists()

    assert run_evolve(run.root, budget=5, seed=0, as_json=True) == 0
    diagnosis = stage.diagnosis()
    assert diagnosis is not None
    assert [w.env_id for w in diagnosis.weaknesses] == ["library"]
    wanted = read_requests(stage.folder / "requests.jsonl")
    assert {r.env_id for r in wanted} == {"parking"}
    assert sum(r.count for r in wanted) == 5


def test_the_same_seed_measures_the_same(run, policy):
    for _ in range(2):
        run_arena(run.root, policy, count=2, samples=2, seed=3, limits=LIMITS)
    first, second = (stage.episodes() for stage in run.rounds())
    assert first == second
    assert len(first) == 4


def test_what_training_sees_is_not_measured(run, policy):
    with pytest.raises(CallerError, match=r"task parking\.0 is of parking, which is not held out"):
        run_arena(run.root, policy, tag="train", limits=LIMITS)
    (held_out,) = [t for t in run.tasks().values() if t.id == "library.0"]
    write_records(run.root / "tasks" / "library.evolve1.jsonl", [held_out])
    with pytest.raises(CallerError, match=r"library\.0 is in training and in the arena"):
        run_arena(run.root, policy, limits=LIMITS)


def test_training_refuses_held_out_tasks_and_bad_configs(run, tmp_path, policy):
    with pytest.raises(CallerError, match=r"training task library\.0 is of library, which is held out"):
        run_train(run.root, policy, tag="heldout")
    with pytest.raises(CallerError, match="no tasks tagged nope"):
        run_train(run.root, policy, tag="nope")
    config = tmp_path / "grpo.toml"
    config.write_text("steps = 3\nstep = 1\n[limits]\nmax_turns = 4\n")
    with pytest.raises(CallerError, match=r"grpo\.toml: field step: Extra inputs"):
        read_config(config, None, None)
    config.write_text("steps = 3\n[limits]\nmax_turns = 4\n")
    found = read_config(config, steps=None, seed=9)
    assert (found.steps, found.seed, found.limits.max_turns) == (3, 9, 4)
    config.write_text("steps = = 3")
    with pytest.raises(CallerError, match="not TOML"):
        read_config(config, None, None)


def test_a_short_training_leaves_a_policy_and_curves(run, policy, tmp_path, capsys):
    config = tmp_path / "grpo.toml"
    config.write_text(
        "steps = 1\ngroups_per_step = 1\ngroup_size = 2\nmax_rounds = 1\nslots = 2\n"
        "[limits]\nmax_turns = 2\nmax_new_per_turn = 8\n"
    )
    for expected in (1, 0):  # the second call finds all steps done
        assert run_train(run.root, policy, config_file=config, as_json=True) == 0
        printed = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert len(printed["rewards"]) == expected
    assert [row["step"] for row in run.metrics()["grpo"]] == [0]
    assert run.find_episode("parking.0#1").env_id == "parking"
    assert run_arena(run.root, run.root / "train" / "grpo" / "policy", count=1, samples=1, limits=LIMITS) == 0


def test_what_is_missing_is_named(run, tmp_path):
    with pytest.raises(CallerError, match="no tasks tagged nope"):
        run_arena(run.root, tag="nope")
    with pytest.raises(CallerError, match=r"not a policy folder .*config\.json is missing"):
        run_arena(run.root, tmp_path)
