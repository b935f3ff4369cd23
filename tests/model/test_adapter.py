"""LoRA weights to train: they change nothing at first, are all that learns, and leave in PEFT's layout."""

from __future__ import annotations

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from safetensors.numpy import load_file

from model import hf
from model.adapter import TARGETS, adapter_size, make_adapter, merge_adapter, save_adapter
from model.transformer import TokenBatch, make_graphdef, stack_layers, token_logprobs


def trained(params, rank=3, targets=TARGETS):
    """As an optimizer might leave it: B isn't zero any more."""
    adapter = make_adapter(params, rank, 0, targets)
    noise = lambda x: jax.random.normal(jax.random.key(x.size), x.shape) * 0.1  # noqa: E731
    return {name: {"a": pair["a"], "b": noise(pair["b"])} for name, pair in adapter.items()}


def leaves(params):
    return [np.asarray(x) for x in jax.tree.leaves(params)]


def test_a_fresh_adapter_changes_nothing(config, params):
    adapter = make_adapter(params, 4, 0)
    assert len(adapter) == config.n_layers * len(TARGETS)
    merged = merge_adapter(params, adapter, 2.0)
    assert jax.tree.structure(merged) == jax.tree.structure(params)
    for a, b in zip(leaves(merged), leaves(params), strict=True):
        np.testing.assert_array_equal(a, b)


def test_it_is_small_and_reproducible(config, params):
    one, two, other = (make_adapter(params, 2, seed, ("q", "v")) for seed in (0, 0, 1))
    q_and_v = config.n_heads * config.head_dim + config.n_kv_heads * config.head_dim
    assert adapter_size(one) == config.n_layers * 2 * (2 * config.d_model + q_and_v)
    same = [np.array_equal(a, b) for a, b in zip(leaves(one), leaves(two), strict=True)]
    assert all(same)
    assert not np.array_equal(leaves(one)[0], leaves(other)[0])


@pytest.mark.parametrize(("rank", "targets"), [(0, ("q",)), (4, ("embedding",)), (4, ("norm", "q"))])
def test_what_it_cannot_adapt_is_named(params, rank, targets):
    with pytest.raises(ValueError, match="targets are q, k, v, o, gate, up, down"):
        make_adapter(params, rank, 0, targets)


@pytest.mark.parametrize("how", [{}, {"scan_layers": True, "remat": "full"}], ids=["layers", "scan"])
def test_only_the_adapter_learns(config, params, how):
    config = dataclasses.replace(config, **how)
    base = stack_layers(params) if config.scan_layers else params
    graphdef, ids = make_graphdef(config), jnp.arange(24).reshape(2, 12) % 7
    batch = TokenBatch(ids, jnp.broadcast_to(jnp.arange(12), (2, 12)), jnp.ones((2, 12), jnp.int32))
    before = leaves(base)

    optimizer = optax.adam(1e-2)

    @jax.jit
    def step(adapter, state, base):
        def loss(adapter):
            return -token_logprobs(graphdef, merge_adapter(base, adapter, 2.0), batch)[0].mean()

        value, gradient = jax.value_and_grad(loss)(adapter)
        updates, state = optimizer.update(gradient, state)
        return value, optax.apply_updates(adapter, updates), state

    adapter, losses = make_adapter(base, 4, 0), []
    state = optimizer.init(adapter)
    for _ in range(15):
        loss, adapter, state = step(adapter, state, base)
        losses.append(float(loss))
    assert losses[-1] < losses[0] - 0.5
    assert all(float(jnp.abs(pair["b"]).max()) > 0 for pair in adapter.values()), "every map has learnt"
    for a, b in zip(before, leaves(base), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("scan", [False, True], ids=["layers", "scan"])
def test_what_is_saved_comes_back_merged(config, params, tokenizer, tmp_path, scan):
    hf.save_policy(tmp_path / "base", config, params, tokenizer)
    base = stack_layers(params) if scan else params
    adapter = trained(base)
    save_adapter(tmp_path / "adapter", adapter, rank=3, alpha=6.0, base=str(tmp_path / "base"))
    _, found = hf.load_model(tmp_path / "base", adapter=tmp_path / "adapter", scan_layers=scan)
    for a, b in zip(leaves(found), leaves(merge_adapter(base, adapter, 2.0)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    names = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert "base_model.model.model.layers.1.mlp.down_proj.lora_A.weight" in names
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert settings["target_modules"] == sorted(f"{name}_proj" for name in TARGETS)


def test_peft_reads_it_and_gives_the_same_logits(config, params, tokenizer, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    from flax import nnx

    hf.save_policy(tmp_path / "base", config, params, tokenizer)
    adapter = trained(params, targets=("q", "v", "down"))
    save_adapter(tmp_path / "adapter", adapter, rank=3, alpha=6.0)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(model, tmp_path / "adapter").eval()
    row = np.random.default_rng(0).integers(0, 500, 20).tolist()
    with torch.no_grad():
        theirs = model(torch.tensor([row])).logits[0].numpy()
    ours = nnx.merge(make_graphdef(config), merge_adapter(params, adapter, 2.0))
    hidden = ours(jnp.array([row]), jnp.arange(20)[None], jnp.ones((1, 20), jnp.int32))
    np.testing.assert_allclose(ours.logits(hidden)[0], theirs, atol=1e-4)


def test_a_folder_of_other_files_stays(params, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="thesis"):
        save_adapter(tmp_path, make_adapter(params, 1, 0), 1, 1.0)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
