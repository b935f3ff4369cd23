"""The known real servers, imported and given tasks, with the table of what was found.

    known server -> state of real rows -> bundle (tools proven) -> tasks of both routes (all gates) -> a row

Out comes a folder as other stages leave it: ``bundles/<name>``, ``tasks/<name>.<tag>.jsonl``, the calls that
solve them in ``solutions/<name>.<tag>.jsonl`` (what a cold start learns from), and ``servers.json``. A server
gets one state, or several with rows of other themes (``<server>_<theme>``). What is held out has its tasks
under the tag ``heldout`` and says so in its manifest (``theme.spec.arena``), so that every later split of the
folder keeps it from training. Run by ``agent-world import known``.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from synth.env.mcp_client import McpEnvServer
from synth.env.mcp_import import import_server
from synth.errors import AgentWorldError, CallerError
from synth.importers.known import KNOWN, Known
from synth.importers.maker import make
from synth.importers.seeds import lay, real_rows
from synth.types import Task, Theme

# ours: one kind of server that training never sees (git), and one that it knows under another face (duckdb)
HELD_OUT = ("git", "duckdb")
HEAD = (
    "| server | state | tools kept | reads / writes | refused, and why | steady "
    "| tasks (graph + program) | writes | s |"
)


def import_known(
    servers: Path, out: Path, names: Iterable[str], count: int, seed: int = 0,
    say: Callable[[str], None] = print, held_out: Sequence[str] = HELD_OUT, themes: Sequence[str] = (),
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Import servers and make tasks; one row of figures an environment, ``missing`` where it isn't installed.

    Args:
        servers: a folder with one folder a server (see README.md).
        count: tasks wanted of each.
        held_out: servers, or environments of them, to measure on, never to train on.
        themes: whose rows to lay as state, each in an environment of its own; none: the server's own theme.

    Returns:
        The rows of these environments; ``servers.json`` keeps those of earlier calls beside them.

    Raises:
        CallerError: an unknown name or theme.
    """
    chosen = [(name, f"{name}_{theme}", theme) for name in names for theme in themes]
    chosen = chosen or [(name, name, "") for name in names]
    for name, _, theme in chosen:
        if name not in KNOWN:
            raise CallerError(f"{name}: not a known server; there are {', '.join(KNOWN)}")
        if theme:
            real_rows(theme, seed)  # before the first minute is spent
    for name in held_out:
        if name not in KNOWN and name not in [env_id for _, env_id, _ in chosen]:
            raise CallerError(f"--held-out {name}: not a known server; there are {', '.join(KNOWN)}")
    rows: dict[str, dict[str, Any]] = {}
    for name, env_id, theme in chosen:
        known = replace(KNOWN[name], theme=theme) if theme else KNOWN[name]
        try:
            apart = not {name, env_id}.isdisjoint(held_out)
            rows[env_id] = _one(known, env_id, servers, out, count, seed, apart)
        except FileNotFoundError as err:
            rows[env_id] = {"missing": f"{err} is not there; install {known.package} with {known.registry}"}
        except AgentWorldError as err:
            rows[env_id] = {"missing": str(err)}
        say(f"{env_id}: {rows[env_id].get('missing') or rows[env_id]['tasks']}")
    found = out / "servers.json"
    before = json.loads(found.read_text("utf-8")) if found.exists() else {}
    out.mkdir(parents=True, exist_ok=True)
    _write(found, json.dumps(before | rows, indent=1, ensure_ascii=False) + "\n")
    return rows


def _write(path: Path, text: str) -> None:
    """In one step: readers see the old text or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.new")
    scratch.write_text(text, "utf-8")
    scratch.replace(path)


def _one(
    known: Known, env_id: str, servers: Path, out: Path, count: int, seed: int, held_out: bool
) -> dict[str, Any]:  # fmt: skip
    start = time.monotonic()
    command = known.command(servers)
    data = real_rows(known.theme, seed)
    calls = known.calls(data)
    with tempfile.TemporaryDirectory(prefix="agent-world-known-") as scratch:
        state = Path(scratch) / "state"
        lay(known.seed, data, state)
        report = import_server(
            command, state, out / "bundles" / env_id, given=calls, only=list(calls), env=dict(known.env),
            theme=_theme(known, env_id, held_out), license=known.license,
        )  # fmt: skip
    with McpEnvServer(out / "bundles" / env_id) as server:
        made = make(server, count, seed)
    write_made(out, env_id, ("heldout", "train") if held_out else ("train", "heldout"), made.tasks)
    effects = Counter(row["effect"].split()[0] for row in report.tools.values() if row["kept"])
    return {
        "package": known.package, "held_out": held_out, "server": report.server,
        "state": f"{known.seed}, {known.theme}",
        "listed": len(report.tools) + report.left_out, "tried": len(report.tools), "kept": len(report.kept),
        "reads": effects["read"], "writes": effects["write"],
        "refused": {n: row["why"] for n, row in report.tools.items() if not row["kept"]},
        "steady": report.steady, "tasks": made.to_json(), "seconds": round(time.monotonic() - start),
    }  # fmt: skip


def write_made(out: Path, env_id: str, tags: tuple[str, str], tasks: Sequence[Task]) -> None:
    """Tasks and their gold calls under the first tag; what another split left under the second goes.

    The gates have replayed the calls, so they are demonstrations like those of the 2-of-5 filter.
    """
    lines = {
        "tasks": [task.to_json() for task in tasks],
        "solutions": [
            json.dumps({"task_id": t.id, "calls": [s.model_dump(mode="json", include={"tool", "arguments"})
            for s in t.chain], "answer": t.reference_answer}) for t in tasks
        ],
    }  # fmt: skip
    for kind, text in lines.items():
        path, other = (out / kind / f"{env_id}.{tag}.jsonl" for tag in tags)
        other.unlink(missing_ok=True)
        _write(path, "".join(f"{line}\n" for line in text))


def _theme(known: Known, env_id: str, held_out: bool) -> Theme:
    return Theme(
        id=env_id, source="mcp", name=env_id, license=known.license, spec={"arena": True} if held_out else {},
        description=f"The real MCP server {known.package} over a folder of its own.",
    )  # fmt: skip


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [HEAD, "|" + "---|" * (HEAD.count("|") - 1)]
    for name, row in rows.items():
        if "missing" in row:
            lines.append(f"| {name} | | | | {row['missing']} | | | | |")
            continue
        tasks, routes = row["tasks"], row["tasks"]["routes"]
        refused = "; ".join(f"`{n}`: {why.split(':')[0]}" for n, why in row["refused"].items())
        left = row["listed"] - row["tried"]
        kept = f"{row['kept']} of {row['tried']}" + (f" ({left} not tried)" if left else "")
        measured = ", held out" if row.get("held_out") else ""
        lines.append(
            f"| `{row['package']}` ({row['server']}{measured}) | {row['state']} | {kept} "
            f"| {row['reads']} / {row['writes']} "
            f"| {refused} | {'yes' if row['steady'] else 'no'} "
            f"| {tasks['tasks']} ({routes.get('graph', 0)} + "
            f"{routes.get('program', 0)}) | {tasks['writes']} | {row['seconds']} |"
        )
    return "\n".join(lines)
