"""Weights between our tree and Hugging Face's safetensors files, one tensor at a time.

In: a :class:`Source`, which knows tensors by their names in transformers and reads parts of them
(a folder of safetensors here; a GGUF file in :mod:`model.gguf`; either with a LoRA adapter added in
:mod:`model.lora`). Out: parameters, each placed on the mesh before the next is read; a device's part
is read from the file alone, so no second copy of the model exists in host memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import save_file

from model.config import ModelConfig
from model.sharding import is_stacked, logical_axes, place
from model.transformer import abstract_params

# path below a layer in our tree -> name below "model.layers.N." in transformers
LAYER_NAMES = {
    ("attention_norm", "weight"): "input_layernorm.weight",
    ("attention", "q", "kernel"): "self_attn.q_proj.weight",
    ("attention", "k", "kernel"): "self_attn.k_proj.weight",
    ("attention", "v", "kernel"): "self_attn.v_proj.weight",
    ("attention", "o", "kernel"): "self_attn.o_proj.weight",
    ("attention", "q", "bias"): "self_attn.q_proj.bias",
    ("attention", "k", "bias"): "self_attn.k_proj.bias",
    ("attention", "v", "bias"): "self_attn.v_proj.bias",
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
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}
FILE_BYTES = 5 * 10**9  # of a weight file at most; Hugging Face's usual size
ONE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"

Index = tuple[slice, ...]


class Source(Protocol):
    """Tensors by name, [out, in] as in transformers."""

    def shape(self, name: str) -> tuple[int, ...] | None:
        """None: there is no such tensor."""
        ...

    def read(self, name: str, index: Index) -> np.ndarray:
        """A part of a tensor, in the file's dtype."""
        ...

    def where(self, name: str) -> str:
        """What to call the file in an error."""
        ...


class SafetensorsFolder:
    """``model.safetensors``, or several files with their index.

    Raises:
        FileNotFoundError: neither is there.
        ValueError: the index is no index, or names a file outside the folder.
    """

    def __init__(self, folder: Path, one_file: str = ONE_FILE):
        self.folder = folder
        if (folder / one_file).exists():
            self._opened = {one_file: safe_open(str(folder / one_file), framework="numpy")}
            self._file = dict.fromkeys(self._opened[one_file].keys(), one_file)
        elif (folder / INDEX).exists():
            self._opened = {}
            self._file = _read_index(folder / INDEX)
        else:
            raise FileNotFoundError(f"{folder}: neither {one_file} nor {INDEX} is there")

    def names(self) -> list[str]:
        return sorted(self._file)

    def shape(self, name: str) -> tuple[int, ...] | None:
        return tuple(self._slice(name).get_shape()) if name in self._file else None

    def read(self, name: str, index: Index) -> np.ndarray:
        return self._slice(name)[index]

    def where(self, name: str) -> str:
        return str(self.folder / self._file.get(name, ONE_FILE))

    def _slice(self, name: str) -> Any:
        file = self._file[name]
        if file not in self._opened:
            self._opened[file] = safe_open(str(self.folder / file), framework="numpy")
        return self._opened[file].get_slice(name)


def _read_index(file: Path) -> dict[str, str]:
    files = json.loads(file.read_text()).get("weight_map")
    if not isinstance(files, dict):
        raise ValueError(f"{file}: weight_map missing")
    for name in set(files.values()):
        if Path(name).name != name:
            raise ValueError(f"{file}: {name!r} is no name of a file beside it")
    return files


def hf_names(path: tuple[Any, ...], n_layers: int) -> list[str]:
    """Names in transformers of the tensors that a parameter holds: one, or one a layer when stacked."""
    if path[0] != "layers":
        return [TOP_NAMES[tuple(path)]]
    if is_stacked(path):
        return [f"model.layers.{n}.{LAYER_NAMES[tuple(path[1:])]}" for n in range(n_layers)]
    return [f"model.layers.{path[1]}.{LAYER_NAMES[tuple(path[2:])]}"]


def load_params(
    config: ModelConfig,
    source: Source,
    *,
    dtype: str = "float32",
    mesh: jax.sharding.Mesh | None = None,
) -> nnx.State:
    """Parameters of a config's model, read from ``source``.

    Args:
        dtype: of the weights in memory: float32 (for training), or bfloat16 (half the memory).
        mesh: where to put them, by :mod:`model.sharding`; each process reads its devices' parts only.

    Raises:
        ValueError: a tensor is missing or has another shape than config.json says; names it.
    """
    flat = nnx.to_flat_state(abstract_params(config))
    names = {path: hf_names(path, config.n_layers) for path, _ in flat}
    for path, leaf in flat:  # all of them before the first long read
        shape = leaf.shape[1:] if is_stacked(path) else leaf.shape
        for name in names[path]:
            _check(source, name, shape[::-1] if path[-1] == "kernel" else shape)
    out = []
    for path, leaf in flat:
        read = _reader(source, path, names[path], DTYPES[dtype])
        if mesh is None:
            array = jnp.asarray(read(tuple(slice(0, n) for n in leaf.shape)))
        else:
            sharding = place(mesh, logical_axes(path), leaf.shape)
            array = jax.make_array_from_callback(leaf.shape, sharding, read)
        array.block_until_ready()
        out.append((path, leaf.replace(array)))
    return nnx.from_flat_state(out)


def _check(source: Source, name: str, expected: tuple[int, ...]) -> None:
    shape = source.shape(name)
    if shape is None:
        raise ValueError(f"{source.where(name)}: no tensor {name}")
    if shape != expected:
        raise ValueError(f"{source.where(name)}: {name} is {shape}, config.json says {expected}")


def _reader(
    source: Source, path: tuple[Any, ...], names: list[str], dtype: Any
) -> Callable[[Any], np.ndarray]:
    """Gives the part of a parameter at an index."""

    def one(name: str, index: Index) -> np.ndarray:
        turned = path[-1] == "kernel"
        array = source.read(name, index[::-1] if turned else index)
        return (array.T if turned else array).astype(dtype)

    def read(index: Any) -> np.ndarray:
        index = tuple(index)
        if not is_stacked(path):
            return one(names[0], index)
        return np.stack([one(name, index[1:]) for name in names[index[0]]])

    return read


def save_params(folder: Path, params: nnx.State, *, dtype: str, file_bytes: int = FILE_BYTES) -> None:
    """Write the weight files of a model into an existing folder; one file's tensors in memory at a time."""
    size = np.dtype(DTYPES[dtype]).itemsize
    files: list[list[tuple[str, Callable[[], np.ndarray], int]]] = [[]]
    for name, get, count in _tensors(params, DTYPES[dtype]):
        if files[-1] and sum(n for *_, n in files[-1]) + count * size > file_bytes:
            files.append([])
        files[-1].append((name, get, count * size))
    if len(files) == 1:
        _write(folder / ONE_FILE, files[0])
        return
    where = {}
    for number, tensors in enumerate(files, 1):
        file = f"model-{number:05}-of-{len(files):05}.safetensors"
        _write(folder / file, tensors)
        where |= {name: file for name, *_ in tensors}
    total = sum(n for tensors in files for *_, n in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _write(file: Path, tensors: list[tuple[str, Callable[[], np.ndarray], int]]) -> None:
    save_file({name: get() for name, get, _ in tensors}, str(file), metadata={"format": "pt"})


def _tensors(params: nnx.State, dtype: Any) -> Iterator[tuple[str, Callable[[], np.ndarray], int]]:
    """Name, a function that gives the array, and its number of values."""
    for path, leaf in nnx.to_flat_state(params):
        value, stacked = leaf[...], is_stacked(path)

        def get(value=value, path=path, n: int | None = None) -> np.ndarray:
            array = np.asarray(value if n is None else value[n]).astype(dtype)
            return np.ascontiguousarray(array.T if path[-1] == "kernel" else array)

        count = value.size // (len(value) if stacked else 1)
        for n, name in enumerate(hf_names(path, len(value) if stacked else 0)):
            yield name, (lambda get=get, n=n: get(n=n)) if stacked else get, count
