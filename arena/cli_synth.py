"""``agent-world synth ...`` and ``agent-world tasks``: the pipelines of beam_jobs over a run folder.

Options that are not listed go to Beam, which refuses those that it doesn't know.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from json import dumps as to_json
from pathlib import Path
from typing import Annotated

import typer

from arena.cli_options import Author, AuthorOption, Json, LlmFile, Run, Seed, ThemesFile, author_name
from synth.errors import CallerError

PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}  # Beam's options

synth_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Make environments: databases from real tables, then tools that pass their tests.\n\n\b\nExamples:\n"
    "  agent-world synth mine RUN             real tables, cleaned and linked\n"
    "  agent-world synth complexify RUN       the same, with richer tables on top\n"
    "  agent-world synth tools RUN            tools with tests, checked in the sandbox\n"
    "  agent-world synth grow RUN --requests FILE   new versions, where the arena wants them richer\n"
    "  agent-world synth pack RUN             all of a run in a few large files, with a catalogue\n"
    "  agent-world synth scale RUN            a thousand environments with tasks, and what they are worth",
)


@synth_app.command(context_settings=PASS_THROUGH)
def mine(
    context: typer.Context,
    run: Run,
    themes: ThemesFile = None,
    seed: Seed = 0,
    author: AuthorOption = Author.offline,
    llm: LlmFile = None,
    json: Json = False,
) -> int:
    """Mine databases from real tables.

    One a theme; finished ones are not mined again.

    \b
    Examples:
      agent-world synth mine RUN
      agent-world synth mine RUN --themes my_themes.jsonl --seed 3
      agent-world synth mine RUN --runner=DirectRunner --direct_num_workers=2
    Options that are not listed here go to Beam.
    """
    return _mine(run, themes, seed, 0, author_name(author, llm), context.args, json)


@synth_app.command(context_settings=PASS_THROUGH)
def complexify(
    context: typer.Context,
    run: Run,
    themes: ThemesFile = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often tables are added (the paper: 2).")] = 2,
    seed: Seed = 0,
    author: AuthorOption = Author.offline,
    llm: LlmFile = None,
    json: Json = False,
) -> int:
    """Mine, and add richer tables on top.

    Accounts, ledgers, limits and aggregates, derived from the real rows. Replaces a plainly mined database.

    \b
    Examples:
      agent-world synth complexify RUN
      agent-world synth complexify RUN --rounds 3
    Options that are not listed here go to Beam.
    """
    return _mine(run, themes, seed, rounds, author_name(author, llm), context.args, json)


def _mine(
    run: Path, file: Path | None, seed: int, rounds: int, name: str, beam: Sequence[str], json: bool
) -> int:
    from arena.commands import bar, finish_stage, load_themes
    from beam_jobs import mine as job

    with bar("databases") as progress:
        found = load_themes(file, None if file else "demo")
        summary = job.run(run, found, seed=seed, rounds=rounds, author=name, options=beam, progress=progress)
    return finish_stage(run, summary, json)


@synth_app.command(context_settings=PASS_THROUGH)
def tools(
    context: typer.Context,
    run: Run,
    themes: ThemesFile = None,
    seed: Seed = 0,
    author: AuthorOption = Author.offline,
    llm: LlmFile = None,
    json: Json = False,
) -> int:
    """Write tools, test them, keep what passes.

    8 to 15 tools a database, each with unit tests that run in the sandbox.

    \b
    Examples:
      agent-world synth tools RUN
      agent-world check RUN/bundles/*
    Options that are not listed here go to Beam.
    """
    from arena.commands import bar, finish_stage, load_themes
    from beam_jobs import validate as job

    name = author_name(author, llm)
    with bar("environments") as progress:
        found = load_themes(themes, None if themes else "demo")
        summary = job.run(run, found, seed=seed, author=name, options=context.args, progress=progress)
    return finish_stage(run, summary, json)


@synth_app.command(context_settings=PASS_THROUGH)
def grow(
    context: typer.Context,
    run: Run,
    requests: Annotated[Path, typer.Option(help="A request file, as 'agent-world evolve --no-grow' leaves.")],
    seed: Seed = 0,
    author: AuthorOption = Author.offline,
    llm: LlmFile = None,
    json: Json = False,
) -> int:
    """Grow the environments that requests want richer.

    One more round of tables, and tools over them, as a new version NAME-v2 beside the old one; the request
    file then names the new versions. 'agent-world evolve' does the same at once. Environments that are
    measured are refused.

    \b
    Examples:
      agent-world synth grow RUN --requests RUN/arena/01-after-grpo/requests.jsonl
      agent-world synth grow RUN --requests my_requests.jsonl --author llm --llm model.toml
    Options that are not listed here go to Beam.
    """
    from arena.commands import bar, finish_stage
    from arena.grow import grow_file

    with bar("richer environments") as progress:
        grown = grow_file(
            run, requests, seed=seed, author=author_name(author, llm), options=context.args, progress=progress
        )
    if grown.summary is None:
        print(to_json({"grown": {}}) if json else "no request asks for a richer environment")
        return 0
    return finish_stage(run, grown.summary, json)


@synth_app.command(context_settings=PASS_THROUGH)
def pack(
    context: typer.Context,
    run: Run,
    per_shard: Annotated[int, typer.Option(min=1, help="Environments a shard.")] = 100,
    json: Json = False,
) -> int:
    """Pack a run into shards with an index and a catalogue.

    Bundles into ZIP shards, tasks and solutions into JSONL shards, and Parquet tables of all that there is,
    below RUN/packed. The plain folders stay.

    \b
    Examples:
      agent-world synth pack RUN
      duckdb -c "SELECT env_id, tools, tasks FROM 'RUN/packed/catalogue/environments/*.parquet'"
    Options that are not listed here go to Beam.
    """
    from arena.commands import bar, finish_stage
    from beam_jobs import pack as job

    with bar("shards") as progress:
        summary = job.run(run, per_shard=per_shard, options=context.args, progress=progress)
    return finish_stage(run, summary, json)


@synth_app.command(context_settings=PASS_THROUGH)
def scale(
    context: typer.Context,
    run: Run,
    environments: Annotated[int, typer.Option(min=1, help="How many environments.")] = 1000,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes; all cores.")] = None,
    count: Annotated[int, typer.Option("--tasks", min=1, help="Tasks to draft for each environment.")] = 8,
    seed: Seed = 0,
    json: Json = False,
) -> int:
    """All stages over many environments, then a report.

    The offline author, over our built-in themes and variants of them with other samples of the real rows. The
    report says how many distinct real databases and schemas stand behind them, environments a minute and
    core, where the time goes, and the memory. A killed run goes on.

    \b
    Examples:
      agent-world synth scale runs/big
      agent-world synth scale runs/big --environments 60 --workers 2 --json
    Options that are not listed here go to Beam.
    """
    from arena.commands import bar
    from beam_jobs import scale as job

    figures, summaries = job.measured(
        run,
        environments,
        workers=workers or os.cpu_count() or 1,
        tasks=count,
        seed=seed,
        options=context.args,
        bar=bar,
        said=lambda summary: print(summary.line(), file=sys.stderr, flush=True),
    )
    if json:
        print(to_json(figures))
    else:
        for name, value in figures.items():
            print(f"{name.replace('_', ' '):36} {value}")
    return 1 if any(summary.dead for summary in summaries) else 0


def tasks(
    context: typer.Context,
    run: Run,
    tag: Annotated[str, typer.Option(help="Names the files: train, heldout, evolve1, ...")] = "train",
    count: Annotated[int, typer.Option(min=1, help="Tasks to draft for each environment.")] = 20,
    env: Annotated[list[str] | None, typer.Option(help="Only this environment; may be repeated.")] = None,
    requests: Annotated[
        Path | None, typer.Option(help="A request file of 'agent-world evolve' instead of --count and --env.")
    ] = None,
    difficulty: Annotated[
        str | None, typer.Option(help="easy, medium or hard; lengths and kinds mixed if not given.")
    ] = None,
    most: Annotated[
        float | None, typer.Option(help="Drop tasks solved in more than this share of the tries, as 0.8.")
    ] = None,
    solver: Annotated[
        Path | None,
        typer.Option(help="Settings of a model (TOML) that tries the tasks, instead of the author's solver."),
    ] = None,
    seed: Seed = 0,
    author: AuthorOption = Author.offline,
    llm: LlmFile = None,
    json: Json = False,
) -> int:
    """Write verified tasks over environments.

    Half of them by the graph route (chains of calls), half by the program route (solutions with loops).

    \b
    Examples:
      agent-world tasks RUN --count 40
      agent-world tasks RUN --tag heldout --env airport_slots --seed 7
      agent-world tasks RUN --tag hard --difficulty hard --most 0.8
      agent-world tasks RUN --solver model.toml --most 0.8
      agent-world tasks RUN --tag evolve1 --requests RUN/arena/01-after-grpo/requests.jsonl
    Options that are not listed here go to Beam.
    """
    from arena.commands import bar, finish_stage, task_orders
    from beam_jobs import synthesize as job

    name = author_name(author, llm)
    tries = None if solver is None else author_name(Author.llm, solver)
    if difficulty and requests:
        raise CallerError("--difficulty or --requests, not both: a request says how long its tasks are")
    orders = task_orders(run, count, env or [], requests, seed)
    if difficulty:
        orders = [job.at_level(order, difficulty) for order in orders]
    with bar("tasks") as progress:
        summary = job.run(
            run,
            orders,
            tag=tag,
            author=name,
            most=most,
            solver=tries,
            options=context.args,
            progress=progress,
        )
    return finish_stage(run, summary, json)
