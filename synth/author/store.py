"""What was exchanged with models and read from the web, on disk, so that nothing is paid for twice.

One SQLite file a folder. An exchange is looked up by its content hash; before a request leaves, a row
``sent`` with the most that it can cost is written, and when the answer is there the same row becomes
``done``, in one transaction with the answer. So a killed run leaves either a whole answer, which the next
run reads, or a reservation, which still counts against the budget (the provider may have billed it).
The ledger is a sum over the rows. Pages and search results that were read lie beside the exchanges,
because the prompts that follow hold them: a page that changed would make every later exchange a new one.

Several threads and processes of one machine may share a folder; SQLite's locks need a local disk.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synth.errors import CallerError

_TABLES = """
CREATE TABLE IF NOT EXISTS exchanges (
  key TEXT PRIMARY KEY, stage TEXT NOT NULL, prompt TEXT NOT NULL, state TEXT NOT NULL,
  tries INTEGER NOT NULL, request BLOB NOT NULL, response BLOB,
  tokens_in INTEGER NOT NULL, tokens_out INTEGER NOT NULL, usd REAL NOT NULL);
CREATE TABLE IF NOT EXISTS pages (key TEXT PRIMARY KEY, value BLOB NOT NULL);
"""


class BudgetExceeded(CallerError):
    """The next exchange could cost more than is left of the budget."""


@dataclass(frozen=True)
class Budget:
    """The most that a folder's exchanges may come to, all runs together; None is no limit."""

    usd: float | None = None
    tokens: int | None = None


@dataclass(frozen=True)
class Line:
    """One line of the ledger: a stage and a prompt."""

    stage: str
    prompt: str
    exchanges: int
    tokens_in: int
    tokens_out: int
    usd: float
    unanswered: int  # sent, and no answer kept: the run was killed meanwhile, or the provider failed


def content_hash(value: Any) -> str:
    """SHA-256 of the canonical JSON of a request."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class Store:
    """The folder's file. Every method opens it anew, so that forks and threads need no care."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.path = self.folder / "exchanges.sqlite"
        try:
            (self.folder / "locks").mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise CallerError(
                f"{self.folder}: cannot be made ({err.strerror}); name another folder"
            ) from None
        with self._open() as db:
            db.executescript(_TABLES)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.path, timeout=120, isolation_level=None)) as db:
                yield db
        except sqlite3.DatabaseError as err:
            raise CallerError(
                f"{self.path}: cannot be used ({err}); restore it, or name another folder"
            ) from None

    @contextmanager
    def only_one(self, key: str) -> Iterator[None]:
        """Nobody else, in no thread or process, is at work on an exchange of this key meanwhile."""
        with open(self.folder / "locks" / key[:2], "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    # --- exchanges ---

    def answer(self, key: str) -> dict[str, Any] | None:
        """The stored answer, or None."""
        with self._open() as db:
            found = db.execute("SELECT response FROM exchanges WHERE key = ? AND state = 'done'", [key])
            row = found.fetchone()
        return None if row is None else json.loads(zlib.decompress(row[0]))

    def reserve(
        self, key: str, stage: str, prompt: str, request: Any, cost: tuple[int, int, float], budget: Budget
    ) -> None:
        """Note that a request is about to leave, and what it can cost at most (tokens in, out, US dollars).

        Raises:
            BudgetExceeded: it could come to more than is left.
        """
        tokens_in, tokens_out, usd = cost
        with self._open() as db:
            db.execute("BEGIN IMMEDIATE")
            query = "SELECT coalesce(sum(tokens_in + tokens_out), 0), coalesce(sum(usd), 0) FROM exchanges"
            tokens, spent = db.execute(f"{query} WHERE key != ?", [key]).fetchone()
            over = ""
            if budget.usd is not None and spent + usd > budget.usd:
                over = f"${spent:.4f} of ${budget.usd:g} are spent or reserved, the next takes ${usd:.4f}"
            if budget.tokens is not None and tokens + tokens_in + tokens_out > budget.tokens:
                over = f"{tokens:,} of {budget.tokens:,} tokens are spent or reserved"
            if over:
                db.execute("ROLLBACK")
                raise BudgetExceeded(
                    f"budget reached ({over}); raise the budget and run again: what is done is kept"
                )
            db.execute(
                "INSERT INTO exchanges VALUES (?, ?, ?, 'sent', 1, ?, NULL, ?, ?, ?) "
                "ON CONFLICT (key) DO UPDATE SET state = 'sent', tries = tries + 1",
                [key, stage, prompt, _packed(request), tokens_in, tokens_out, usd],
            )
            db.execute("COMMIT")

    def keep(self, key: str, response: dict[str, Any], cost: tuple[int, int, float]) -> None:
        """Put the answer in the place of the reservation, with its real cost."""
        with self._open() as db:
            db.execute(
                "UPDATE exchanges SET state = 'done', response = ?, tokens_in = ?, tokens_out = ?, usd = ? "
                "WHERE key = ?",
                [_packed(response), *cost, key],
            )

    def release(self, key: str) -> None:
        """The provider gave no answer and bills none: the reservation ends, the line stays."""
        with self._open() as db:
            db.execute(
                "UPDATE exchanges SET state = 'failed', tokens_in = 0, tokens_out = 0, usd = 0 WHERE key = ?",
                [key],
            )

    def ledger(self) -> list[Line]:
        """What was spent, by stage and prompt."""
        query = (
            "SELECT stage, prompt, sum(state = 'done'), sum(tokens_in), sum(tokens_out), sum(usd), "
            "sum(state != 'done') FROM exchanges GROUP BY stage, prompt ORDER BY stage, prompt"
        )
        with self._open() as db:
            return [Line(*row) for row in db.execute(query)]

    # --- pages ---

    def page(self, key: str) -> bytes | None:
        with self._open() as db:
            row = db.execute("SELECT value FROM pages WHERE key = ?", [key]).fetchone()
        return None if row is None else zlib.decompress(row[0])

    def keep_page(self, key: str, value: bytes) -> None:
        with self._open() as db:
            db.execute("INSERT OR REPLACE INTO pages VALUES (?, ?)", [key, zlib.compress(value)])


def _packed(value: Any) -> bytes:
    return zlib.compress(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))
