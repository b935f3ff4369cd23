"""``agent-world costs``: what a model's exchanges have cost, and what a run would come to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from arena.cli_options import Json


def costs(
    llm: Annotated[Path, typer.Option("--llm", help="Settings of the model (TOML).")],
    themes: Annotated[
        int, typer.Option(min=0, help="Estimate a run of this many environments; nothing is sent.")
    ] = 0,
    tasks: Annotated[int, typer.Option(min=0, help="Tasks to draft for each of them.")] = 20,
    json: Json = False,
) -> int:
    """What a model has cost so far, and a dry run of what is to come.

    The ledger adds up every exchange in the model's folder by stage and prompt. With --themes also an
    estimate, by prompt, of mining, complexifying, tools, tasks and the filter; exit 1 when it exceeds what is
    left of the budget.

    \b
    Examples:
      agent-world costs --llm model.toml
      agent-world costs --llm model.toml --themes 12 --tasks 40 --json
    """
    from arena.costs import run_costs

    return run_costs(llm, themes, tasks, json)
