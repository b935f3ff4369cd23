"""How a model is run changes its speed and memory, not its numbers: scan, remat, parts, dtypes, attention."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.attention import see_segments
from model.engine import Engine
from model.scoring import score_targets
from model.slots import Slots
from model.splash import splash
from model.transformer import (
    REMAT,
    TokenBatch,
    abstract_params,
    make_graphdef,
    stack_layers,
    token_logprobs,
    unstack_layers,
)


def batch(T: int = 40, rows: int = 2) -> TokenBatch:
    """Two segments and some padding in each row."""
    tokens = jax.random.randint(jax.random.key(1), (rows, T), 0, 500)
    second = jnp.arange(T) >= T // 3
    segments = jnp.broadcast_to(second + 1, (rows, T)).at[:, -3:].set(0)
    return TokenBatch(tokens, jnp.broadcast_to(jnp.arange(T) - second * (T // 3), (rows, T)), segments)


def value_and_grad(config):
    graphdef = make_graphdef(config)

    @jax.jit
    @jax.value_and_grad
    def run(params):
        logp, entropy = token_logprobs(graphdef, params, batch())
        return -(logp + 0.1 * entropy).mean()

    return run


@pytest.fixture(scope="module")
def plain(config, params):
    return value_and_grad(config)(params)


@pytest.mark.parametrize("remat", REMAT)
def test_scan_and_remat_keep_loss_and_gradient(config, params, plain, remat):
    loss, grads = value_and_grad(dataclasses.replace(config, scan_layers=True, remat=remat))(
        stack_layers(params)
    )
    np.testing.assert_allclose(loss, plain[0], atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), unstack_layers(grads), plain[1])


def test_remat_without_scan(config, params, plain):
    loss, grads = value_and_grad(dataclasses.replace(config, remat="full"))(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), (loss, grads), plain)


def test_stacked_layers_come_apart_again(params):
    jax.tree.map(np.testing.assert_array_equal, unstack_layers(stack_layers(params)), params)


def test_the_engine_decodes_stacked_layers(config, params):
    """Rule 3 for weights under scan: the same tokens and log-probabilities."""
    outs = []
    for how in (config, dataclasses.replace(config, scan_layers=True)):
        here = stack_layers(params) if how.scan_layers else params
        engine = Slots(Engine(how, here, slots=1, max_len=128, eos_id=-1))
        engine.insert(engine.prefill(list(range(10, 40))), 0)
        outs += engine.generate([0], [3], max_new=8)
    assert outs[0].tokens == outs[1].tokens
    np.testing.assert_allclose(outs[0].logprobs, outs[1].logprobs, atol=1e-5)


def test_bfloat16_keeps_float32_weights_gradients_and_scores(config, params, plain):
    loss, grads = value_and_grad(dataclasses.replace(config, compute_dtype="bfloat16"))(params)
    assert {x.dtype.name for x in jax.tree.leaves((loss, grads))} == {"float32"}
    np.testing.assert_allclose(loss, plain[0], rtol=2e-2)
    flat = [
        np.concatenate([x.ravel() for x in jax.tree.leaves(jax.device_get(g))]) for g in (grads, plain[1])
    ]
    cosine = flat[0] @ flat[1] / np.linalg.norm(flat[0]) / np.linalg.norm(flat[1])
    assert cosine > 0.999
    assert not np.array_equal(*flat), "it did compute in bfloat16"


def test_sampler_and_trainer_agree_in_bfloat16(config, params):
    """Rule 3 where products are rounded: the cache holds what the trainer's attention sees."""
    config = dataclasses.replace(config, compute_dtype="bfloat16")
    engine = Slots(Engine(config, params, slots=1, max_len=64, eos_id=-1))
    prompt = list(range(10, 30))
    engine.insert(engine.prefill(prompt), 0)
    (out,) = engine.generate([0], [3], max_new=12)
    row = jnp.array([[*prompt, *out.tokens]])
    score = jax.jit(token_logprobs, static_argnums=0)
    logp, _ = score(make_graphdef(config), params, TokenBatch(row, jnp.arange(32)[None], jnp.ones_like(row)))
    # ours: a bfloat16 has 8 bits; products of another shape may round another way
    np.testing.assert_allclose(out.logprobs, logp[0, 19:-1], atol=3e-2)


@settings(deadline=None, max_examples=5)
@given(vocab=st.integers(5, 70), chunks=st.integers(2, 9), size=st.sampled_from([0.1, 1.0, 30.0]))
def test_parts_of_the_vocabulary_give_the_whole(vocab, chunks, size):
    """Values and gradients, whatever the remainder and however sharp the distribution."""
    keys = jax.random.split(jax.random.key(vocab), 3)
    hidden = jax.random.normal(keys[0], (2, 3, 8)) * size
    table = jax.random.normal(keys[1], (vocab, 8))
    targets = jax.random.randint(keys[2], (2, 3), 0, vocab)

    def loss(hidden, table, chunks):
        logp, entropy = score_targets(hidden, table, targets, chunks)
        return (logp + 0.3 * entropy).sum(), (logp, entropy)

    whole, parts = (jax.grad(loss, (0, 1), has_aux=True)(hidden, table, n) for n in (1, chunks))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4, rtol=1e-4), parts, whole)


def test_no_array_of_all_tokens_times_the_vocabulary(config):
    """In the compiled gradient, neither forward nor backward."""
    config = dataclasses.replace(config, vocab_size=4096, vocab_chunks=8)

    def text(config):
        def loss(params):
            return token_logprobs(make_graphdef(config), params, batch(T=96))[0].sum()

        return jax.jit(jax.grad(loss)).lower(abstract_params(config)).as_text()

    assert "2x96x4096xf32" in text(dataclasses.replace(config, vocab_chunks=1))
    assert "2x96x4096xf32" not in text(config)
    assert "2x96x512xf32" in text(config)


def test_splash_attention_is_plain_attention():
    """Values and gradients of the interpreted kernel; two segments a row and grouped heads."""
    keys = jax.random.split(jax.random.key(0), 4)
    q, k, v, weight = (
        jax.random.normal(key, (1, 256, heads, 16)) for key, heads in zip(keys, (4, 2, 2, 4), strict=True)
    )
    segments = jnp.broadcast_to((jnp.arange(256) > 100) + 1, (1, 256))

    def plain(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, mask=see_segments(segments)[:, None])

    def kernel(q, k, v):
        return splash(q, k, v, segments, interpret=True)

    np.testing.assert_allclose(kernel(q, k, v), plain(q, k, v), atol=1e-5)
    ours, theirs = (
        jax.grad(lambda *x, f=f: (f(*x) * weight).sum(), (0, 1, 2))(q, k, v) for f in (kernel, plain)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), ours, theirs)


@pytest.mark.parametrize("how", ["dot_product", "splash_interpret"])
def test_every_way_to_attend_gives_the_same_log_probabilities(config, params, how):
    rows = batch(T=128, rows=1)
    score = jax.jit(token_logprobs, static_argnums=0)
    plain = score(make_graphdef(config), params, rows)
    other = score(make_graphdef(dataclasses.replace(config, attention=how)), params, rows)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), other, plain)
