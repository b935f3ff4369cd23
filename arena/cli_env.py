"""``agent-world mcp`` and ``agent-world publish``: our environments for MCP clients and other trainers."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from arena.cli_options import Seed


class Transport(StrEnum):
    stdio = "stdio"
    http = "http"


def mcp(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The folder of an environment.")],
    transport: Annotated[Transport, typer.Option(help="stdio: one client; http: many.")] = Transport.stdio,
    host: Annotated[
        str, typer.Option(help="Of http. Other than local: everybody there can call.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Of http; the path is /mcp.")] = 8000,
    tables: Annotated[
        bool, typer.Option("--tables", help="Show tables as resources too; agents must not see them.")
    ] = False,
    unsafe_local: Annotated[bool, typer.Option("--unsafe-local", help="Run without any sandbox.")] = False,
    seed: Seed = 0,
) -> int:
    """Serve an environment as a real MCP server.

    Every client session gets a fresh state in the sandbox; nothing is kept when it ends.

    \b
    Examples:
      agent-world mcp RUN/bundles/airport_slots
      agent-world mcp RUN/bundles/airport_slots --transport http --port 8000
      npx @modelcontextprotocol/inspector --cli agent-world mcp BUNDLE --method tools/list
    """
    from beam_jobs.mirror import fetched
    from synth.env.mcp_server import serve_http, serve_stdio
    from synth.env.sandbox import pick_provider
    from synth.env.serving import open_environment

    with (
        fetched(bundle) as local,
        open_environment(local, provider=pick_provider(unsafe_local)) as environment,
    ):
        if transport is Transport.stdio:
            serve_stdio(environment, seed=seed, tables=tables)
        else:
            typer.echo(f"http://{host}:{port}/mcp", err=True)
            serve_http(environment, host=host, port=port, seed=seed, tables=tables)
    return 0


class Form(StrEnum):
    verifiers = "verifiers"
    openenv = "openenv"


def publish(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The folder of an environment.")],
    tasks: Annotated[Path, typer.Argument(metavar="TASKS", help="Its tasks, JSONL.")],
    to: Annotated[Form, typer.Option("--to", help="The format of another trainer.")],
    out: Annotated[Path, typer.Option("--out", help="The new package's folder.")],
) -> int:
    """Write an environment and its tasks as a package for other trainers.

    verifiers: a v1 taskset; openenv: an environment server. Sandbox, state and verdict stay ours.

    \b
    Examples:
      agent-world publish RUN/bundles/element_lab RUN/tasks/element_lab.train.jsonl --to verifiers --out
      element_lab
    """
    from beam_jobs.mirror import fetched, on_disk
    from synth.exporters.package import export

    on_disk(out)
    with fetched(bundle) as local, fetched(tasks) as local_tasks:
        files = export(local, local_tasks, out, to.value)
    typer.echo(f"{out}: {', '.join(files)}")
    return 0
