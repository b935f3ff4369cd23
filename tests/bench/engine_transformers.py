"""The batch of bench_engine.py in transformers (torch CPU): ``python engine_transformers.py SPEC``."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch
import transformers


def make_model(spec: dict[str, Any]) -> Any:
    """Random weights of the shape, float32."""
    sizes = {
        "vocab_size": spec["vocab_size"],
        "hidden_size": spec["d_model"],
        "num_hidden_layers": spec["n_layers"],
        "num_attention_heads": spec["n_heads"],
        "num_key_value_heads": spec["n_kv_heads"],
        "head_dim": spec["head_dim"],
        "intermediate_size": spec["d_ff"],
        "max_position_embeddings": spec["prompt_tokens"] + spec["new_tokens"],
        "tie_word_embeddings": True,
    }
    config = transformers.Qwen3Config(**sizes) if spec["qk_norm"] else transformers.LlamaConfig(**sizes)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def main() -> None:
    spec = json.loads(sys.argv[1])
    torch.set_num_threads(os.cpu_count() or 1)
    model, size = make_model(spec), (spec["prompts"], spec["prompt_tokens"])
    seconds = []
    for number in range(1 + spec["repeats"]):
        torch.manual_seed(number)
        prompts = torch.randint(3, spec["vocab_size"], size).repeat_interleave(spec["group"], 0)
        start = time.perf_counter()
        with torch.inference_mode():
            ids = model.generate(
                prompts, attention_mask=torch.ones_like(prompts), do_sample=True, temperature=1.0, top_k=0,
                max_new_tokens=spec["new_tokens"], eos_token_id=None, pad_token_id=0,
            )  # fmt: skip
        seconds.append(time.perf_counter() - start)
        assert ids.shape == (spec["prompts"] * spec["group"], spec["prompt_tokens"] + spec["new_tokens"])
    print(
        json.dumps({"version": f"{transformers.__version__}, torch {torch.__version__}", "seconds": seconds})
    )


if __name__ == "__main__":
    main()
