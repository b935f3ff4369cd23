"""One episode inside the sandbox: tools called one after the other, each as a transaction.

A forked child of :mod:`synth.env.worker` makes an :class:`EpisodeProcess` and lets it answer the requests of
:class:`synth.env.episode.Episode` until the socket closes. Standard library only.
"""

from __future__ import annotations

import _socket as socket  # see worker.py
import builtins
import json
from types import CodeType

from synth.env import frames
from synth.env.context import Context, Guarded, ToolError, opened
from synth.env.state import State

TYPE_CHECKING = False  # typing's own costs every episode (see frames.py)
if TYPE_CHECKING:
    from typing import Any

LARGEST = 1 << 30
TEXT_LIMIT = 500  # characters of an error message
CUTS = (1000, 300, 100, 30, 10, 3, 1)  # entries kept of each list of a result too large, in turn
CUT_TEXT = 100  # times as many characters of a text
CUT_NOTE = (
    "cut: the result is too large; lists show their first {most} entries, texts their first {characters} "
    "characters; ask for less"
)
_encode_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


class ToolFault(Exception):
    """Inside a solution: the environment failed (not a rule that refused)."""


class TooLarge(Exception):
    """A result is above the output limit."""


def describe(err: BaseException) -> str:
    """An error as one line, whatever its ``__str__`` does."""
    try:
        text = str(err)
    except BaseException:
        text = "(no message)"
    return f"{type(err).__name__}: {text}"[:TEXT_LIMIT]


class EpisodeProcess:
    """One episode: a fresh copy of the state and fresh Python globals for every tool."""

    def __init__(self, sock: socket.socket, config: dict[str, Any]) -> None:
        hello, _ = frames.receive(sock, LARGEST)
        self.sock = sock
        self.code: dict[str, CodeType | str] = config["code"]
        self.output_bytes: int = config["limits"]["output_bytes"]
        self.functions: dict[str, Any] = {}
        self.solving = False
        self.db: Guarded = config["db"]
        self.pristine: State = config["state"]
        self.clock: str = config["clock"]
        self.context = Context(self.db, dict(self.pristine.files), self.clock, hello["seed"])
        frames.send(sock, {"ready": True})

    def run(self) -> None:
        """Answer requests until the server closes the socket."""
        try:
            while True:
                self.answer()
        except EOFError:
            return

    def answer(self) -> None:
        """Answer one request."""
        request, blob = frames.receive(self.sock, LARGEST)
        if request["op"] == "call":
            frames.send(self.sock, {}, text=self.call(request["tool"], request["arguments"]))
        elif request["op"] == "snapshot":
            self.snapshot()
        elif request["op"] == "save":
            index, packed = State(self.db.serialize(), self.context.files).pack()
            frames.send(self.sock, {"index": index, **self.context.marks()}, packed)
        elif request["op"] == "restore":
            self.restore(request, blob)
            frames.send(self.sock, {"ready": True})
        elif request["op"] == "reset":
            self.reset(request["seed"])
            frames.send(self.sock, {"ready": True})
        elif request["op"] == "solve":
            frames.send(self.sock, {}, text=self.solve(request["code"]))

    def snapshot(self) -> None:
        """Send the state; that nothing has changed is said in a word."""
        tables = self.db.serialize()
        if tables == self.pristine.tables and self.context.files == self.pristine.files:
            frames.send(self.sock, {"pristine": True})
            return
        index, packed = State(tables, self.context.files).pack()
        frames.send(self.sock, {"index": index}, packed)

    def reset(self, seed: int) -> None:
        """Begin again: pristine rows and files behind a new connection, clock, ids and tools as at the start.

        What code left elsewhere in the interpreter (a module that it altered) stays, as it does from call to
        call; see :mod:`synth.env.series` for who may live with that.
        """
        self.db.close()
        self.db = opened(self.pristine.tables)
        self.context = Context(self.db, dict(self.pristine.files), self.clock, seed)
        self.functions = {}

    def restore(self, saved: dict[str, Any], blob: bytes) -> None:
        """Go back to a saved moment: rows, files, clock, ids, and tools without memories of their own."""
        state = State.unpack(saved["index"], blob)
        self.db.replace(state.tables)
        self.context.restore(state.files, saved["calls"], saved["next_id"])
        self.functions = {}

    def call(self, tool: str, arguments: dict[str, Any]) -> str:
        """Run one tool as one transaction; returns the reply as JSON text."""
        before = self.context.start_call()
        self.db.begin()
        try:
            value = self._function(tool)(self.context, **arguments)
            if self.context.files != before[1]:
                _require_files(self.context.files)
            keep, reply = True, self._shown(value)
        except TooLarge as err:
            keep, reply = False, _failure("output_too_large", str(err))
        except ToolError as err:
            keep, reply = False, _failure(err.code, err.message, fault="caller")
        except BaseException as err:
            keep, reply = False, _failure("tool_failed", describe(err))
        try:
            self.db.end(keep)
        except BaseException as err:
            keep, reply = False, _failure("tool_failed", describe(err))
        if not keep:
            self.context.undo(before)
        return reply

    def _shown(self, value: Any) -> str:
        """The reply that holds a tool's value; cut where it is too large, with a note that says so."""
        try:
            return self._encode("value", value)
        except TooLarge:
            if self.solving:  # a solution would compute with what is left
                raise
        for most in CUTS:
            try:
                note = json.dumps(CUT_NOTE.format(most=most, characters=most * CUT_TEXT))
                return self._encode("value", cut(value, most))[:-1] + f', "note": {note}}}'
            except TooLarge:
                continue
        raise TooLarge(f"the result has more than {self.output_bytes} bytes, however short its parts are cut")

    def _encode(self, key: str, value: Any) -> str:
        """``{key: value}`` as JSON text; raises what json raises, or TooLarge."""
        text = _encode_json(value)
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
        self.solving = True
        try:
            exec(compile(code, "<solution>", "exec", dont_inherit=True), names)
            return self._encode("answer", names["solve"](self._ask))
        except BaseException as err:
            return json.dumps({"failed": describe(err)})
        finally:
            self.solving = False

    def _ask(self, tool: str, /, **arguments: Any) -> Any:
        """``call`` of a solution: the server checks tool, arguments and number of calls first."""
        text = _encode_json({"tool": tool, "arguments": arguments})
        frames.send(self.sock, {}, text=f'{{"ask": {text}}}')
        leave, _ = frames.receive(self.sock, LARGEST)
        if "error" not in leave:
            leave = json.loads(self.call(tool, json.loads(text)["arguments"]))
        if "error" not in leave:
            return leave["value"]
        if leave["fault"] == "caller":
            raise ToolError(leave["error"], leave["message"])
        raise ToolFault(f"{tool}: {leave['error']}: {leave['message']}")


def cut(value: Any, most: int) -> Any:
    """A JSON value of which lists and objects keep their first ``most`` entries, texts a beginning."""
    if isinstance(value, str):
        return value[: most * CUT_TEXT]
    if isinstance(value, dict):
        return {key: cut(value[key], most) for key in list(value)[:most]}
    if isinstance(value, list | tuple):
        return [cut(item, most) for item in value[:most]]
    return value


def _require_files(files: Any) -> None:
    if not all(isinstance(k, str) and isinstance(v, bytes) for k, v in files.items()):
        raise TypeError("ctx.files must map paths (str) to bytes")


def _failure(code: str, message: str, fault: str = "environment") -> str:
    return json.dumps({"error": str(code)[:TEXT_LIMIT], "message": str(message)[:TEXT_LIMIT], "fault": fault})
