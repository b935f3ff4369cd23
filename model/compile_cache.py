"""Keep compiled programs on disk, so that the next process starts at once.

A policy's programs (decode, a prefill for each bucket, the gradient) take seconds each to compile
and depend on shapes only. Call :func:`use_compile_cache` once, before the first jit.
"""

from __future__ import annotations

from pathlib import Path

import jax


def use_compile_cache(folder: str | Path) -> None:
    """Let JAX read and write compiled programs in ``folder``; it may be deleted at any time."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update(
        "jax_persistent_cache_min_compile_time_secs", 0.2
    )  # ours: below that, reading costs as much
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
