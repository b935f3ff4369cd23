"""The code of a verifier inside its sandbox: states and answers in, checks out.

A forked child of :mod:`synth.env.worker` judges what one request holds, for
:class:`synth.env.verifier.VerifierServer`, and ends. Standard library only.
"""

from __future__ import annotations

import _socket as socket  # see worker.py
import builtins
import json
import sqlite3
from types import SimpleNamespace

from synth.env import frames
from synth.env.running import LARGEST, TEXT_LIMIT, describe
from synth.env.state import State, diff, normalized_diff, open_readonly, rows

TYPE_CHECKING = False  # typing's own costs every episode (see frames.py)
if TYPE_CHECKING:
    from typing import Any


class StateView:
    """What a verifier sees of a state."""

    def __init__(self, state: State, tables: list[Any], audit_tables: list[str]) -> None:
        self._state = state
        self._tables = tables
        self._audit = audit_tables
        self._db = open_readonly(state)
        self.files = state.files

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Rows of a table, in stored order."""
        return rows(self._state, table)

    def query(self, sql: str, *params: Any) -> list[dict[str, Any]]:
        """Rows of a SELECT."""
        cursor = self._db.execute(sql, params)
        names = [c[0] for c in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def copy(self) -> sqlite3.Connection:
        """The tables as a database of its own, for verifiers that were written against one."""
        db = sqlite3.Connection(":memory:")  # not connect, in whose place such a verifier puts this
        self._db.backup(db)
        return db

    def diff(self, final: StateView) -> dict[str, Any]:
        """Normalized difference to a later state; audit tables left out."""
        changes = normalized_diff(diff(self._state, final._state), self._tables)
        return {name: change for name, change in changes.items() if name not in self._audit}


def verify_all(sock: socket.socket) -> None:
    """Judge each outcome of a request; the code runs anew for each, and sees views of its own."""
    request, blob = frames.receive(sock, LARGEST)
    # tables come as plain JSON: attribute access is all that the differences need of them
    tables = json.loads(json.dumps(request["tables"]), object_hook=lambda d: SimpleNamespace(**d))
    states, at = [], 0
    for index, size in request["states"]:  # the initial one first
        states.append(State.unpack(index, blob[at : at + size]))
        at += size
    audit, code, verdicts = request["audit_tables"], None, []
    for which, answer in request["outcomes"]:
        views = [StateView(state, tables, audit) for state in (states[0], states[which])]
        names: dict[str, Any] = {"__name__": "verifier", "__builtins__": builtins}
        try:
            code = code or compile(request["code"], "<verifier>", "exec", dont_inherit=True)
            exec(code, names)
            checks = [_check(item) for item in names["verify"](*views, answer)]
            if not checks:
                raise ValueError("verify returned no checks")
            verdicts.append({"checks": checks})
        except BaseException as err:
            verdicts.append({"failed": describe(err)})
    frames.send(sock, {"verdicts": verdicts})


def _check(item: Any) -> list[Any]:
    name, passed, *detail = item
    if not isinstance(passed, bool):
        raise TypeError(f"check {name}: passed must be True or False, not {passed!r}")
    return [str(name), passed, str(detail[0] if detail else "")[:TEXT_LIMIT]]
