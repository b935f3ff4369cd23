"""A program that computes begins again with huge pages, once; nothing else changes for it or its children."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from model.huge_pages import BEFORE, TUNABLE, wanted

PROGRAM = """
import json, os, subprocess, sys
from pathlib import Path
from model.huge_pages import with_huge_pages
with_huge_pages()
block = bytearray(64 << 20)
smaps = Path("/proc/self/smaps_rollup").read_text()
huge = next(int(line.split()[1]) for line in smaps.splitlines() if line.startswith("AnonHugePages"))
child = subprocess.check_output([sys.executable, "-c", "import os; print(os.environ.get('GLIBC_TUNABLES'))"])
print(json.dumps({
    "huge_kib": huge, "words": sys.argv[1:], "pid": os.getpid(), "child": child.decode().strip(),
    "environment": sorted(name for name in os.environ if "TUNABLES" in name),
}))
"""
here = pytest.mark.skipif(not wanted({}), reason="this machine's C library or kernel gives no huge pages")


def run(tunables: str | None = None, *words: str) -> tuple[dict, int]:
    environment = {name: value for name, value in os.environ.items() if "TUNABLES" not in name}
    if tunables is not None:
        environment["GLIBC_TUNABLES"] = tunables
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words], env=environment, stdout=subprocess.PIPE, text=True
    )
    out = process.communicate()[0]
    assert process.returncode == 0
    return json.loads(out), process.pid


@here
def test_large_memory_comes_in_huge_pages_and_the_process_keeps_its_number_and_words():
    found, pid = run(None, "train", "a run", "--steps=3")
    assert found["huge_kib"] >= 32 << 10
    assert found["words"] == ["train", "a run", "--steps=3"]
    assert found["pid"] == pid


@here
def test_children_do_not_inherit_it():
    found, _ = run()
    assert found["child"] == "None"
    assert found["environment"] == []


@here
def test_other_tunables_stay():
    found, _ = run("glibc.malloc.check=0")
    assert found["huge_kib"] >= 32 << 10
    assert found["child"] == "glibc.malloc.check=0"


def test_who_sets_it_decides():
    found, _ = run(f"{TUNABLE}=0")
    assert found["huge_kib"] == 0
    assert found["child"] == f"{TUNABLE}=0"


def test_a_user_who_has_it_already_begins_only_once():
    assert not wanted({"GLIBC_TUNABLES": f"glibc.malloc.check=0:{TUNABLE}=1"})
    assert BEFORE not in run(f"{TUNABLE}=1")[0]["environment"]


@pytest.mark.parametrize("library", [None, "", "glibc 2.31", "musl 1.2"])
def test_an_old_or_other_c_library_is_left_alone(monkeypatch, library):
    monkeypatch.setattr(os, "confstr", lambda name: library)
    assert not wanted({})
