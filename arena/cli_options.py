"""Options that several commands share, each stated once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

UsageError: Any = typer.BadParameter.__mro__[1]  # of the click that this Typer brings or uses


class Split(StrEnum):
    demo = "demo"
    pretrain = "pretrain"


class Author(StrEnum):
    offline = "offline"
    llm = "llm"


class Tracker(StrEnum):
    trackio = "trackio"
    wandb = "wandb"


Run = Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
Seed = Annotated[int, typer.Option(help="Same seed, same result.")]
ThemesFile = Annotated[
    Path | None, typer.Option("--themes", help="A file of themes (JSONL); without it our own demo themes.")
]
AuthorOption = Annotated[
    Author, typer.Option(help="Who writes: the procedural author, or a language model (see --llm).")
]
LlmFile = Annotated[
    Path | None, typer.Option("--llm", help="Settings of the model (TOML); --author llm needs them.")
]


def author_name(author: Author, llm: Path | None) -> str:
    """The author's name as workers get it; a model's carries the file of its settings."""
    if author is not Author.llm:
        return author.value
    if llm is None:
        raise UsageError("--author llm: name the settings with --llm FILE.toml")
    return f"llm:{llm.absolute()}"
