"""bench_engine.py's batch in Tunix's sampler: ``python engine_tunix.py SPEC`` prints JSON."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import random
import sys
import time
from typing import Any

from flax import nnx
from tunix.generate.sampler import CacheConfig, Sampler
from tunix_numbers import Numbers


def make_model(spec: dict[str, Any]) -> nnx.Module:
    """Random weights of the shape, float32."""
    family = "qwen3" if spec["qk_norm"] else "llama3"
    module = importlib.import_module(f"tunix.models.{family}.model")
    tied = {"use_tied_embedding": True} if family == "qwen3" else {"weight_tying": True}
    config = module.ModelConfig(
        num_layers=spec["n_layers"],
        vocab_size=spec["vocab_size"],
        embed_dim=spec["d_model"],
        hidden_dim=spec["d_ff"],
        num_heads=spec["n_heads"],
        head_dim=spec["head_dim"],
        num_kv_heads=spec["n_kv_heads"],
        rope_theta=10_000,
        norm_eps=1e-6,
        **tied,
    )
    return (module.Qwen3 if family == "qwen3" else module.Llama3)(config, rngs=nnx.Rngs(0))


def main() -> None:
    spec = json.loads(sys.argv[1])
    length = spec["prompt_tokens"] + spec["new_tokens"]
    cache = CacheConfig(length, spec["n_layers"], spec["n_kv_heads"], spec["head_dim"])
    sampler = Sampler(make_model(spec), Numbers(), cache)
    rng = random.Random(0)
    word = lambda: str(rng.randrange(3, spec["vocab_size"]))  # noqa: E731
    seconds = []
    for number in range(1 + spec["repeats"]):
        own = spec["prompt_tokens"] - 1  # the sampler puts a start token in front
        prompts = [" ".join(word() for _ in range(own)) for _ in range(spec["prompts"])]
        prompts = [prompt for prompt in prompts for _ in range(spec["group"])]
        start = time.perf_counter()
        out = sampler(
            prompts, spec["new_tokens"], max_prompt_length=spec["prompt_tokens"], temperature=1.0, top_p=1.0,
            seed=number, eos_tokens=[spec["vocab_size"]],  # no such token, so none ends a sample
        )  # fmt: skip
        lengths = {len(tokens) for tokens in out.tokens}
        seconds.append(time.perf_counter() - start)
        assert lengths == {spec["new_tokens"]}, lengths
    print(json.dumps({"version": importlib.metadata.version("google-tunix"), "seconds": seconds}))


if __name__ == "__main__":
    main()
