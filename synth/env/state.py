"""The state of an environment: a SQLite database as bytes, plus files; digests and differences.

Built from a :class:`synth.types.Database` when a bundle is written, loaded fresh for every episode,
taken back as a snapshot when an episode ends. Also imported inside the sandbox (by verifiers), so it
needs the standard library only. Two states are compared by content, never by SQLite's bytes.
"""

from __future__ import annotations

import json
import sqlite3

from synth.errors import EnvironmentFault

TYPE_CHECKING = False  # typing, dataclasses and hashlib would cost every episode (see frames.py)
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from synth.types import Database, Table

    StateDiff = dict[str, dict[str, list[dict[str, Any]]]]

FILES = "(files)"  # the name under which files appear in a diff
MINTED = "*"
_SQL_TYPES = {"integer": "INTEGER", "real": "REAL", "text": "TEXT"}
_KEPT = 4 << 20  # bytes of tables up to which a state keeps what was read from it (some 10 times as much)
_KEYS = (  # first column of each primary key, after the later ones, if any
    "SELECT m.name, i.name FROM sqlite_master m, pragma_table_info(m.name) i "
    "WHERE m.type = 'table' AND i.pk > 0 ORDER BY m.rowid, i.cid"
)
_MOST_STEPS = 20_000  # x 10,000 SQLite instructions: a foreign file cannot keep a reader busy for ever


class State:
    """``tables``: a serialized SQLite database. ``files``: relative path -> bytes. Not changed once made."""

    __slots__ = ("_content", "files", "tables")

    def __init__(self, tables: bytes, files: dict[str, bytes] | None = None) -> None:
        self.tables = tables
        self.files: dict[str, bytes] = {} if files is None else files
        self._content: dict[str, _Table] | None = None  # what was read, kept: pristine states are read often

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and self.tables == other.tables and self.files == other.files

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return State, (self.tables, self.files)

    def __repr__(self) -> str:
        return f"State({len(self.tables)} bytes of tables, {len(self.files)} files)"

    def content(self) -> dict[str, _Table]:
        """Its ordinary tables by name, each read once.

        Raises:
            EnvironmentFault: the bytes are no readable database.
        """
        if self._content is not None:
            return self._content
        db = open_readonly(self)
        names = table_names(db)
        keys = dict(reversed(db.execute(_KEYS).fetchall())) if names else {}
        content = {name: _Table(db, name, keys.get(name)) for name in names}
        if len(self.tables) <= _KEPT:
            self._content = content
        return content

    def pack(self) -> tuple[dict[str, Any], bytes]:
        """A JSON-able index and the bytes it describes, for a frame."""
        paths = sorted(self.files)
        index = {"tables": len(self.tables), "files": [[p, len(self.files[p])] for p in paths]}
        return index, self.tables + b"".join(self.files[p] for p in paths)

    @classmethod
    def unpack(cls, index: dict[str, Any], blob: bytes) -> State:
        """Inverse of :meth:`pack`."""
        at = index["tables"]
        files = {}
        for path, size in index["files"]:
            files[path] = blob[at : at + size]
            at += size
        return cls(blob[: index["tables"]], files)


_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values, equal text."""
    return _canonical(value)


def _name(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


def build_state(database: Database) -> State:
    """Lay the tables of a database into SQLite.

    Args:
        database: schema and rows; values are None, bool, int, float or str.

    Returns:
        The state; the same database gives the same bytes.

    Raises:
        EnvironmentFault: a row does not fit its table, or a reference leads nowhere.
    """
    db = sqlite3.connect(":memory:")
    for table in database.tables:
        db.execute(_create(table, database))
    for table in database.tables:
        marks = ", ".join("?" * len(table.columns))
        for number, row in enumerate(database.rows.get(table.name, [])):
            try:
                db.execute(f"INSERT INTO {_name(table.name)} VALUES ({marks})", row)
            except (sqlite3.Error, OverflowError, UnicodeError) as err:
                raise EnvironmentFault(f"table {table.name}, row {number} {row!r}: {err}") from None
    db.commit()
    for table, rowid, target, _ in db.execute("PRAGMA foreign_key_check"):
        row = db.execute(f"SELECT * FROM {_name(table)} WHERE rowid = ?", [rowid]).fetchone()
        raise EnvironmentFault(f"table {table}, row {row!r}: it refers to a row that {target} does not have")
    return State(db.serialize())


def _create(table: Table, database: Database) -> str:
    lines = []
    for column in table.columns:
        key = column.name == table.primary_key
        if column.name == "key" and not key:
            raise EnvironmentFault(
                f'table {table.name}: rename column "key": diffs use that word for the row'
            )
        empty = "" if column.nullable and not key else " NOT NULL"
        lines.append(f"{_name(column.name)} {_SQL_TYPES[column.type]}{' PRIMARY KEY' if key else ''}{empty}")
    if table.primary_key not in {c.name for c in table.columns}:
        raise EnvironmentFault(f"table {table.name}: primary key {table.primary_key} is not a column")
    for ref in table.foreign_keys:
        if ref.ref_column != database.table(ref.table).primary_key:
            raise EnvironmentFault(
                f"table {table.name}: {ref.column} must refer to the primary key of {ref.table}, "
                f"not to {ref.ref_column}"
            )
        lines.append(
            f"FOREIGN KEY ({_name(ref.column)}) REFERENCES {_name(ref.table)} ({_name(ref.ref_column)})"
        )
    return f"CREATE TABLE {_name(table.name)} ({', '.join(lines)})"


def open_readonly(state: State) -> sqlite3.Connection:
    """A connection to a copy of the tables, for looking only; the bytes may come from a sandbox.

    Raises:
        EnvironmentFault: the bytes are no readable database.
    """
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    steps = iter(range(_MOST_STEPS))
    try:
        db.execute("PRAGMA trusted_schema = OFF")
        db.deserialize(state.tables)
        db.set_progress_handler(lambda: next(steps, None) is None, 10_000)
        db.execute("PRAGMA query_only = ON")
        db.execute("SELECT count(*) FROM sqlite_master")
    except (sqlite3.Error, OverflowError, MemoryError) as err:  # MemoryError: no bytes at all
        raise EnvironmentFault(f"the state is not a readable database: {err}") from None
    return db


def table_names(db: sqlite3.Connection) -> list[str]:
    """Ordinary tables, by name."""
    query = (
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite@_%' ESCAPE '@' "
        "AND sql NOT LIKE 'CREATE VIRTUAL%' ORDER BY name"
    )
    return [name for (name,) in db.execute(query)]


class _Table:
    """What one table holds: names of its columns, rows in stored order (no bytes), and its primary key."""

    __slots__ = ("key", "names", "rows", "text")

    def __init__(self, db: sqlite3.Connection, table: str, key: str | None = None) -> None:
        try:
            cursor = db.execute(f"SELECT * FROM {_name(table)}")
            self.names = [c[0] for c in cursor.description]
            self.rows: list[tuple] = cursor.fetchall()
        except sqlite3.Error as err:
            raise EnvironmentFault(f"table {table} cannot be read: {err}") from None
        self.key = key
        # equal exactly when names and rows are: 1, 1.0 and true have different texts
        self.text = repr((self.names, self.rows))
        if "b'" in self.text or 'b"' in self.text:  # some value may be bytes
            self.rows = [tuple(_plain(v) for v in row) for row in self.rows]

    def keyed(self) -> dict[Any, dict[str, Any]]:
        """Rows by primary key; by their own text where there is none."""
        key = self.key
        records = [dict(zip(self.names, row, strict=True)) for row in self.rows]
        return {(r[key] if key else canonical(r)): r for r in records}


def _plain(value: Any) -> Any:
    return {"$bytes": value.hex()} if isinstance(value, bytes) else value


def rows(state: State, table: str) -> list[dict[str, Any]]:
    """Rows of one table in stored order.

    Raises:
        EnvironmentFault: there is no such table.
    """
    found = state.content().get(table) or _Table(open_readonly(state), table)
    return [dict(zip(found.names, row, strict=True)) for row in found.rows]


def digest(state: State, audit_tables: Sequence[str] = ()) -> str:
    """SHA-256 (hex) of the canonical dump: tables by name, rows sorted, files by path.

    Args:
        audit_tables: tables that only record what was asked; left out.
    """
    import hashlib

    total = hashlib.sha256()
    for name, table in state.content().items():
        if name in audit_tables:
            continue
        total.update(canonical(["table", name, table.names]).encode())
        total.update(_lines(table))
    for path in sorted(state.files):
        total.update(canonical(["file", path, hashlib.sha256(state.files[path]).hexdigest()]).encode())
    return total.hexdigest()


# of tables by their text: most tables of most states are the pristine ones
_known_lines: dict[str, bytes] = {}
_KNOWN = 64, 256_000  # so many tables at most, and characters of one


def _lines(table: _Table) -> bytes:
    """Rows of a table as canonical lines, sorted."""
    found = _known_lines.get(table.text)
    if found is None:
        lines = sorted(map(canonical, table.rows))
        found = "".join(line + "\n" for line in lines).encode("utf-8", "surrogatepass")
        if len(table.text) <= _KNOWN[1]:
            if len(_known_lines) >= _KNOWN[0]:
                _known_lines.clear()
            _known_lines[table.text] = found
    return found


def diff(before: State, after: State) -> StateDiff:
    """What changed, by content.

    Returns:
        ``{table: {"added": [row], "removed": [row], "changed": [{"key": primary key,
        column: {"old": value, "new": value}}]}}`` for the tables that changed, in a fixed order.
        Files appear as table ``(files)`` with rows ``{"path", "sha256"}``.
    """
    if before == after:
        return {}
    was, now = before.content(), after.content()
    result: StateDiff = {}
    for name in sorted(was.keys() | now.keys()):
        old, new = was.get(name), now.get(name)
        if old and new and old.text == new.text:  # most tables
            continue
        key = (old and old.key) or (new and new.key)
        _collect(result, name, key, old.keyed() if old else {}, new.keyed() if new else {})
    _collect(result, FILES, "path", _file_rows(before), _file_rows(after))
    return result


def _file_rows(state: State) -> dict[str, dict[str, Any]]:
    import hashlib

    return {p: {"path": p, "sha256": hashlib.sha256(b).hexdigest()} for p, b in state.files.items()}


def _collect(result: StateDiff, table: str, key: str | None, old: dict, new: dict) -> None:
    added = _ordered(new[k] for k in new.keys() - old.keys())
    removed = _ordered(old[k] for k in old.keys() - new.keys())
    changed = []
    for k in old.keys() & new.keys():
        if repr(old[k]) == repr(new[k]):  # far the most rows; 1, 1.0 and true have different texts
            continue
        columns = sorted({*old[k], *new[k]})
        pairs = {c: {"old": old[k].get(c), "new": new[k].get(c)} for c in columns if c != key}
        pairs = {c: p for c, p in pairs.items() if repr(p["old"]) != repr(p["new"])}
        if pairs:
            changed.append({"key": k, **pairs})
    if added or removed or changed:
        result[table] = {"added": added, "removed": removed, "changed": _ordered(changed)}


def _ordered(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    found = list(records)
    return sorted(found, key=canonical) if len(found) > 1 else found


def normalized_diff(changes: StateDiff, tables: Sequence[Table]) -> StateDiff:
    """A diff that is equal for two episodes which did the same at other times, under other ids.

    New values of minted columns become ``*``, and so do references to rows added in this diff under
    a minted id. Keys and values of rows that were there before stay. Audit tables are left out.
    """
    by_name = {t.name: t for t in tables}
    result: StateDiff = {}
    for name, change in changes.items():
        table = by_name.get(name)
        if table is None:
            result[name] = change
            continue
        if table.kind == "audit":
            continue
        minted = {c.name for c in table.columns if c.minted}
        fresh = {r.column: _fresh_ids(changes, by_name, r.table, r.ref_column) for r in table.foreign_keys}

        def mask(column: str, value: Any, minted=minted, fresh=fresh) -> Any:
            hidden = value is not None and (column in minted or value in fresh.get(column, ()))
            return MINTED if hidden else value

        result[name] = {
            "added": _ordered({c: mask(c, v) for c, v in row.items()} for row in change["added"]),
            "removed": change["removed"],
            "changed": _ordered(
                {c: v if c == "key" else {**v, "new": mask(c, v["new"])} for c, v in row.items()}
                for row in change["changed"]
            ),
        }
    return result


def _fresh_ids(changes: StateDiff, by_name: dict[str, Any], table: str, column: str) -> list[Any]:
    target = by_name.get(table)
    if target is None or not any(c.name == column and c.minted for c in target.columns):
        return []
    return [row[column] for row in changes.get(table, {}).get("added", [])]
