"""The miner's shell: real commands over the documents that were read, and nothing else within reach."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from synth_sandbox import bubblewrap_works

from synth.author.online import shell
from synth.author.online.shell import run_shell, shell_works
from synth.author.web import Document

pytestmark = pytest.mark.skipif(not bubblewrap_works(), reason="the shell runs in bubblewrap")


def document(url, text, kind="text/csv"):
    return Document(url, "t", kind, text, "0", "CC0-1.0", "2026-11-30", url)


DOCUMENTS = {
    "file:lakes.csv": document("file:lakes.csv", "name,m\nBaikal,1642\nVanern,106\n"),
    "https://x.example/a/b?page=2": document("https://x.example/a/b?page=2", "<p>Vänern</p>", "text/html"),
}


def test_commands_work_over_what_was_read():
    assert run_shell("sort -t, -k2 -n 01-lakes.csv | tail -1", DOCUMENTS).output == "Baikal,1642\n"
    assert run_shell("grep -c Vänern *", DOCUMENTS).output.splitlines() == [
        "01-lakes.csv:0", "02-b.html:1", "INDEX.tsv:0"
    ]  # fmt: skip
    index = run_shell("cat INDEX.tsv", DOCUMENTS).output.splitlines()
    assert index == ["01-lakes.csv\tfile:lakes.csv", "02-b.html\thttps://x.example/a/b?page=2"]


def test_errors_and_their_status_are_shown():
    ran = run_shell("ls gone; exit 3", DOCUMENTS)
    assert ran.status == 3
    assert "gone" in ran.output


@pytest.mark.parametrize(
    "command",
    [
        "echo x > 01-lakes.csv",  # what was read stays as it is
        "rm 01-lakes.csv",
        "cat /etc/passwd",
        "cat /proc/1/environ | tr '\\0' '\\n' | grep -i key",
        "ls /home /root /work",
        "python3 -c \"import socket; socket.create_connection(('127.0.0.1', 22), 2)\"",
    ],
)
def test_nothing_else_is_within_reach(command, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    ran = run_shell(command, DOCUMENTS)
    assert ran.status != 0
    assert "sk-secret" not in ran.output
    assert "root:" not in ran.output


def test_scratch_is_gone_with_the_command():
    assert run_shell("echo 7 > /tmp/x && cat /tmp/x", DOCUMENTS).output == "7\n"
    assert run_shell("cat /tmp/x", DOCUMENTS).status != 0


def test_a_command_that_never_ends_or_never_stops_talking_is_bounded(monkeypatch):
    quick = shell.LIMITS.__class__(wall_s=1.0, cpu_s=5, state_mb=1)
    monkeypatch.setattr(shell, "LIMITS", quick)
    slow = run_shell("sleep 60", DOCUMENTS)
    assert (slow.status, "ended after 1 s" in slow.output) == (124, True)
    loud = run_shell("yes", DOCUMENTS)
    assert loud.status != 0
    assert len(loud.output) <= shell.SHOWN + 40


def test_without_bubblewrap_there_is_no_shell(monkeypatch):
    from synth.env import program, sandbox

    monkeypatch.setattr(program, "pick_provider", lambda: sandbox.Landlock())
    assert not shell_works()
