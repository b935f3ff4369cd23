"""A policy as a folder in Hugging Face's layout: what is shipped, exported and read back.

    config.json            sizes, under the names of Qwen3Config (or LlamaConfig)
    model.safetensors      weights under transformers' names, [out, in], float32 or bfloat16
    tokenizer.json         the `tokenizers` file
    tokenizer_config.json  control tokens and the chat template as text

A folder is written beside its target and then put in its place: nobody ever reads half of one.
Training state (optimizer, step) is another matter: :mod:`model.checkpoint`.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from flax import nnx
from safetensors.numpy import load_file, save_file

from model.config import ModelConfig
from model.tokenizer import END, PAD, Tokenizer
from model.transformer import abstract_params

# path below a layer in our tree -> name below "model.layers.N." in transformers
LAYER_NAMES = {
    ("attention_norm", "weight"): "input_layernorm.weight",
    ("attention", "q", "kernel"): "self_attn.q_proj.weight",
    ("attention", "k", "kernel"): "self_attn.k_proj.weight",
    ("attention", "v", "kernel"): "self_attn.v_proj.weight",
    ("attention", "o", "kernel"): "self_attn.o_proj.weight",
    ("attention", "q_norm", "weight"): "self_attn.q_norm.weight",
    ("attention", "k_norm", "weight"): "self_attn.k_norm.weight",
    ("mlp_norm", "weight"): "post_attention_layernorm.weight",
    ("mlp", "gate", "kernel"): "mlp.gate_proj.weight",
    ("mlp", "up", "kernel"): "mlp.up_proj.weight",
    ("mlp", "down", "kernel"): "mlp.down_proj.weight",
}
TOP_NAMES = {
    ("embedding",): "model.embed_tokens.weight",
    ("norm", "weight"): "model.norm.weight",
    ("head", "kernel"): "lm_head.weight",
}

# The template as other programs read it (Jinja); :mod:`model.tokens` is its twin in ids.
CHAT_TEMPLATE = Path(__file__).with_name("chat_template.txt")


def hf_name(path: tuple[Any, ...]) -> str:
    """Name of a parameter in transformers."""
    if path[0] == "layers":
        return f"model.layers.{path[1]}.{LAYER_NAMES[tuple(path[2:])]}"
    return TOP_NAMES[tuple(path)]


def save_policy(
    folder: str | Path,
    config: ModelConfig,
    params: nnx.State,
    tokenizer: Tokenizer,
    *,
    dtype: str = "float32",
) -> None:
    """Write a policy; an existing folder of that name is replaced in one step.

    Args:
        folder: the target; its parent is made if missing.
        params: the state of a :class:`model.transformer.Transformer`.
        dtype: ``float32`` or ``bfloat16`` (half the size; rounds the weights).
    """
    kind = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}[dtype]
    tensors = {}
    for path, leaf in nnx.to_flat_state(params):
        array = np.asarray(leaf[...]).astype(kind)
        tensors[hf_name(path)] = np.ascontiguousarray(array.T if path[-1] == "kernel" else array)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "chat_template": CHAT_TEMPLATE.read_text().removesuffix("\n"),
        "clean_up_tokenization_spaces": False,
    }
    config_text = json.dumps(json.loads(config.to_json()) | {"torch_dtype": dtype}, indent=2)
    with replaced(Path(folder)) as part:
        (part / "config.json").write_text(config_text + "\n")
        save_file(tensors, str(part / "model.safetensors"), metadata={"format": "pt"})
        tokenizer.save(part)
        (part / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def load_policy(folder: str | Path) -> tuple[ModelConfig, nnx.State, Tokenizer]:
    """Read a policy folder; weights become float32.

    Raises:
        FileNotFoundError: no such folder, or a file of it is missing.
        ValueError: the weights don't fit config.json; the message names the tensor.
    """
    folder = Path(folder)
    config = ModelConfig.from_json((folder / "config.json").read_text())
    tensors = load_file(str(folder / "model.safetensors"))

    def find(path: tuple[Any, ...], shape: tuple[int, ...]) -> np.ndarray:
        name = hf_name(path)
        if name not in tensors:
            raise ValueError(f"{folder}/model.safetensors: no tensor {name}")
        array = tensors[name].T if path[-1] == "kernel" else tensors[name]
        if array.shape != shape:
            raise ValueError(f"{folder}/model.safetensors: {name} is {array.shape}, config.json says {shape}")
        return array.astype(np.float32)

    return config, fill_params(config, find), Tokenizer.load(folder)


def fill_params(
    config: ModelConfig, find: Callable[[tuple[Any, ...], tuple[int, ...]], np.ndarray]
) -> nnx.State:
    """Parameters of a config's model with each array given by ``find(path, shape)``."""
    flat = nnx.to_flat_state(abstract_params(config))
    return nnx.from_flat_state(
        [(path, leaf.replace(jnp.asarray(find(path, leaf.shape)))) for path, leaf in flat]
    )


@contextmanager
def replaced(target: Path) -> Iterator[Path]:
    """A folder to write into, which becomes ``target`` in one step when the block ends well.

    After a crash at any point ``target`` is the old folder or the new one, whole; a left-over
    ``.NAME.part*`` beside it may be removed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{target.name}.part", dir=target.parent))
    try:
        part.chmod(0o755)
        yield part
        for file in part.iterdir():
            file.chmod(0o644)
            with open(file, "rb") as handle:
                os.fsync(handle.fileno())
        if target.exists():
            _exchange(part, target)
        else:
            os.rename(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _exchange(a: Path, b: Path) -> None:
    """Swap two folders: Linux's renameat2 does it in one step; elsewhere three renames."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if rename is not None and rename(here, os.fsencode(a), here, os.fsencode(b), exchange) == 0:
        return
    aside = a.with_name(a.name + ".old")
    os.rename(b, aside)
    os.rename(a, b)
    os.rename(aside, a)
