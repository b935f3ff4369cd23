"""The known real servers, imported and given tasks, with the table of what was found.

    known server -> state of real rows -> bundle (tools proven) -> tasks of both routes (all gates) -> a row

Out comes a folder as other stages leave it: ``bundles/<name>``, ``tasks/<name>.train.jsonl``, and
``servers.json``. Run by ``agent-world import known``.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from synth.env.mcp_client import McpEnvServer
from synth.env.mcp_import import import_server
from synth.errors import AgentWorldError, CallerError
from synth.importers.known import KNOWN
from synth.importers.maker import make
from synth.importers.seeds import lay, real_rows

HEAD = (
    "| server | state | tools kept | reads / writes | refused, and why | steady "
    "| tasks (graph + program) | writes | s |"
)


def import_known(
    servers: Path, out: Path, names: Iterable[str], count: int, seed: int = 0,
    say: Callable[[str], None] = print,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Import servers and make tasks; one row of figures a server, ``missing`` where it isn't installed.

    Args:
        servers: a folder with one folder a server (see README.md).
        count: tasks wanted of each.

    Raises:
        CallerError: an unknown name.
    """
    rows: dict[str, dict[str, Any]] = {}
    (out / "tasks").mkdir(parents=True, exist_ok=True)
    for name in names:
        if name not in KNOWN:
            raise CallerError(f"{name}: not a known server; there are {', '.join(KNOWN)}")
        try:
            rows[name] = _one(name, servers, out, count, seed)
        except FileNotFoundError as err:
            rows[name] = {
                "missing": f"{err} is not there; install {KNOWN[name].package} with {KNOWN[name].registry}"
            }
        except AgentWorldError as err:
            rows[name] = {"missing": str(err)}
        say(f"{name}: {rows[name].get('missing') or rows[name]['tasks']}")
    (out / "servers.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return rows


def _one(name: str, servers: Path, out: Path, count: int, seed: int) -> dict[str, Any]:
    known, start = KNOWN[name], time.monotonic()
    command = known.command(servers)
    data = real_rows(known.theme, seed)
    calls = known.calls(data)
    with tempfile.TemporaryDirectory(prefix="agent-world-known-") as scratch:
        state = Path(scratch) / "state"
        lay(known.seed, data, state)
        report = import_server(
            command, state, out / "bundles" / name, given=calls, only=list(calls), env=dict(known.env),
            license=known.license,
        )  # fmt: skip
    with McpEnvServer(out / "bundles" / name) as server:
        made = make(server, count, seed)
    lines = "".join(task.to_json() + "\n" for task in made.tasks)
    path = out / "tasks" / f"{name}.train.jsonl"  # the tag that training takes
    scratch_file = path.with_name(f".{path.name}.new")
    scratch_file.write_text(lines, "utf-8")
    scratch_file.replace(path)
    effects = Counter(row["effect"].split()[0] for row in report.tools.values() if row["kept"])
    return {
        "package": known.package, "server": report.server, "state": f"{known.seed}, {known.theme}",
        "listed": len(report.tools) + report.left_out, "tried": len(report.tools), "kept": len(report.kept),
        "reads": effects["read"], "writes": effects["write"],
        "refused": {n: row["why"] for n, row in report.tools.items() if not row["kept"]},
        "steady": report.steady, "tasks": made.to_json(), "seconds": round(time.monotonic() - start),
    }  # fmt: skip


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
        lines.append(
            f"| `{row['package']}` ({row['server']}) | {row['state']} | {kept} "
            f"| {row['reads']} / {row['writes']} "
            f"| {refused} | {'yes' if row['steady'] else 'no'} "
            f"| {tasks['tasks']} ({routes.get('graph', 0)} + "
            f"{routes.get('program', 0)}) | {tasks['writes']} | {row['seconds']} |"
        )
    return "\n".join(lines)
