"""Gradient of attention in packed rows: blocks that are seen against the whole row. Prints one JSON object.

    python tests/bench/bench_attention.py [--repeats 7]

Rows of T tokens hold segments of one length, none of them in line with the blocks. The whole row is
:func:`model.attention.attend`, which looks at every key before a query; the blocks are
:mod:`model.block_attention`'s. ``ratios`` are how many times faster the blocks are, forward and backward
together, 4 heads over 2 of keys and values, 64 wide, float32. A row of too long segments has no blocks;
the goal is that no row with blocks is slower for them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model.attention import attend_rows, see_segments
from model.block_attention import key_blocks, see_blocks
from model.huge_pages import with_huge_pages

HEADS, KV_HEADS, WIDTH = 4, 2, 64
ROWS = (512, 1024, 2048, 4096)  # tokens
SEGMENTS = (50, 100, 200, 400, 800)  # tokens
GOAL = 1.0


def gradient(see: Any, arrays: Sequence[jax.Array]) -> Callable[[], Any]:
    """A compiled call that makes the gradient of queries, keys and values."""

    @jax.jit
    @jax.grad
    def run(arrays: Sequence[jax.Array]) -> jax.Array:
        return jnp.sum(attend_rows(*arrays, see(), "chunked") ** 2)

    return lambda: jax.block_until_ready(run(arrays))


def seconds(run: Callable[[], Any], repeats: int) -> float:
    """The least of some runs, the first apart: it compiles."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def measure(length: int, segment: int, repeats: int) -> dict[str, float] | None:
    """Milliseconds of both ways, or None where the row has no blocks."""
    ids = (np.arange(length) // segment + 1)[None]
    found = key_blocks(ids, np.zeros_like(ids))
    if found is None:
        return None
    rng, segments, keys = np.random.default_rng(0), jnp.asarray(ids), jnp.asarray(found)
    shapes = [(1, length, heads, WIDTH) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    arrays = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]
    row = seconds(gradient(lambda: see_segments(segments), arrays), repeats)
    blocks = seconds(gradient(lambda: see_blocks(segments, None, keys), arrays), repeats)
    return {
        "row_ms": round(row * 1e3, 2),
        "blocks_ms": round(blocks * 1e3, 2),
        "ratio": round(row / blocks, 2),
    }


def main(words: Sequence[str] | None = None) -> int:
    """Exit code 1 when a row was slower with blocks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args(words)
    figures = {}
    for length in ROWS:
        for segment in SEGMENTS:
            found = measure(length, segment, arguments.repeats)
            if found is not None:
                figures[f"rows of {length}, segments of {segment}"] = found
    ratios = {name: each["ratio"] for name, each in figures.items()}
    met = all(ratio >= GOAL for ratio in ratios.values())
    print(
        json.dumps({
            "name": "attention",
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
            "figures": figures,
            "ratios": ratios,
            "goals": {"each": GOAL},
            "met": met,
        })
    )  # fmt: skip
    return 0 if met else 1


if __name__ == "__main__":
    with_huge_pages()
    sys.exit(main())
