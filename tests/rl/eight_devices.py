"""One minibatch's gradient, made in many ways; run by test_gradients.py in a process with 8 virtual devices.

Prints a JSON object: way -> largest relative difference over the parameters to the plain way (one device,
packed rows with shared prompts, the whole minibatch at once), as |a - b| / |a| of each array.
"""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np
from flax import nnx

from model.config import ModelConfig
from model.sharding import make_mesh, shard_batch, shard_params
from model.transformer import init_params, make_graphdef
from rl.algorithms import ALGORITHMS
from rl.batch import Batch, Sample, fill, micro_batches, plan
from rl.learner import Learner, LearnerConfig
from rl.policy import Policy

CONFIG = ModelConfig(
    vocab_size=64, d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=8, d_ff=64, max_len=64
)
LENGTH, ROWS = 64, 4
MESHES = {"fsdp 4 x tensor 2": {"fsdp": 4, "tensor": 2}, "data 2 x sequence 4": {"data": 2, "sequence": 4}}


def groups() -> list[Sample]:
    """Three groups of four: a prompt of 10 tokens, turns of the policy, tool results in between."""
    rng, made = np.random.default_rng(0), []
    for group in range(3):
        prompt = rng.integers(0, CONFIG.vocab_size, 10)
        for _ in range(4):
            n = int(rng.integers(3, 17))
            ids = np.concatenate([prompt, rng.integers(0, CONFIG.vocab_size, n)]).astype(np.int32)
            weights = (np.arange(len(ids)) >= len(prompt)) & (np.arange(len(ids)) % 5 != 0)
            logprobs = -4.2 + rng.normal(0, 0.3, len(ids))
            advantages = np.full(len(ids), rng.normal())
            made.append(Sample(ids, weights.astype(np.float32), logprobs, advantages, len(prompt), group))
    return made


def difference(a: Any, b: Any) -> float:
    """See the module; arrays may lie on different devices."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    arrays = [(np.asarray(x, np.float64), np.asarray(y, np.float64)) for x, y in pairs]
    assert all(np.linalg.norm(x) > 0 for x, _ in arrays)
    return max(float(np.linalg.norm(x - y) / np.linalg.norm(x)) for x, y in arrays)


def main() -> None:
    assert jax.device_count() == 8
    params, reference = init_params(CONFIG, 0), init_params(CONFIG, 1)
    policy = Policy(CONFIG, params, make_graphdef(CONFIG), None, None)  # pyright: ignore[reportArgumentType]
    packed = fill(plan(groups(), LENGTH, share_prompts=True), LENGTH, at_least=ROWS)
    assert packed.rows == ROWS
    one_a_row = fill([[segment] for row in plan(groups(), LENGTH) for segment in row], LENGTH)
    assert one_a_row.rows == 12

    def gradient(
        learner: Learner, micro: list[Batch], params: nnx.State = params, ref: nnx.State = reference
    ):
        return learner.gradients(params, micro, ref)[0]

    found = {}
    for name in ("grpo", "gspo"):
        config = LearnerConfig(**(ALGORITHMS[name]["learner"] | {"clip_low": 0.2, "clip_high": 0.28}))
        learner = Learner(policy.score, config)
        plain = gradient(learner, [packed])
        for mesh_name, axes in MESHES.items():
            mesh = make_mesh(**axes)
            placed, ref = shard_params(mesh, params), shard_params(mesh, reference)
            batch = shard_batch(mesh, packed)
            assert len(batch.tokens.sharding.device_set) == 8
            assert not batch.tokens.sharding.is_fully_replicated
            found[f"{name}: {mesh_name}"] = difference(plain, gradient(learner, [batch], placed, ref))
        found[f"{name}: accumulated"] = difference(plain, gradient(learner, micro_batches(packed, 1)))
        unpacked = micro_batches(one_a_row, ROWS)  # the shape that is compiled already
        found[f"{name}: unpacked"] = difference(plain, gradient(learner, unpacked))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
