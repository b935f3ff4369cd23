"""Which file has which layout: folders and files in, candidates and a note on every file out.

A file is recognised by its content, not by its name, so that dumps and crawls can lie in any folder.
What has no known layout is named in the notes, and damaged lines are counted, never guessed.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from synth.errors import CallerError
from synth.sources import layouts, openapi, prds, tooldocs
from synth.sources.found import Found

NO_DOCUMENT = re.compile(r"(readme|license|licence|changelog|notice|contributing)\b", re.IGNORECASE)
OWN = {
    "id",
    "name",
    "qualifiedName",
    "about",
    "registry",
}  # fields of a thing, not of a page or a list of things
TEXT = (".json", ".jsonl", ".yaml", ".yml")


@dataclass(frozen=True)
class Note:
    """What became of one file."""

    file: str
    layout: str  # "" where it was passed over
    found: int = 0
    damaged: int = 0  # lines or entries that could not be read
    remark: str = ""  # why it was passed over, or the first damage


def inputs(paths: Sequence[Path]) -> list[Path]:
    """All files below the paths that a reader may know, in stable order.

    Raises:
        CallerError: a path does not exist, or nothing below them can be read.
    """
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise CallerError(f"{path}: no such file or folder; name a folder of theme data")
        below = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        found += [p for p in below if _suffix(p) in (*TEXT, *prds.SUFFIXES)]
    distinct = list(dict.fromkeys(found))
    if not distinct:
        raise CallerError(f"{paths[0]}: no JSON, JSONL, YAML, Markdown, docx or PDF below it")
    return distinct


def read_file(path: Path) -> tuple[list[Found], Note]:
    """Everything that one file holds, and a note.

    Raises:
        CallerError: the file can't be read at all.
    """
    if path.name == "provenance.jsonl" or (
        path.name == "tools.json" and (path.parent / "server.yaml").exists()
    ):
        return [], Note(str(path), "", remark="read with its neighbours")
    if _suffix(path) in prds.SUFFIXES:
        if NO_DOCUMENT.match(path.name):
            return [], Note(str(path), "", remark="about the folder, not a requirement document")
        return [prds.read_prd(path)], Note(str(path), "prd", 1)
    documents, damaged, remark = _parse(path)
    layout, found = recognise(documents, path)
    if not layout:
        return [], Note(str(path), "", damaged=damaged, remark=remark or "no known layout")
    return found, Note(str(path), layout, len(found), damaged, remark)


def recognise(documents: Any, path: Path) -> tuple[str, list[Found]]:
    """(layout, candidates) of parsed content; ("", []) for content that no reader knows."""
    if isinstance(documents, dict):
        return _document(documents, path)
    rows = [row for row in documents if isinstance(row, dict)] if isinstance(documents, list) else []
    if not rows:
        return "", []
    first = rows[0]
    if "question" in first and "function" in first:
        functions = [f for row in rows for f in _listed(row.get("function"))]
        return "bfcl", _some(tooldocs.openai_theme(_key(path), functions, benchmark=True))
    if "registry" in first and "id" in first:
        return "dump", _each(layouts.dump, rows)
    if "qualifiedName" in first:
        return "smithery", _each(layouts.smithery, rows)
    if isinstance(first.get("server"), dict) or {"packages", "remotes", "version_detail"} & set(first):
        return "official registry", _each(layouts.official, rows)
    if isinstance(first.get("package"), dict) or "dist-tags" in first:
        return "npm", _each(layouts.npm, rows)
    if isinstance(first.get("info"), dict) and "urls" in first:
        return "pypi", _each(layouts.pypi, rows)
    if "api_name" in first:
        return "seal-tools", tooldocs.seal_tools(r for r in rows if isinstance(r.get("api_name"), str))
    if "name_for_model" in first:
        return "metatool", tooldocs.metatool(r for r in rows if isinstance(r.get("name_for_model"), str))
    if "Function_Description" in first:
        named = [r for r in rows if isinstance(r.get("Name"), str)]
        return "toolalpaca", _each(tooldocs.toolalpaca_tool, named)
    if "api_list" in first and "query" in first:
        return "toolbench", tooldocs.toolbench_queries(rows)
    if "api_list" in first:
        folder = path.parent
        category = folder.name if folder.parent.name == "tools" else ""
        return "toolbench", _each(lambda row: tooldocs.toolbench(row, category), rows)
    if tooldocs.openai_function(first) and ("parameters" in first or "function" in first):
        bfcl = (
            any((r.get("parameters") or {}).get("type") == "dict" for r in rows)
            or "bfcl" in path.name.lower()
        )
        found = tooldocs.openai_theme(_key(path), rows, benchmark=bfcl)
        return ("bfcl" if bfcl else "openai functions"), _some(found)
    return "", []


def _document(document: dict[str, Any], path: Path) -> tuple[str, list[Found]]:
    """The layouts that are one JSON or YAML object."""
    for field in ("servers", "objects", "functions", "tools"):  # a page of a registry, or a list in a wrapper
        if isinstance(document.get(field), list) and not OWN & set(document):
            return recognise(document[field], path)
    if isinstance(document.get("paths"), dict) and {"openapi", "swagger", "info"} & set(document):
        return "openapi", _some(openapi.openapi(document, _key(path)))
    if isinstance(document.get("entries"), list):
        return "toolalpaca", tooldocs.toolalpaca_apis(document)
    if isinstance(document.get("nodes"), list):
        return "taskbench", _some(tooldocs.taskbench(document, _key(path)))
    if isinstance(document.get("about"), dict) and path.name == "server.yaml":
        tools = path.parent / "tools.json"
        return "docker", _some(layouts.docker(document, _parse(tools)[0] if tools.exists() else None))
    return recognise([document], path)


def _parse(path: Path) -> tuple[Any, int, str]:
    """(content, damaged lines, the first damage) of JSON, JSONL or YAML, gzipped or not."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        text = raw.decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as err:
        return [], 1, f"cannot be read ({type(err).__name__})"
    if _suffix(path) in (".yaml", ".yml"):
        try:
            return yaml.safe_load(text), 0, ""
        except yaml.YAMLError as err:
            return [], 1, f"not YAML ({str(err).splitlines()[0]})"
    try:
        return json.loads(text), 0, ""
    except json.JSONDecodeError as err:
        if _suffix(path) == ".json" and text.lstrip()[:1] == "[":
            return [], 1, f"line {err.lineno}: not JSON ({err.msg})"
    rows, bad = [], []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError as err:
                bad.append(f"line {number}: not JSON ({err.msg})")
    return rows, len(bad), bad[0] if bad else ""


def _suffix(path: Path) -> str:
    return (Path(path.stem) if path.suffix == ".gz" else path).suffix.lower()


def _key(path: Path) -> str:
    """The name of a file without its endings."""
    return path.name.split(".")[0]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _each(reader: Any, rows: Sequence[dict[str, Any]]) -> list[Found]:
    return [found for row in rows if (found := reader(row))]


def _some(found: Found | None) -> list[Found]:
    return [found] if found else []
