"""The command line: ``agent-world COMMAND``.

Each command only reads its options here; its body is imported when it runs, so that ``--help`` is quick and
loads neither JAX nor Beam. Exit codes: 0 done, 1 what was measured fell short, 2 the caller's mistake
(one line on standard error), 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from synth.errors import AgentWorldError, InfrastructureError

UsageError: Any = typer.BadParameter.__mro__[1]  # of the click that this Typer brings or uses

app = typer.Typer(
    name="agent-world",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    help="Grow tool-using agents: environments from real data, verified tasks, GRPO, and an arena that "
    "closes the loop.\n\n\b\nExamples:\n  agent-world demo                       the whole loop, in minutes\n"
    "  agent-world themes                     what environments can be about\n"
    "  agent-world view RUN                   what a run holds, and how it went\n"
    "  agent-world check RUN/bundles/*        every gate over every environment",
)
synth_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Make environments: databases from real tables, then tools that pass their tests.\n\n\b\nExamples:\n"
    "  agent-world synth mine RUN             real tables, cleaned and linked\n"
    "  agent-world synth complexify RUN       the same, with richer tables on top\n"
    "  agent-world synth tools RUN            tools with tests, checked in the sandbox",
)
app.add_typer(synth_app, name="synth")

PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}  # Beam's options


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


@app.command()
def themes(
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
      agent-world themes
      agent-world themes --split demo --json
      agent-world themes my_themes.jsonl
    """
    from arena.commands import run_themes

    return run_themes(file, split.value if split else None, json)


@synth_app.command(context_settings=PASS_THROUGH)
def mine(
    context: typer.Context,
    run: Run,
    themes: ThemesFile = None,
    seed: Seed = 0,
    author: AuthorOption = Author.offline,
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
    return _mine(run, themes, seed, 0, author, context.args, json)


@synth_app.command(context_settings=PASS_THROUGH)
def complexify(
    context: typer.Context,
    run: Run,
    themes: ThemesFile = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often tables are added (the paper: 2).")] = 2,
    seed: Seed = 0,
    author: AuthorOption = Author.offline,
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
    return _mine(run, themes, seed, rounds, author, context.args, json)


def _mine(
    run: Path, file: Path | None, seed: int, rounds: int, author: Author, beam: Sequence[str], json: bool
) -> int:
    from arena.commands import bar, finish_stage, load_themes
    from beam_jobs import mine as job

    name = author_name(author)
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

    name = author_name(author)
    with bar("environments") as progress:
        found = load_themes(themes, None if themes else "demo")
        summary = job.run(run, found, seed=seed, author=name, options=context.args, progress=progress)
    return finish_stage(run, summary, json)


@app.command(context_settings=PASS_THROUGH)
def tasks(
    context: typer.Context,
    run: Run,
    tag: Annotated[str, typer.Option(help="Names the files: train, heldout, evolve1, ...")] = "train",
    count: Annotated[int, typer.Option(min=1, help="Tasks to draft for each environment.")] = 20,
    env: Annotated[list[str] | None, typer.Option(help="Only this environment; may be repeated.")] = None,
    requests: Annotated[
        Path | None, typer.Option(help="A request file of 'agent-world evolve' instead of --count and --env.")
    ] = None,
    seed: Seed = 0,
    author: AuthorOption = Author.offline,
    json: Json = False,
) -> int:
    """Write verified tasks over environments.

    Half of them by the graph route (chains of calls), half by the program route (solutions with loops).

    \b
    Examples:
      agent-world tasks RUN --count 40
      agent-world tasks RUN --tag heldout --env airport_slots --seed 7
      agent-world tasks RUN --tag evolve1 --requests RUN/arena/01-after-grpo/requests.jsonl
    Options that are not listed here go to Beam.
    """
    from arena.commands import bar, finish_stage, task_orders
    from beam_jobs import synthesize as job

    name = author_name(author)
    orders = task_orders(run, count, env or [], requests, seed)
    with bar("tasks") as progress:
        summary = job.run(run, orders, tag=tag, author=name, options=context.args, progress=progress)
    return finish_stage(run, summary, json)


@app.command()
def check(
    bundles: Annotated[list[Path], typer.Argument(metavar="BUNDLE...", help="Environment bundles.")],
    tasks: Annotated[Path | None, typer.Option(help="Tasks over these bundles (JSONL), checked too.")] = None,
    json: Json = False,
) -> int:
    """Run every gate over bundles and tasks.

    No model is needed. Exit 1 when a gate fails.

    \b
    Examples:
      agent-world check RUN/bundles/airport_slots
      agent-world check RUN/bundles/* --json
      agent-world check RUN/bundles/airport_slots --tasks RUN/tasks/airport_slots.train.jsonl
    """
    from arena.commands import run_check

    return run_check(bundles, tasks, json)


@app.command()
def evolve(
    run: Run,
    budget: Annotated[int, typer.Option(help="New tasks to ask for, in all.")] = 60,
    seed: Seed = 0,
    json: Json = False,
) -> int:
    """Diagnose an arena round, and ask for tasks.

    Writes diagnosis.json and requests.jsonl beside the last finished round of the run. Requests go to
    training environments of the weak ones' classes, never to a measured one.

    \b
    Examples:
      agent-world evolve RUN
      agent-world evolve RUN --budget 100 --json
    """
    from arena.commands import run_evolve

    return run_evolve(run, budget, seed, json)


@app.command()
def view(
    run: Run,
    task: Annotated[str | None, typer.Option(help="Show this task with its gold calls.")] = None,
    episode: Annotated[
        str | None, typer.Option(metavar="TASK#SAMPLE", help="Show this episode, turn by turn.")
    ] = None,
    json: Json = False,
) -> None:
    """Look at a run, a task or an episode.

    \b
    Examples:
      agent-world view RUN
      agent-world view RUN --task airport_slots-g-012
      agent-world view RUN --episode 'airport_slots-g-012#0'
    """
    from arena.view import run_view

    run_view(run, task, episode, json)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; the caller's mistakes become one line, no traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(args=words or ["--help"], prog_name="agent-world", standalone_mode=False)
        sys.stdout.flush()
        if code == 130:  # Typer's own way to say that Ctrl-C was pressed
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except UsageError as err:
        if type(err).__name__ == "NoArgsIsHelpError":  # a group without a command: its message is the help
            print(err.format_message())
            return 0
        context = getattr(err, "ctx", None)
        command = context.command_path if context else "agent-world"
        return _fail(f"{' '.join(err.format_message().split())} (see '{command} --help')", 2)
    except AgentWorldError as err:
        return _fail(" ".join(str(err).split()), 1 if isinstance(err, InfrastructureError) else 2)
    except (typer.Abort, KeyboardInterrupt):
        return _fail("interrupted", 130)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _fail(line: str, code: int) -> int:
    print(f"agent-world: {line}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
