"""The process inside the sandbox: holds a bundle, forks one child for each episode or verification.

Started by :mod:`synth.env.zygote`, which hands over a control socket (descriptor 0) and the bundle.
In the role "nest" it holds no bundle: it forks processes that do, each as if it had been started itself.
The zygote compiles the code of the tools but never runs any of it: the code runs in forked children,
each with its own limits, system-call filter, copy of the state and socket to the server. The zygote
ends when its control socket does, and takes its children along. Standard library only.
"""

from __future__ import annotations

import _socket as socket  # the bare type: its wrapper and what that imports cost every episode
import gc
import os
import signal
import sqlite3
import struct
import sys
from types import CodeType

from synth.env import frames, kernel
from synth.env.context import Guarded, opened
from synth.env.judging import verify_all
from synth.env.running import LARGEST, EpisodeProcess, describe
from synth.env.state import State

TYPE_CHECKING = False  # typing's own costs every episode (see frames.py)
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

HANDLE = struct.Struct("@i")  # a descriptor as it comes along with a command
COMMAND = struct.Struct("!cQ")  # b"F" fork (with a socket attached) or b"K" kill; number of the child
# modules of the standard library that tools like; imported before the fork when the code names them
PRELOAD = ("math", "re", "datetime", "collections", "itertools", "statistics", "decimal", "fractions",
           "bisect", "heapq", "string", "textwrap", "difflib", "csv", "calendar", "hashlib")  # fmt: skip


def main() -> None:
    """Entry point of the sandboxed interpreter."""
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    config, blob = frames.receive(control, LARGEST)
    locks = config["locks"]
    if locks["capabilities"]:
        kernel.drop_capabilities()
    if locks["landlock"] is not None:
        kernel.restrict_files(locks["landlock"])
    if config["role"] == "nest":
        frames.send(control, {"ready": True})
        _serve(control, lambda handle: _hatch(control, handle))
    _hold(control, config, blob)


def _hatch(nest: socket.socket, handle: int) -> None:
    """Become a process of its own for one bundle; no code of any has run in the nest. Never returns."""
    try:
        _keep_only(nest, handle)
        control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, handle)
        config, blob = frames.receive(control, LARGEST)
        _hold(control, config, blob)
    finally:
        os._exit(0)


def _hold(control: socket.socket, config: dict[str, Any], blob: bytes) -> None:
    """Take a bundle (or none, to verify), and serve its episodes. Never returns."""
    locks = config["locks"]
    install = kernel.prepare_calls(kernel.filter_program()) if locks["seccomp"] else None
    _preload(" ".join(config.get("tools", {}).values()))
    config["code"] = {name: _compile(name, text) for name, text in config.get("tools", {}).items()}
    if "index" in config:
        config["state"] = State.unpack(config["index"], blob)
        _rehearse(config)
    kernel.restrict_outputs(sandboxed=locks["seccomp"])
    gc.collect()
    gc.freeze()
    frames.send(control, {"ready": True})
    _serve(control, lambda handle: _child(control, handle, config, install))


def _preload(sources: str) -> None:
    """Import what the tools will, before any fork.

    ``random`` and OpenSSL would draw fresh randomness in every child (0.1 ms): they're kept from it, and
    tools that use the module itself see the same numbers in every episode.
    """
    wanted = [module for module in PRELOAD if module in sources]
    if "rng" in sources or "random" in sources:
        wanted.append("random")
    register = os.register_at_fork
    os.register_at_fork = lambda **_: None
    try:
        for module in wanted:
            __import__(module)
    finally:
        os.register_at_fork = register
    if "random" in sys.modules:
        sys.modules["random"].seed(0)


def _rehearse(config: dict[str, Any]) -> None:
    """Do, before any fork, what every episode does before its first tool runs; no code of tools.

    Children get the opened database by copy-on-write: it lies in memory and no child can reach another's.
    What is loaded lazily (SQLite, dates) is loaded here, so that no child pays for it again. It is done so
    often that the interpreter has made up its mind about this code and won't rewrite it in every child.
    """
    ours, theirs = socket.socketpair()
    code = compile(_REHEARSAL, "<rehearsal>", "exec")
    trial = {**config, "db": _opened(config["state"]), "code": {"rehearsal": code}}
    for _ in range(_REHEARSALS):
        frames.send(ours, {"seed": 0})
        episode = EpisodeProcess(theirs, trial)
        frames.receive(ours, LARGEST)
        frames.send(ours, {"op": "call", "tool": "rehearsal", "arguments": {}})
        episode.answer()
        frames.receive(ours, LARGEST)
    State(trial["db"].serialize(), {}).pack()
    for end in (trial["db"], ours, theirs):
        end.close()
    config["db"] = _opened(config["state"])


_REHEARSALS = 40
_REHEARSAL = """
def rehearsal(ctx):
    row = ctx.db.execute("SELECT name FROM sqlite_schema LIMIT 1").fetchone()
    raise ToolError("not_found", ctx.now() + ctx.new_id("X") + str(row))
"""


def _opened(state: State) -> Guarded:
    db = opened(state.tables)
    for (table,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
        try:  # schema and pages are read here, not in every child
            db.execute('SELECT * FROM "' + table.replace('"', '""') + '"').fetchall()
        except sqlite3.Error:
            continue
    return db


def _compile(name: str, source: str) -> CodeType | str:
    try:
        return compile(source, f"<{name}>", "exec", dont_inherit=True)
    except Exception as err:
        return describe(err)


def _serve(control: socket.socket, child: Callable[[int], None]) -> None:
    """Fork and kill as told; ``child`` takes over in the fork. Never returns.

    Written sparely: every page of memory that it touches is copied once a fork.
    """
    children: dict[int, int] = {}  # number -> process id, until reaped; so an id is never another's
    space = socket.CMSG_SPACE(4)
    while True:
        data, extra, _, _ = control.recvmsg(COMMAND.size, space)
        if children:
            _reap(children)
        if not data:
            for pid in children.values():
                os.kill(pid, signal.SIGKILL)
            os._exit(0)
        command, number = COMMAND.unpack(data)
        if command == b"K" and number in children:
            os.kill(children[number], signal.SIGKILL)
        elif command == b"F":
            (handle,) = HANDLE.unpack(extra[0][2])
            try:
                pid = os.fork()
                if pid == 0:
                    child(handle)
                children[number] = pid
            except OSError:  # no process to be had: the server sees a closed socket
                pass
            os.close(handle)


def _reap(children: dict[int, int]) -> None:
    """Take leave of children that ended, so that none stays a zombie."""
    while children:
        pid = os.waitpid(-1, os.WNOHANG)[0]
        if pid == 0:
            return
        for number in [number for number, child in children.items() if child == pid]:
            del children[number]


def _child(
    control: socket.socket, handle: int, config: dict[str, Any], install: Callable[[], None] | None
) -> None:
    """Lock this process, then answer one socket until it closes. Never returns."""
    try:
        os.dup2(0, 2)  # /dev/null, see main
        _keep_only(control, handle)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, handle)
        limits = config["limits"]
        kernel.restrict_resources(limits["memory_mb"], limits["cpu_s"], sandboxed=install is not None)
        if install is not None:
            install()
        if config["role"] == "episode":
            EpisodeProcess(sock, config).run()
        elif config["role"] == "verifier":
            verify_all(sock)
        else:
            _try_to_leave(sock)
    finally:
        os._exit(0)


def _keep_only(control: socket.socket, handle: int) -> None:
    """Close every descriptor but the standard ones and ``handle``; ``control`` is among those closed."""
    os.closerange(3, handle)
    os.closerange(handle + 1, 1 << 16)
    control.detach()


def _part() -> None:
    if os.fork() == 0:
        os._exit(0)  # or both would answer


def _try_to_leave(sock: socket.socket) -> None:
    """Answer which of the forbidden things work; the provider's probe."""
    path = frames.receive(sock, LARGEST)[0]["path"]
    attempts = {"file": lambda: os.open(path, os.O_RDONLY), "network": socket.socket, "process": _part}
    leaks = []
    for name, attempt in attempts.items():
        try:
            attempt()
        except OSError:
            continue
        leaks.append(name)
    frames.send(sock, {"leaks": leaks})
