"""``agent-world sft``: the cold start before GRPO."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from arena.cli_options import Json, Run, Tracker


def sft(
    run: Run,
    policy: Annotated[
        Path | None, typer.Option(help="Where to start: a policy folder; without it the shipped base policy.")
    ] = None,
    tag: Annotated[str, typer.Option(help="The tasks whose solutions are learnt from.")] = "train",
    name: Annotated[str, typer.Option(help="Name of the folder below RUN/train.")] = "sft",
    config: Annotated[Path | None, typer.Option(help="A TOML file with fields of SFTConfig.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Over the config's.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same result; over the config's.")] = None,
    tracker: Annotated[
        Tracker | None, typer.Option(help="Show the metrics there too; needs the extra of that name.")
    ] = None,
    json: Json = False,
) -> int:
    """Learn from verified solutions: the cold start before GRPO.

    The calls in RUN/solutions are replayed in the sandbox, so what the policy learns to read are real
    results. A killed run goes on when the same command is given again.

    \b
    Examples:
      agent-world sft RUN
      agent-world sft RUN --epochs 8 && agent-world train RUN --policy RUN/train/sft/policy
    """
    from arena.cold_start import run_sft

    shown = tracker.value if tracker else None
    return run_sft(run, policy, tag, name, config, epochs, seed, json, shown)
