"""The plain parts of a transformer: norm, linear map, feed-forward block, rotary positions.

Each part is a Flax NNX module over one or two arrays; nothing here knows about attention masks
or caches. Kernels lie as [in, out] (Hugging Face stores [out, in]; :mod:`model.hf` turns them).

Axes: B batch, T time, D model width, F feed-forward width, H heads, K key/value heads,
h head width, V vocabulary, S cache length.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int


class RMSNorm(nnx.Module):
    """Scale to unit root mean square over the last axis, then by a trained weight."""

    def __init__(self, width: int, eps: float):
        self.weight = nnx.Param(jnp.ones((width,), jnp.float32))
        self.eps = eps

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        variance = jnp.mean(x * x, axis=-1, keepdims=True)
        return x * jax.lax.rsqrt(variance + self.eps) * self.weight[...]


class Linear(nnx.Module):
    """``x @ kernel``; normal initialisation with deviation ``scale / sqrt(in)``."""

    def __init__(self, n_in: int, n_out: int, rngs: nnx.Rngs, scale: float = 1.0):
        noise = jax.random.normal(rngs.params(), (n_in, n_out), jnp.float32)
        self.kernel = nnx.Param(noise * scale * n_in**-0.5)

    def __call__(self, x: Float[Array, "*batch n_in"]) -> Float[Array, "*batch n_out"]:
        return x @ self.kernel[...]


class SwiGLU(nnx.Module):
    """Gated feed-forward block: ``down(silu(gate(x)) * up(x))``."""

    def __init__(self, d_model: int, d_ff: int, rngs: nnx.Rngs, out_scale: float):
        self.gate = Linear(d_model, d_ff, rngs)
        self.up = Linear(d_model, d_ff, rngs)
        self.down = Linear(d_ff, d_model, rngs, out_scale)

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


def rope_angles(
    positions: Int[Array, "B T"], head_dim: int, theta: float
) -> tuple[Float[Array, "B T 1 half"], Float[Array, "B T 1 half"]]:
    """Cosine and sine of the rotary angles, with an axis for the heads."""
    frequencies = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angles = positions[..., None, None].astype(jnp.float32) * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: Float[Array, "B T N h"], cos: Array, sin: Array) -> Float[Array, "B T N h"]:
    """Turn queries or keys by their position; the halves convention (Hugging Face's), not the pairs one."""
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
