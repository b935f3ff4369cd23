"""A solution over the tools of a foreign server: runs in a sandbox of its own and asks for its calls.

``python guest.py`` speaks the frames of :mod:`synth.env.frames` on standard input and output: it reads
``{"code"}``, sends ``{"ask": {"tool", "arguments"}}`` for every call and reads ``{"value"}`` or ``{"error",
"message", "fault"}``, and ends with ``{"answer"}`` or ``{"failed"}``. It has no state and no network.
Standard library only.
"""

from __future__ import annotations

import builtins
import importlib.util
import json
import os
import socket
from pathlib import Path
from typing import Any

_spec = importlib.util.spec_from_file_location("frames", Path(__file__).with_name("frames.py"))
assert _spec is not None
assert _spec.loader is not None
frames = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(frames)

LARGEST = 1 << 30


class ToolError(Exception):
    """A call that was refused; what solutions may catch."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(code, message)
        self.code, self.message = str(code), str(message)


class ToolFault(Exception):
    """The environment failed, not the solution."""


def main() -> None:
    """Run one solution and answer."""
    sock = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    for handle in (0, 1, 2):
        os.dup2(null, handle)

    def call(tool: str, /, **arguments: Any) -> Any:
        frames.send(sock, {"ask": {"tool": tool, "arguments": arguments}})
        reply, _ = frames.receive(sock, LARGEST)
        if "error" not in reply:
            return reply["value"]
        if reply["fault"] == "caller":
            raise ToolError(reply["error"], reply["message"])
        raise ToolFault(f"{tool}: {reply['error']}: {reply['message']}")

    request, _ = frames.receive(sock, LARGEST)
    names: dict[str, Any] = {"__name__": "solution", "__builtins__": builtins, "ToolError": ToolError}
    try:
        exec(compile(request["code"], "<solution>", "exec", dont_inherit=True), names)
        text = json.dumps({"answer": names["solve"](call)}, ensure_ascii=False, allow_nan=False)
    except BaseException as err:
        text = json.dumps({"failed": f"{type(err).__name__}: {err}"[:500]})
    frames.send(sock, {}, text=text)


if __name__ == "__main__":
    main()
