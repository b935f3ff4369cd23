"""Published sizes, and config.json in the words of its authors."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.config import ModelConfig, RopeScaling
from model.shapes import SHAPES

# The totals that Hugging Face shows for the published safetensors.
PUBLISHED = {
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_named_model_has_the_published_number_of_parameters(name):
    assert SHAPES[name].parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", SHAPES)
def test_config_json_comes_back(name):
    assert ModelConfig.from_json(SHAPES[name].to_json()) == SHAPES[name]


def test_how_it_is_run_is_no_part_of_the_policy():
    config = dataclasses.replace(SHAPES["qwen3-8b"], scan_layers=True, remat="full", compute_dtype="bfloat16")
    assert ModelConfig.from_json(config.to_json()) == SHAPES["qwen3-8b"]


def test_transformers_5_and_4_say_the_same_thing():
    body = json.loads(SHAPES["llama-3.2-1b"].to_json())
    new = dict(body)
    rope = new.pop("rope_scaling") | {"rope_theta": new.pop("rope_theta")}
    assert ModelConfig.from_json(json.dumps(new | {"rope_parameters": rope})) == SHAPES["llama-3.2-1b"]
    assert ModelConfig.from_json(json.dumps(body)) == SHAPES["llama-3.2-1b"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gemma"}, "gemma"),
        ({"attention_bias": True}, "attention_bias"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "longrope"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "original_max_position_embeddings"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 2.0}}, "mscale"),
    ],
)
def test_what_is_not_computed_is_refused(change, message):
    """Never passed over: the numbers would be wrong and nobody would know."""
    body = json.loads(SHAPES["qwen3-0.6b"].to_json())
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_json(json.dumps(body | change))


def test_a_missing_size_is_named():
    body = json.loads(SHAPES["qwen3-0.6b"].to_json())
    text = json.dumps({k: v for k, v in body.items() if k not in ("hidden_size", "head_dim")})
    with pytest.raises(ValueError, match=r"config\.json: hidden_size, head_dim missing"):
        ModelConfig.from_json(text)


@given(
    st.builds(
        ModelConfig,
        n_heads=st.just(6),
        n_kv_heads=st.sampled_from([1, 2, 3, 6]),
        head_dim=st.integers(1, 64).map(lambda n: 2 * n),
        qk_norm=st.just(False),
        qkv_bias=st.booleans(),
        tie_embeddings=st.booleans(),
        rope_scaling=st.none()
        | st.builds(
            RopeScaling,
            st.sampled_from(["llama3", "yarn"]),
            st.floats(1, 64),
            st.integers(64, 10**6),
            st.floats(0.5, 2),
            st.floats(3, 40),
        ),
    )
)
def test_any_config_comes_back(config):
    assert ModelConfig.from_json(config.to_json()) == config
