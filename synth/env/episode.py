"""An environment in use: one sandboxed server a bundle, a fresh episode each time.

    with EnvServer("runs/demo/bundles/library") as server:
        episode = server.open(seed=7)
        result = episode.call("get_book", {"book_id": "B-1"})
        final = episode.snapshot()

Arguments are checked here, before any code runs; the code runs in :mod:`synth.env.worker`. What
comes back from there is data that is never trusted: bounded in size and time, JSON only.
Different episodes may be used from different threads; one episode belongs to one thread at a time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jsonschema
import jsonschema.exceptions
import jsonschema.validators
import referencing

from synth.env import frames
from synth.env.bundle import Bundle, read_bundle
from synth.env.readable import readable
from synth.env.sandbox import Limits, Provider, pick_provider
from synth.env.series import Series
from synth.env.state import State, diff, digest
from synth.env.verifier import VerifierServer, run_verifier
from synth.env.zygote import Zygote
from synth.errors import InfrastructureError
from synth.types import Tool, ToolStep

__all__ = [
    "EnvServer", "Episode", "Limits", "Saved", "SolutionResult", "ToolResult", "VerifierServer",
    "run_verifier",
]  # fmt: skip

_encode = json.JSONEncoder(allow_nan=False).encode
Fault = Literal["caller", "environment"]


@dataclass(frozen=True)
class ToolResult:
    """What a call gave.

    Attributes:
        value: the tool's JSON value; None when there is an error.
        note: what the agent should know about the value: that it was cut, and how.
        error_code: the tool's own code (a business rule), or ``unknown_tool``, ``invalid_arguments``,
            ``tool_failed``, ``output_too_large``, ``timeout``.
        error_message: one sentence.
        fault: "caller" for business rules and bad arguments, "environment" for a broken tool.
        seconds: wall time, measured outside the sandbox.
    """

    value: Any = None
    error_code: str | None = None
    error_message: str | None = None
    fault: Fault | None = None
    seconds: float = 0.0
    note: str | None = None

    @property
    def ok(self) -> bool:
        return self.error_code is None

    def to_json(self) -> str:
        """The JSON text that the agent sees."""
        shown = self.value
        if self.error_code is not None:
            shown = {"error": {"code": self.error_code, "message": self.error_message}}
        elif self.note is not None:
            shown = {"note": self.note, "result": self.value}
        return json.dumps(shown, ensure_ascii=False)


@dataclass(frozen=True)
class Saved:
    """A moment of an episode, for :meth:`Episode.restore` in the same one or another of its environment.

    Attributes:
        state: tables and files.
        calls: calls made, by which clock and randomness go on; next_id: the next id that a tool mints.
    """

    state: State
    calls: int
    next_id: int


@dataclass(frozen=True)
class SolutionResult:
    """What a solution gave: its answer, the calls it made (those that reached a tool), or an error."""

    answer: Any
    calls: list[ToolStep]
    error: str | None = None


def _validator(tool: Tool) -> Callable[[Any], str | None]:
    """A compiled check of arguments: None, or what is wrong. References are never fetched."""
    kind = jsonschema.validators.validator_for(tool.input_schema, jsonschema.Draft202012Validator)
    checker = kind(tool.input_schema, registry=referencing.Registry())

    def check(arguments: Any) -> str | None:
        error = jsonschema.exceptions.best_match(checker.iter_errors(arguments))
        if error is None:
            return None
        where = ".".join(str(part) for part in error.absolute_path)
        return f"{where}: {error.message}"[:300] if where else error.message[:300]

    return check


class ArgumentChecks:
    """The compiled input schemas of an environment's tools, for servers of either kind."""

    def __init__(self, tools: Iterable[Tool]):
        self._checks = {tool.name: _validator(tool) for tool in tools}

    def refusal(self, name: str, arguments: Any) -> ToolResult | None:
        """None when the tool exists and the arguments fit its schema, else the caller's fault."""
        check = self._checks.get(name)
        if check is None:
            return ToolResult(None, "unknown_tool", f"there is no tool {str(name)[:80]!r}", "caller")
        try:
            _encode(arguments)  # says what is no JSON
            wrong = check(arguments) if isinstance(arguments, dict) else "arguments must be a JSON object"
        except (TypeError, ValueError, RecursionError) as err:
            wrong = f"not JSON: {err}"
        return None if wrong is None else ToolResult(None, "invalid_arguments", wrong, "caller")


class EnvServer:
    """A sandboxed server for one bundle.

    Args:
        bundle_path: folder of the bundle, or what was read from it.
        provider: isolation; by default the strongest that works here.
        limits: limits of every episode.

    Raises:
        CallerError: the bundle is damaged, or no sandbox works.
        InfrastructureError: the sandbox does not start.
    """

    def __init__(
        self,
        bundle_path: str | Path | Bundle,
        *,
        provider: Provider | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.bundle = bundle_path if isinstance(bundle_path, Bundle) else read_bundle(bundle_path)
        self.limits = limits or Limits()
        self.provider = provider or pick_provider()
        self.tools = {tool.name: tool for tool in self.bundle.tools}
        self._checks = ArgumentChecks(self.bundle.tools)
        self.series = Series(self)
        self._open: set[int] = set()
        index, blob = self.bundle.state.pack()
        config = {
            "tools": {tool.name: tool.code for tool in self.bundle.tools},
            "clock": self.bundle.manifest.clock,
            "index": index,
        }
        self._zygote = Zygote(self.provider, self.limits, "episode", config, blob)

    @property
    def alive(self) -> bool:
        """Whether the sandbox still runs; a dead server must be replaced."""
        return self._zygote.alive

    def open(self, seed: int) -> Episode:
        """A fresh episode: pristine state, fresh Python globals, clock and ids at their start.

        Raises:
            InfrastructureError: the sandbox is gone, or too many episodes are open.
        """
        if len(self._open) >= self.limits.processes:
            self.series.close()  # its process only waits
        if len(self._open) >= self.limits.processes:
            raise InfrastructureError(f"{len(self._open)} episodes of one environment are open; close some")
        number, sock = self._zygote.fork()
        episode = Episode(self, number, sock)
        self._open.add(number)
        try:
            episode._exchange({"seed": seed}, frames.HEADROOM, time.monotonic() + 30.0)
        except TimeoutError:
            episode.close()
            raise InfrastructureError("an episode did not open within 30 s") from None
        return episode

    def check_arguments(self, name: str, arguments: Any) -> ToolResult | None:
        """None when the tool exists and the arguments fit its schema, else the caller's fault."""
        return self._checks.refusal(name, arguments)

    def close(self) -> None:
        """End the sandbox with all its episodes."""
        self.series.close()
        self._zygote.close()

    def _forget(self, number: int) -> None:
        if number in self._open:
            self._open.discard(number)
            self._zygote.kill(number)

    def __enter__(self) -> EnvServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Episode:
    """One run of an environment; used once, never reset. Made by :meth:`EnvServer.open`."""

    def __init__(self, server: EnvServer, number: int, sock) -> None:
        self.server = server
        self.dead: str | None = None  # why, once it is
        self._number = number
        self._sock = sock

    def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Run a tool as one transaction.

        Raises:
            InfrastructureError: the episode is closed or its process died.
        """
        refusal = self.server.check_arguments(name, arguments)
        if refusal is not None:
            self._require_alive()
            return refusal
        start = time.monotonic()
        limits = self.server.limits
        request = {"op": "call", "tool": name, "arguments": arguments}
        most = limits.output_bytes + frames.HEADROOM
        try:
            reply, _ = self._exchange(request, most, start + limits.wall_s)
        except TimeoutError:
            return self._broken("timeout", f"{name} did not end within {limits.wall_s:g} s", start)
        except frames.FrameTooLarge as err:
            return self._broken("output_too_large", str(err), start)
        except ValueError as err:
            return self._broken("tool_failed", f"{name} broke the protocol: {err}", start)
        seconds = time.monotonic() - start
        if reply.get("error") is None:
            note = reply.get("note")
            return ToolResult(reply.get("value"), seconds=seconds, note=None if note is None else str(note))
        fault: Fault = "caller" if reply.get("fault") == "caller" else "environment"
        return ToolResult(None, str(reply["error"]), str(reply.get("message")), fault, seconds)

    def _broken(self, code: str, message: str, start: float) -> ToolResult:
        self._die(message)
        return ToolResult(None, code, message, "environment", time.monotonic() - start)

    def snapshot(self) -> State:
        """The state as it is now.

        Raises:
            InfrastructureError: the episode is dead or the state is above ``state_mb``.
        """
        return self._state_by("snapshot")[1]

    def _state_by(self, op: str) -> tuple[dict[str, Any], State]:
        deadline = time.monotonic() + self.server.limits.wall_s
        try:
            reply, blob = self._exchange({"op": op}, self.server.limits.state_mb << 20, deadline)
            if reply.get("pristine") is True:
                return reply, self.server.bundle.state
            return reply, State.unpack(reply["index"], blob)
        except (TimeoutError, frames.FrameTooLarge, KeyError, TypeError, ValueError) as err:
            self._die(f"no snapshot: {type(err).__name__} {err}")
            raise InfrastructureError(self.dead or "") from None

    def save(self) -> Saved:
        """This moment: the state, and where clock and ids stand.

        Raises:
            InfrastructureError: the episode is dead or the state is above ``state_mb``.
        """
        reply, state = self._state_by("save")
        try:
            return Saved(state, int(reply["calls"]), int(reply["next_id"]))
        except (KeyError, TypeError, ValueError) as err:
            self._die(f"it could not be saved: {type(err).__name__} {err}")
            raise InfrastructureError(self.dead or "") from None

    def restore(self, saved: Saved) -> None:
        """Go back, or over, to a saved moment. The same calls then give what they gave after it, if the
        seed is the same.

        Raises:
            InfrastructureError: the episode is dead or does not answer in time.
        """
        index, blob = saved.state.pack()
        message = {"op": "restore", "index": index, "calls": saved.calls, "next_id": saved.next_id}
        deadline = time.monotonic() + self.server.limits.wall_s
        try:
            self._exchange(message, frames.HEADROOM, deadline, blob)
        except (TimeoutError, frames.FrameTooLarge, ValueError) as err:
            self._die(f"not restored: {type(err).__name__} {err}")
            raise InfrastructureError(self.dead or "") from None

    def reset(self, seed: int) -> None:
        """Begin again in the same process: pristine state, fresh globals of the tools, clock and ids at
        their start. For :class:`synth.env.series.Series`; rollouts have a process of their own.

        Raises:
            InfrastructureError: the episode is dead or does not answer in time.
        """
        deadline = time.monotonic() + self.server.limits.wall_s
        try:
            self._exchange({"op": "reset", "seed": seed}, frames.HEADROOM, deadline)
        except (TimeoutError, frames.FrameTooLarge, ValueError) as err:
            self._die(f"not reset: {type(err).__name__} {err}")
            raise InfrastructureError(self.dead or "") from None

    def changes(self, since: State | None = None) -> str:
        """What changed since the pristine state, or since a snapshot, a line for each row and file."""
        return readable(diff(since or self.server.bundle.state, self.snapshot()))

    def digest(self) -> str:
        """Canonical digest of the state as it is now; audit tables left out."""
        return digest(self.snapshot(), self.server.bundle.manifest.audit_tables)

    def run_solution(self, code: str, max_calls: int = 100) -> SolutionResult:
        """Run ``def solve(call) -> answer`` inside the episode's sandbox.

        ``call(tool, **arguments)`` returns the tool's value or raises ToolError; a tool that is broken
        ends the solution. The whole solution has ``wall_s`` seconds.
        """
        limits = self.server.limits
        most, deadline = limits.output_bytes + frames.HEADROOM, time.monotonic() + limits.wall_s
        calls: list[ToolStep] = []
        message: dict[str, Any] = {"op": "solve", "code": code}
        try:
            while True:
                reply, _ = self._exchange(message, most, deadline)
                if "ask" not in reply:
                    failed = reply.get("failed")
                    return SolutionResult(reply.get("answer"), calls, None if failed is None else str(failed))
                message = self._leave(reply["ask"], calls, max_calls)
        except TimeoutError:
            self._die(f"the solution did not end within {limits.wall_s:g} s")
        except (frames.FrameTooLarge, KeyError, TypeError, ValueError) as err:
            self._die(f"the solution broke the protocol: {err}")
        return SolutionResult(None, calls, self.dead)

    def _leave(self, ask: dict[str, Any], calls: list[ToolStep], max_calls: int) -> dict[str, Any]:
        if len(calls) >= max_calls:
            message = f"more than {max_calls} calls"
            return {"error": "too_many_calls", "message": message, "fault": "environment"}
        refusal = self.server.check_arguments(ask["tool"], ask["arguments"])
        if refusal is not None:
            return {"error": refusal.error_code, "message": refusal.error_message, "fault": refusal.fault}
        calls.append(ToolStep(tool=ask["tool"], arguments=ask["arguments"]))
        return {"ok": True}

    def close(self) -> None:
        """End the episode; its process is killed."""
        if self.dead is None:
            self._die("the episode is closed")

    def _die(self, why: str) -> None:
        self.dead = why
        self.server._forget(self._number)
        self._sock.close()

    def _require_alive(self) -> None:
        if self.dead is not None:
            raise InfrastructureError(f"the episode has ended: {self.dead}")

    def _exchange(
        self, message: dict[str, Any], limit: int, deadline: float, blob: bytes = b""
    ) -> tuple[dict[str, Any], bytes]:
        """One request and its reply; a broken connection ends the episode."""
        self._require_alive()
        try:
            frames.send(self._sock, message, blob, deadline=deadline)
            return frames.receive(self._sock, limit, deadline)
        except TimeoutError:
            raise
        except (EOFError, OSError):
            self._die("its process died")
            raise InfrastructureError(
                "the process of an episode died (killed, out of memory or time)"
            ) from None

    def __enter__(self) -> Episode:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
