"""The known real servers, imported and given tasks, with the table of what was found.

    known server -> state of real rows -> bundle (tools proven) -> tasks of both routes (all gates) -> a row

Out comes a folder as other stages leave it: ``bundles/<name>``, ``tasks/<name>.<tag>.jsonl``, and
``servers.json``. Servers that are held out have their tasks under the tag ``heldout`` and say so in their
manifest (``theme.spec.arena``), so that every later split of the folder keeps them from training. Run by
``agent-world import known``.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from synth.env.mcp_client import McpEnvServer
from synth.env.mcp_import import import_server
from synth.errors import AgentWorldError, CallerError
from synth.importers.known import KNOWN
from synth.importers.maker import make
from synth.importers.seeds import lay, real_rows
from synth.types import Theme

# ours: one kind of server that training never sees (git), and one that it knows under another face (duckdb)
HELD_OUT = ("git", "duckdb")
HEAD = (
    "| server | state | tools kept | reads / writes | refused, and why | steady "
    "| tasks (graph + program) | writes | s |"
)


def import_known(
    servers: Path, out: Path, names: Iterable[str], count: int, seed: int = 0,
    say: Callable[[str], None] = print, held_out: Sequence[str] = HELD_OUT,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Import servers and make tasks; one row of figures a server, ``missing`` where it isn't installed.

    Args:
        servers: a folder with one folder a server (see README.md).
        count: tasks wanted of each.
        held_out: servers to measure on, never to train on.

    Raises:
        CallerError: an unknown name.
    """
    rows: dict[str, dict[str, Any]] = {}
    for name in held_out:
        if name not in KNOWN:
            raise CallerError(f"--held-out {name}: not a known server; there are {', '.join(KNOWN)}")
    (out / "tasks").mkdir(parents=True, exist_ok=True)
    for name in names:
        if name not in KNOWN:
            raise CallerError(f"{name}: not a known server; there are {', '.join(KNOWN)}")
        try:
            rows[name] = _one(name, servers, out, count, seed, name in held_out)
        except FileNotFoundError as err:
            rows[name] = {
                "missing": f"{err} is not there; install {KNOWN[name].package} with {KNOWN[name].registry}"
            }
        except AgentWorldError as err:
            rows[name] = {"missing": str(err)}
        say(f"{name}: {rows[name].get('missing') or rows[name]['tasks']}")
    (out / "servers.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return rows


def _one(
    name: str, servers: Path, out: Path, count: int, seed: int, held_out: bool
) -> dict[str, Any]:  # fmt: skip
    known, start = KNOWN[name], time.monotonic()
    command = known.command(servers)
    data = real_rows(known.theme, seed)
    calls = known.calls(data)
    with tempfile.TemporaryDirectory(prefix="agent-world-known-") as scratch:
        state = Path(scratch) / "state"
        lay(known.seed, data, state)
        report = import_server(
            command, state, out / "bundles" / name, given=calls, only=list(calls), env=dict(known.env),
            theme=_theme(name, held_out), license=known.license,
        )  # fmt: skip
    with McpEnvServer(out / "bundles" / name) as server:
        made = make(server, count, seed)
    lines = "".join(task.to_json() + "\n" for task in made.tasks)
    tags = ("heldout", "train") if held_out else ("train", "heldout")
    path, other = (out / "tasks" / f"{name}.{tag}.jsonl" for tag in tags)
    other.unlink(missing_ok=True)  # of a run with another split
    scratch_file = path.with_name(f".{path.name}.new")
    scratch_file.write_text(lines, "utf-8")
    scratch_file.replace(path)
    effects = Counter(row["effect"].split()[0] for row in report.tools.values() if row["kept"])
    return {
        "package": known.package, "held_out": held_out, "server": report.server,
        "state": f"{known.seed}, {known.theme}",
        "listed": len(report.tools) + report.left_out, "tried": len(report.tools), "kept": len(report.kept),
        "reads": effects["read"], "writes": effects["write"],
        "refused": {n: row["why"] for n, row in report.tools.items() if not row["kept"]},
        "steady": report.steady, "tasks": made.to_json(), "seconds": round(time.monotonic() - start),
    }  # fmt: skip


def _theme(name: str, held_out: bool) -> Theme:
    known = KNOWN[name]
    return Theme(
        id=name, source="mcp", name=name, license=known.license, spec={"arena": True} if held_out else {},
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
