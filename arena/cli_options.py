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


Run = Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
Seed = Annotated[int, typer.Option(help="Same seed, same result.")]
ThemesFile = Annotated[
    Path | None, typer.Option("--themes", help="A file of themes (JSONL); without it our own demo themes.")
]
AuthorOption = Annotated[
    Author, typer.Option(help="Who writes: the procedural author, or a language model (a later version).")
]


def author_name(author: Author) -> str:
    """The author's name, if this version has it."""
    if author is Author.llm:
        raise UsageError("--author llm comes with a later version; use --author offline")
    return author.value
