"""SQLite's own clock held still: for states that are built here, and for foreign programs in the sandbox.

``datetime('now')``, ``CURRENT_TIMESTAMP`` and their like are functions, and a connection may have its own.
Standard library only.
"""

from __future__ import annotations

import sqlite3
from typing import Any

_TAKES_FORM = ("strftime",)
_PLAIN = ("date", "time", "datetime", "julianday", "unixepoch")
_CURRENT = {"date": "date", "time": "time", "timestamp": "datetime"}


def hold_clock(db: sqlite3.Connection, clock: str) -> None:
    """Let "now" mean ``clock`` (ISO) in every statement of this connection."""
    inner = sqlite3.connect(":memory:", check_same_thread=False)

    def held(function: str) -> Any:
        at = 1 if function in _TAKES_FORM else 0

        def value(*arguments: Any) -> Any:
            given = [*arguments, *(["now"] if len(arguments) <= at else [])]
            if isinstance(given[at], str) and given[at].lower() == "now":
                given[at] = clock
            marks = ", ".join("?" * len(given))
            return inner.execute(f"SELECT {function}({marks})", given).fetchone()[0]

        return value

    for name in (*_PLAIN, *_TAKES_FORM):
        db.create_function(name, -1, held(name))
    for name, function in _CURRENT.items():
        moment = held(function)()
        db.create_function(f"current_{name}", 0, lambda moment=moment: moment)
