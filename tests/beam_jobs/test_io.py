"""Whole files or none, receipts that prove, litter that is swept, letters that are kept apart."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from beam_jobs import io


def test_the_key_depends_on_content_only() -> None:
    assert io.content_key(a=1, b={"x": 1, "y": 2}) == io.content_key(b={"y": 2, "x": 1}, a=1)
    assert io.content_key(a=1) != io.content_key(a=2) != io.content_key(b=1)


def test_a_folder_that_fails_while_it_is_filled_leaves_the_old_one(tmp_path: Path) -> None:
    run = io.open_run(tmp_path)

    def fill(text: str, *, fail: bool):
        def build(where: Path) -> None:
            where.mkdir()
            (where / "a.txt").write_text(text)
            if fail:
                raise ValueError("half way")

        return build

    io.write_folder(run, "bundles/x", fill("old", fail=False))
    with pytest.raises(ValueError, match="half way"):
        io.write_folder(run, "bundles/x", fill("new", fail=True))
    assert (run / "bundles/x/a.txt").read_text() == "old"
    io.write_folder(run, "bundles/x", fill("new", fail=False))
    assert (run / "bundles/x/a.txt").read_text() == "new"
    assert not list((run / "tmp").iterdir())


LITTER = """
import os, sys
from pathlib import Path
from beam_jobs import io
room = io.scratch(Path(sys.argv[1]))
room.__enter__()
os._exit(0)
"""


def test_sweeping_takes_the_litter_of_dead_writers_only(tmp_path: Path) -> None:
    run = io.open_run(tmp_path)
    writer = subprocess.Popen([sys.executable, "-c", LITTER, str(run)])
    os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)  # ended, but still a zombie
    (litter,) = (run / "tmp").iterdir()
    host, _, rest = litter.name.partition("~")
    reused = litter.with_name(f"{host}~{os.getpid()}~1~x")  # a dead writer's number, given to us since
    elsewhere = litter.with_name(f"other-{host}~{rest}")
    reused.mkdir()
    elsewhere.mkdir()
    with io.scratch(run) as ours:
        io.open_run(run)
        assert set((run / "tmp").iterdir()) == {ours, elsewhere}
    writer.wait()


def test_the_fingerprint_of_a_folder_sees_names_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x").write_text("1")
    before = io.fingerprint(tmp_path / "a")
    (tmp_path / "a/x").rename(tmp_path / "a/y")
    renamed = io.fingerprint(tmp_path / "a")
    (tmp_path / "a/y").write_text("2")
    assert len({before, renamed, io.fingerprint(tmp_path / "a")}) == 3
    with pytest.raises(FileNotFoundError):
        io.fingerprint(tmp_path / "b")
