"""``agent-world plan`` and ``agent-world export``: the model on a TPU slice, and out to the field."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from arena.cli_options import Json


class Dtype(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"


def plan(
    configs: Annotated[list[Path], typer.Argument(metavar="CONFIG...", help="Files of tpu_configs/.")],
    search: Annotated[
        bool, typer.Option("--search", help="Try meshes and remat policies for the train step; best first.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Compile although a result of this config is kept.")
    ] = False,
    table: Annotated[
        Path | None, typer.Option(help="Write the table of these configs into this file, between its marks.")
    ] = None,
    json: Json = False,
) -> int:
    """Compile train step, prefill and decode for a TPU slice.

    With the real TPU compiler, ahead of time: no TPU is needed, only the extra 'plan' (libtpu). Says per chip
    what HBM is used for, counts FLOPs, bytes and collectives, and bounds the time by roofline. Takes minutes;
    the result is kept beside the config as NAME.plan.json. Exit 1 when it does not fit.

    \b
    Examples:
      agent-world plan tpu_configs/qwen3-14b.v5p-128.toml
      agent-world plan tpu_configs/qwen3-8b.v5e-16.toml --json
      agent-world plan tpu_configs/qwen3-14b.v5p-128.toml --search
      agent-world plan tpu_configs/qwen3-*.toml --table tpu_configs/README.md
    """
    from arena.plan_command import run_plan

    return run_plan(configs, search, again, table, json)


def export(
    source: Annotated[
        Path,
        typer.Argument(metavar="SOURCE", help="A policy folder, or a training's folder (RUN/train/NAME)."),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write; new, or a policy's.")],
    policy: Annotated[
        Path | None, typer.Option(help="Where an unfinished training started; without it the base policy.")
    ] = None,
    adapter: Annotated[
        Path | None, typer.Option(help="A LoRA adapter's folder (PEFT's layout), merged in.")
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Of the weights on disk.")] = Dtype.float32,
    json: Json = False,
) -> int:
    """Write a policy as a Hugging Face folder.

    It loads with AutoModelForCausalLM and AutoTokenizer, chat template included. Of a training that has not
    finished, the newest checkpoint is taken. A folder that holds anything else is never touched.

    \b
    Examples:
      agent-world export runs/demo/train/grpo exported
      agent-world export model/base exported --dtype bfloat16
      agent-world export policies/qwen merged --adapter my-lora
    """
    from arena.export import run_export

    return run_export(source, out, policy, adapter, dtype.value, json)
