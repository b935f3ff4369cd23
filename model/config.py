"""The shape of a policy: one frozen dataclass, read from and written to Hugging Face's config.json.

One transformer serves three families; they differ in flags only:

    qwen3    norm on queries and keys          Qwen3 0.6B to 32B, the shipped base policy
    qwen2    bias on queries, keys and values  Qwen2.5
    llama    neither                           Llama 3, SmolLM2

The numbers come from whoever makes a policy; a checkpoint folder carries them in ``config.json``.
Published sizes stand in :mod:`model.shapes`. The last fields say how the network is run; they are
not part of the policy and don't reach ``config.json``.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Literal, Self

import jax.numpy as jnp

# our field -> the name in Hugging Face's config.json (Qwen3Config, Qwen2Config, LlamaConfig)
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
FAMILIES = {"qwen3": "Qwen3ForCausalLM", "qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}
# what transformers assumes where a config.json is silent
DEFAULTS = {"num_key_value_heads": None, "rope_theta": 10_000.0, "rms_norm_eps": 1e-6}

Remat = Literal["none", "full", "attention", "qkv", "dots"]


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """How rotary positions reach past the length that a model was pretrained on.

    A frequency that turns more than ``fast`` times over ``original_max_len`` tokens stays as it is,
    one that turns less than ``slow`` times is divided by ``factor``, and between them both are mixed:
    ``llama3`` mixes by the number of turns (Llama 3.1's release), ``yarn`` by the index of the
    frequency, and scales cosine and sine by ``1 + 0.1 ln(factor)`` (YaRN, arXiv 2309.00071).
    """

    kind: Literal["llama3", "yarn"]
    factor: float
    original_max_len: int
    slow: float = 1.0
    fast: float = 4.0

    def to_body(self) -> dict[str, Any]:
        """The ``rope_scaling`` of a config.json."""
        slow, fast = _TURNS[self.kind]
        return {
            "rope_type": self.kind,
            "factor": self.factor,
            slow: self.slow,
            fast: self.fast,
            "original_max_position_embeddings": self.original_max_len,
        }

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> Self | None:
        """Read ``rope_scaling``, or transformers 5's ``rope_parameters``; None: unscaled.

        Raises:
            ValueError: another kind, or a setting that isn't computed here.
        """
        kind = body.get("rope_type") or body.get("type") or "default"
        if kind == "default":
            return None
        if kind not in _TURNS:
            raise ValueError(f"config.json: rope_type {kind!r}; this program knows {', '.join(_TURNS)}")
        names = _TURNS[kind]
        known = {"rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings", *names}
        unknown = sorted(k for k, v in body.items() if k not in known and v is not None)
        if unknown:
            raise ValueError(f"config.json: rope scaling with {', '.join(unknown)} is not computed here")
        slow, fast = (body.get(k, d) for k, d in zip(names, _TURN_DEFAULTS[kind], strict=True))
        try:
            return cls(kind, float(body["factor"]), int(body["original_max_position_embeddings"]), slow, fast)
        except KeyError as err:
            raise ValueError(f"config.json: rope scaling {kind} lacks {err}") from None


_TURNS = {"llama3": ("low_freq_factor", "high_freq_factor"), "yarn": ("beta_slow", "beta_fast")}
_TURN_DEFAULTS = {"llama3": (1.0, 4.0), "yarn": (1.0, 32.0)}


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Sizes of a decoder-only transformer, and how it is run.

    The defaults are the first base policy (about 1.5M parameters; ours, from the copying probe):
    a vocabulary of 2,048, 4 layers of width 160, 5 query heads that share 1 key/value head.

    How it is run (the defaults are exact float32, as the shipped policy was trained):
        compute_dtype: of activations, products and the cache. Weights stay in the dtype they have
            (float32: master weights) and are rounded where they are used; means, softmax, rotary
            angles, logits and losses are float32 always.
        scan_layers: keep each kind of weight as one array over all layers and compile one layer,
            run L times. Compiling 40 layers then takes no longer than compiling one.
        remat: what the backward pass finds in memory; see :data:`model.transformer.REMAT`.
        attention: see :func:`model.attention.choose`.
        vocab_chunks: the loss looks at this many parts of the vocabulary one after the other, so that
            no array of all tokens times the whole vocabulary exists; see :mod:`model.scoring`.
        batch_invariant: take every sum of the forward in float64 and round it once to float32, so that a
            token's numbers don't depend on the batch, the packing or the chunks it is computed with: sampler
            and trainer then agree to the bit but for rare roundings. For CPUs; what it costs stands in
            model/ENGINE.md. See :mod:`model.exact`.
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
    qkv_bias: bool = False
    rope_scaling: RopeScaling | None = None
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    scan_layers: bool = False
    remat: Remat = "none"
    attention: Literal["auto", "chunked", "dot_product", "splash", "splash_interpret"] = "auto"
    vocab_chunks: int = 1
    batch_invariant: bool = False

    def __post_init__(self) -> None:
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_heads={self.n_heads} is no multiple of n_kv_heads={self.n_kv_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even for rotary positions")
        if self.qk_norm and self.qkv_bias:
            raise ValueError("qk_norm and qkv_bias together are no family that this program knows")
        if self.batch_invariant and self.compute_dtype != "float32":
            raise ValueError(f"batch_invariant rounds to float32; compute_dtype is {self.compute_dtype!r}")
        if self.batch_invariant and self.attention not in ("auto", "chunked"):
            raise ValueError(f"batch_invariant needs attention 'chunked', not {self.attention!r}")

    @property
    def family(self) -> str:
        """Hugging Face's model type."""
        return "qwen3" if self.qk_norm else "qwen2" if self.qkv_bias else "llama"

    @property
    def dtype(self) -> Any:
        """``compute_dtype`` as JAX names it."""
        return jnp.dtype(self.compute_dtype)

    @property
    def parameters(self) -> int:
        """Number of trained parameters."""
        heads = self.n_heads + self.n_kv_heads
        attention = 2 * self.d_model * heads * self.head_dim + (2 * self.head_dim if self.qk_norm else 0)
        attention += (self.n_heads + 2 * self.n_kv_heads) * self.head_dim if self.qkv_bias else 0
        layer = attention + 3 * self.d_model * self.d_ff + 2 * self.d_model
        embeddings = self.vocab_size * self.d_model * (1 if self.tie_embeddings else 2)
        return self.n_layers * layer + embeddings + self.d_model

    def to_json(self) -> str:
        """The text of config.json, as ``transformers`` reads it."""
        body: dict[str, Any] = {
            "architectures": [FAMILIES[self.family]],
            "model_type": self.family,
            "hidden_act": "silu",
            "attention_bias": False,  # Qwen2's bias on queries, keys and values is its model type's own
        }
        body |= {hf: getattr(self, ours) for ours, hf in HF_NAMES.items()}
        if self.rope_scaling:
            body["rope_scaling"] = self.rope_scaling.to_body()
        return json.dumps(body, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a config.json of model type qwen3, qwen2 or llama.

        Raises:
            ValueError: another model type, a setting that this program doesn't compute, or a size is
                missing.
        """
        body = json.loads(text)
        kind = body.get("model_type")
        if kind not in FAMILIES:
            raise ValueError(f"config.json: model_type is {kind!r}; this program reads {', '.join(FAMILIES)}")
        # transformers 5 keeps the base of the rotary positions in a dictionary of its own
        rope = body.get("rope_parameters") or body.get("rope_scaling") or {}
        body = DEFAULTS | {k: v for k, v in rope.items() if k == "rope_theta"} | body
        if "num_attention_heads" in body and "hidden_size" in body:
            body["head_dim"] = body.get("head_dim") or body["hidden_size"] // body["num_attention_heads"]
            body["num_key_value_heads"] = body["num_key_value_heads"] or body["num_attention_heads"]
        body.setdefault("tie_word_embeddings", False)
        missing = [hf for hf in HF_NAMES.values() if hf not in body]
        if missing:
            raise ValueError(f"config.json: {', '.join(missing)} missing")
        _refuse_what_is_not_computed(body)
        sizes = {ours: body[hf] for ours, hf in HF_NAMES.items()}
        return cls(
            qk_norm=kind == "qwen3",
            qkv_bias=kind == "qwen2",
            rope_scaling=RopeScaling.from_body(rope),
            **sizes,
        )


def _refuse_what_is_not_computed(body: dict[str, Any]) -> None:
    """A setting that would change the numbers and isn't computed here must not be passed over."""
    expected = {
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "use_sliding_window": False,
        "partial_rotary_factor": 1.0,
        "quantization_config": None,
    }
    for name, value in expected.items():
        if body.get(name, value) != value:
            raise ValueError(f"config.json: {name} is {body[name]!r}; this program computes {value!r} only")
    if "sliding_attention" in (body.get("layer_types") or ()):
        raise ValueError("config.json: layer_types has sliding_attention; this program computes full only")
