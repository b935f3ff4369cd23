"""The process inside the sandbox: holds a bundle, forks one child for each episode or verification.

Started by :mod:`synth.env.zygote`, which hands over a control socket (descriptor 0) and the bundle.
The zygote compiles the code of the tools but never runs any of it: the code runs in forked children,
each with its own limits, system-call filter, copy of the state and socket to the server. The zygote
ends when its control socket does, and takes its children along. Standard library only.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sqlite3
import struct
from types import CodeType, SimpleNamespace
from typing import Any

from synth.env import frames, kernel
from synth.env.context import Context, Guarded, ToolError
from synth.env.state import State, diff, normalized_diff, open_readonly, rows

COMMAND = struct.Struct("!cQ")  # b"F" fork (with a socket attached) or b"K" kill; number of the child
LARGEST = 1 << 30
# modules of the standard library that tools like; imported before the fork when the code names them
PRELOAD = ("math", "re", "datetime", "collections", "itertools", "statistics", "decimal", "fractions",
           "bisect", "heapq", "string", "textwrap", "difflib", "csv", "calendar", "hashlib")  # fmt: skip
TEXT_LIMIT = 500  # characters of an error message


class ToolFault(Exception):
    """Inside a solution: the environment failed (not a rule that refused)."""


class TooLarge(Exception):
    """A result is above the output limit."""


def main() -> None:
    """Entry point of the sandboxed interpreter."""
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    config, blob = frames.receive(control, LARGEST)
    locks = config["locks"]
    if locks["seccomp"]:
        locks["program"] = kernel.filter_program()
        kernel.prepare_calls(locks["program"])
    if locks["capabilities"]:
        kernel.drop_capabilities()
    if locks["landlock"] is not None:
        kernel.restrict_files(locks["landlock"])
    sources = " ".join(config.get("tools", {}).values())
    for module in PRELOAD:
        if module in sources:
            importlib.import_module(module)
    config["code"] = {name: _compile(name, text) for name, text in config.get("tools", {}).items()}
    if "index" in config:
        config["state"] = State.unpack(config["index"], blob)
        _rehearse(config)
    gc.collect()
    gc.freeze()
    frames.send(control, {"ready": True})
    _serve(control, config, null)


def _rehearse(config: dict[str, Any]) -> None:
    """Do once, before any fork, what every episode does before its first tool runs; no code of tools.

    Children get the opened database by copy-on-write: it lies in memory and no child can reach another's.
    What is loaded lazily (SQLite, random, dates) is loaded here, so that no child pays for it again.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frames.send(ours, {"seed": 0})
        code = compile(_REHEARSAL, "<rehearsal>", "exec")
        trial = {**config, "db": _opened(config["state"]), "code": {"rehearsal": code}}
        episode = EpisodeProcess(theirs, trial)
        episode.call("rehearsal", {})
        len(episode.db.serialize())
        episode.db.close()
    config["db"] = _opened(config["state"])


_REHEARSAL = """
def rehearsal(ctx):
    row = ctx.db.execute("SELECT name FROM sqlite_schema LIMIT 1").fetchone()
    raise ToolError("not_found", ctx.now() + ctx.new_id("X") + str(row))
"""


def _opened(state: State) -> Guarded:
    db = Guarded(":memory:", isolation_level=None)
    db.deserialize(state.tables)
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("PRAGMA temp_store = MEMORY")
    db.guard()
    db.row_factory = sqlite3.Row
    db.execute(
        "SELECT count(*) FROM sqlite_schema"
    ).fetchone()  # reads the schema, which is half a first call
    return db


def _compile(name: str, source: str) -> CodeType | str:
    try:
        return compile(source, f"<{name}>", "exec", dont_inherit=True)
    except Exception as err:
        return _describe(err)


def _describe(err: BaseException) -> str:
    try:
        text = str(err)
    except BaseException:
        text = "(no message)"
    return f"{type(err).__name__}: {text}"[:TEXT_LIMIT]


def _serve(control: socket.socket, config: dict[str, Any], null: int) -> None:
    children: dict[int, int] = {}  # number -> process id, until reaped; so an id is never another's
    while True:
        data, handles, _, _ = socket.recv_fds(control, COMMAND.size, 1)
        _reap(children)
        if not data:
            for pid in children.values():
                os.kill(pid, signal.SIGKILL)
            os._exit(0)
        command, number = COMMAND.unpack(data)
        if command == b"K" and number in children:
            os.kill(children[number], signal.SIGKILL)
        elif command == b"F":
            with contextlib.suppress(OSError):  # no process to be had: the server sees a closed socket
                pid = os.fork()
                if pid == 0:
                    _child(control, handles[0], config, null)
                children[number] = pid
            os.close(handles[0])


def _reap(children: dict[int, int]) -> None:
    for number, pid in list(children.items()):
        if os.waitpid(pid, os.WNOHANG)[0]:
            del children[number]


def _child(control: socket.socket, handle: int, config: dict[str, Any], null: int) -> None:
    """Lock this process, then answer one socket until it closes. Never returns."""
    try:
        control.close()
        os.dup2(null, 2)
        os.closerange(3, handle)
        os.closerange(handle + 1, 1 << 16)
        sock = socket.socket(fileno=handle)
        limits, locks = config["limits"], config["locks"]
        kernel.restrict_resources(limits["memory_mb"], limits["cpu_s"], sandboxed=locks["seccomp"])
        if locks["seccomp"]:
            kernel.restrict_calls(locks["program"])
        if config["role"] == "episode":
            EpisodeProcess(sock, config).run()
        elif config["role"] == "verifier":
            _verify_one(sock)
        else:
            _try_to_leave(sock)
    finally:
        os._exit(0)


def _try_to_leave(sock: socket.socket) -> None:
    """Answer which of the forbidden things work; the provider's probe."""
    path = frames.receive(sock, LARGEST)[0]["path"]
    attempts = {"file": lambda: os.open(path, os.O_RDONLY), "network": socket.socket, "process": os.fork}
    leaks = []
    for name, attempt in attempts.items():
        with contextlib.suppress(OSError):
            attempt()
            leaks.append(name)
    frames.send(sock, {"leaks": leaks})


class EpisodeProcess:
    """One episode: a fresh copy of the state and fresh Python globals for every tool."""

    def __init__(self, sock: socket.socket, config: dict[str, Any]) -> None:
        hello, _ = frames.receive(sock, LARGEST)
        self.sock = sock
        self.code: dict[str, CodeType | str] = config["code"]
        self.output_bytes: int = config["limits"]["output_bytes"]
        self.functions: dict[str, Any] = {}
        self.db: Guarded = config["db"]
        self.context = Context(self.db, dict(config["state"].files), config["clock"], hello["seed"])
        frames.send(sock, {"ready": True})

    def run(self) -> None:
        """Answer requests until the server closes the socket."""
        while True:
            try:
                request, _ = frames.receive(self.sock, LARGEST)
            except EOFError:
                return
            if request["op"] == "call":
                frames.send(self.sock, {}, text=self.call(request["tool"], request["arguments"]))
            elif request["op"] == "snapshot":
                index, blob = State(self.db.serialize(), self.context.files).pack()
                frames.send(self.sock, {"index": index}, blob)
            elif request["op"] == "solve":
                frames.send(self.sock, {}, text=self.solve(request["code"]))

    def call(self, tool: str, arguments: dict[str, Any]) -> str:
        """Run one tool as one transaction; returns the reply as JSON text."""
        before = self.context.start_call()
        self.db.begin()
        try:
            value = self._function(tool)(self.context, **arguments)
            if self.context.files != before[1]:
                _require_files(self.context.files)
            keep, reply = True, self._encode("value", value)
        except TooLarge as err:
            keep, reply = False, _failure("output_too_large", str(err))
        except ToolError as err:
            keep, reply = False, _failure(err.code, err.message, fault="caller")
        except BaseException as err:
            keep, reply = False, _failure("tool_failed", _describe(err))
        try:
            self.db.end(keep)
        except BaseException as err:
            keep, reply = False, _failure("tool_failed", _describe(err))
        if not keep:
            self.context.undo(before)
        return reply

    def _encode(self, key: str, value: Any) -> str:
        """``{key: value}`` as JSON text; raises what json raises, or TooLarge."""
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        limit = self.output_bytes
        if len(text) > limit or (not text.isascii() and len(text.encode("utf-8", "surrogatepass")) > limit):
            raise TooLarge(f"the result has more than {limit} bytes")
        return f'{{"{key}": {text}}}'

    def _function(self, tool: str):
        if tool not in self.functions:
            code = self.code[tool]
            if isinstance(code, str):
                raise ToolFault(code)
            names: dict[str, Any] = {"__name__": tool, "__builtins__": builtins, "ToolError": ToolError}
            exec(code, names)
            self.functions[tool] = names[tool]
        return self.functions[tool]

    def solve(self, code: str) -> str:
        """Run ``solve(call)`` of a solution; returns the reply as JSON text."""
        names: dict[str, Any] = {"__name__": "solution", "__builtins__": builtins, "ToolError": ToolError}
        try:
            exec(compile(code, "<solution>", "exec", dont_inherit=True), names)
            return self._encode("answer", names["solve"](self._ask))
        except BaseException as err:
            return json.dumps({"failed": _describe(err)})

    def _ask(self, tool: str, /, **arguments: Any) -> Any:
        """``call`` of a solution: the server checks tool, arguments and number of calls first."""
        text = json.dumps({"tool": tool, "arguments": arguments}, ensure_ascii=False, allow_nan=False)
        frames.send(self.sock, {}, text=f'{{"ask": {text}}}')
        leave, _ = frames.receive(self.sock, LARGEST)
        if "error" not in leave:
            leave = json.loads(self.call(tool, json.loads(text)["arguments"]))
        if "error" not in leave:
            return leave["value"]
        if leave["fault"] == "caller":
            raise ToolError(leave["error"], leave["message"])
        raise ToolFault(f"{tool}: {leave['error']}: {leave['message']}")


def _require_files(files: Any) -> None:
    if not all(isinstance(k, str) and isinstance(v, bytes) for k, v in files.items()):
        raise TypeError("ctx.files must map paths (str) to bytes")


def _failure(code: str, message: str, fault: str = "environment") -> str:
    return json.dumps({"error": str(code)[:TEXT_LIMIT], "message": str(message)[:TEXT_LIMIT], "fault": fault})


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

    def diff(self, final: StateView) -> dict[str, Any]:
        """Normalized difference to a later state; audit tables left out."""
        changes = normalized_diff(diff(self._state, final._state), self._tables)
        return {name: change for name, change in changes.items() if name not in self._audit}


def _verify_one(sock: socket.socket) -> None:
    request, blob = frames.receive(sock, LARGEST)
    cut = request["cut"]
    # tables come as plain JSON: attribute access is all that the differences need of them
    tables = json.loads(json.dumps(request["tables"]), object_hook=lambda d: SimpleNamespace(**d))
    views = [
        StateView(State.unpack(request[which], part), tables, request["audit_tables"])
        for which, part in (("initial", blob[:cut]), ("final", blob[cut:]))
    ]
    names: dict[str, Any] = {"__name__": "verifier", "__builtins__": builtins}
    try:
        exec(compile(request["code"], "<verifier>", "exec", dont_inherit=True), names)
        checks = [_check(item) for item in names["verify"](*views, request["answer"])]
        if not checks:
            raise ValueError("verify returned no checks")
        frames.send(sock, {"checks": checks})
    except BaseException as err:
        frames.send(sock, {"failed": _describe(err)})


def _check(item: Any) -> list[Any]:
    name, passed, *detail = item
    if not isinstance(passed, bool):
        raise TypeError(f"check {name}: passed must be True or False, not {passed!r}")
    return [str(name), passed, str(detail[0] if detail else "")[:TEXT_LIMIT]]
