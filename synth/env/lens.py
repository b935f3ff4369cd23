"""What a folder says, apart from how its bytes lie: the folder of a foreign server as a :class:`State`.

Runs inside the sandbox, over a read-only copy, because the files come from a program that an agent drives:
``python lens.py`` in ``/state`` writes one frame (index of a packed state, and its bytes) to standard output.
Standard library, and ``duckdb`` where the server's own environment has it.

    SQLite, DuckDB   a table each, under its own name (``file/table`` for all but the first database)
    *.xlsx           table ``cell`` (file, sheet, cell, value)
    *.jsonl          a table named like the file, one row a line
    *.json           a list of objects likewise; else a file, in canonical JSON
    .git             tables ``git_ref``, ``git_commit``, ``git_index``; nothing of git's own bookkeeping
    all else         files as they are; empty folders and links as files that say so

Two states that a person would call the same must come out the same: no time stamps, no order of keys.
"""

from __future__ import annotations

import io
import json
import os
import re
import sqlite3
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

HEADER = struct.Struct("!II")  # as synth.env.frames
SQLITE = b"SQLite format 3\0"
EMPTY, LINK = "(empty folder)", "(link)"
MOST_BYTES = 256 << 20  # of an unpacked workbook; a bomb ends the lens, not the machine
_SHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_LINKS = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_SIDE_FILES = ("-wal", "-shm", "-journal", ".wal")  # belong to a database beside them


class Lens:
    """Collects tables and files of one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: dict[str, bytes] = {}
        self.tables: dict[str, list[dict[str, Any]]] = {}
        self.keys: dict[str, str | None] = {}
        self.columns: dict[str, list[str]] = {}
        self._databases = 0

    def look(self) -> None:
        """Read everything below the root."""
        for here, folders, names in os.walk(self.root):
            path = Path(here)
            folders.sort()
            if ".git" in folders and (path / ".git" / "HEAD").is_file():
                folders.remove(".git")
                self._git(path)
            if not folders and not names and path != self.root:
                self.files[f"{self._name(path)}/{EMPTY}"] = b""
            for folder in [f for f in folders if (path / f).is_symlink()]:
                self._link(path / folder)
            for name in sorted(names):
                self._file(path / name)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _link(self, path: Path) -> None:
        self.files[f"{self._name(path)} {LINK}"] = os.readlink(path).encode()

    def _file(self, path: Path) -> None:
        if path.is_symlink():
            return self._link(path)
        name = self._name(path)
        with open(path, "rb") as file:
            head = file.read(16)
        if any(name.endswith(end) and path.with_name(path.name[: -len(end)]).exists() for end in _SIDE_FILES):
            return None
        try:
            if head == SQLITE:
                return self._sqlite(path)
            if head[8:12] == b"DUCK":
                return self._duckdb(path)
            if name.endswith(".xlsx"):
                return self._workbook(path)
            if name.endswith(".jsonl"):
                return self._lines(path)
            if name.endswith(".json"):
                return self._json(name, json.loads(path.read_bytes()))
        except (ValueError, KeyError, ImportError, sqlite3.Error, zipfile.BadZipFile, ElementTree.ParseError):
            pass  # not what its name says: a file like any other
        self.files[name] = path.read_bytes()
        return None

    def _database(self, path: Path) -> str:
        """How tables of a database are called: bare in the first one, with its path in others."""
        self._databases += 1
        return "" if self._databases == 1 else self._name(path) + "/"

    def _add(self, table: str, columns: list[str], key: str | None, rows: list[tuple[Any, ...]]) -> None:
        names = ["key_" if c == "key" else c for c in columns]  # diffs use that word for the row
        self.columns[table], self.keys[table] = names, "key_" if key == "key" else key
        self.tables[table] = [dict(zip(names, map(_plain, row), strict=True)) for row in rows]

    def _sqlite(self, path: Path) -> None:
        db = sqlite3.connect(":memory:")
        file = sqlite3.connect(f"file:{path}?mode=ro", uri=True)  # a copy without its WAL would be older
        file.backup(db)
        file.close()
        query = (
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite@_%' ESCAPE '@' "
            "AND sql NOT LIKE 'CREATE VIRTUAL%' ORDER BY name"
        )
        tables = [name for (name,) in db.execute(query)]
        prefix = self._database(path)
        for table in tables:
            quoted = '"' + table.replace('"', '""') + '"'
            info = db.execute(f"PRAGMA table_info({quoted})").fetchall()
            keys = [column[1] for column in info if column[5]]
            rows = db.execute(f"SELECT * FROM {quoted}").fetchall()
            self._add(prefix + table, [c[1] for c in info], keys[0] if len(keys) == 1 else None, rows)

    def _duckdb(self, path: Path) -> None:
        import duckdb  # type: ignore[import-not-found]  # of the server's own environment

        db = duckdb.connect(str(path), read_only=True)
        found = db.execute(
            "SELECT schema_name, table_name FROM duckdb_tables() WHERE NOT internal ORDER BY ALL"
        ).fetchall()
        prefix = self._database(path)
        for schema, table in found:
            cursor = db.execute(
                'SELECT * FROM "{}"."{}"'.format(*(n.replace('"', '""') for n in (schema, table)))
            )
            columns = [d[0] for d in cursor.description]
            name = table if schema == "main" else f"{schema}.{table}"
            self._add(prefix + name, columns, None, cursor.fetchall())
        db.close()

    def _workbook(self, path: Path) -> None:
        with zipfile.ZipFile(path) as book:
            if sum(item.file_size for item in book.infolist()) > MOST_BYTES:
                raise ValueError("too large unpacked")
            shared = []
            if "xl/sharedStrings.xml" in book.namelist():
                root = ElementTree.fromstring(book.read("xl/sharedStrings.xml"))
                shared = ["".join(t.text or "" for t in item.iter(f"{_SHEET}t")) for item in root]
            targets = ElementTree.fromstring(book.read("xl/_rels/workbook.xml.rels"))
            where = {link.get("Id"): str(link.get("Target")).removeprefix("/xl/") for link in targets}
            rows = []
            for sheet in ElementTree.fromstring(book.read("xl/workbook.xml")).iter(f"{_SHEET}sheet"):
                title = sheet.get("name")
                rows.append((self._name(path), title, "", None))  # the sheet itself, also an empty one
                tree = ElementTree.fromstring(book.read("xl/" + where[sheet.get(f"{_LINKS}id")]))
                for cell in tree.iter(f"{_SHEET}c"):
                    value = _cell(cell, shared)
                    if value is not None:
                        rows.append((self._name(path), title, cell.get("r"), value))
        columns = ["file", "sheet", "cell", "value"]
        known = [tuple(row[c] for c in columns) for row in self.tables.get("cell", [])]
        self._add("cell", columns, None, known + rows)

    def _lines(self, path: Path) -> None:
        records = [json.loads(line) for line in path.read_bytes().splitlines() if line.strip()]
        if not all(isinstance(record, dict) for record in records):
            raise ValueError("lines that are no objects")
        self._records(self._name(path), records)

    def _records(self, name: str, records: list[dict[str, Any]]) -> None:
        columns = sorted({column for record in records for column in record})
        self._add(name, columns, None, [tuple(r.get(c) for c in columns) for r in records])

    def _json(self, name: str, value: Any) -> None:
        if isinstance(value, list) and value and all(isinstance(record, dict) for record in value):
            self._records(name, value)
        else:
            self.files[name] = _canonical(value).encode("utf-8", "surrogatepass")

    def _git(self, path: Path) -> None:
        name = self._name(path)

        def git(*arguments: str) -> str:
            command = [
                "git",
                "-c",
                "safe.directory=*",
                "-c",
                "core.fsmonitor=false",
                "-C",
                str(path),
                *arguments,
            ]
            done = subprocess.run(command, capture_output=True, timeout=20)
            return done.stdout.decode("utf-8", "replace")

        head = (path / ".git" / "HEAD").read_text("utf-8", "replace").strip()
        refs = [
            line.split(" ", 1)
            for line in git("for-each-ref", "--format=%(objectname) %(refname)").splitlines()
        ]
        rows = [(name, "HEAD", head), *((name, ref, target) for target, ref in refs)]
        self._merge("git_ref", ["repository", "ref", "target"], rows)
        log = git("log", "--all", "-z", "--format=%H%x1f%P%x1f%T%x1f%an%x1f%B")
        commits = [
            (name, *(part.strip() for part in entry.split("\x1f"))) for entry in log.split("\0") if entry
        ]
        self._merge("git_commit", ["repository", "id", "parents", "tree", "author", "message"], commits)
        staged = [
            re.split(r"[ \t]", line, maxsplit=3)
            for line in git("ls-files", "-z", "--stage").split("\0")
            if line
        ]
        self._merge(
            "git_index", ["repository", "path", "mode", "blob"], [(name, p, m, b) for m, b, _, p in staged]
        )

    def _merge(self, table: str, columns: list[str], rows: list[tuple[Any, ...]]) -> None:
        known = [tuple(row[c] for c in columns) for row in self.tables.get(table, [])]
        self._add(table, columns, None, known + rows)

    def database(self) -> bytes:
        """All tables as one SQLite database, columns without types, so that values stay what they are."""
        db = sqlite3.connect(":memory:")
        db.execute("PRAGMA user_version = 1")  # a database without any table has no bytes else
        for table in sorted(self.tables):
            columns, key = self.columns[table], self.keys[table]
            keys = [row[key] for row in self.tables[table]] if key else []
            if not columns or len(set(map(repr, keys))) < len(keys) or None in keys:
                key = None
            quoted = ['"' + c.replace('"', '""') + '"' for c in columns]
            lines = [q + (" PRIMARY KEY" if c == key else "") for q, c in zip(quoted, columns, strict=True)]
            name = '"' + table.replace('"', '""') + '"'
            db.execute(f"CREATE TABLE {name} ({', '.join(lines) or '_'})")
            marks = ", ".join("?" * len(columns))
            if columns:
                db.executemany(
                    f"INSERT INTO {name} VALUES ({marks})",
                    [tuple(row.values()) for row in self.tables[table]],
                )
        db.commit()
        return db.serialize()


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """A value that SQLite and JSON both can hold; nested ones as canonical JSON."""
    if isinstance(value, bool):
        return int(value)
    if value is None or isinstance(value, float | str):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else str(value)
    if isinstance(value, bytes):
        return "0x" + value.hex()
    try:
        return _canonical(value)
    except (TypeError, ValueError):
        return str(value)  # dates and decimals of DuckDB


def _cell(cell: Any, shared: list[str]) -> Any:
    """A cell's formula (``=A1+B1``) or value; None when it holds neither."""
    formula = cell.find(f"{_SHEET}f")
    if formula is not None and formula.text:
        return "=" + formula.text
    if cell.get("t") == "inlineStr":
        return "".join(t.text or "" for t in cell.iter(f"{_SHEET}t"))
    value = cell.findtext(f"{_SHEET}v")
    if value is None:
        return None
    if cell.get("t") == "s":
        return shared[int(value)]
    if cell.get("t") in ("str", "b", "e"):
        return value
    number = float(value)
    return int(number) if number.is_integer() else number


def main() -> None:
    """Look at the current folder and write the frame."""
    lens = Lens(Path.cwd())
    lens.look()
    paths = sorted(lens.files)
    tables = lens.database()
    index = {"tables": len(tables), "files": [[p, len(lens.files[p])] for p in paths]}
    body = json.dumps({"index": index}).encode()
    blob = tables + b"".join(lens.files[p] for p in paths)
    out = io.FileIO(sys.stdout.fileno(), "wb", closefd=False)
    view = memoryview(HEADER.pack(len(body), len(blob)) + body + blob)
    while view:
        view = view[out.write(view) :]


if __name__ == "__main__":
    main()
