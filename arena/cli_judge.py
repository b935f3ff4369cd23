"""``agent-world judge``: a judge of sentences, calibrated before it counts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from arena.cli_options import Json


def judge(
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="Also judge the last round of this run folder.")
    ] = None,
    llm: Annotated[Path, typer.Option("--llm", help="Settings of the model (TOML).")] = ...,  # type: ignore[assignment]
    cases: Annotated[
        Path | None, typer.Option(help="Known cases (JSONL); without it the 64 that come along.")
    ] = None,
    most: Annotated[
        float, typer.Option(min=0, max=1, help="The error rate that its interval may reach at most.")
    ] = 0.1,
    json: Json = False,
) -> int:
    """How often a judge errs, and what it says.

    A few tasks ask for a sentence, which no program can compare. A language model judges it, after it has
    answered cases with known verdicts: its error rate is printed with a 95% interval. Exit 1 when the
    interval reaches above --most; then nothing is judged. Rates of rounds and rewards of training never
    depend on it.

    \b
    Examples:
      agent-world judge --llm model.toml
      agent-world judge RUN --llm model.toml --json
      agent-world judge --llm model.toml --cases my_cases.jsonl
    """
    from arena.judge import run_judge

    return run_judge(run, llm, cases, most, json)
