"""Published models by name: the sizes in their config.json files on Hugging Face.

``SHAPES["qwen3-14b"]`` is a :class:`model.config.ModelConfig`; change how it is run with
``dataclasses.replace(..., scan_layers=True)``. The numbers of parameters that these give are compared
with the published ones in ``tests/model/test_config.py``.
"""

from __future__ import annotations

from typing import Any

from model.config import ModelConfig, RopeScaling


def _qwen3(d_model: int, n_layers: int, n_heads: int, d_ff: int, *, tied: bool = False) -> ModelConfig:
    return ModelConfig(
        vocab_size=151_936,
        d_model=d_model,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=8,
        head_dim=128,
        d_ff=d_ff,
        rope_theta=1e6,
        tie_embeddings=tied,
        max_len=40_960,
    )


def _qwen25(
    d_model: int, n_layers: int, n_heads: int, n_kv_heads: int, d_ff: int, *, tied: bool = False
) -> ModelConfig:
    """The instruct models; those without tied embeddings pad their vocabulary further."""
    return ModelConfig(
        vocab_size=151_936 if tied else 152_064,
        d_model=d_model,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=d_model // n_heads,
        d_ff=d_ff,
        rope_theta=1e6,
        tie_embeddings=tied,
        qk_norm=False,
        qkv_bias=True,
        max_len=32_768,
    )


def _llama(d_model: int, n_layers: int, n_heads: int, n_kv_heads: int, d_ff: int, **more: Any) -> ModelConfig:
    usual = {"vocab_size": 128_256, "rope_theta": 5e5, "tie_embeddings": False, "max_len": 131_072}
    return ModelConfig(
        d_model=d_model,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=d_model // n_heads,
        d_ff=d_ff,
        rms_eps=1e-5,
        qk_norm=False,
        **(usual | more),
    )


def _smollm2(d_model: int, n_layers: int, n_heads: int, n_kv_heads: int, d_ff: int, theta: float):
    more = {"vocab_size": 49_152, "rope_theta": theta, "tie_embeddings": True, "max_len": 8192}
    return _llama(d_model, n_layers, n_heads, n_kv_heads, d_ff, **more)


_LLAMA_31 = RopeScaling("llama3", factor=8.0, original_max_len=8192)
_LLAMA_32 = RopeScaling("llama3", factor=32.0, original_max_len=8192)

SHAPES: dict[str, ModelConfig] = {
    "qwen3-0.6b": _qwen3(1024, 28, 16, 3072, tied=True),
    "qwen3-1.7b": _qwen3(2048, 28, 16, 6144, tied=True),
    "qwen3-4b": _qwen3(2560, 36, 32, 9728, tied=True),
    "qwen3-8b": _qwen3(4096, 36, 32, 12_288),
    "qwen3-14b": _qwen3(5120, 40, 40, 17_408),
    "qwen3-32b": _qwen3(5120, 64, 64, 25_600),
    "qwen2.5-0.5b": _qwen25(896, 24, 14, 2, 4864, tied=True),
    "qwen2.5-1.5b": _qwen25(1536, 28, 12, 2, 8960, tied=True),
    "qwen2.5-3b": _qwen25(2048, 36, 16, 2, 11_008, tied=True),
    "qwen2.5-7b": _qwen25(3584, 28, 28, 4, 18_944),
    "qwen2.5-14b": _qwen25(5120, 48, 40, 8, 13_824),
    "qwen2.5-32b": _qwen25(5120, 64, 40, 8, 27_648),
    "smollm2-135m": _smollm2(576, 30, 9, 3, 1536, 1e5),
    "smollm2-360m": _smollm2(960, 32, 15, 5, 2560, 1e5),
    "smollm2-1.7b": _smollm2(2048, 24, 32, 32, 8192, 130_000.0),
    "llama-3-8b": _llama(4096, 32, 32, 8, 14_336, max_len=8192),
    "llama-3.1-8b": _llama(4096, 32, 32, 8, 14_336, rope_scaling=_LLAMA_31),
    "llama-3.1-70b": _llama(8192, 80, 64, 8, 28_672, rope_scaling=_LLAMA_31),
    "llama-3.2-1b": _llama(2048, 16, 32, 8, 8192, tie_embeddings=True, rope_scaling=_LLAMA_32),
    "llama-3.2-3b": _llama(3072, 28, 24, 8, 8192, tie_embeddings=True, rope_scaling=_LLAMA_32),
}
