"""A plan's config: which model on which slice, cut and run how. One TOML file of ``tpu_configs/`` each.

In: a file, or fields changed by a search. Out: :class:`PlanConfig`, which :mod:`arena.plan_programs` turns
into programs. The defaults are the paper's setting; what it doesn't state is marked as ours.
"""

from __future__ import annotations

import dataclasses
import hashlib
import tomllib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from model.config import ModelConfig
from model.shapes import SHAPES
from rl.place import MeshAxes
from synth.errors import CallerError


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TrainShape(Section):
    rows: int = Field(ge=1)  # rows of a micro-batch, over the whole slice
    length: int = Field(81_920, ge=128)  # tokens a row: the paper's trajectories reach 80K
    remat: Literal["none", "full", "attention", "qkv", "dots"] = "full"
    # ours: 16 divides Qwen's vocabulary into parts that 8 devices can share (model/scoring.py)
    vocab_chunks: int = Field(16, ge=1)
    # of AdamW, as `learner.optimizer.first_moment` of a training config says, with the same default
    first_moment: Literal["float32", "bfloat16"] = "float32"


class RolloutShape(Section):
    """Weights are cut over ``tensor`` only and copied over the other chips: nothing is gathered a token."""

    tensor: int = Field(8, ge=1)
    slots: int = Field(ge=1)  # sequences that decode at a time, over the whole slice
    max_len: int = Field(81_920, ge=128)
    prompt: int = Field(8_192, ge=128)  # ours: room for the tools' schemas and the task
    prompts: int = Field(ge=1)  # prompts that are prefilled at a time: one for each group


class PlanConfig(Section):
    """See the module."""

    topology: str
    model: str
    mesh: MeshAxes
    train: TrainShape
    rollout: RolloutShape
    tasks: int = Field(32, ge=1)  # paper
    rollouts: int = Field(8, ge=1)  # paper

    @model_validator(mode="after")
    def _known(self) -> PlanConfig:
        if self.model not in SHAPES:
            raise ValueError(f"model {self.model!r} is none of {', '.join(SHAPES)}")
        return self

    def train_model(self) -> ModelConfig:
        """bfloat16 products over float32 weights, one layer compiled, splash attention."""
        return dataclasses.replace(
            SHAPES[self.model],
            compute_dtype="bfloat16",
            scan_layers=True,
            remat=self.train.remat,
            vocab_chunks=self.train.vocab_chunks,
            attention="splash",
        )

    def rollout_model(self) -> ModelConfig:
        """The same weights, layer by layer: each layer's cache is changed in place."""
        return dataclasses.replace(self.train_model(), scan_layers=False, remat="none")

    @property
    def chips(self) -> int:
        return self.mesh.size

    def rollout_axes(self) -> dict[str, int]:
        """The mesh of prefill and decode."""
        return {"data": self.chips // self.rollout.tensor, "tensor": self.rollout.tensor}

    @property
    def trajectories(self) -> int:
        return self.tasks * self.rollouts

    def fingerprint(self) -> str:
        """Of everything that shapes the programs; kept beside a result, to see whether it is still true."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]


def read_config(file: Path) -> PlanConfig:
    """Read a TOML file.

    Raises:
        CallerError: no such file, no TOML, or a field that doesn't fit; names it.
    """
    try:
        fields = tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise CallerError(f"{file}: no such file; the shipped ones are in tpu_configs/") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as err:
        raise CallerError(f"{file}: no TOML: {err}") from None
    if "topology" not in fields:
        raise CallerError(f"{file}: topology missing; a plan's config names a slice, such as v5p:4x4x4")
    try:
        return PlanConfig.model_validate(fields)
    except ValidationError as err:
        first = err.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise CallerError(f"{file}: {where}: {first['msg'].removeprefix('Value error, ')}") from None
