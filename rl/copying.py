"""A start that can copy: the first two layers are initialised as an induction circuit.

A model of two million parameters finds the circuit by itself only after many millions of tokens
(measured; see rl/README.md), and without it every new name in a tool list is out of reach. So it is put
in by hand, in the plain Qwen3 shape, and trained from there like everything else:

* every embedding holds a constant, and a random code of the token;
* head 0 of layer 0 attends to the token before (a constant query and key, turned by one position) and
  writes that token's code beside the own one;
* head 0 of layer 1 looks for a position whose *previous* token is the present one (over the slow
  rotary pairs, so that distance doesn't matter) and writes the code that it finds there: the token that
  followed last time.

The circuit is that of Elhage et al., "A Mathematical Framework for Transformer Circuits" (2021), and
Olsson et al., "In-context Learning and Induction Heads" (2022).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model.config import ModelConfig

CONSTANT, CODE, BEFORE = 0, slice(1, 65), slice(65, 129)  # where the residual stream holds what
SIZE = 0.1  # of constant and codes in the embedding (ours)
FAST = 4  # rotary pairs that tell neighbours apart (ours)
SHARP = 1.6  # weight of the query and key norms on the dimensions that the circuit uses (ours)
QUIET = 0.15  # factor on everything else that writes to the stream (ours)


def copying_start(params: Any, config: ModelConfig, seed: int) -> Any:
    """``params`` with the circuit in place.

    Args:
        params: a fresh state of :class:`model.transformer.Transformer`, at least two layers,
            129 wide, heads of 64.
    """
    rng = np.random.default_rng(seed)
    half, width = config.head_dim // 2, config.head_dim
    pairs = np.arange(half)
    rate = config.rope_theta ** (-pairs / half)
    slow = pairs[rate < 1e-3]
    content = np.concatenate([slow, slow + half])  # head dimensions that ignore distance
    fast = pairs[:FAST]

    def edit(path: tuple, array: jax.Array) -> jax.Array:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        new = np.array(array)
        layer = name.split(".")[1] if name.startswith("layers") else ""
        part = ".".join(name.split(".")[2:]) if layer else name
        if part.startswith("embedding"):
            new *= 0.5
            new[:, CONSTANT] = SIZE
            new[:, CODE] = SIZE * rng.standard_normal((new.shape[0], 64))
        elif part.startswith(("attention.o", "mlp.down")):
            new *= QUIET
        if layer == "0" and part.startswith("attention.q.kernel"):
            new[:, :width] = 0.0
            new[CONSTANT, fast], new[CONSTANT, fast + half] = np.cos(rate[fast]), -np.sin(rate[fast])
        elif layer == "0" and part.startswith("attention.k.kernel"):
            new[:, :width] = 0.0
            new[CONSTANT, fast] = 1.0
        elif layer == "1" and part.startswith(("attention.q.kernel", "attention.k.kernel")):
            source = CODE if ".q." in part else BEFORE
            new[:, :width] = 0.0
            new[np.arange(source.start, source.start + len(content)), content] = 1.0
        elif layer in ("0", "1") and part.startswith("attention.v.kernel"):
            new[:, :width] = 0.0
            new[np.arange(CODE.start, CODE.stop), np.arange(64)] = 1.0
        elif layer in ("0", "1") and part.startswith("attention.o.kernel"):
            new[:width] = 0.0
            target, gain = (BEFORE, 0.06) if layer == "0" else (CODE, 0.25)
            new[np.arange(64), np.arange(target.start, target.stop)] = gain
        elif layer == "0" and part.startswith(("attention.q_norm", "attention.k_norm")):
            new[np.concatenate([fast, fast + half])] = SHARP
        elif layer == "1" and part.startswith(("attention.q_norm", "attention.k_norm")):
            new[content] = SHARP
        return jnp.asarray(new)

    return jax.tree_util.tree_map_with_path(edit, params)
