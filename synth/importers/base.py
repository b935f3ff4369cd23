"""From a published environment to a bundle: sources wrapped as a server, probed, written, tasks judged.

In: a :class:`Source` from one of the readers. Out: a bundle, the tasks that hold, and a report in which every
tool and every task is kept, changed or refused, with the reason.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from synth.env.folder import pack
from synth.env.mcp_client import DoesNotStart, McpEnvServer
from synth.env.mcp_import import ImportReport, import_program
from synth.env.program import PYTHON, Program, roots_of
from synth.env.sandbox import Limits, Provider
from synth.errors import EnvironmentFault
from synth.importers.tasks import RawTask, TaskRow, judge
from synth.types import Task, Theme

HOST = (PYTHON, "-s", "-B", "/agent-world/host.py")


@dataclass(frozen=True)
class Source:
    """One published environment, before any of its code has run.

    Attributes:
        tools: ``name``, ``description``, ``inputSchema``; for functions also ``file``.
        code: path -> text of the sources.
        state: path -> bytes of the folder that every episode starts from.
        spec: what :mod:`synth.env.host` needs beside: ``kind``; for objects ``class``, ``file``, ``load``.
        calls: tool -> arguments that the publisher says work.
        refused: tools that could not even be read, with the reason.
        notes: what else was left out, and why.
    """

    env_id: str
    theme: Theme
    tools: list[dict[str, Any]]
    code: dict[str, str]
    state: dict[str, bytes]
    spec: dict[str, Any]
    calls: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    tasks: list[RawTask] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


@dataclass
class Published:
    """What became of one source; ``error`` when nothing of it could be kept."""

    env_id: str
    report: ImportReport | None = None
    tasks: list[Task] = field(default_factory=list)
    rows: list[TaskRow] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        tools = {} if self.report is None else self.report.to_json()["tools"]
        tools |= {name: {"kept": False, "why": why} for name, why in self.refused.items()}
        kept = sum(bool(row["kept"]) for row in tools.values())
        counts = {
            "tools": len(tools),
            "tools_kept": kept,
            "tasks": len(self.rows),
            "tasks_kept": len(self.tasks),
        }
        rows = [row.to_json() for row in self.rows]
        return {
            "env_id": self.env_id,
            "error": self.error,
            "notes": self.notes,
            **counts,
            "tools_by_name": tools,
            "task_rows": rows,
        }


def publish(
    source: Source, out: Path, *, provider: Provider | None = None, limits: Limits | None = None,
    python: Path | None = None,
) -> Published:  # fmt: skip
    """Write ``out/<env_id>``, and judge the tasks over it.

    Args:
        python: the interpreter that runs the sources, where they need packages; else our own, bare.

    Raises:
        InfrastructureError: the sandbox failed.
    """
    done = Published(source.env_id, refused=dict(source.refused), notes=dict(source.notes))
    names = {tool["name"] for tool in source.tools}
    calls = {name: some for name, some in source.calls.items() if name in names}
    with tempfile.TemporaryDirectory(prefix="agent-world-import-") as scratch:
        code, state = Path(scratch) / "code", Path(scratch) / "state"
        state.mkdir()
        spec = {"name": source.env_id, "version": "1", "tools": source.tools, **source.spec}
        _lay(
            code, {"spec.json": json.dumps(spec).encode(), **{p: t.encode() for p, t in source.code.items()}}
        )
        _lay(state, source.state)
        program = Program(HOST, code=str(code))
        if python is not None:
            program = replace(program, command=(str(python), *HOST[1:]), roots=tuple(roots_of(str(python))))
        try:
            done.report = import_program(
                program, pack(state, (limits or Limits()).state_mb << 20), out / source.env_id,
                given=calls, theme=source.theme, provider=provider, limits=limits,
                chains=[[(c["tool"], c["args"]) for c in raw.calls] for raw in source.tasks if raw.calls],
            )  # fmt: skip
        except (EnvironmentFault, DoesNotStart) as err:  # published sources that can't even be loaded
            done.error = str(err)
            done.rows = [TaskRow(raw.id, "refused", "its environment was refused") for raw in source.tasks]
            return done
    if source.tasks:
        with McpEnvServer(out / source.env_id, provider=provider, limits=limits) as server:
            done.tasks, done.rows = judge(server, source.tasks)
    return done


def _lay(root: Path, files: dict[str, bytes]) -> None:
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
