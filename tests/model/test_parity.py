"""The same numbers as `transformers`: logits, greedy continuations with the cache, both ways to disk.

Each family is a small model made by transformers with random weights, norms and biases. torch and
transformers are the ``parity`` extra.
"""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from model import hf
from model.config import ModelConfig
from model.engine import Engine
from model.slots import Slots
from model.tokens import ChatTemplate, tool_text
from model.transformer import make_graphdef

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-4
VOCAB = 500
COMMON = {"vocab_size": VOCAB, "num_hidden_layers": 2, "max_position_embeddings": 256}
ROPE_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
ROPE_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}


def shape(width, heads, kv_heads, d_ff, **more):
    sizes = {"hidden_size": width, "num_attention_heads": heads, "num_key_value_heads": kv_heads}
    return COMMON | sizes | {"intermediate_size": d_ff} | more


FAMILIES = {
    "qwen3": lambda: transformers.Qwen3Config(**shape(48, 4, 2, 96, head_dim=16, tie_word_embeddings=True)),
    "qwen3 to longer rows": lambda: transformers.Qwen3Config(
        **shape(48, 4, 2, 96, head_dim=16, tie_word_embeddings=False, rope_parameters=ROPE_YARN)
    ),
    "qwen2.5": lambda: transformers.Qwen2Config(**shape(56, 7, 1, 80, tie_word_embeddings=True)),
    "smollm2": lambda: transformers.LlamaConfig(**shape(48, 3, 1, 96, tie_word_embeddings=True)),
    "llama3": lambda: transformers.LlamaConfig(
        **shape(64, 4, 2, 96, tie_word_embeddings=False, rope_parameters=ROPE_LLAMA3, rms_norm_eps=1e-5)
    ),
}


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda name: name.replace(" ", "-"))
def theirs(request, tmp_path_factory):
    """A model of transformers and the folder where it saved itself, in several files."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[request.param](), dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            about = 1.0 if "norm" in name else 0.0
            spread = 0.2 if weight.ndim == 1 else weight.shape[-1] ** -0.5 * 1.5
            weight.copy_(about + spread * torch.randn_like(weight))
    folder = tmp_path_factory.mktemp("theirs")
    model.eval().save_pretrained(folder, max_shard_size="80KB")
    assert (folder / "model.safetensors.index.json").exists()
    return model, folder


def ids(n: int) -> list[int]:
    return np.random.default_rng(0).integers(0, VOCAB, n).tolist()


def their_logits(model, row: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([row])).logits[0].float().numpy()


def our_logits(config: ModelConfig, params, row: list[int]) -> np.ndarray:
    @jax.jit
    def run(params, tokens):
        model = nnx.merge(make_graphdef(config), params)
        return model.logits(model(tokens, jnp.arange(len(row))[None], jnp.ones_like(tokens)))[0]

    return np.asarray(run(params, jnp.array([row])))


def test_the_same_logits_and_greedy_tokens(theirs):
    model, folder = theirs
    config, params = hf.load_model(folder)
    row = ids(150)  # past the 64 positions before rope scaling, and more than one chunk of attention
    np.testing.assert_allclose(our_logits(config, params, row), their_logits(model, row), atol=TOLERANCE)

    engine = Slots(Engine(config, params, slots=1, max_len=256, eos_id=-1))
    engine.insert(engine.prefill(row[:100]), 0)
    (ours,) = engine.generate([0], [0], temperature=0.0, max_new=64)
    continued = model.generate(
        torch.tensor([row[:100]]), max_new_tokens=64, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert ours.tokens == continued[0, 100:].tolist()


def test_our_export_loads_in_transformers(theirs, tokenizer, tmp_path):
    model, folder = theirs
    config, params = hf.load_model(folder, scan_layers=True)
    hf.save_policy(tmp_path / "ours", config, params, tokenizer, file_bytes=80_000)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32)
    assert type(again) is type(model)
    row = ids(150)
    np.testing.assert_allclose(their_logits(again, row), their_logits(model, row), atol=1e-6)


def test_their_settings_stay_theirs(theirs):
    """What config.json says is what transformers says."""
    model, folder = theirs
    config = ModelConfig.from_json((folder / "config.json").read_text())
    body = json.loads(config.to_json())
    assert body["model_type"] == model.config.model_type
    assert config.parameters == sum(p.numel() for p in model.parameters())


BASE = Path(hf.__file__).parent / "base"


def test_the_shipped_policy_answers_the_same_in_transformers(tools, tmp_path):
    """Exported by us, read by AutoModelForCausalLM and AutoTokenizer: same prompt, same greedy turn."""
    config, params, tokenizer = hf.load_policy(BASE)
    hf.save_policy(tmp_path / "policy", config, params, tokenizer)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "policy", dtype=torch.float32)
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "policy")

    question = "Which airports are there in France? Book a seat in economy on flight F12."
    prompt = ChatTemplate(tokenizer).prompt(tools, question)
    theirs = words.apply_chat_template(
        [{"role": "user", "content": question}],
        tools=[json.loads(tool_text(tool)) for tool in tools],
        add_generation_prompt=True,
        return_dict=False,
    )
    assert theirs == prompt

    engine = Slots(Engine(config, params, slots=1, max_len=1024, eos_id=tokenizer.eos_id))
    engine.insert(engine.prefill(prompt), 0)
    (ours,) = engine.generate([0], [0], temperature=0.0, max_new=64)
    continued = model.generate(torch.tensor([prompt]), max_new_tokens=64, do_sample=False)
    assert ours.tokens == continued[0, len(prompt) :].tolist()
    assert words.decode(ours.tokens) == tokenizer.decode(ours.tokens)
