"""The plain parts of a transformer: norm, linear map, feed-forward block, rotary positions.

Each part is a Flax NNX module over one or two arrays; nothing here knows about attention masks
or caches. Kernels lie as [in, out] (Hugging Face stores [out, in]; :mod:`model.weights` turns them).
A part computes in the dtype of what it is given and keeps its weights in their own: with float32
weights and bfloat16 activations the weights are rounded where they are used, and only there.
``exact`` parts take their sums in float64, see :mod:`model.exact`.

Axes: B batch, T time, D model width, F feed-forward width, H heads, K key/value heads,
h head width, V vocabulary, S cache length.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from model.config import RopeScaling
from model.exact import in_float64, wide
from model.sharding import current_mesh, time_is_cut


class RMSNorm(nnx.Module):
    """Scale to unit root mean square over the last axis, then by a trained weight; in float32 inside."""

    def __init__(self, width: int, eps: float, exact: bool = False):
        self.weight = nnx.Param(jnp.ones((width,), jnp.float32))
        self.eps, self.exact = eps, exact

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        return in_float64(self._scaled, self.exact)(x, self.weight[...])

    def _scaled(self, x: Array, weight: Array) -> Array:
        whole = wide(x)
        variance = jnp.mean(whole * whole, axis=-1, keepdims=True)
        return (whole * jax.lax.rsqrt(variance + self.eps) * weight).astype(x.dtype)


class Linear(nnx.Module):
    """``x @ kernel (+ bias)``; normal initialisation with deviation ``scale / sqrt(in)``, bias 0."""

    def __init__(
        self,
        n_in: int,
        n_out: int,
        rngs: nnx.Rngs,
        scale: float = 1.0,
        bias: bool = False,
        exact: bool = False,
    ):
        noise = jax.random.normal(rngs.params(), (n_in, n_out), jnp.float32)
        self.kernel = nnx.Param(noise * scale * n_in**-0.5)
        self.bias = nnx.Param(jnp.zeros((n_out,), jnp.float32)) if bias else None
        self.exact = exact

    def __call__(self, x: Float[Array, "*batch n_in"]) -> Float[Array, "*batch n_out"]:
        weights = (self.kernel[...],) if self.bias is None else (self.kernel[...], self.bias[...])
        return in_float64(_mapped, self.exact)(x, *weights)


def _mapped(x: Array, kernel: Array, bias: Array | None = None) -> Array:
    out = product(x, kernel.astype(x.dtype))
    return out if bias is None else out + bias.astype(x.dtype)


def product(x: Float[Array, "*b n_in"], kernel: Float[Array, "n_in n_out"]) -> Float[Array, "*b n_out"]:
    """``x @ kernel``; on one device with a gradient that turns the narrower of its two arrays.

    JAX's own turns the outputs' gradient, which for wide outputs (feed-forward, vocabulary) is the larger
    array: the gradient of bench_grpo's 2,176 tokens took a fifth longer (ours, measured). On a mesh it stays:
    there the compiler gathers more with ours (14B on v5e:8x8: 304 instead of 235 GB).
    """
    return _product(x, kernel) if current_mesh() is None else x @ kernel


@jax.custom_vjp
def _product(x: Array, kernel: Array) -> Array:
    return x @ kernel


def _product_backward(kept: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    x, kernel = kept
    batch = tuple(range(x.ndim - 1))
    left, right = (x, cotangent) if kernel.shape[0] <= kernel.shape[1] else (cotangent, x)
    # the barrier keeps a turn of the result out of the product, which would then be a slower one
    gradient = jax.lax.optimization_barrier(jax.lax.dot_general(left, right, ((batch, batch), ((), ()))))
    return cotangent @ kernel.T, gradient if left is x else gradient.T


_product.defvjp(lambda x, kernel: (x @ kernel, (x, kernel)), _product_backward)


class SwiGLU(nnx.Module):
    """Gated feed-forward block: ``down(silu(gate(x)) * up(x))``."""

    def __init__(self, d_model: int, d_ff: int, rngs: nnx.Rngs, out_scale: float, exact: bool = False):
        self.gate = Linear(d_model, d_ff, rngs, exact=exact)
        self.up = Linear(d_model, d_ff, rngs, exact=exact)
        self.down = Linear(d_ff, d_model, rngs, out_scale, exact=exact)
        self.exact = exact

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        return self.down(in_float64(_gated, self.exact)(self.gate(x), self.up(x)))


def _gated(gate: Array, up: Array) -> Array:
    return jax.nn.silu(gate) * up


def rope_angles(
    positions: Int[Array, "B T"],
    head_dim: int,
    theta: float,
    scaling: RopeScaling | None = None,
    exact: bool = False,
) -> tuple[Float[Array, "B T 1 h"], Float[Array, "B T 1 h"]]:
    """What :func:`rotate` multiplies by, float32, with an axis for the heads: cosines, and signed sines."""
    exponents = -jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
    frequencies = in_float64(lambda x: theta**x, exact)(exponents)
    if scaling is not None:
        frequencies = frequencies * scaled_share(scaling, head_dim, theta)
    angles = positions[..., None, None].astype(jnp.float32) * frequencies
    cos, sin = in_float64(lambda x: (jnp.cos(x), jnp.sin(x)), exact)(angles)
    if scaling is not None and scaling.kind == "yarn":
        size = 1.0 + 0.1 * math.log(max(scaling.factor, 1.0))
        cos, sin = cos * size, sin * size
    turns = jnp.concatenate([cos, cos], axis=-1), jnp.concatenate([-sin, sin], axis=-1)
    # once, else every layer's fusions compute them anew
    return turns if time_is_cut() else jax.lax.optimization_barrier(turns)


def scaled_share(scaling: RopeScaling, head_dim: int, theta: float) -> np.ndarray:
    """What each of the head_dim / 2 frequencies is multiplied by: between 1/factor and 1.

    The formulas are those of :class:`model.config.RopeScaling`'s sources.
    """
    frequencies = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    if scaling.kind == "llama3":
        turns = scaling.original_max_len * frequencies / (2 * np.pi)
        keep = np.clip((turns - scaling.slow) / (scaling.fast - scaling.slow), 0.0, 1.0)
    else:

        def index(turns: float) -> float:
            """Of the frequency that turns so often over the original length."""
            length = scaling.original_max_len / (2 * math.pi * turns)
            return head_dim * math.log(length) / (2 * math.log(theta))

        first = max(math.floor(index(scaling.fast)), 0)
        last = min(math.ceil(index(scaling.slow)), head_dim - 1)
        ramp = (np.arange(head_dim // 2) - first) / (max(last - first, 0) or 0.001)
        keep = 1.0 - np.clip(ramp, 0.0, 1.0)
    return (keep + (1.0 - keep) / scaling.factor).astype(np.float32)


def rotate(x: Float[Array, "B T N h"], cos: Array, sin: Array) -> Float[Array, "B T N h"]:
    """Turn queries or keys by their position; the halves convention (Hugging Face's), not the pairs one.

    A roll and two products: a twentieth less of a CPU's gradient than halves put together again, and less is
    sent on a mesh (the bound of 14B on v6e:16x16: 5.1 instead of 5.8 s; ours, by ``agent-world plan``). Where
    a mesh cuts time it is the halves: there the roll costs memory (8B on v5e:4x4: 1.3 GiB, which it hasn't).
    """
    whole, half = wide(x), x.shape[-1] // 2
    if not time_is_cut():
        return (whole * cos + jnp.roll(whole, half, axis=-1) * sin).astype(x.dtype)
    (first, second), cos, sin = jnp.split(whole, 2, axis=-1), cos[..., half:], sin[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
