"""What the code of a tool gets: ``def <name>(ctx, *, ...) -> JSON value``.

The context is made inside the sandbox by the worker, once an episode. Time, ids and randomness
come from it alone, so that the same state, arguments and seed give the same result. A call is one
transaction: a tool that raises leaves nothing behind.
"""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta

TYPE_CHECKING = False  # typing's own costs every episode (see frames.py)
if TYPE_CHECKING:
    import random

FIRST_ID = 9001  # ids minted in an episode start here, above the numbering of mined rows
_READABLE_PRAGMAS = {"table_info", "table_list", "index_list", "index_info", "foreign_key_list"}
_HIDDEN_FUNCTIONS = {"random", "randomblob", "current_timestamp", "current_date", "current_time"}
_ALLOWED_ACTIONS = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_INSERT,
    sqlite3.SQLITE_UPDATE,
    sqlite3.SQLITE_DELETE,
    sqlite3.SQLITE_RECURSIVE,
    sqlite3.SQLITE_SAVEPOINT,
}


class ToolError(Exception):
    """A refusal by a rule of the environment, shown to the agent.

    Args:
        code: short stable name such as ``not_found``.
        message: one sentence for the agent.
    """

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(code, message)
        self.code = str(code)
        self.message = str(message)


class Guarded(sqlite3.Connection):
    """A connection whose transactions belong to the server and whose schema is fixed.

    Tools read and write rows. Statements that begin or end a transaction, change the schema, attach
    a file or reach for SQLite's own clock or randomness are refused with ``not authorized``.
    """

    def guard(self) -> None:
        """Start to refuse what tools may not do."""
        self.own_statement = False
        self.set_authorizer(self._authorize)

    def _authorize(self, action: int, first: str | None, second: str | None, *_: object) -> int:
        if action in _ALLOWED_ACTIONS or self.own_statement:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() not in _HIDDEN_FUNCTIONS:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_PRAGMA and (first or "").lower() in _READABLE_PRAGMAS:
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY

    def replace(self, tables: bytes) -> None:
        """Put another database in the place of this one, under the same guard.

        Raises:
            sqlite3.DatabaseError: the bytes are none.
        """
        self.own_statement = True
        try:
            self.deserialize(tables)
            self.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        finally:
            self.own_statement = False

    def begin(self) -> None:
        """Open the transaction of one call."""
        self._own("BEGIN")

    def end(self, keep: bool) -> None:
        """Close the transaction of one call: keep its writes or undo them."""
        self._own("COMMIT" if keep else "ROLLBACK")

    def _own(self, statement: str) -> None:
        if not self.in_transaction and statement != "BEGIN":
            return  # SQLite itself rolled back (INSERT OR ROLLBACK)
        self.own_statement = True
        try:
            self.execute(statement)  # by its text, so that it's prepared once an episode
        finally:
            self.own_statement = False

    def commit(self) -> None:
        """Nothing: a call is committed when the tool returns."""

    def rollback(self) -> None:
        raise sqlite3.ProgrammingError("a call is one transaction; raise ToolError to undo it")

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> bool:
        return False


def opened(tables: bytes) -> Guarded:
    """The database of an episode, in memory and under guard.

    Raises:
        sqlite3.DatabaseError: the bytes are none.
    """
    db = Guarded(":memory:", isolation_level=None)
    db.deserialize(tables)
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("PRAGMA temp_store = MEMORY")
    db.guard()
    db.row_factory = sqlite3.Row
    return db


class Context:
    """The world as a tool sees it.

    Attributes:
        db: SQLite connection, rows as :class:`sqlite3.Row`.
        files: path -> bytes of the environment's other files; changes count as state.
    """

    def __init__(self, db: sqlite3.Connection, files: dict[str, bytes], clock: str, seed: int) -> None:
        self.db = db
        self.files = files
        self.calls = 0
        self._seed = seed
        self._clock = datetime.fromisoformat(clock)
        self._zulu = clock.endswith("Z")
        self._next_id = FIRST_ID
        self._rng: random.Random | None = None

    @property
    def rng(self) -> random.Random:
        """Randomness seeded by the episode's seed and the index of the call; made when it is asked for."""
        if self._rng is None:
            import random

            self._rng = random.Random(f"{self._seed}:{self.calls - 1}")
        return self._rng

    def now(self) -> str:
        """ISO time, the same within a call. The first call sees the clock of the manifest, each later
        call one second more."""
        now = self._clock + timedelta(seconds=max(0, self.calls - 1))
        return now.strftime("%Y-%m-%dT%H:%M:%SZ") if self._zulu else now.isoformat()

    def new_id(self, prefix: str) -> str:
        """A new id such as ``LN-9001``; the numbers rise within an episode."""
        number = self._next_id
        self._next_id += 1
        return f"{prefix}-{number:04d}"

    def start_call(self) -> tuple[int, dict[str, bytes]]:
        """Set clock and randomness for the next call; returns what :meth:`undo` needs."""
        self._rng = None
        self.calls += 1
        return self._next_id, dict(self.files)

    def marks(self) -> dict[str, int]:
        """Where clock and ids stand, beside the state, for :meth:`restore`."""
        return {"calls": self.calls, "next_id": self._next_id}

    def restore(self, files: dict[str, bytes], calls: int, next_id: int) -> None:
        """Go on from a saved moment."""
        self.files, self.calls, self._next_id, self._rng = files, calls, next_id, None

    def undo(self, before: tuple[int, dict[str, bytes]]) -> None:
        """Take ids and files back to before a failed call."""
        self._next_id, self.files = before
