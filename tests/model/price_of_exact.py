"""What ``batch_invariant`` costs: tokens a second of the engine and seconds a gradient, without and with it.

    python tests/model/price_of_exact.py [--repeats 5]

The 3.3M-parameter Qwen3 shape of tests/bench/bench_engine.py with random weights. Decoding: 32 slots, prompts
of 32 tokens, 64 new tokens each. Gradient: of the mean log-probability of 8 rows of 512 tokens. Both ways in
turn; figures are medians, beside each the processor seconds, which a busy machine disturbs less. Prints one
JSON object.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model.config import ModelConfig
from model.engine import Engine
from model.slots import Slots
from model.transformer import TokenBatch, init_params, make_graphdef, token_logprobs

TOY = ModelConfig(
    vocab_size=2048, d_model=256, n_layers=4, n_heads=4, n_kv_heads=2, head_dim=64, d_ff=640, max_len=1024
)
SLOTS, PROMPT, NEW, ROWS, LENGTH = 32, 32, 64, 8, 512
Run = Callable[[], Any]


def decoding(config: ModelConfig, params: Any) -> Run:
    slots = Slots(Engine(config, params, slots=SLOTS, max_len=config.max_len, eos_id=config.vocab_size))
    prompt = slots.prefill(list(range(10, 10 + PROMPT)))

    def run() -> None:
        slots.bulk_insert(prompt, range(SLOTS))
        outs = slots.generate(range(SLOTS), list(range(SLOTS)), max_new=NEW)
        assert all(len(out.tokens) == NEW for out in outs)
        for slot in range(SLOTS):
            slots.free_resource(slot)

    return run


def gradient(config: ModelConfig, params: Any) -> Run:
    rows = np.random.default_rng(0).integers(0, config.vocab_size, (ROWS, LENGTH))
    positions = jnp.broadcast_to(jnp.arange(LENGTH), rows.shape)
    batch = TokenBatch(jnp.asarray(rows), positions, jnp.ones(rows.shape, jnp.int32))
    graphdef = make_graphdef(config)
    step = jax.jit(jax.grad(lambda params: token_logprobs(graphdef, params, batch)[0].mean()))
    return lambda: jax.block_until_ready(step(params))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    params = init_params(TOY, 0)
    out: dict[str, dict[str, float]] = {}
    for what, make in (("decode", decoding), ("gradient", gradient)):
        runs = {on: make(dataclasses.replace(TOY, batch_invariant=on), params) for on in (False, True)}
        times: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        for run in runs.values():
            run()  # compiles
        for _ in range(repeats):
            for on, run in runs.items():
                start = time.perf_counter(), time.process_time()
                run()
                times[on].append((time.perf_counter() - start[0], time.process_time() - start[1]))
        for on, name in ((False, "plain"), (True, "batch_invariant")):
            wall, cpu = (median(column) for column in zip(*times[on], strict=True))
            tokens = SLOTS * NEW if what == "decode" else ROWS * LENGTH
            out[f"{what} {name}"] = {"s": wall, "cpu_s": cpu, "tokens_s": tokens / wall}
        out[f"{what} times dearer"] = {
            key: out[f"{what} batch_invariant"][key] / out[f"{what} plain"][key] for key in ("s", "cpu_s")
        }
    print(json.dumps(out, indent=2))


if __name__ == "__main__":
    main()
