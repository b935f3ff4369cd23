"""Sampling speed: ours, Tunix's sampler and transformers on one batch; what kept caches save; the bounds.

    python tests/bench/bench_engine.py [--model toy,smollm2-135m] [--repeats 3] [--only ours,tunix,...]

Two shapes with random weights in float32: ``toy`` (Qwen3's, 3.3M parameters) and ``smollm2-135m``. The batch
is 4 prompts of 32 tokens x 8 samples x exactly 64 tokens at temperature 1, no token ends a sample. Figures
are medians over the repeats; each system first runs the batch once, to compile or warm up.

``episodes``: 8 conversations of 5 turns on 8 slots (a prompt of 500 tokens, the same for all as a tool list
is; turns of 32 sampled tokens, messages of 40 between them), with the cache kept between turns, and with
every turn sent as a whole new prompt. ``group_saved``: how much of the members' prompts one prefill saves.

``bounds``: the least time that the batch can take here, by bytes (weights once a step, the keys and values in
use) over a measured bandwidth, and by FLOPs (2 a parameter and token) over a measured matmul rate.
``share_of_bound`` is the larger of the two over the measured time.

Peers run as in bench_grpo.py: AGENT_WORLD_TUNIX_PYTHON, AGENT_WORLD_TRANSFORMERS_PYTHON, or this Python.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from peers import run_peer

from model.config import ModelConfig
from model.driver import Driver, Request
from model.engine import Engine
from model.shapes import SHAPES
from model.slots import Slots
from model.transformer import init_params

BATCH = {"prompts": 4, "group": 8, "prompt_tokens": 32, "new_tokens": 64}
EPISODES = {"conversations": 8, "turns": 5, "prompt_tokens": 500, "new_tokens": 32, "message_tokens": 40}
TOY = ModelConfig(
    vocab_size=2048, d_model=256, n_layers=4, n_heads=4, n_kv_heads=2, head_dim=64, d_ff=640, max_len=1024
)
MODELS = {"toy": TOY, "smollm2-135m": dataclasses.replace(SHAPES["smollm2-135m"], max_len=1024)}
PEERS = {"tunix": "tunix", "transformers": "torch"}  # name -> the package to look for
GOALS = {
    "toy ours/tunix": 2.0, "toy ours/transformers": 3.0,
    "smollm2-135m ours/tunix": 2.0, "smollm2-135m ours/transformers": 1.0,
    "prefill saved by kept caches": 0.6, "prefill saved by groups": 0.875,
}  # fmt: skip
LIMIT_S = 1800.0  # of a peer; one that takes longer is missing


def clock(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


# --- the batch ----------------------------------------------------------------------------------------


def sample_batch(config: ModelConfig, params: Any, repeats: int) -> list[float]:
    """Seconds of each repeat, prefill and decoding; the first one compiles."""
    count, length = BATCH["prompts"] * BATCH["group"], BATCH["prompt_tokens"] + BATCH["new_tokens"]
    slots = Slots(Engine(config, params, slots=count, max_len=length, eos_id=-1))  # no token is -1
    rng = np.random.default_rng(0)

    def run() -> None:
        for i in range(BATCH["prompts"]):
            ids = rng.integers(3, config.vocab_size, BATCH["prompt_tokens"]).tolist()
            slots.bulk_insert(slots.prefill(ids), range(i * BATCH["group"], (i + 1) * BATCH["group"]))
        made = slots.generate(range(count), range(count), max_new=BATCH["new_tokens"])
        assert {len(one.tokens) for one in made} == {BATCH["new_tokens"]}
        for slot in range(count):
            slots.free_resource(slot)

    return [clock(run) for _ in range(1 + repeats)]


def spec_of(config: ModelConfig, repeats: int) -> dict[str, Any]:
    """What a peer is told."""
    names = ("vocab_size", "d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim", "d_ff", "qk_norm")
    return BATCH | {name: getattr(config, name) for name in names} | {"repeats": repeats}


# --- caches that are kept -----------------------------------------------------------------------------


def converse(driver: Driver, vocab_size: int, seed: int, *, keep: bool) -> None:
    """All conversations at a time, turn by turn; each with a session of its own, or whole prompts."""
    rng = np.random.default_rng(seed)
    draw = lambda n: rng.integers(3, vocab_size, n).tolist()  # noqa: E731
    count, new = EPISODES["conversations"], EPISODES["new_tokens"]
    ids = [draw(EPISODES["prompt_tokens"])] * count
    sessions = [driver.session(seed=n) for n in range(count)] if keep else []
    for session in sessions:
        session.append(ids[0])
    for turn in range(EPISODES["turns"]):
        if keep:
            handles = [session.generate(new) for session in sessions]
        else:
            handles = [driver.submit(Request(ids[n], new, seed=n)) for n in range(count)]
        for n, handle in enumerate(handles):
            sampled = handle.result().tokens
            if turn + 1 == EPISODES["turns"]:
                continue
            message = draw(EPISODES["message_tokens"])
            ids[n] = [*ids[n], *sampled, *message]
            if keep:
                sessions[n].append(message)
    for session in sessions:
        session.close()


def episodes(config: ModelConfig, params: Any, repeats: int) -> dict[str, Any]:
    """Prompt tokens computed and seconds, with and without caches that are kept."""
    figures: dict[str, Any] = {}
    engine = Engine(config, params, slots=EPISODES["conversations"], max_len=1024, eos_id=-1)
    for name, keep in (("kept", True), ("not_kept", False)):
        with Driver(engine) as driver:
            converse(driver, config.vocab_size, 0, keep=keep)  # compiles
            before = driver.stats()
            runs = [partial(converse, driver, config.vocab_size, n + 1, keep=keep) for n in range(repeats)]
            seconds = [clock(run) for run in runs]
            after = driver.stats()
        computed = after.prefilled + after.appended - before.prefilled - before.appended
        figures[name] = {"prefill_tokens": computed // repeats, "seconds": round(median(seconds), 3)}
        if keep:
            shared, own = after.shared - before.shared, after.prefilled - before.prefilled
            figures["group_saved"] = round(shared / (shared + own), 4)
    figures["kept_saved"] = round(
        1 - figures["kept"]["prefill_tokens"] / figures["not_kept"]["prefill_tokens"], 4
    )
    return figures


# --- bounds -------------------------------------------------------------------------------------------


def bandwidth() -> float:
    """Bytes a second that a sum over 512 MB reads."""
    x = jnp.ones((2**27,), jnp.float32)
    total = jax.jit(jnp.sum)
    total(x).block_until_ready()
    return x.nbytes / min(clock(lambda: total(x).block_until_ready()) for _ in range(5))


def matmul_rate() -> float:
    """FLOP/s of a float32 product of 1536 x 1536 matrices."""
    x = jnp.ones((1536, 1536), jnp.float32)
    product = jax.jit(jnp.matmul)
    product(x, x).block_until_ready()
    return 2 * 1536**3 / min(clock(lambda: product(x, x).block_until_ready()) for _ in range(5))


def bounds(config: ModelConfig, params: Any, seconds: float) -> dict[str, float]:
    """See the module's docstring."""
    weights, count = sum(x.size for x in jax.tree.leaves(params)), BATCH["prompts"] * BATCH["group"]
    length = BATCH["prompt_tokens"] + (BATCH["new_tokens"] + 1) / 2  # in the middle of the decoding
    cache = 2 * config.n_layers * config.n_kv_heads * config.head_dim * length * count
    read, rate = bandwidth(), matmul_rate()
    by_bytes = BATCH["new_tokens"] * 4 * (weights + cache) / read
    tokens = count * BATCH["new_tokens"] + BATCH["prompts"] * BATCH["prompt_tokens"]
    by_flops = 2 * weights * tokens / rate
    return {
        "gigabytes_per_second": round(read / 1e9, 2),
        "gigaflops_per_second": round(rate / 1e9, 1),
        "seconds_by_bytes": round(by_bytes, 4),
        "seconds_by_flops": round(by_flops, 4),
        "share_of_bound": round(max(by_bytes, by_flops) / seconds, 3),
    }


# --- all of it ----------------------------------------------------------------------------------------


def measure(
    name: str, only: Sequence[str], repeats: int
) -> tuple[dict[str, Any], dict[str, float], dict[str, str]]:
    """Figures, ratios and missing peers of one model."""
    config, tokens = MODELS[name], BATCH["prompts"] * BATCH["group"] * BATCH["new_tokens"]
    figures: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    missing: dict[str, str] = {}

    def book(system: str, version: str, seconds: Sequence[float]) -> None:
        usual = median(seconds[1:])
        figures[system] = {
            "version": version,
            "tokens_per_second": round(tokens / usual, 1),
            "seconds": round(usual, 3),
            "first_seconds": round(seconds[0], 2),
        }

    for peer, package in PEERS.items():
        if peer in only:
            result = run_peer(f"engine_{peer}.py", peer, package, spec_of(config, repeats), LIMIT_S)
            if isinstance(result, str):
                missing[f"{name} {peer}"] = result
            else:
                book(peer, result["version"], result["seconds"])
    if "ours" in only:
        params = init_params(config, 0)
        book("ours", "this checkout", sample_batch(config, params, repeats))
        figures["bounds"] = bounds(config, params, figures["ours"]["seconds"])
        figures["episodes"] = episodes(config, params, repeats)
        rate = {
            system: figures[system]["tokens_per_second"] for system in ("ours", *PEERS) if system in figures
        }
        ratios = {
            f"{name} ours/{peer}": round(rate["ours"] / rate[peer], 2) for peer in PEERS if peer in rate
        }
    return figures, ratios, missing


def main(words: Sequence[str] | None = None) -> int:
    """Exit code 1 when a goal was missed; a missing peer misses none, but ``met`` stays false without it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default=",".join(MODELS), help="models, with commas between")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each thing")
    parser.add_argument("--only", default=",".join(["ours", *PEERS]), help="systems, with commas between")
    asked = parser.parse_args(words)
    figures: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    missing: dict[str, str] = {}
    for name in asked.model.split(","):
        figures[name], more, lacking = measure(name, asked.only.split(","), asked.repeats)
        ratios |= more
        missing |= lacking
        if "episodes" in figures[name]:
            ratios["prefill saved by kept caches"] = figures[name]["episodes"]["kept_saved"]
            ratios["prefill saved by groups"] = figures[name]["episodes"]["group_saved"]
    reached = {goal: ratios[goal] >= least for goal, least in GOALS.items() if goal in ratios}
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(
        json.dumps({
            "name": "engine",
            "machine": machine,
            "batch": BATCH,
            "conversations": EPISODES,
            "figures": figures,
            "ratios": ratios,
            "goals": GOALS,
            "met": all(reached.get(goal, False) for goal in GOALS),
            "missing": missing,
        })
    )  # fmt: skip
    return 0 if all(reached.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
