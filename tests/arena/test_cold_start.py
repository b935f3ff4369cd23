"""`agent-world sft`: verified calls, replayed in the sandbox, become what a policy learns from."""

import json

import pytest
from arena_samples import save_tiny_policy
from arena_samples import task as make_task
from fixtures.make import library, parking

from arena.cold_start import run_sft
from arena.folder import write_records, write_text
from arena.training import read_config, run_train
from rl.jobs import RolloutLimits
from synth.env.bundle import write_bundle
from synth.errors import CallerError
from synth.types import ToolStep


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return save_tiny_policy(tmp_path_factory.mktemp("policy"), '{"name": "search_books", "arguments": {}}')


@pytest.fixture
def run(tmp_path):
    """The library trains, with solutions; the car park is held out."""
    marked = parking().theme.model_copy(update={"spec": {"arena": True}})
    held = parking().model_copy(update={"taxonomy": ("Culture", "Car parks"), "theme": marked})
    digest = write_bundle(library(), tmp_path / "bundles" / "library").digest
    write_bundle(held, tmp_path / "bundles" / "parking")
    steps = [ToolStep(tool="search_books", arguments={"genre": genre}) for genre in ("travel", "nature")]
    tasks = [
        make_task(f"library.{n}", "library", (step,), pattern="find", env_digest=digest)
        for n, step in enumerate(steps * 2)
    ]
    write_records(tmp_path / "tasks" / "library.train.jsonl", tasks)
    lines = [
        {"task_id": t.id, "calls": [s.model_dump(include={"tool", "arguments"}) for s in t.chain],
         "answer": t.reference_answer} for t in tasks
    ]  # fmt: skip
    write_text(tmp_path / "solutions" / "library.train.jsonl", "".join(json.dumps(x) + "\n" for x in lines))
    return tmp_path


def config(folder, **fields):
    lines = {"rows": 1, "row_length": 2048, **fields}
    path = folder / "sft.toml"
    path.write_text("".join(f"{name} = {value}\n" for name, value in lines.items()))
    return path


def test_a_policy_learns_from_replayed_solutions_and_training_goes_on_from_it(run, policy, capsys):
    assert run_sft(run, policy, config_file=config(run), epochs=3, seed=1, as_json=True) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["examples"], told["kept_out"], told["too_long"]) == (3, 1, 0)
    first, *_, last = told["kept_out_loss"]
    assert len(told["kept_out_loss"]) == 1 + 3  # before the first step, then after each epoch
    assert last < first
    grpo = run / "grpo.toml"
    grpo.write_text("steps = 1\ngroups_per_step = 1\ngroup_size = 2\nmax_rounds = 1\nslots = 2\n"
                    "[limits]\nmax_turns = 1\nmax_new_per_turn = 4\n")  # fmt: skip
    assert run_train(run, run / "train" / "sft" / "policy", config_file=grpo) == 0


def test_renamed_copies_are_learnt_from_beside_the_examples_and_none_of_what_is_kept_out(run, policy, capsys):
    assert run_sft(run, policy, config_file=config(run, renamed=2), epochs=1, as_json=True) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["examples"], told["kept_out"]) == (3 + 2 * 3, 1)


def test_examples_that_do_not_fit_a_row_are_counted_and_none_at_all_is_a_mistake(run, policy):
    with pytest.raises(CallerError, match=r"row_length 64: the shortest example has \d+ tokens"):
        run_sft(run, policy, config_file=config(run, row_length=64))


def test_without_solutions_or_with_held_out_tasks_nothing_is_learnt(run, policy):
    with pytest.raises(CallerError, match="no solutions of tasks tagged nothing"):
        run_sft(run, policy, tag="nothing")
    away = make_task("parking.0", "parking")
    write_records(run / "tasks" / "parking.train.jsonl", [away])
    with pytest.raises(CallerError, match="held out"):
        run_sft(run, policy)


def test_a_config_of_another_kind_names_the_field(run, policy, tmp_path):
    with pytest.raises(CallerError, match=r"sft\.toml: field steps: Extra inputs"):
        run_sft(run, policy, config_file=config(tmp_path, steps=3))


def test_the_arena_takes_its_limits_from_a_training_config(run, policy, tmp_path, monkeypatch):
    from arena import cli, measure

    seen = []
    monkeypatch.setattr(measure, "run_arena", lambda *words: seen.append(words) or 0)
    path = tmp_path / "t.toml"
    path.write_text("[limits]\nmax_len = 3072\n")
    assert cli.main(["arena", str(run), "--config", str(path)]) == 0
    limits = next(given for given in seen[0] if isinstance(given, RolloutLimits))
    assert limits == read_config(path, None, None).limits
    assert limits.max_len == 3072
