"""Training LoRA weights: an adapter beside frozen weights, ``kernel + scale * A B``, on attention and MLP.

In: the weights of a policy, cut over a mesh or not, layers stacked or not. Out: an :class:`Adapter` (a
pytree, all that an optimizer changes), the merged weights that the same forward takes, and a folder in PEFT's
layout, which :mod:`model.lora` (and ``peft``) read.

The merged kernel is made inside the compiled step and used by the plain forward: what is trained, sampled
and exported are then the same numbers, and packed rows, scan, remat and meshes need nothing of their own.
It costs rank / tokens of what the forward costs. The price is memory: one merged copy of the adapted kernels
and of their gradient while a step runs; moments and checkpoints hold A and B only.

qwix 0.1.8 was tried and doesn't serve: its interception fails on layers under ``lax.scan`` (IndexError).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from safetensors.numpy import save_file

from model.folder import replaced
from model.lora import CONFIG, PREFIX, WEIGHTS
from model.weights import hf_names

TARGETS = (
    "q",
    "k",
    "v",
    "o",
    "gate",
    "up",
    "down",
)  # all linear maps of a layer (QLoRA: Dettmers et al., 2023)

Adapter = dict[str, dict[str, Any]]  # dotted path of a linear map -> {"a": [.., in, r], "b": [.., r, out]}


def make_adapter(params: nnx.State, rank: int, seed: int, targets: Sequence[str] = TARGETS) -> Adapter:
    """A fresh adapter, which changes nothing: A uniform within 1 / sqrt(in), as PEFT draws it, B zero.

    Raises:
        ValueError: a target that is no linear map of a layer, or a rank below 1.
    """
    kernels = {path: x for path, x in _kernels(params) if path[-2] in targets}
    unknown = set(targets) - {str(path[-2]) for path in kernels}
    if unknown or rank < 1:
        raise ValueError(f"LoRA of rank {rank} on {', '.join(targets)}: targets are {', '.join(TARGETS)}")

    def draw() -> Adapter:
        made: Adapter = {}
        for n, (path, x) in enumerate(kernels.items()):
            *stack, n_in, n_out = x.shape
            key = jax.random.fold_in(jax.random.key(seed), n)
            a = jax.random.uniform(key, (*stack, n_in, rank), jnp.float32, -1.0, 1.0) * n_in**-0.5
            made[_dotted(path)] = {"a": a, "b": jnp.zeros((*stack, rank, n_out), jnp.float32)}
        return made

    places = {_dotted(path): _places(x) for path, x in kernels.items()}
    cut = all(place is not None for place in places.values())
    return jax.jit(draw, out_shardings=places if cut else None)()


def _places(kernel: jax.Array) -> dict[str, NamedSharding] | None:
    """A lies as its kernel's input does, B as its output; None off a mesh."""
    if not isinstance(kernel.sharding, NamedSharding):
        return None
    mesh, spec = kernel.sharding.mesh, tuple(kernel.sharding.spec)
    *stack, n_in, n_out = spec + (None,) * (kernel.ndim - len(spec))
    specs = {"a": PartitionSpec(*stack, n_in, None), "b": PartitionSpec(*stack, None, n_out)}
    return {name: NamedSharding(mesh, each) for name, each in specs.items()}


def merge_adapter(params: nnx.State, adapter: Adapter, scale: float) -> nnx.State:
    """``kernel + scale * A B`` where the adapter has a pair; everything else as it is. Differentiable."""
    leaves = []
    for path, leaf in nnx.to_flat_state(params):
        pair, x = adapter.get(_dotted(path)), leaf[...]
        leaves.append(x if pair is None else x + scale * (pair["a"] @ pair["b"]))
    return jax.tree.unflatten(jax.tree.structure(params), leaves)


def save_adapter(folder: str | Path, adapter: Adapter, rank: int, alpha: float, base: str = "") -> None:
    """Write PEFT's layout; an adapter that is there already is replaced in one step.

    Args:
        base: name or path of the model that the adapter belongs to, as PEFT notes it.

    Raises:
        FileExistsError: the folder holds other files; nothing is touched.
    """
    tensors, modules = {}, set()
    for dotted, pair in adapter.items():
        path = tuple(int(part) if part.isdigit() else part for part in dotted.split("."))
        a, b = np.asarray(pair["a"], np.float32), np.asarray(pair["b"], np.float32)
        stacked = a.ndim == 3
        for n, name in enumerate(hf_names((*path, "kernel"), len(a) if stacked else 0)):
            module = name.removesuffix(".weight")
            modules.add(module.rpartition(".")[2])
            for letter, x in (("A", a), ("B", b)):
                array = np.ascontiguousarray((x[n] if stacked else x).T)
                tensors[f"{PREFIX}{module}.lora_{letter}.weight"] = array
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(modules),
        "inference_mode": True,
    }
    with replaced(Path(folder), lambda name: name in (CONFIG, WEIGHTS)) as part:
        save_file(tensors, str(part / WEIGHTS), metadata={"format": "pt"})
        (part / CONFIG).write_text(json.dumps(settings, indent=2) + "\n")


def adapter_size(adapter: Adapter) -> int:
    """Trained parameters."""
    return sum(math.prod(x.shape) for x in jax.tree.leaves(adapter))


def _kernels(params: nnx.State) -> list[tuple[tuple[Any, ...], jax.Array]]:
    flat = nnx.to_flat_state(params)
    return [(path, leaf[...]) for path, leaf in flat if path[0] == "layers" and path[-1] == "kernel"]


def _dotted(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path[:-1])) if path[-1] == "kernel" else ""
