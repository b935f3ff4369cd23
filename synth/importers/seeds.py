"""States for real servers, filled with real rows: one mined table as a database, a workbook, notes, a graph.

A server without a state is a poor environment. ``SEEDS[kind](rows, folder)`` lays the rows of a mined table
(:func:`real_rows`) the way a kind of server keeps them, always the same bytes for the same rows. Used by
:mod:`synth.importers.known`; a user's own folder does as well.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from synth.env.program import CLOCK
from synth.errors import CallerError
from synth.mining import mine
from synth.themes import builtin

ROWS = 14  # ours: enough for counting and ranking, few enough to list in one answer


@dataclass(frozen=True)
class Rows:
    """Rows of one table: its name, the column that names a row, one that groups them, and the records."""

    table: str
    name: str
    group: str
    records: list[dict[str, Any]]

    @property
    def measures(self) -> list[str]:
        first = self.records[0]
        return [c for c in first if isinstance(first[c], int | float)]

    def of_group(self, value: Any) -> list[dict[str, Any]]:
        return [r for r in self.records if r[self.group] == value]


def real_rows(theme_id: str, seed: int = 0, count: int = ROWS) -> Rows:
    """``count`` rows of a theme's main table: its name, a category, and up to three measures.

    Raises:
        CallerError: no such theme, or its table has no name, category and measure.
    """
    themes = {theme.id: theme for theme in builtin()}
    if theme_id not in themes:
        raise CallerError(f"no theme {theme_id}; there are {', '.join(sorted(themes)[:8])}, ...")
    db = mine(themes[theme_id], seed)
    table = db.tables[0]
    names, groups = table.by_role("name"), table.by_role("category")
    measures = [c for c in table.by_role("measure") if not c.nullable][:3]
    if not (names and groups and measures):
        raise CallerError(f"theme {theme_id}: its table {table.name} has no name, category and measure")
    columns = [names[0].name, groups[0].name, *(c.name for c in measures)]
    unique = {r[names[0].name]: r for r in db.records(table.name) if all(r[c] is not None for c in columns)}
    step = max(1, len(unique) // count)
    kept = list(unique.values())[::step][:count]
    return Rows(table.name, columns[0], columns[1], [{c: r[c] for c in columns} for r in kept])


def slug(text: Any) -> str:
    """A file name: lower case, hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", str(text).lower()).strip("-") or "x"


def label(column: str) -> str:
    return column.replace("_", " ").capitalize()


def note(record: dict[str, Any]) -> str:
    """One record as ``Label: value`` lines."""
    return "".join(f"{label(c)}: {v}\n" for c, v in record.items())


def sqlite_file(rows: Rows, folder: Path, name: str = "data.db") -> None:
    """A database with one table, an integer key in front."""
    db = sqlite3.connect(folder / name)
    kinds = {int: "INTEGER", float: "REAL", str: "TEXT"}
    columns = [f'"{c}" {kinds[type(v)]}' for c, v in rows.records[0].items()]
    db.execute(f'CREATE TABLE "{rows.table}" (id INTEGER PRIMARY KEY, {", ".join(columns)})')
    for number, record in enumerate(rows.records, 1):
        marks = ", ".join("?" * (len(record) + 1))
        db.execute(f'INSERT INTO "{rows.table}" VALUES ({marks})', [number, *record.values()])
    db.commit()
    db.execute("VACUUM")
    db.close()


def duckdb_file(rows: Rows, folder: Path, name: str = "data.duckdb") -> None:
    """The same in DuckDB (extra ``catalogue``)."""
    try:
        import duckdb
    except ImportError:
        raise CallerError("a DuckDB state needs duckdb: pip install 'agent-world[catalogue]'") from None
    kinds = {int: "BIGINT", float: "DOUBLE", str: "VARCHAR"}
    columns = [f'"{c}" {kinds[type(v)]}' for c, v in rows.records[0].items()]
    db = duckdb.connect()
    db.execute(f"ATTACH '{folder / name}' AS made (STORAGE_VERSION 'v1.0.0')")  # every release reads it
    db.execute("USE made")
    db.execute(f'CREATE TABLE "{rows.table}" (id BIGINT, {", ".join(columns)})')
    for number, record in enumerate(rows.records, 1):
        marks = ", ".join("?" * (len(record) + 1))
        db.execute(f'INSERT INTO "{rows.table}" VALUES ({marks})', [number, *record.values()])
    db.close()


def workbook(rows: Rows, folder: Path, name: str = "data.xlsx") -> None:
    """A workbook with the rows on one sheet and an empty second one."""
    grid = [list(rows.records[0]), *(list(r.values()) for r in rows.records)]
    lines = []
    for y, row in enumerate(grid, 1):
        cells = ""
        for x, value in enumerate(row):
            place = f"{chr(65 + x)}{y}"
            text = f'<is><t xml:space="preserve">{escape(str(value))}</t></is>'
            inline = isinstance(value, str)
            cells += (
                f'<c r="{place}" t="inlineStr">{text}</c>' if inline else f'<c r="{place}"><v>{value}</v></c>'
            )
        lines.append(f'<row r="{y}">{cells}</row>')
    main = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    head = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
    sheet = f"<worksheet {main}><sheetData>{{}}</sheetData></worksheet>"
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types"><Default Extension="rels" '
        f'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{kind}.sheet.main+xml"/>'
        + "".join(
            f'<Override PartName="/xl/worksheets/sheet{n}.xml" ContentType="{kind}.worksheet+xml"/>'
            for n in (1, 2)
        )
        + "</Types>",
        "_rels/.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="rId1" '
        f'Type="{office}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}/relationships">'
        + "".join(
            f'<Relationship Id="rId{n}" Type="{office}/worksheet" Target="worksheets/sheet{n}.xml"/>'
            for n in (1, 2)
        )
        + "</Relationships>",
        "xl/workbook.xml": f'<workbook {main} xmlns:r="{office}"><sheets><sheet name="{escape(rows.table)}" '
        'sheetId="1" r:id="rId1"/><sheet name="drafts" sheetId="2" r:id="rId2"/></sheets></workbook>',
        "xl/worksheets/sheet1.xml": sheet.format("".join(lines)),
        "xl/worksheets/sheet2.xml": sheet.format(""),
    }
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as book:
        for path, text in parts.items():
            book.writestr(zipfile.ZipInfo(path, (2026, 1, 5, 9, 0, 0)), head + text)


def notes(rows: Rows, folder: Path) -> None:
    """A folder of notes, one a record, beside an empty archive."""
    (folder / rows.table).mkdir(parents=True)
    (folder / "archive").mkdir()
    for record in rows.records:
        (folder / rows.table / f"{slug(record[rows.name])}.note").write_text(note(record), "utf-8")


def repository(rows: Rows, folder: Path, name: str = "repo") -> None:
    """A git repository of notes: a commit a group, two branches, one change staged, one not, a new file.

    Raises:
        CallerError: git is not installed.
    """
    root = folder / name
    (root / rows.table).mkdir(parents=True)
    groups = list(dict.fromkeys(r[rows.group] for r in rows.records))[:5]
    people = ("Ada Brandt", "Mei Tan", "Jonas Lind")
    fixed = {"GIT_CONFIG_NOSYSTEM": "1", "HOME": "/nowhere", "PATH": os.environ.get("PATH", "/usr/bin:/bin")}

    def git(*arguments: str, who: str = people[0]) -> None:
        own = dict(fixed)
        for role in ("AUTHOR", "COMMITTER"):
            own |= {f"GIT_{role}_NAME": who, f"GIT_{role}_EMAIL": f"{slug(who)}@example.org"}
            own[f"GIT_{role}_DATE"] = CLOCK
        try:
            subprocess.run(["git", "-C", str(root), *arguments], check=True, env=own, capture_output=True)
        except FileNotFoundError:
            raise CallerError("a repository as state needs git") from None

    git("init", "-b", "main")
    for number, value in enumerate(groups):
        for record in rows.of_group(value):
            (root / rows.table / f"{slug(record[rows.name])}.note").write_text(note(record), "utf-8")
        git("add", ".")
        git("commit", "-m", f"Describe {value}", who=people[number % 3])
        if number in (1, 2):
            git("branch", f"review-{slug(value)}")
    first = root / rows.table / f"{slug(rows.of_group(groups[0])[0][rows.name])}.note"
    first.write_text(first.read_text("utf-8") + "Checked: yes\n", "utf-8")
    (root / "plan.note").write_text("Topic: autumn\nOwner: Jonas Lind\n", "utf-8")
    git("add", "plan.note")
    (root / "todo.note").write_text("Topic: compare\nOwner: Mei Tan\n", "utf-8")


def graph(rows: Rows, folder: Path, name: str = "memory.jsonl") -> None:
    """A knowledge graph: an entity a record, and one a group that the records belong to."""
    lines: list[dict[str, Any]] = []
    for record in rows.records:
        seen = [f"{c.replace('_', ' ')}: {record[c]}" for c in rows.measures]
        kind = rows.table.rstrip("s")
        lines.append({"type": "entity", "name": record[rows.name], "entityType": kind, "observations": seen})
    for value in dict.fromkeys(r[rows.group] for r in rows.records):
        lines.append({"type": "entity", "name": str(value), "entityType": "group", "observations": []})
    for record in rows.records:
        near = {"from": record[rows.name], "to": str(record[rows.group]), "relationType": "belongs to"}
        lines.append({"type": "relation", **near})
    (folder / name).write_text("".join(json.dumps(x, ensure_ascii=False) + "\n" for x in lines), "utf-8")


SEEDS: dict[str, Callable[[Rows, Path], None]] = {
    "sqlite": sqlite_file, "duckdb": duckdb_file, "workbook": workbook, "notes": notes,
    "repository": repository, "graph": graph,
}  # fmt: skip


def lay(kind: str, rows: Rows, folder: Path) -> Sequence[str]:
    """Fill an empty folder; the paths that it holds now."""
    folder.mkdir(parents=True, exist_ok=True)
    SEEDS[kind](rows, folder)
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if ".git" not in p.parts)
