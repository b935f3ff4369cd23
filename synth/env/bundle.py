"""An environment at rest: a folder that says what it is, where it comes from and what it hashes to.

    <env_id>/manifest.json README.md provenance.jsonl graph.json
             state/data.sqlite (+ files)  tools/tools.json tools/<name>.py  cases/<name>.jsonl

Written by the synthesis stages, read by everything else. A bundle is written beside its place and
renamed, so it is there whole or not at all; the same environment gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from synth.env.state import State, build_state, canonical, digest
from synth.errors import CallerError, EnvironmentFault
from synth.types import (
    MEND,
    Environment,
    Manifest,
    Provenance,
    Table,
    Theme,
    Tool,
    ToolCase,
    ToolGraph,
)

_DATA = "state/data.sqlite"
_TOOL_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_ENV_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class Bundle:
    """A bundle that was read; the state is loaded when first asked for."""

    path: Path
    manifest: Manifest
    tools: list[Tool]
    graph: ToolGraph | None
    provenance: list[Provenance]

    @cached_property
    def state(self) -> State:
        """The pristine state.

        Raises:
            CallerError: data.sqlite is missing or no database.
        """
        tables = _bytes(self.path, _DATA)
        if not tables.startswith(b"SQLite format 3\0"):
            raise CallerError(f"{self.path / _DATA}: not a SQLite database; {MEND}")
        root = self.path / "state"
        paths = sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())
        return State(tables, {p: _bytes(self.path, f"state/{p}") for p in paths if p != "data.sqlite"})


def write_bundle(env: Environment, path: str | Path, *, files: Mapping[str, bytes] | None = None) -> Manifest:
    """Write an environment as a bundle, replacing an older bundle at the same place.

    Args:
        env: the environment; ``env.generator["parent_digest"]``, when there, becomes the parent.
        path: folder of the bundle; its parent is made when missing.
        files: other files of the state, relative path -> bytes.

    Returns:
        The manifest as written.

    Raises:
        CallerError: a name is not fit for a file, or something that is no bundle stands at ``path``.
        EnvironmentFault: the rows do not fit their tables.
    """
    path = Path(path)
    _check_names(env, files or {})
    state = State(build_state(env.database).tables, dict(files or {}))
    audit = tuple(t.name for t in env.database.tables if t.kind == "audit")
    content = _content(env, state)
    manifest = Manifest(
        env_id=env.env_id,
        theme=env.theme,
        taxonomy=env.taxonomy,
        license=_license(env),
        parent_digest=env.generator.get("parent_digest"),
        digest="",
        state_digest=digest(state, audit),
        generator=env.generator,
        audit_tables=audit,
        tables=env.database.tables,
    )
    content["README.md"] = _card(manifest, env).encode()
    hashes = {name: hashlib.sha256(content[name]).hexdigest() for name in sorted(content)}
    manifest = manifest.model_copy(update={"digest": _digest(manifest, env.tools), "files": hashes})
    content["manifest.json"] = _pretty(manifest.model_dump(mode="json"))
    _replace(path, content)
    return manifest


def _check_names(env: Environment, files: Mapping[str, bytes]) -> None:
    if not _ENV_ID.fullmatch(env.env_id):
        raise CallerError(f"env_id {env.env_id!r}: use letters, digits, dot, dash and underscore")
    names = [tool.name for tool in env.tools]
    for name in names:
        if not _TOOL_NAME.fullmatch(name):
            raise CallerError(f"tool {name!r}: use lower-case letters, digits and underscores")
        if names.count(name) > 1:
            raise CallerError(f"tool {name!r} is there twice; rename one")
    for name in files:
        if name == "data.sqlite" or name.startswith("/") or ".." in name.split("/") or not name:
            raise CallerError(f"file {name!r}: use a relative path below state/, other than data.sqlite")


def _license(env: Environment) -> str:
    return " AND ".join(sorted({env.theme.license, *(p.license for p in env.database.provenance)}))


def _content(env: Environment, state: State) -> dict[str, bytes]:
    content = {_DATA: state.tables, **{f"state/{p}": b for p, b in state.files.items()}}
    content["provenance.jsonl"] = _lines(p.to_json() for p in env.database.provenance)
    content["tools/tools.json"] = _pretty([mcp_tool(tool) for tool in env.tools])
    for tool in env.tools:
        content[f"tools/{tool.name}.py"] = tool.code.encode()
        content[f"cases/{tool.name}.jsonl"] = _lines(case.to_json() for case in tool.cases)
    if env.graph is not None:
        content["graph.json"] = _pretty(env.graph.model_dump(mode="json"))
    return content


def mcp_tool(tool: Tool) -> dict[str, Any]:
    """The MCP Tool object of a tool."""
    return {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "outputSchema": tool.output_schema,
        "annotations": {"readOnlyHint": tool.read_only},
        "_meta": tool.meta,
    }


def _digest(manifest: Manifest, tools: Sequence[Tool]) -> str:
    """What tasks refer to: state, tools with code and cases, schema and clock; not prose or history."""
    covered = {
        "state": manifest.state_digest,
        "clock": manifest.clock,
        "audit": list(manifest.audit_tables),
        "tables": [t.model_dump(mode="json") for t in manifest.tables],
        "tools": [t.model_dump(mode="json") for t in tools],
    }
    return hashlib.sha256(canonical(covered).encode("utf-8", "surrogatepass")).hexdigest()


def _pretty(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def _lines(lines: Any) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _replace(path: Path, content: Mapping[str, bytes]) -> None:
    if path.exists() and not (path / "manifest.json").is_file():
        raise CallerError(f"{path}: something that is no bundle stands there; choose another place")
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        new, old = scratch / "new", scratch / "old"
        for name in sorted(content):
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            (new / name).write_bytes(content[name])
        if path.exists():
            os.rename(path, old)
        os.rename(new, path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def read_bundle(path: str | Path) -> Bundle:
    """Read a bundle; hashes are checked by :func:`check_hashes`, not here.

    Raises:
        CallerError: something is missing or damaged; the message names file, field and mend.
    """
    path = Path(path)
    if not path.is_dir():
        raise CallerError(f"{path}: no such bundle; give the folder that holds manifest.json")
    manifest = Manifest.from_json(_bytes(path, "manifest.json"), where=str(path / "manifest.json"))
    listed = _json(path, "tools/tools.json")
    if not isinstance(listed, list):
        raise CallerError(f"{path / 'tools/tools.json'}: must be a list of tools; {MEND}")
    tools = [_tool(path, number, item) for number, item in enumerate(listed)]
    graph = None
    if (path / "graph.json").exists():
        graph = ToolGraph.from_json(_bytes(path, "graph.json"), where=str(path / "graph.json"))
    provenance = _records(path, "provenance.jsonl", Provenance)
    return Bundle(path, manifest, tools, graph, provenance)


def _bytes(path: Path, name: str) -> bytes:
    file = path / name
    try:
        if path.resolve() not in file.resolve().parents:
            raise CallerError(f"{file}: leads out of the bundle; {MEND}")
        return file.read_bytes()
    except OSError as err:
        raise CallerError(f"{file}: cannot be read ({err.strerror}); {MEND}") from None


def _json(path: Path, name: str) -> Any:
    try:
        return json.loads(_bytes(path, name))
    except ValueError as err:
        raise CallerError(f"{path / name}: not JSON: {err}; {MEND}") from None


def _records(path: Path, name: str, kind: Any) -> list[Any]:
    lines = _bytes(path, name).splitlines()
    return [kind.from_json(line, where=f"{path / name}:{n}") for n, line in enumerate(lines, 1)]


def _tool(path: Path, number: int, item: Any) -> Tool:
    where = f"{path / 'tools/tools.json'}: tool {number}"
    name = item.get("name") if isinstance(item, dict) else None
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        raise CallerError(f"{where}: field name: must be a lower-case identifier; {MEND}")
    try:
        code = _bytes(path, f"tools/{name}.py").decode()
        return Tool(
            name=name,
            description=item["description"],
            input_schema=item["inputSchema"],
            output_schema=item["outputSchema"],
            read_only=item["annotations"]["readOnlyHint"],
            code=code,
            cases=tuple(_records(path, f"cases/{name}.jsonl", ToolCase)),
            meta=item.get("_meta", {}),
        )
    except KeyError as err:
        raise CallerError(f"{where} ({name}): field {err.args[0]} is missing; {MEND}") from None
    except (ValueError, TypeError) as err:
        raise CallerError(f"{where} ({name}): {str(err).splitlines()[0]}; {MEND}") from None


def check_hashes(path: str | Path) -> list[str]:
    """What differs from the manifest: files altered, missing or added, and the two digests.

    Raises:
        CallerError: the bundle cannot be read at all.
    """
    bundle = read_bundle(path)
    path, manifest = bundle.path, bundle.manifest
    found = {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()} - {"manifest.json"}
    faults = [f"{name}: missing" for name in sorted(manifest.files.keys() - found)]
    faults += [f"{name}: not in the manifest" for name in sorted(found - manifest.files.keys())]
    for name in sorted(found & manifest.files.keys()):
        if hashlib.sha256(_bytes(path, name)).hexdigest() != manifest.files[name]:
            faults.append(f"{name}: sha256 differs from the manifest")
    try:
        if digest(bundle.state, manifest.audit_tables) != manifest.state_digest:
            faults.append("manifest.json: field state_digest does not fit state/")
    except EnvironmentFault as err:
        faults.append(f"{_DATA}: {err}")
    if _digest(manifest, bundle.tools) != manifest.digest:
        faults.append("manifest.json: field digest does not fit state, tools, cases and schema")
    return faults


def _card(manifest: Manifest, env: Environment) -> str:
    """README.md of the bundle: what it is, its collections, its tools, its rules."""
    theme: Theme = env.theme
    lines = [
        f"# {theme.name}",
        "",
        theme.description,
        "",
        f"License: {manifest.license}.",
        "",
        "## Collections",
    ]
    for table in env.database.tables:
        lines += ["", *_table_card(table, len(env.database.rows.get(table.name, [])))]
    lines += ["", "## Tools", ""]
    for tool in env.tools:
        lines.append(f"- `{tool.name}` ({'read' if tool.read_only else 'write'}): {tool.description}")
    rules = sorted({(t.name, c.error) for t in env.tools for c in t.cases if c.error})
    lines += ["", "## Rules (refusals that the tests show)", ""]
    lines += [f"- `{name}`: {code}" for name, code in rules] or ["None."]
    return "\n".join(lines) + "\n"


def _table_card(table: Table, count: int) -> list[str]:
    lines = [f"### {table.plural} (`{table.name}`, {table.kind}, {count} rows)", ""]
    if table.description:
        lines += [table.description, ""]
    refs = {r.column: f"refers to {r.table}" for r in table.foreign_keys}
    for column in table.columns:
        notes = ["key"] if column.name == table.primary_key else []
        notes += [refs[column.name]] if column.name in refs else []
        notes += ["one of " + ", ".join(column.values)] if column.values else []
        notes += ["may be empty"] if column.nullable else []
        lines.append(f"- `{column.name}` ({column.type}): {'; '.join([column.label, *notes])}")
    return lines
