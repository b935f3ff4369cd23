"""What the benchmark counts, on a tiny shape; and what it says of peers, with stand-ins for them."""

from __future__ import annotations

import json

import bench_engine
import pytest
from bench_engine import BATCH, EPISODES, bounds, episodes, main

from model.config import ModelConfig
from model.transformer import init_params

TINY = ModelConfig(
    vocab_size=128, d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=8, d_ff=32, max_len=1024
)


def test_kept_caches_and_groups_save_prefill():
    """The whole conversation once, against the whole of it again in each turn; a group's prompt once of 8."""
    figures = episodes(TINY, init_params(TINY, 0), repeats=1)
    count, turns, prompt = (EPISODES[name] for name in ("conversations", "turns", "prompt_tokens"))
    message, new = EPISODES["message_tokens"], EPISODES["new_tokens"]
    assert figures["kept"]["prefill_tokens"] == prompt + count * (turns - 1) * message
    grown = sum(prompt + turn * (message + new) for turn in range(1, turns))
    assert figures["not_kept"]["prefill_tokens"] == prompt + count * grown
    assert figures["kept_saved"] > 0.6
    assert figures["group_saved"] == pytest.approx(7 / 8, abs=1e-4)


def test_the_bound_is_the_larger_of_bytes_and_flops_over_the_time(monkeypatch):
    monkeypatch.setattr(bench_engine, "bandwidth", lambda: 1e9)
    monkeypatch.setattr(bench_engine, "matmul_rate", lambda: 1e12)
    figures = bounds(TINY, init_params(TINY, 0), seconds=1.0)
    assert figures["seconds_by_bytes"] > figures["seconds_by_flops"]
    assert figures["share_of_bound"] == pytest.approx(figures["seconds_by_bytes"], abs=1e-3)


def test_a_peers_rate_is_the_median_after_its_first_run_and_a_lost_one_is_named(
    tmp_path, monkeypatch, capsys
):
    peer = tmp_path / "tunix"
    peer.write_text(f"#!/bin/sh\necho '{json.dumps({'version': '1', 'seconds': [50.0, 2.0, 1.0, 4.0]})}'")
    peer.chmod(0o755)
    monkeypatch.setenv("AGENT_WORLD_TUNIX_PYTHON", str(peer))
    monkeypatch.setenv("AGENT_WORLD_TRANSFORMERS_PYTHON", "/no/such/python")
    code = main(["--model", "toy", "--only", "tunix,transformers"])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (code, result["met"], result["ratios"]) == (0, False, {})
    figures = result["figures"]["toy"]["tunix"]
    tokens = BATCH["prompts"] * BATCH["group"] * BATCH["new_tokens"]
    assert (figures["tokens_per_second"], figures["first_seconds"]) == (tokens / 2.0, 50.0)
    assert result["missing"] == {"toy transformers": "/no/such/python: No such file or directory"}
