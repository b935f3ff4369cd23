"""Batch invariance: a token's numbers don't depend on what is computed beside it (``batch_invariant=True``).

Equal means the same bits. A sum that lies in the middle between two float32 numbers may still fall to
either side (about one in 1e8), so single numbers of a whole network are given room, none more than 1e-5.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from model.attention import attend, see_segments
from model.driver import Driver, Request
from model.engine import Engine
from model.exact import in_float64, to_float32
from model.layers import Linear, RMSNorm
from model.transformer import (
    TokenBatch,
    init_params,
    make_graphdef,
    stack_layers,
    token_logprobs,
)

EOS = 9
T = 200  # more than one chunk of attention


@pytest.fixture(scope="module")
def exact(config):
    return dataclasses.replace(config, batch_invariant=True)


@pytest.fixture(scope="module")
def sharp(config):
    """Less even distributions than those of fresh weights."""
    return jax.tree.map(lambda x: x * 2.0, init_params(config, 0))


def ids(n, seed=0):
    return np.random.default_rng(seed).integers(10, 500, n).tolist()


def row(*segments: list[int], length: int = T) -> TokenBatch:
    """Sequences one after the other in a row."""
    columns = [(t, p, s + 1) for s, tokens in enumerate(segments) for p, t in enumerate(tokens)]
    columns += [(0, 0, 0)] * (length - len(columns))
    return TokenBatch(*(jnp.asarray(column)[None] for column in zip(*columns, strict=True)))


def stacked(*rows: TokenBatch) -> TokenBatch:
    return TokenBatch(*(jnp.concatenate(parts) for parts in zip(*rows, strict=True)))


score = jax.jit(token_logprobs, static_argnums=0)


def logprobs(config, params, batch: TokenBatch) -> np.ndarray:
    return np.asarray(score(make_graphdef(config), params, batch)[0])


def assert_same_bits(ours, other):
    gap = np.abs(np.asarray(ours) - np.asarray(other))
    assert gap.max() <= 1e-5
    assert (gap == 0).mean() > 0.99


# -- one sum


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


product = jax.jit(in_float64(jnp.matmul))


@given(st.integers(0, 2**31), st.sampled_from([1, 2, 3, 7, 16, 33]), st.sampled_from([8, 160]))
def test_rows_of_a_product_do_not_depend_on_the_number_of_rows(seed, rows, width):
    x, kernel = numbers(seed, 64, width), numbers(seed + 1, width, 24)
    out = np.asarray(product(x, kernel))
    assert out.dtype == np.float32
    np.testing.assert_array_equal(product(x[:rows], kernel), out[:rows])
    np.testing.assert_array_equal(out, (x.astype(np.float64) @ kernel.astype(np.float64)).astype(np.float32))


SEE = np.asarray(see_segments(jnp.ones((2, 48), jnp.int32)))
attention = jax.jit(functools.partial(attend, exact=True))


@given(st.integers(0, 2**31), st.integers(0, 47))
def test_one_query_attends_as_among_all(seed, at):
    q, k, v = (numbers(seed + n, 2, *shape) for n, shape in enumerate(((48, 4, 8), (2, 8, 48), (2, 48, 8))))
    here = slice(at, at + 1)
    one = attention(q[:1, here], k[:1], v[:1], SEE[:1, here])
    np.testing.assert_array_equal(one, attention(q, k, v, SEE)[:1, here])


def test_parts_compiled_together_are_rounded_between():
    """XLA's fusions for float64 leave a plain conversion to float32 and back out (``to_float32`` says so)."""
    linear, norm = Linear(32, 64, nnx.Rngs(0), exact=True), RMSNorm(8, 1e-6, exact=True)
    x = numbers(0, 1200, 32)
    one_by_one = jax.jit(norm)(jax.jit(linear)(x).reshape(-1, 8, 8))
    np.testing.assert_array_equal(jax.jit(lambda x: norm(linear(x).reshape(-1, 8, 8)))(x), one_by_one)


def test_rounding_is_that_of_a_conversion():
    with jax.enable_x64(True):
        x = jnp.asarray([1 + 2**-24, 1 + 3 * 2**-24, -1e-30, 0.1, -1e30, np.inf])
        np.testing.assert_array_equal(to_float32(x), np.asarray(x).astype(np.float32))


def test_the_gradient_is_the_float32_functions():
    f = lambda x, n: jnp.sin(x) * n  # noqa: E731
    x = jnp.linspace(0.0, 3.0, 7)
    ours = jax.grad(lambda x: in_float64(f)(x, 3).sum())(x)
    assert ours.dtype == jnp.float32
    np.testing.assert_array_equal(ours, jax.grad(lambda x: f(x, 3).sum())(x))


# -- the whole network


WAYS = {
    "plain": {"vocab_chunks": 5},
    "scan": {"scan_layers": True, "remat": "attention"},
}


@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
def test_a_sequence_scores_the_same_alone_in_a_batch_and_packed(exact, sharp, how):
    a, b, c = ids(70, 1), ids(110, 2), ids(T, 3)
    config = dataclasses.replace(exact, **how)
    params = stack_layers(sharp) if config.scan_layers else sharp
    alone = [logprobs(exact, sharp, row(x, length=len(x)))[0] for x in (a, b, c)]
    together = logprobs(config, params, stacked(row(a, b), row(c), row(b, a), row(a)))
    assert_same_bits(together[0, : len(a)], alone[0])
    assert_same_bits(together[0, len(a) : len(a) + len(b)], alone[1])
    assert_same_bits(together[1], alone[2])
    assert_same_bits(together[2, len(b) : len(a) + len(b)], alone[0])


@functools.partial(jax.jit, static_argnums=0)
@functools.partial(jax.value_and_grad, argnums=1)
def loss_and_gradient(config, params):
    batch = stacked(row(ids(70, 1), ids(110, 2)), row(ids(T, 3)))
    logp, entropy = token_logprobs(make_graphdef(config), params, batch)
    return -logp.mean() + 0.1 * entropy.mean()


def test_loss_and_gradient_are_near_the_plain_ones(config, exact, sharp):
    plain, grads = loss_and_gradient(dataclasses.replace(config, **WAYS["scan"]), stack_layers(sharp))
    ours, found = loss_and_gradient(dataclasses.replace(exact, **WAYS["scan"]), stack_layers(sharp))
    assert abs(ours - plain) < 1e-5
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, grads)
    assert {x.dtype for x in jax.tree.leaves(found)} == {jnp.dtype("float32")}


def test_engines_of_any_size_draw_the_same_and_the_trainer_agrees(exact, sharp):
    """Rule 3, and more than it: the same tokens and bits on 1 and on 32 slots that decode together."""
    request = Request(ids(45), 40, seed=3)
    results = []
    for slots in (1, 32):
        engine = Engine(exact, sharp, slots=slots, shard=slots, max_len=256, eos_id=EOS)
        with Driver(engine) as driver:
            others = [driver.submit(Request(ids(10 + n, n), 30, seed=n)) for n in range(slots - 1)]
            results.append(driver.submit(request).result(120))
            for other in others:
                other.result(120)
    first, among = results
    assert len(first.tokens) > 5
    trained = logprobs(exact, sharp, row([*request.ids, *first.tokens]))[0]
    assert_same_bits(first.logprobs, trained[44 : 44 + len(first.tokens)])
    assert among.tokens == first.tokens
    assert_same_bits(among.logprobs, first.logprobs)


# -- what it can't do


def test_what_would_break_it_is_refused(config, exact, monkeypatch):
    with pytest.raises(ValueError, match="compute_dtype is 'bfloat16'"):
        dataclasses.replace(exact, compute_dtype="bfloat16")
    with pytest.raises(ValueError, match="needs attention 'chunked'"):
        dataclasses.replace(exact, attention="splash")
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    with pytest.raises(ValueError, match="which a TPU has not"):
        in_float64(jnp.sin)(jnp.ones(2))
