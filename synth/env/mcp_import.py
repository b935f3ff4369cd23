"""``agent-world import mcp -- COMMAND``: a real stdio MCP server and a folder become an environment bundle.

    tools listed -> every tool called on the pristine state, twice -> effects, determinism -> bundle

What is kept is proven: a tool stays when a call of it worked and came out the same twice. Its calls become
its unit tests. If some tools are unsteady, all is tried once more with clock, ids and randomness held still
(``synth/env/steady``), and that is kept when it helps. The report says what was kept, changed and refused,
and why; it goes to the caller and to ``server/report.json``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import mcp_types as types

from synth.env import state as states
from synth.env.bundle import Bundle, _digest, write_bundle
from synth.env.folder import fingerprint, pack
from synth.env.mcp_client import SEED_FILE, McpEnvServer, all_tools
from synth.env.observed import observed_graph
from synth.env.probing import Chain, Found, probe
from synth.env.program import CLOCK, CODE, STATE, Program, locate
from synth.env.sandbox import Limits, Provider
from synth.env.serving import IMPORTED
from synth.env.state import State
from synth.errors import CallerError, EnvironmentFault
from synth.jsonl import read_jsonl
from synth.types import Column, Database, Environment, Manifest, Provenance, Table, Theme, Tool, ToolStep

REPORT_FILE = "server/report.json"
# write_bundle lays a database; the lens has laid ours already, which then takes its place
_STAND_IN = Table(
    name="stand_in", singular="", plural="", kind="mined", primary_key="id",
    columns=(Column(name="id", type="text", role="key", label="id"),),
)  # fmt: skip


@dataclass
class ImportReport:
    """What became of each tool; ``tools[name]`` has effect, claimed, calls, worked, kept and why."""

    env_id: str
    server: str
    steady: bool
    tools: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: int = 0  # tools of the server that were not asked for

    @property
    def kept(self) -> list[str]:
        return [name for name, row in self.tools.items() if row["kept"]]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def import_server(
    command: Sequence[str],
    state: str | Path,
    out: str | Path,
    *,
    given: Mapping[str, Sequence[dict[str, Any]]] | None = None,
    only: Sequence[str] | None = None,
    binds: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    theme: Theme | None = None,
    license: str = "unknown",
    provider: Provider | None = None,
    limits: Limits | None = None,
) -> ImportReport:
    """Make a bundle at ``out``; its last part becomes the environment's id.

    Args:
        command: the server's command line; ``{state}``, or the path of ``state``, is the folder.
        state: the folder that every episode starts from a copy of.
        given: tool -> arguments worth trying (see :func:`synth.env.probing.probe`).
        only: names of the tools to take; all others are left out, and the report says so.
        theme: what the environment is about; by default the server's name.
        license: of server and state, for the manifest.

    Raises:
        CallerError: the command or the folder isn't there.
        EnvironmentFault: no tool of the server could be proven.
        InfrastructureError: the server does not start.
    """
    folder, out = Path(state), Path(out)
    if not folder.is_dir():
        raise CallerError(f"--state {folder}: no such folder; give the one that holds the server's state")
    limits = limits or Limits(wall_s=30.0)
    program = locate(list(command), folder, list(binds), dict(env or {}))
    seed = pack(folder, limits.state_mb << 20)
    return import_program(
        program,
        seed,
        out,
        given=given,
        only=only,
        theme=theme,
        license=license,
        provider=provider,
        limits=limits,
        steadied=(False, True),
    )


def import_program(
    program: Program,
    seed: bytes,
    out: Path,
    *,
    given: Mapping[str, Sequence[dict[str, Any]]] | None = None,
    only: Sequence[str] | None = None,
    theme: Theme | None = None,
    license: str = "unknown",
    provider: Provider | None = None,
    limits: Limits | None = None,
    steadied: Sequence[bool] = (True,),
    chains: Sequence[Chain] = (),
) -> ImportReport:
    """Probe a program that speaks MCP, and write what is proven as a bundle.

    Args:
        program: how to start it; its ``code`` folder is copied into the bundle.
        seed: the packed folder that every episode starts from.
        theme: what the environment is about; by default the server's name.
        steadied: whether to hold clock and randomness still, in the order tried.
        chains: sequences of calls that the publisher says work; some tools work only after others.

    Raises:
        EnvironmentFault: no tool could be proven.
        InfrastructureError: the program does not start.
    """
    limits = limits or Limits(wall_s=30.0)
    best: tuple[int, Program, list[Tool], State, dict[str, Found], str, int] | None = None
    for steady in steadied:
        tried = replace(program, steady=steady)
        listed, name, pristine, found, left = _look(
            out.name, tried, seed, given or {}, only, provider, limits, chains
        )
        bad = sum(bool(entry.unsteady) for entry in found.values())
        proven = sum(bool(e.worked and not e.unsteady) for e in found.values())
        if best is None or proven > best[0]:
            best = (proven, tried, listed, pristine, found, name, left)
        if not bad:
            break
    assert best is not None
    _, program, listed, pristine, found, name, left = best
    report = ImportReport(out.name, name, program.steady, left_out=left)
    tools = [tool for tool in (_judge(found[t.name], report) for t in listed) if tool is not None]
    if not tools:
        why = f"no tool of {name} could be proven; give calls with --probes ({_first_trouble(found)})"
        raise EnvironmentFault(f"{out.name}: {why}")
    theme = theme or Theme(
        id=out.name,
        source="mcp",
        name=out.name,
        license=license,
        description=f"The real MCP server {name} over a folder of its own.",
    )
    _write(out, tools, program, seed, pristine, report, theme)
    return report


def read_probes(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Calls worth trying from JSONL: ``{"tool": ..., "arguments": {...}}`` a line.

    Raises:
        CallerError: the file or a line of it is not that.
    """
    form = '{"tool": "NAME", "arguments": {...}}'
    given: dict[str, list[dict[str, Any]]] = {}
    for step in read_jsonl(path, lambda _, line: ToolStep.model_validate_json(line), form, "--probes"):
        given.setdefault(step.tool, []).append(step.arguments)
    return given


def _look(
    env_id: str, program: Program, seed: bytes, given: Mapping[str, Sequence[dict[str, Any]]],
    only: Sequence[str] | None, provider: Provider | None, limits: Limits, chains: Sequence[Chain] = (),
) -> tuple[list[Tool], str, State, dict[str, Found], int]:  # fmt: skip
    """List the tools, read the pristine state as the started server leaves it, and probe."""
    theme = Theme(id=env_id, source="mcp", name=env_id, description="", license="unknown")
    manifest = Manifest(
        env_id=env_id, theme=theme, license="unknown", digest="", state_digest="", clock=CLOCK
    )
    bare = Bundle(Path(), manifest, [], None, [])
    with McpEnvServer.over(bare, program, seed, provider, limits) as server, server.open(0) as episode:
        assert server.portal is not None
        info = episode.client.session.server_info
        name = f"{info.name} {info.version}" if info is not None else "unnamed server"
        listed = _tools(server.portal.call(all_tools, episode.client))
        pristine = episode.snapshot()
    if unknown := sorted({*given, *(only or ())} - {tool.meta["mcp_name"] for tool in listed}):
        raise CallerError(f"{unknown[0]}: no such tool of {name}; correct --probes or --tool")
    count = len(listed)
    listed = [tool for tool in listed if only is None or tool.meta["mcp_name"] in only]
    full = Bundle(Path(), manifest, listed, None, [])
    with McpEnvServer.over(full, program, seed, provider, limits) as server:
        return listed, name, pristine, probe(server, pristine, given, chains), count - len(listed)


def _tools(listed: Sequence[types.Tool]) -> list[Tool]:
    """MCP's tools as ours; names become lower-case identifiers."""
    made: dict[str, Tool] = {}
    for item in listed:
        plain = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", item.name).lower()).strip(
            "_"
        )
        name = base = plain if plain[:1].isalpha() else f"tool_{plain}".rstrip("_")
        number = 2
        while name in made:
            name, number = f"{base}_{number}", number + 1
        hint = None if item.annotations is None else item.annotations.read_only_hint
        made[name] = Tool(
            name=name[:64],
            description=item.description or item.title or name,
            input_schema={"type": "object", **item.input_schema},
            output_schema=item.output_schema or {},
            read_only=bool(hint),
            code="",
            meta={
                "mcp_name": item.name,
                "claimed": hint,
                "kind": "get",
                "inputs": {},
                "outputs": {},
                "ops": {},
            },
        )
    return list(made.values())


def _judge(found: Found, report: ImportReport) -> Tool | None:
    """Keep what worked and came out the same twice; note why not."""
    tool, worked = found.tool, found.worked
    why = []
    if not worked:
        last = next((c.result.error_message for c in reversed(found.seen)), None) or next(
            iter(found.trouble), ""
        )
        why.append(f"no call worked: {last}"[:300])
    if found.unsteady:
        why.append(f"unsteady: {found.unsteady[0]}"[:300])
    claimed = {True: "read", False: "write", None: "nothing"}[tool.meta["claimed"]]
    effect = "write" if found.writes else "unknown" if not worked else "read"
    if effect == "read" and claimed == "write":
        effect = "write (claimed, not seen)"
    if effect == "write" and claimed == "read":
        why.append("says that it only reads, and writes")
    report.tools[tool.name] = {
        "mcp_name": tool.meta["mcp_name"],
        "effect": effect,
        "claimed": claimed,
        "calls": len(found.seen),
        "worked": len(worked),
        "trouble": found.trouble[:2],
        "kept": bool(worked) and not found.unsteady,
        "why": "; ".join(why),
    }
    if not report.tools[tool.name]["kept"]:
        return None
    # the output schema stays the server's own; a case whose result breaks it never worked
    return tool.model_copy(
        update={"read_only": effect == "read", "cases": tuple(c.case() for c in found.seen)}
    )


def _first_trouble(found: Mapping[str, Found]) -> str:
    for entry in found.values():
        for text in (*entry.trouble, *(c.result.error_message or "" for c in entry.seen), *entry.unsteady):
            if text:
                return f"{entry.tool.name}: {text}"[:300]
    return "it has no tools"


# --- the bundle -----------------------------------------------------------------------------------


def _write(
    out: Path, tools: Sequence[Tool], program: Program, seed: bytes, pristine: State, report: ImportReport,
    theme: Theme,
) -> None:  # fmt: skip
    # paths of this machine are no part of it: /opt/x/server.js counts as server.js
    arguments = [a if a.startswith(STATE) else a.rsplit("/", 1)[-1] for a in program.command[1:]]
    identity = {"server": report.server, "arguments": arguments, "env": program.env}
    sources = _sources(program)
    identity |= {"steady": program.steady, "seed": fingerprint(seed)}
    identity |= {"code": {path: hashlib.sha256(content).hexdigest() for path, content in sources.items()}}
    mark = hashlib.sha256(states.canonical(identity).encode()).hexdigest()
    code = f"# Served by {report.server}, not by this file. Server, arguments and seed: {mark}\n"
    tools = [tool.model_copy(update={"code": code}) for tool in tools]
    tables = schema_of(pristine)
    origin = f"folder given to agent-world import, server {report.server}"
    provenance = [
        Provenance(
            target=t.name,
            origin=origin,
            license=theme.license,
            sha256=fingerprint(seed),
            retrieved=CLOCK[:10],
        )
        for t in tables
    ]
    env = Environment(
        env_id=out.name, theme=theme, tools=tuple(tools),
        database=Database(theme_id=theme.id, tables=(_STAND_IN,), rows={}, provenance=tuple(provenance)),
        graph=observed_graph(tools), generator={IMPORTED: program.to_json(), "server": report.server},
    )  # fmt: skip
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
        new = Path(scratch) / out.name
        manifest = write_bundle(env, new, files=pristine.files)
        added = {"state/data.sqlite": pristine.tables, SEED_FILE: seed}
        added["README.md"] = _card(report, pristine, tables).encode()
        added[REPORT_FILE] = (json.dumps(report.to_json(), indent=1, ensure_ascii=False) + "\n").encode()
        added |= {f"{CODE}/{path}": content for path, content in sources.items()}
        for path, content in added.items():
            (new / path).parent.mkdir(parents=True, exist_ok=True)
            (new / path).write_bytes(content)
        hashes = {**manifest.files, **{p: hashlib.sha256(c).hexdigest() for p, c in added.items()}}
        update = {"tables": tuple(tables), "state_digest": states.digest(pristine), "files": hashes}
        manifest = manifest.model_copy(update=update)
        manifest = manifest.model_copy(update={"digest": _digest(manifest, tools)})
        text = json.dumps(manifest.model_dump(mode="json"), indent=1, ensure_ascii=False)
        (new / "manifest.json").write_text(text + "\n", "utf-8")
        if out.exists():
            if not (out / "manifest.json").is_file():
                raise CallerError(f"{out}: something that is no bundle stands there; choose another place")
            os.rename(out, Path(scratch) / "old")
        os.rename(new, out)
        shutil.rmtree(Path(scratch) / "old", ignore_errors=True)


def _sources(program: Program) -> dict[str, bytes]:
    """The files of a program's own code, by path; none for a server that is installed here."""
    if program.code is None:
        return {}
    root = Path(program.code)
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def _card(report: ImportReport, pristine: State, tables: Sequence[Table]) -> str:
    """README.md of the bundle: the card that people and clients read."""
    lines = [f"# {report.env_id}", "", f"The real MCP server {report.server}, over a folder of its own.", ""]
    lines += ["## Collections", ""]
    for table in tables:
        count = len(states.rows(pristine, table.name))
        lines.append(f"- `{table.name}` ({count} rows): {', '.join(c.name for c in table.columns)}")
    lines += [f"- file `{path}` ({len(pristine.files[path])} bytes)" for path in sorted(pristine.files)]
    lines += ["", "## Tools", ""]
    lines += [f"- `{name}` ({report.tools[name]['effect']})" for name in report.kept]
    return "\n".join(lines) + "\n"


def schema_of(state: State) -> list[Table]:
    """Table records for what the lens found: types from the values, no words but the names."""
    db = states.open_readonly(state)
    found = []
    for name in states.table_names(db):
        quoted = '"' + name.replace('"', '""') + '"'
        info = db.execute(f"PRAGMA table_info({quoted})").fetchall()
        columns = []
        for column in info:
            own = '"' + column[1].replace('"', '""') + '"'
            kinds = {kind for (kind,) in db.execute(f"SELECT DISTINCT typeof({own}) FROM {quoted}")} - {
                "null"
            }
            kind = (
                "integer"
                if kinds == {"integer"}
                else "real"
                if kinds and kinds <= {"integer", "real"}
                else "text"
            )
            role = "key" if column[5] else "measure" if kind != "text" else "text"
            words = re.sub(r"[_\W]+", " ", column[1]).strip().lower()
            columns.append(Column(name=column[1], type=kind, role=role, label=words, nullable=not column[5]))
        key = next((c.name for c in columns if c.role == "key"), columns[0].name if columns else "_")
        words = re.sub(r"[_\W]+", " ", name).strip().lower()
        found.append(
            Table(
                name=name, singular=words, plural=words, kind="mined", primary_key=key, columns=tuple(columns)
            )
        )
    return found
