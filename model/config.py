"""The shape of a policy: one frozen dataclass, read from and written to Hugging Face's config.json.

The shape is Qwen3's: RMSNorm before each block, grouped-query attention with a norm on queries
and keys, rotary positions, SwiGLU, tied embeddings. ``qk_norm=False`` is the Llama shape.
The numbers come from whoever makes a policy; a checkpoint folder carries them in ``config.json``.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Self

# our field -> the name in Hugging Face's config.json (Qwen3Config, LlamaConfig)
HF_NAMES = {
    "vocab_size": "vocab_size",
    "d_model": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "d_ff": "intermediate_size",
    "rope_theta": "rope_theta",
    "rms_eps": "rms_norm_eps",
    "tie_embeddings": "tie_word_embeddings",
    "max_len": "max_position_embeddings",
}


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Sizes of a decoder-only transformer.

    The defaults are the shipped base policy (about 1.5M parameters; ours, from the copying probe):
    a vocabulary of 2,048, 4 layers of width 160, 5 query heads that share 1 key/value head.
    """

    vocab_size: int = 2048
    d_model: int = 160
    n_layers: int = 4
    n_heads: int = 5
    n_kv_heads: int = 1
    head_dim: int = 32
    d_ff: int = 480
    rope_theta: float = 10_000.0
    rms_eps: float = 1e-6
    tie_embeddings: bool = True
    qk_norm: bool = True
    max_len: int = 1024

    def __post_init__(self) -> None:
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_heads={self.n_heads} is no multiple of n_kv_heads={self.n_kv_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even for rotary positions")

    @property
    def parameters(self) -> int:
        """Number of trained parameters."""
        heads = self.n_heads + self.n_kv_heads
        attention = 2 * self.d_model * heads * self.head_dim + (2 * self.head_dim if self.qk_norm else 0)
        layer = attention + 3 * self.d_model * self.d_ff + 2 * self.d_model
        embeddings = self.vocab_size * self.d_model * (1 if self.tie_embeddings else 2)
        return self.n_layers * layer + embeddings + self.d_model

    def to_json(self) -> str:
        """The text of config.json, as ``transformers`` reads it."""
        body: dict[str, Any] = {
            "architectures": ["Qwen3ForCausalLM" if self.qk_norm else "LlamaForCausalLM"],
            "model_type": "qwen3" if self.qk_norm else "llama",
            "hidden_act": "silu",
            "attention_bias": False,
        }
        body |= {hf: getattr(self, ours) for ours, hf in HF_NAMES.items()}
        return json.dumps(body, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a config.json of model type qwen3 or llama.

        Raises:
            ValueError: another model type, or a size is missing.
        """
        body = json.loads(text)
        kind = body.get("model_type")
        if kind not in ("qwen3", "llama"):
            raise ValueError(f"config.json: model_type is {kind!r}; this program reads qwen3 and llama")
        # transformers 5 keeps the base of the rotary positions in a dictionary of its own
        body = (body.get("rope_parameters") or {}) | body
        body.setdefault("head_dim", body["hidden_size"] // body["num_attention_heads"])
        body.setdefault("tie_word_embeddings", False)
        missing = [hf for hf in HF_NAMES.values() if hf not in body]
        if missing:
            raise ValueError(f"config.json: {', '.join(missing)} missing")
        return cls(qk_norm=kind == "qwen3", **{ours: body[hf] for ours, hf in HF_NAMES.items()})
