"""An episode without any sandbox, process or socket: tool code run by ``exec`` right here.

What the differential test holds every provider against, and the bound that ``bench_env`` measures calls by.
Only for bundles that our own offline author wrote. It is a second, plain reading of what a call is (one
transaction, JSON in, JSON out), not the worker's code called once more.
"""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from synth.env.bundle import Bundle
from synth.env.context import Context, ToolError
from synth.env.episode import ArgumentChecks
from synth.env.state import State, digest


class InProcess:
    """One episode; ``call`` gives the JSON text that the agent would see."""

    def __init__(self, bundle: Bundle, seed: int, checks: ArgumentChecks | None = None) -> None:
        self.bundle = bundle
        self.checks = checks or ArgumentChecks(bundle.tools)
        self.code = {tool.name: tool.code for tool in bundle.tools}
        self.functions: dict[str, Any] = {}
        self.db = sqlite3.connect(":memory:", isolation_level=None)
        self.db.deserialize(bundle.state.tables)
        self.db.execute("PRAGMA foreign_keys = ON")
        self.db.row_factory = sqlite3.Row
        self.context = Context(self.db, dict(bundle.state.files), bundle.manifest.clock, seed)

    def call(self, name: str, arguments: Any) -> str:
        """Check, run as one transaction, encode."""
        refusal = self.checks.refusal(name, arguments)
        if refusal is not None:
            return refusal.to_json()
        before = self.context.start_call()
        self.db.execute("BEGIN")
        try:
            value = json.loads(
                json.dumps(self._function(name)(self.context, **json.loads(json.dumps(arguments))))
            )
        except Exception as err:
            self.db.execute("ROLLBACK")
            self.context.undo(before)
            known = isinstance(err, ToolError)
            code, text = (err.code, err.message) if known else ("tool_failed", f"{type(err).__name__}: {err}")
            return json.dumps({"error": {"code": code, "message": text[:500]}}, ensure_ascii=False)
        self.db.execute("COMMIT")
        return json.dumps(value, ensure_ascii=False)

    def _function(self, name: str) -> Any:
        if name not in self.functions:
            names: dict[str, Any] = {"__name__": name, "ToolError": ToolError}
            exec(self.code[name], names)
            self.functions[name] = names[name]
        return self.functions[name]

    def snapshot(self) -> State:
        return State(self.db.serialize(), dict(self.context.files))

    def digest(self) -> str:
        return digest(self.snapshot(), self.bundle.manifest.audit_tables)
