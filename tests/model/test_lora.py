"""LoRA adapters in PEFT's layout: the numbers of `peft`, merged while reading."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from model import hf
from model.transformer import make_graphdef

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.fixture(scope="module")
def base(config, params, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("base") / "policy"
    hf.save_policy(folder, config, params, tokenizer)
    return folder


def make_adapter(base, folder, **settings):
    """An adapter with random B (a fresh one is zero), saved by peft; returns its model."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = peft.get_peft_model(model, peft.LoraConfig(**settings))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)
    model.eval().save_pretrained(folder)
    return model


@pytest.mark.parametrize(
    "settings",
    [
        {"r": 4, "lora_alpha": 16, "target_modules": TARGETS},
        {"r": 8, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "use_rslora": True},
        {
            "r": 4,
            "lora_alpha": 4,
            "target_modules": TARGETS,
            "rank_pattern": {"up_proj": 2},
            "alpha_pattern": {"layers.1.self_attn.q_proj": 32},
        },
    ],
    ids=["all linear layers", "rank-stabilised", "patterns"],
)
def test_a_merged_adapter_gives_pefts_logits(base, tmp_path, settings):
    theirs = make_adapter(base, tmp_path / "adapter", **settings)
    row = np.random.default_rng(0).integers(0, 500, 20).tolist()
    with torch.no_grad():
        expected = theirs(torch.tensor([row])).logits[0].numpy()
    for how in ({}, {"scan_layers": True}):
        config, params = hf.load_model(base, adapter=tmp_path / "adapter", **how)
        model = nnx.merge(make_graphdef(config), params)
        ours = model.logits(model(jnp.array([row]), jnp.arange(20)[None], jnp.ones((1, 20), jnp.int32)))[0]
        np.testing.assert_allclose(ours, expected, atol=1e-4)
    _, plain = hf.load_model(base)
    assert not np.array_equal(jax.tree.leaves(plain["layers"])[0], jax.tree.leaves(params["layers"])[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"peft_type": "IA3"}, "IA3"),
    ],
)
def test_what_is_no_plain_lora_is_refused(base, tmp_path, change, message):
    adapter(tmp_path, {}, change)
    with pytest.raises(ValueError, match=message):
        hf.load_model(base, adapter=tmp_path)


def adapter(folder, tensors, change):
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none"} | change
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    save_file(tensors, str(folder / "adapter_model.safetensors"))


def test_an_adapter_of_another_model_is_refused(base, tmp_path):
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    tensors = {f"{name}A.weight": np.ones((2, 64), "f4"), f"{name}B.weight": np.ones((32, 2), "f4")}
    adapter(tmp_path, tensors, {})
    with pytest.raises(
        ValueError, match=r"layers\.0\.self_attn\.q_proj is \(32, 64\), the model has \(32, 32\)"
    ):
        hf.load_model(base, adapter=tmp_path)
    assert load_file(base / "model.safetensors"), "the base is whole"


def test_a_tensor_that_belongs_to_no_linear_layer_is_refused(base, tmp_path):
    adapter(tmp_path, {"base_model.model.model.embed_tokens.lora_embedding_A": np.ones((2, 9), "f4")}, {})
    with pytest.raises(ValueError, match="lora_embedding_A"):
        hf.load_model(base, adapter=tmp_path)
