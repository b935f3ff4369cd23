"""A policy as a folder in Hugging Face's layout: what is shipped, exported and read back.

    config.json                    sizes, under the names of Qwen3Config, Qwen2Config or LlamaConfig
    model.safetensors              weights under transformers' names, [out, in], float32 or bfloat16
    model-00001-of-00009...        instead of it, for a large model, with model.safetensors.index.json
    generation_config.json         which token ends a turn
    tokenizer.json                 the `tokenizers` file
    tokenizer_config.json          control tokens and the chat template as text

What another program wrote beside ``tokenizer.json`` (a chat template, say) is kept by the tokenizer
that was read and written out with it. A folder is written beside its target and then put in its
place: nobody ever reads half of one. Training state (optimizer, step) is another matter:
:mod:`model.checkpoint`.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import jax
from flax import nnx

from model.config import ModelConfig
from model.folder import replaced
from model.lora import WithAdapter
from model.tokenizer import END, PAD, SIDE_FILES, Tokenizer
from model.weights import FILE_BYTES, SafetensorsFolder, Source, load_params, save_params

# The template as other programs read it (Jinja); :mod:`model.tokens` is its twin in ids.
CHAT_TEMPLATE = Path(__file__).with_name("chat_template.txt")

_OURS = re.compile(
    r"config\.json|model(-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json|tokenizer\.json|"
    + "|".join(map(re.escape, SIDE_FILES))
)


def is_policy_file(name: str) -> bool:
    """True for the name of a file that :func:`save_policy` may write, and so replace."""
    return _OURS.fullmatch(name) is not None


def save_policy(
    folder: str | Path,
    config: ModelConfig,
    params: nnx.State,
    tokenizer: Tokenizer,
    *,
    dtype: str = "float32",
    file_bytes: int = FILE_BYTES,
) -> None:
    """Write a policy; an existing policy folder of that name is replaced in one step.

    Args:
        folder: the target; its parent is made if missing.
        params: the state of a :class:`model.transformer.Transformer`.
        dtype: ``float32`` or ``bfloat16`` (half the size; rounds the weights).
        file_bytes: of one weight file at most; several get an index.

    Raises:
        FileExistsError: the target holds other files than a policy's; nothing is touched.
    """
    config_text = json.dumps(json.loads(config.to_json()) | {"torch_dtype": dtype}, indent=2)
    with replaced(Path(folder), is_policy_file) as part:
        (part / "config.json").write_text(config_text + "\n")
        save_params(part, params, dtype=dtype, file_bytes=file_bytes)
        tokenizer.save(part)
        for name, text in (_default_side_files(tokenizer) | tokenizer.side_files).items():
            (part / name).write_text(text)


def _default_side_files(tokenizer: Tokenizer) -> dict[str, str]:
    """What stands beside a tokenizer of our own making."""
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "chat_template": CHAT_TEMPLATE.read_text().removesuffix("\n"),
        "clean_up_tokenization_spaces": False,
    }
    # sampling at temperature 1 from the whole vocabulary: how the policy was trained
    generation = {
        "eos_token_id": tokenizer.eos_id,
        "pad_token_id": tokenizer.pad_id,
        "do_sample": True,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
    }
    bodies = {"tokenizer_config.json": settings, "generation_config.json": generation}
    return {name: json.dumps(body, indent=2) + "\n" for name, body in bodies.items()}


def load_policy(
    folder: str | Path,
    *,
    adapter: str | Path | None = None,
    dtype: str = "float32",
    mesh: jax.sharding.Mesh | None = None,
    **how: Any,
) -> tuple[ModelConfig, nnx.State, Tokenizer]:
    """Read a policy folder.

    Args:
        adapter: a LoRA adapter's folder (PEFT's layout), merged into the weights as they are read.
        dtype: of the weights in memory.
        mesh: where to put them; without one, on the default device.
        how: how the model is run, as in :class:`model.config.ModelConfig` (``scan_layers=True``).

    Raises:
        FileNotFoundError: no such folder, or a file of it is missing.
        ValueError: the weights don't fit config.json; the message names the tensor.
    """
    folder = Path(folder)
    config, params = load_model(folder, adapter=adapter, dtype=dtype, mesh=mesh, **how)
    return config, params, Tokenizer.load(folder)


def load_model(
    folder: str | Path,
    *,
    adapter: str | Path | None = None,
    dtype: str = "float32",
    mesh: jax.sharding.Mesh | None = None,
    **how: Any,
) -> tuple[ModelConfig, nnx.State]:
    """:func:`load_policy` without the tokenizer, for one whose tokenizer isn't ours."""
    folder = Path(folder)
    config = dataclasses.replace(ModelConfig.from_json((folder / "config.json").read_text()), **how)
    source: Source = SafetensorsFolder(folder)
    if adapter is not None:
        source = WithAdapter(source, adapter)
    return config, load_params(config, source, dtype=dtype, mesh=mesh)
