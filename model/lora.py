"""LoRA adapters in PEFT's layout, added to the weights as they are read.

    adapter_config.json           rank, alpha, which modules
    adapter_model.safetensors     base_model.model.<module>.lora_A.weight [r, in], .lora_B.weight [out, r]

:class:`WithAdapter` is a :class:`model.weights.Source`: ``W + scale * B A``, part by part, so that
merging needs no second copy of the model and works on a mesh.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from model.weights import Index, SafetensorsFolder, Source

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."

# what changes the product and isn't computed here: setting -> the value that leaves it out
PLAIN: dict[str, tuple[Any, ...]] = {
    "use_dora": (False, None),
    "fan_in_fan_out": (False, None),
    "bias": ("none", None),
    "modules_to_save": (None, []),
    "lora_bias": (False, None),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, []),
}


class WithAdapter:
    """The tensors of ``base`` with an adapter merged in.

    Raises:
        FileNotFoundError: the folder holds no adapter.
        ValueError: the adapter does what isn't computed here, or doesn't fit the base; says what.
    """

    def __init__(self, base: Source, folder: str | Path):
        self._base, self.folder = base, Path(folder)
        settings = json.loads((self.folder / CONFIG).read_text())
        _refuse(self.folder / CONFIG, settings)
        source = SafetensorsFolder(self.folder, WEIGHTS)
        self._pairs: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # small: r x (in + out) a module
        for name in source.names():
            module, _, part = name.removeprefix(PREFIX).rpartition(".lora_")
            if part == "A.weight":
                a, b = (_whole(source, f"{name.removesuffix('A.weight')}{x}.weight") for x in "AB")
                self._add(module, a, b, settings)
            elif part != "B.weight":
                raise ValueError(f"{self.folder / WEIGHTS}: {name} is no part of a linear layer's adapter")

    def _add(self, module: str, a: np.ndarray, b: np.ndarray, settings: dict[str, Any]) -> None:
        name = f"{module}.weight"
        expected, found = self._base.shape(name), (b.shape[0], a.shape[1])
        if expected != found:
            raise ValueError(f"{self.folder / WEIGHTS}: {module} is {found}, the model has {expected}")
        self._pairs[name] = a, b * np.float32(_scale(module, a.shape[0], settings))

    def shape(self, name: str) -> tuple[int, ...] | None:
        return self._base.shape(name)

    def where(self, name: str) -> str:
        return self._base.where(name)

    def read(self, name: str, index: Index) -> np.ndarray:
        array = self._base.read(name, index)
        if name not in self._pairs:
            return array
        a, b = self._pairs[name]
        return array.astype(np.float32) + b[index[0]] @ a[:, index[1]]


def _whole(source: SafetensorsFolder, name: str) -> np.ndarray:
    shape = source.shape(name)
    if shape is None:
        raise ValueError(f"{source.folder / WEIGHTS}: no tensor {name}")
    return source.read(name, tuple(slice(0, n) for n in shape)).astype(np.float32)


def _scale(module: str, rank: int, settings: dict[str, Any]) -> float:
    """alpha / r, or alpha / sqrt(r) for rank-stabilised adapters; a pattern may set alpha of a module."""
    alpha = settings["lora_alpha"]
    for pattern, value in (settings.get("alpha_pattern") or {}).items():
        if re.fullmatch(rf"(.*\.)?({pattern})", module):
            alpha = value
            break
    return alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)


def _refuse(file: Path, settings: dict[str, Any]) -> None:
    if settings.get("peft_type") != "LORA":
        raise ValueError(f"{file}: peft_type is {settings.get('peft_type')!r}; this program reads LORA")
    for name, allowed in PLAIN.items():
        if settings.get(name) not in allowed:
            raise ValueError(f"{file}: {name} is {settings[name]!r}; this program merges plain LoRA only")
