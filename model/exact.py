"""Sums in float64, rounded once to float32: numbers that don't depend on how many rows are computed.

A float32 sum depends on the order of its terms, and the order on the shape: one row in the decoder and 1,024
in the trainer give other last bits, which a policy can magnify a hundredfold. In float64 another order moves
a sum by 1e-16 of itself, so the same bits come out after rounding to float32, except where the exact sum lies
that near to the middle between two float32 numbers (about one in 1e8). Single terms need no care: a product
of two float32 numbers is exact in float64, and an exponential right to far below a float32's last bit.

``ModelConfig.batch_invariant`` asks for it. Each part of the network (a product, a norm, a rotation, all of
attention from queries to result, the gate, the softmax at the end) is then one :func:`in_float64`; what
passes between parts, weights and the cache stay float32. It is an option for CPUs: their float64 has half
the speed of float32; a TPU has none. model/ENGINE.md says what it gains and costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def in_float64(function: Callable[..., Any], wanted: bool = True) -> Callable[..., Any]:
    """``function`` of arrays, computed in float64 between float32 arguments and float32 results.

    Its dtypes must follow from its arguments' (see :func:`wide`). The gradient is the float32 function's own,
    made from the arguments alone: a gradient isn't compared between sampler and trainer, and no float64 array
    is kept for it. Integers and booleans pass as they are.

    Args:
        wanted: False gives ``function`` itself.

    Raises:
        ValueError: when it is called, on a TPU.
    """
    if not wanted:
        return function

    @jax.custom_vjp
    def rounded(*args: Any) -> Any:
        if jax.default_backend() == "tpu":
            raise ValueError("batch_invariant needs float64, which a TPU has not: use CPUs or leave it out")
        like = jax.eval_shape(function, *args)
        with jax.enable_x64(True):
            out = function(*jax.tree.map(_double, args))
            return jax.tree.map(_as, out, like)

    def forward(*args: Any) -> Any:
        return rounded(*args), args

    def backward(args: Any, cotangents: Any) -> Any:
        return jax.vjp(function, *args)[1](cotangents)

    rounded.defvjp(forward, backward)
    return rounded


def _as(x: Any, like: Any) -> Any:
    return to_float32(x) if like.dtype == jnp.float32 else x.astype(like.dtype)


def _double(x: Any) -> Any:
    return x.astype(jnp.float64) if x.dtype == jnp.float32 else x


def to_float32(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Rounded, whatever follows.

    XLA's YNNPACK fusions take a number from float64 to float32 and back as it was (jaxlib 0.10.2), so the
    rounding is asked for by name, too.
    """
    if x.dtype == jnp.float64:
        x = jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=23)
    return x.astype(jnp.float32)


def wide(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """In float32 at least: bfloat16 is widened, float64 (inside :func:`in_float64`) stays."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
