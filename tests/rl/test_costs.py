"""What the metrics say of a step: costs by formula, and what became of its episodes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.config import ModelConfig
from model.transformer import init_params, make_graphdef
from rl.batch import Sample, pack
from rl.costs import forward_flops, machine_peak, memory, update_flops
from rl.groups import error_kind, sampling_metrics
from rl.policy import Policy
from synth.types import Trajectory, Turn, Verdict

CONFIG = ModelConfig(
    vocab_size=512, d_model=128, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=32, d_ff=256, max_len=64
)


def sample(length: int) -> Sample:
    zeros = np.zeros(length, np.float32)
    return Sample(np.arange(length, dtype=np.int32), zeros, zeros, zeros)


def test_the_formula_agrees_with_the_compiler_s_count():
    """XLA also counts norms, softmax and masked scores, so it may say more, but not much."""
    policy = Policy(CONFIG, None, make_graphdef(CONFIG), None, None)  # pyright: ignore[reportArgumentType]
    batch = jax.tree.map(jnp.asarray, pack([sample(65)], 64))
    compiled = jax.jit(policy.score).lower(init_params(CONFIG, 0), batch).compile()
    counted = compiled.cost_analysis()["flops"]
    formula = forward_flops(CONFIG, 64, 64 * 64)  # dense attention computes masked scores too
    assert formula == pytest.approx(counted, rel=0.15)


def test_padding_is_no_work_and_each_forward_counts_once():
    narrow, wide = pack([sample(20)], 32), pack([sample(20)], 64)
    assert update_flops(CONFIG, [[narrow]], 0) == update_flops(CONFIG, [[wide]], 0) > 0
    assert update_flops(CONFIG, [[narrow]], 1) == pytest.approx(update_flops(CONFIG, [[narrow]], 0) * 4 / 3)
    assert update_flops(CONFIG, [], 1) == 0


def test_a_peak_says_where_it_is_from():
    peak = machine_peak()
    assert peak.flops > 1e8
    assert "published" in peak.name or "timed on this machine" in peak.name


def test_memory_is_in_gib():
    assert 0.01 < memory()["memory_gib"] < 1000


def episode(passed: bool, env: str, *errors: str | None, version: int = 3) -> Trajectory:
    turns = [Turn(role="prompt", text="", start=0, end=1)]
    turns.append(Turn(role="assistant", text="", start=1, end=2, policy_version=version))
    turns += [Turn(role="tool", text="", start=2, end=2, error=error) for error in errors]
    return Trajectory(
        task_id="t", env_id=env, sample=0, seed=0, turns=tuple(turns), token_ids=(1, 2), logprobs=(0.0, -1.0),
        loss_mask=(0, 1), finish_reason="answer", verdict=Verdict(passed=passed),
    )  # fmt: skip


def test_errors_count_by_kind_an_episode_and_rules_of_environments_are_one_kind():
    group = [episode(True, "a", "not_on_shelf", "timeout"), episode(False, "a", "no_such_member", None)]
    numbers = sampling_metrics([group])
    assert (numbers["tool_error/refused"], numbers["tool_error/timeout"]) == (1.0, 0.5)
    assert error_kind(group[0].turns[1]) is None  # an assistant's turn is no result


def test_reward_raw_filtered_and_by_class():
    mixed, lost = [episode(True, "a"), episode(False, "a")], [episode(False, "b")] * 2
    numbers = sampling_metrics([mixed, lost], 3, {"a": "Travel", "b": "Trade", "c": "Culture"})
    assert (numbers["reward"], numbers["reward_kept"]) == (0.25, 0.5)
    assert {k: v for k, v in numbers.items() if k[:5] == "pass/"} == {"pass/Travel": 0.5, "pass/Trade": 0.0}


def test_staleness_is_of_what_is_trained_on():
    fresh, old = [episode(True, "a"), episode(False, "a", version=2)], [episode(False, "a", version=0)] * 2
    numbers = sampling_metrics([fresh, old], 3)
    assert (numbers["staleness"], numbers["staleness_max"]) == (0.5, 1)
