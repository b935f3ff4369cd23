"""``agent-world mutate``: how good the judges of a run are. Registered by :mod:`arena.cli`; bodies in
:mod:`arena.quality`, imported when they run."""

from __future__ import annotations

from typing import Annotated

import typer

from arena.cli_options import Json, Run, Seed


def mutate(
    run: Run,
    tag: Annotated[str | None, typer.Option(help="Only the tasks of this tag: train, heldout, ...")] = None,
    most: Annotated[
        int | None, typer.Option(min=1, help="So many tasks of each environment, drawn by the seed.")
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> int:
    """Hold every verifier against wrong outcomes.

    Makes, for each task, what idle, hasty, sloppy and cheating agents hand in (no-op, truncated, wrong
    entity, off by one, swapped field, injected text, side effect), judges it, and prints the share that is
    refused, by kind, and what passed. Also counts instructions that say a name from inside, or the answer.
    Exit 1 below 0.95, or when a right outcome does not pass.

    \b
    Examples:
      agent-world mutate RUN
      agent-world mutate RUN --most 5 --json
    """
    from arena.quality import run_mutate

    return run_mutate(run, tag, most, seed, json)
