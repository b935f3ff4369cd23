"""What the benchmark says of its peers, with stand-ins for them; the measuring itself is run by hand."""

from __future__ import annotations

import json

import pytest
from bench_grpo import PEERS, SPEC, main, summary

STEP = {"sampling": 0.5, "scoring": 0.1, "update": 0.4, "step": 1.0}


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Makes a program that takes the place of a peer's Python."""

    def make(peer: str, script: str) -> None:
        path = tmp_path / peer
        path.write_text("#!/bin/sh\n" + script)
        path.chmod(0o755)
        monkeypatch.setenv(f"AGENT_WORLD_{peer.upper()}_PYTHON", str(path))

    return make


def run(capsys, *words: str) -> tuple[int, dict]:
    code = main(words)
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_peer_that_cannot_be_measured_is_missing_with_the_reason(capsys, stand_in, monkeypatch):
    monkeypatch.setenv("AGENT_WORLD_TRL_PYTHON", "/no/such/python")
    stand_in("tunix", "echo 'first line' >&2; echo 'ImportError: no tunix' >&2; exit 3")
    code, result = run(capsys, "--only", "trl,tunix")
    assert (code, result["name"], result["met"], result["figures"]) == (0, "grpo", False, {})
    assert result["missing"] == {
        "trl": "/no/such/python: No such file or directory",
        "tunix": "failed: ImportError: no tunix",
    }


def test_without_a_named_python_only_an_installed_package_is_a_peer(capsys, monkeypatch):
    for peer in PEERS:
        monkeypatch.delenv(f"AGENT_WORLD_{peer.upper()}_PYTHON", raising=False)
        monkeypatch.setitem(PEERS, peer, "a_package_that_nobody_has")
    _, result = run(capsys, "--only", "trl")
    assert "AGENT_WORLD_TRL_PYTHON" in result["missing"]["trl"]


def test_figures_are_medians_after_the_warm_steps(capsys, stand_in):
    warm = [dict.fromkeys(STEP, 100.0)] * SPEC["warm"]
    steps = [*warm, STEP, STEP | {"step": 9.0}, STEP]
    stand_in("trl", f"echo noise; echo '{json.dumps({'version': '1', 'steps': steps})}'")
    _, result = run(capsys, "--only", "trl", "--steps", "3")
    figures = result["figures"]["trl"]
    assert figures == summary(SPEC, {"version": "1", "steps": steps})
    assert (figures["step_seconds"], figures["sampling_seconds"], figures["first_step_seconds"]) == (
        1,
        0.5,
        100,
    )
    assert figures["tokens_per_second"] == 4 * 8 * 64
