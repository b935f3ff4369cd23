"""The toy of bench_grpo.py in Tunix: ``python grpo_tunix.py SPEC`` prints seconds of each step as JSON."""

from __future__ import annotations

import importlib.metadata
import json
import random
import sys
import time
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from tunix.models.qwen3.model import ModelConfig, Qwen3
from tunix.rl import rl_cluster
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rollout.base_rollout import RolloutConfig
from tunix_numbers import Numbers


class Clock:
    """Seconds of each step and of its phases, with the device's work done when the clock stops."""

    def __init__(self):
        self.steps: list[dict[str, float]] = []
        self.phases = {"sampling": 0.0, "scoring": 0.0}

    def wrap(self, owner: Any, method: str, phase: str) -> None:
        inner = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = inner(*args, **kwargs)
            jax.block_until_ready([x for x in jax.tree.leaves(result) if isinstance(x, jax.Array)])
            self.phases[phase] += time.perf_counter() - start
            return result

        setattr(owner, method, timed)

    def wrap_step(self, learner: GRPOLearner, actor: nnx.Module) -> None:
        inner = learner._run_global_step

        def timed(*args: Any, **kwargs: Any) -> None:
            self.phases = {"sampling": 0.0, "scoring": 0.0}
            start = time.perf_counter()
            inner(*args, **kwargs)
            jax.block_until_ready(jax.tree.leaves(nnx.state(actor)))
            step = time.perf_counter() - start
            self.steps.append(self.phases | {"update": step - sum(self.phases.values()), "step": step})

        learner._run_global_step = timed  # pyright: ignore[reportAttributeAccessIssue]


def make_model(spec: dict[str, Any]) -> Qwen3:
    config = ModelConfig(
        num_layers=spec["n_layers"],
        vocab_size=spec["vocab_size"],
        embed_dim=spec["d_model"],
        hidden_dim=spec["d_ff"],
        num_heads=spec["n_heads"],
        head_dim=spec["head_dim"],
        num_kv_heads=spec["n_kv_heads"],
        rope_theta=10_000,
        norm_eps=1e-6,
        use_tied_embedding=True,
    )
    return Qwen3(config, rngs=nnx.Rngs(0))


def main() -> None:
    spec = json.loads(sys.argv[1])
    count = spec["warm"] + spec["steps"]
    mesh = jax.make_mesh((1, 1), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    rng = random.Random(0)
    word = lambda: str(rng.randrange(3, spec["vocab_size"]))  # noqa: E731
    own = spec["prompt_tokens"] - 1  # the sampler puts a start token in front
    prompt = lambda: " ".join(word() for _ in range(own))  # noqa: E731
    # an array: Tunix repeats each leaf for the group, and a list would be one leaf a prompt
    data = [{"prompts": np.array([prompt() for _ in range(spec["prompts"])])} for _ in range(count)]
    lengths: set[int] = set()

    def parity(prompts: list[str], completions: list[str], **kwargs: Any) -> list[float]:
        ids = [[int(word) for word in text.split()] for text in completions]
        lengths.update(map(len, ids))
        return [float(sum(one) % 2) for one in ids]

    role = rl_cluster.Role
    with mesh:
        actor, reference = make_model(spec), make_model(spec)
        cluster = rl_cluster.RLCluster(
            actor=actor,
            reference=reference,
            tokenizer=Numbers(),
            cluster_config=rl_cluster.ClusterConfig(
                role_to_mesh={role.ACTOR: mesh, role.REFERENCE: mesh, role.ROLLOUT: mesh},
                training_config=rl_cluster.RLTrainingConfig(
                    actor_optimizer=optax.chain(
                        optax.clip_by_global_norm(1.0), optax.adamw(spec["learning_rate"], b2=0.95)
                    ),
                    eval_every_n_steps=10**9,
                    max_steps=count,
                ),
                rollout_config=RolloutConfig(
                    max_tokens_to_generate=spec["new_tokens"],
                    max_prompt_length=spec["prompt_tokens"],
                    kv_cache_size=spec["prompt_tokens"] + spec["new_tokens"],
                    temperature=1.0,
                    eos_tokens=[spec["vocab_size"]],  # no such token, so none ends a turn
                ),
            ),
        )
        config = GRPOConfig(
            num_generations=spec["group"],
            beta=spec["kl_weight"],
            epsilon=spec["clip_low"],
            loss_agg_mode="token-mean",
        )
        config.epsilon_high = spec["clip_high"]  # pyright: ignore[reportAttributeAccessIssue]
        learner = GRPOLearner(rl_cluster=cluster, reward_fns=parity, algo_config=config)
        clock = Clock()
        clock.wrap(cluster, "generate", "sampling")
        clock.wrap(cluster, "get_ref_per_token_logps", "scoring")
        clock.wrap_step(learner, cluster.actor_trainer.model)
        learner.train(data)
    assert lengths == {spec["new_tokens"]}, f"completions of {lengths} tokens"
    assert cluster.actor_trainer.train_steps == count, f"{cluster.actor_trainer.train_steps} optimizer steps"
    print(json.dumps({"version": importlib.metadata.version("google-tunix"), "steps": clock.steps[:count]}))


if __name__ == "__main__":
    main()
