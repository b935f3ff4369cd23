"""The forward pass: shapes of the house, packing, rotary positions, and the way to disk and back."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from model import hf, weights
from model.config import ModelConfig
from model.layers import rope_angles, rotate
from model.transformer import TokenBatch, Transformer, init_params, make_graphdef, token_logprobs

TOLERANCE = 1e-5  # rule 3 and rule 4 of the house


def score(config, params, segments: list[list[int]], length: int):
    """Log-probabilities and entropies of sequences packed into one row."""
    row = [(t, p, s + 1) for s, ids in enumerate(segments) for p, t in enumerate(ids)]
    row += [(0, 0, 0)] * (length - len(row))
    batch = TokenBatch(*(jnp.asarray(column)[None] for column in zip(*row, strict=True)))
    logp, entropy = jax.jit(token_logprobs, static_argnums=0)(make_graphdef(config), params, batch)
    return np.asarray(logp[0]), np.asarray(entropy[0])


def sequences(*lengths):
    rng = np.random.default_rng(0)
    return [rng.integers(0, 500, n).tolist() for n in lengths]


@pytest.mark.parametrize("length", [100, 320], ids=["one chunk", "several chunks"])
def test_packed_equals_unpacked(config, params, length):
    a, b = sequences(length // 2, length // 3)
    packed, entropy = score(config, params, [a, b], length)
    for ids, start in ((a, 0), (b, len(a))):
        alone, alone_entropy = score(config, params, [ids], length)
        here = slice(start, start + len(ids))
        np.testing.assert_allclose(packed[here], alone[: len(ids)], atol=TOLERANCE)
        np.testing.assert_allclose(entropy[here], alone_entropy[: len(ids)], atol=TOLERANCE)


def test_entries_without_a_next_token_are_zero(config, params):
    a, b = sequences(5, 4)
    logp, entropy = score(config, params, [a, b], 16)
    ends = [4, 8, *range(9, 16)]
    assert not logp[ends].any()
    assert not entropy[ends].any()
    assert (np.delete(logp, ends) < 0).all()
    assert (np.delete(entropy, ends) > 0).all()


def test_later_tokens_change_nothing_before(config, params):
    (ids,) = sequences(200)
    other = [*ids[:150], *(7 for _ in ids[150:])]
    np.testing.assert_array_equal(
        score(config, params, [ids], 200)[0][:149], score(config, params, [other], 200)[0][:149]
    )


def test_chunks_give_the_gradient_of_plain_attention(config, params, monkeypatch):
    def loss(params):
        (ids,) = sequences(300)
        ones = jnp.ones((1, 300), jnp.int32)
        batch = TokenBatch(jnp.asarray(ids)[None], jnp.arange(300)[None], ones)
        return -token_logprobs(make_graphdef(config), params, batch)[0].mean()

    chunked = jax.jit(jax.grad(loss))(params)
    monkeypatch.setattr("model.attention.CHUNK", 1000)
    plain = jax.jit(jax.grad(loss))(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), chunked, plain)


def test_rotary_positions_are_relative_and_in_halves():
    x = jax.random.normal(jax.random.key(0), (1, 1, 2, 8))
    q, k = x[:, :, :1], x[:, :, 1:]

    def product(i, j):
        turn = [rope_angles(jnp.array([[p]]), 8, 10_000.0) for p in (i, j)]
        return float(jnp.sum(rotate(q, *turn[0]) * rotate(k, *turn[1])))

    assert product(5, 3) == pytest.approx(product(105, 103), abs=1e-4)
    assert product(5, 3) != pytest.approx(product(5, 4), abs=1e-2)
    # Hugging Face: x * cos + rotate_half(x) * sin, rotate_half = (-second half, first half)
    angles = 7 * 10_000.0 ** (-np.arange(0, 8, 2) / 8)
    cos, sin = (np.concatenate([part, part]) for part in (np.cos(angles), np.sin(angles)))
    half = jnp.concatenate([-x[..., 4:], x[..., :4]], -1)
    turned = rotate(x, *rope_angles(jnp.array([[7]]), 8, 10_000.0))
    np.testing.assert_allclose(turned, x * cos + half * sin, atol=1e-5)


def test_the_parameter_count_is_the_models():
    for config in (ModelConfig(), ModelConfig(tie_embeddings=False, qk_norm=False, n_layers=1)):
        shapes = nnx.state(nnx.eval_shape(lambda c=config: Transformer(c, nnx.Rngs(0))))
        assert sum(x.size for x in jax.tree.leaves(shapes)) == config.parameters
    assert 1.4e6 < ModelConfig().parameters < 1.6e6


def test_a_policy_read_back_is_the_same(config, params, tokenizer, tmp_path):
    hf.save_policy(tmp_path / "policy", config, params, tokenizer)
    config2, params2, tokenizer2 = hf.load_policy(tmp_path / "policy")
    assert config2 == config
    assert tokenizer2.encode("France") == tokenizer.encode("France")
    assert jax.tree.structure(params2) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, params2, params)
    assert sorted(p.name for p in (tmp_path / "policy").iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_names_and_layout_are_hugging_faces(config, params, tokenizer, tmp_path):
    from safetensors.numpy import load_file

    hf.save_policy(tmp_path / "policy", config, params, tokenizer, dtype="bfloat16")
    tensors = load_file(tmp_path / "policy" / "model.safetensors")
    assert tensors["model.layers.1.self_attn.k_proj.weight"].shape == (16, 32)
    assert tensors["model.layers.0.mlp.down_proj.weight"].shape == (32, 64)
    assert "lm_head.weight" not in tensors, "embeddings are tied"
    assert {t.dtype.name for t in tensors.values()} == {"bfloat16"}
    body = json.loads((tmp_path / "policy" / "config.json").read_text())
    assert (body["model_type"], body["num_key_value_heads"], body["hidden_size"]) == ("qwen3", 2, 32)
    _, rounded, _ = hf.load_policy(tmp_path / "policy")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2**-8), rounded, params)


def test_an_interrupted_save_leaves_the_old_policy(config, params, tokenizer, tmp_path, monkeypatch):
    target = tmp_path / "policy"
    hf.save_policy(target, config, params, tokenizer)
    monkeypatch.setattr(weights, "save_file", lambda *_, **__: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        hf.save_policy(target, config, init_params(config, 1), tokenizer)
    jax.tree.map(np.testing.assert_array_equal, hf.load_policy(target)[1], params)
    assert [p.name for p in tmp_path.iterdir()] == ["policy"], "no half-written folder stays"


def test_an_existing_policy_is_replaced(config, params, tokenizer, tmp_path):
    new = init_params(config, 1)
    hf.save_policy(tmp_path / "policy", config, params, tokenizer)
    hf.save_policy(tmp_path / "policy", config, new, tokenizer)
    jax.tree.map(np.testing.assert_array_equal, hf.load_policy(tmp_path / "policy")[1], new)


def test_weights_that_do_not_fit_the_config_are_named(config, params, tokenizer, tmp_path):
    hf.save_policy(tmp_path / "policy", config, params, tokenizer)
    file = tmp_path / "policy" / "config.json"
    file.write_text(file.read_text().replace('"intermediate_size": 64', '"intermediate_size": 32'))
    with pytest.raises(ValueError, match=r"mlp\.down_proj\.weight"):
        hf.load_policy(tmp_path / "policy")


def test_an_independent_forward_over_the_file_gives_the_same_numbers(config, params, tokenizer, tmp_path):
    """Qwen3 as its paper and Hugging Face's names define it, in numpy, a token and a head at a time."""
    from safetensors.numpy import load_file

    hf.save_policy(tmp_path / "policy", config, params, tokenizer)
    weights = load_file(tmp_path / "policy" / "model.safetensors")
    (ids,) = sequences(9)
    logits = numpy_qwen3(weights, ids, json.loads((tmp_path / "policy" / "config.json").read_text()))
    model = nnx.merge(make_graphdef(config), params)
    ours = model.logits(model(jnp.array([ids]), jnp.arange(9)[None], jnp.ones((1, 9), jnp.int32)))[0]
    np.testing.assert_allclose(ours, logits, atol=1e-4)


def numpy_qwen3(w, ids, c):
    def norm(x, name):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + c["rms_norm_eps"]) * w[name]

    def turn(x, position):
        half = len(x) // 2
        angle = position / c["rope_theta"] ** (np.arange(half) * 2 / len(x))
        cos, sin = np.cos(angle), np.sin(angle)
        return np.concatenate([x[:half] * cos - x[half:] * sin, x[half:] * cos + x[:half] * sin])

    x = w["model.embed_tokens.weight"][ids]
    heads, shared = c["num_attention_heads"], c["num_attention_heads"] // c["num_key_value_heads"]
    for n in range(c["num_hidden_layers"]):
        at = f"model.layers.{n}."
        y = norm(x, at + "input_layernorm.weight")
        q, k, v = (
            (y @ w[f"{at}self_attn.{name}_proj.weight"].T).reshape(len(ids), -1, c["head_dim"])
            for name in "qkv"
        )
        q, k = norm(q, at + "self_attn.q_norm.weight"), norm(k, at + "self_attn.k_norm.weight")
        out = np.zeros_like(q)
        for t in range(len(ids)):
            for h in range(heads):
                keys = [turn(k[s, h // shared], s) for s in range(t + 1)]
                scores = np.array(keys) @ turn(q[t, h], t) / np.sqrt(c["head_dim"])
                share = np.exp(scores - scores.max())
                out[t, h] = share / share.sum() @ v[: t + 1, h // shared]
        x = x + out.reshape(len(ids), -1) @ w[at + "self_attn.o_proj.weight"].T
        y = norm(x, at + "post_attention_layernorm.weight")
        gate, up = y @ w[at + "mlp.gate_proj.weight"].T, y @ w[at + "mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[at + "mlp.down_proj.weight"].T
    return norm(x, "model.norm.weight") @ w["model.embed_tokens.weight"].T
