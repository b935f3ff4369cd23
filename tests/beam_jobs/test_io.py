"""Whole files or none, receipts that prove, litter that is swept, letters that are kept apart."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from beam_jobs import io
from beam_jobs.store import LocalStore


def opened(path: Path) -> LocalStore:
    store = LocalStore(path)
    store.prepare()
    return store


def test_the_key_depends_on_content_only() -> None:
    assert io.content_key(a=1, b={"x": 1, "y": 2}) == io.content_key(b={"y": 2, "x": 1}, a=1)
    assert io.content_key(a=1) != io.content_key(a=2) != io.content_key(b=1)


def test_a_folder_that_fails_while_it_is_filled_leaves_the_old_one(tmp_path: Path) -> None:
    store = opened(tmp_path)

    def fill(text: str, *, fail: bool):
        def build(where: Path) -> None:
            where.mkdir()
            (where / "a.txt").write_text(text)
            if fail:
                raise ValueError("half way")

        return build

    store.write_folder("bundles/x", fill("old", fail=False))
    with pytest.raises(ValueError, match="half way"):
        store.write_folder("bundles/x", fill("new", fail=True))
    assert (tmp_path / "bundles/x/a.txt").read_text() == "old"
    store.write_folder("bundles/x", fill("new", fail=False))
    assert (tmp_path / "bundles/x/a.txt").read_text() == "new"
    assert not list((tmp_path / "tmp").iterdir())


LITTER = """
import os, sys
from pathlib import Path
from beam_jobs.store import LocalStore
room = LocalStore(Path(sys.argv[1])).scratch()
room.__enter__()
os._exit(0)
"""


def test_sweeping_takes_the_litter_of_dead_writers_only(tmp_path: Path) -> None:
    store = opened(tmp_path)
    writer = subprocess.Popen([sys.executable, "-c", LITTER, str(tmp_path)])
    os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)  # ended, but still a zombie
    (litter,) = (tmp_path / "tmp").iterdir()
    host, _, rest = litter.name.partition("~")
    reused = litter.with_name(f"{host}~{os.getpid()}~1~x")  # a dead writer's number, given to us since
    elsewhere = litter.with_name(f"other-{host}~{rest}")
    reused.mkdir()
    elsewhere.mkdir()
    with store.scratch() as ours:
        store.prepare()
        assert set((tmp_path / "tmp").iterdir()) == {ours, elsewhere}
    writer.wait()


def test_the_fingerprint_of_a_folder_sees_names_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x").write_text("1")
    store = opened(tmp_path)
    before = store.fingerprint("a")
    (tmp_path / "a/x").rename(tmp_path / "a/y")
    renamed = store.fingerprint("a")
    (tmp_path / "a/y").write_text("2")
    assert len({before, renamed, store.fingerprint("a")}) == 3
    with pytest.raises(FileNotFoundError):
        store.fingerprint("b")
