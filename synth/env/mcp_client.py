"""A real MCP server as an environment: one fresh process and folder an episode, in the sandbox.

    with McpEnvServer("bundles/notes") as server:
        episode = server.open(seed=0)
        episode.call("create_entities", {"entities": [...]})
        final = episode.snapshot()

The bundle (written by :mod:`synth.env.mcp_import`) holds the command, the packed folder that every episode
starts from, and that folder's :class:`State` as the lens sees it. Rollouts, gates, verifiers and task stages
use it through the same two protocols as our own bundles (:mod:`synth.env.serving`). The official SDK's client
does the talking, on an event loop in a thread of its own.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import anyio
import mcp_types as types
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client

from synth.env import frames
from synth.env.bundle import Bundle, read_bundle
from synth.env.episode import ArgumentChecks, Fault, SolutionResult, ToolResult
from synth.env.folder import pack, read_state, remove, unpack
from synth.env.program import Program, require_bubblewrap, sandboxed
from synth.env.sandbox import Limits, Provider, _interpreter, python_paths
from synth.env.serving import IMPORTED
from synth.env.state import State, digest
from synth.env.zygote import blocking_pair
from synth.errors import CallerError, InfrastructureError
from synth.types import ToolStep

SEED_FILE = "server/seed.tar"
START_S = 60.0  # ours: seconds for a server to answer the handshake; Node and Python need 0.3 to 2
TRUNCATED = "\n[cut: the result has {} characters, shown are the first {}]"


class DoesNotStart(InfrastructureError):
    """The program ended, or said nothing, before the handshake; the text holds its last words."""


class McpEnvServer:
    """Gives out episodes of an imported bundle.

    Args:
        bundle_path: folder of the bundle.
        provider: must be bubblewrap, or None.
        limits: of every episode; ``memory_mb`` does not apply (see :mod:`synth.env.program`).

    Raises:
        CallerError: the bundle is damaged or not imported, its program is not installed, or no bubblewrap.
    """

    def __init__(
        self, bundle_path: str | Path, *, provider: Provider | None = None, limits: Limits | None = None
    ) -> None:
        bundle = read_bundle(bundle_path)
        raw = bundle.manifest.generator.get(IMPORTED)
        if raw is None:
            raise CallerError(f"{bundle_path}: not an imported bundle; open it with EnvServer")
        program = Program.from_json(raw, bundle.path)
        for path in (program.here().command[0], *program.roots):
            if not Path(path).exists():
                raise CallerError(f"{bundle_path}: its server is not installed here: {path} is missing")
        seed = (bundle.path / SEED_FILE).read_bytes()
        self._start(bundle, program, seed, provider, limits)

    @classmethod
    def over(
        cls,
        bundle: Bundle,
        program: Program,
        seed: bytes,
        provider: Provider | None = None,
        limits: Limits | None = None,
    ) -> McpEnvServer:
        """A server whose bundle is not on disk yet; what the importer looks around with."""
        server = cls.__new__(cls)
        server._start(bundle, program, seed, provider, limits)
        return server

    def _start(
        self, bundle: Bundle, program: Program, seed: bytes, provider: Provider | None, limits: Limits | None
    ) -> None:
        self.bundle = bundle
        self.program = program
        self.provider = require_bubblewrap(provider)
        self.limits = limits or Limits()
        self.tools = {tool.name: tool for tool in bundle.tools}
        self.names = {tool.name: str(tool.meta.get("mcp_name", tool.name)) for tool in bundle.tools}
        self._checks = ArgumentChecks(bundle.tools)
        self.seed = seed
        self._open: set[McpEpisode] = set()
        self._exit = contextlib.ExitStack()
        self.portal: BlockingPortal | None = self._exit.enter_context(start_blocking_portal())

    @property
    def alive(self) -> bool:
        return self.portal is not None

    def open(self, seed: int, saved: bytes | None = None) -> McpEpisode:
        """A fresh episode: own folder, own process.

        Args:
            seed: for clock, ids and randomness, where the program is held steady.
            saved: start from what :meth:`McpEpisode.save` gave instead of the pristine folder.

        Raises:
            DoesNotStart: the server does not start.
            InfrastructureError: too many episodes are open.
        """
        if self.portal is None:
            raise InfrastructureError("the environment is closed")
        if len(self._open) >= self.limits.processes:
            raise InfrastructureError(f"{len(self._open)} episodes of one environment are open; close some")
        episode = McpEpisode(self, seed, self.seed if saved is None else saved)
        self._open.add(episode)
        return episode

    def check_arguments(self, name: str, arguments: Any) -> ToolResult | None:
        """None when the tool exists and the arguments fit its schema, else the caller's fault."""
        refusal = self._checks.refusal(name, arguments)
        if refusal is None and not _is_text(json.dumps(arguments, ensure_ascii=False)):
            wrong = "not text: half of a surrogate pair, which MCP cannot carry"
            return ToolResult(None, "invalid_arguments", wrong, "caller")
        return refusal

    def close(self) -> None:
        """End all episodes and the event loop."""
        for episode in list(self._open):
            episode.close()
        self.portal = None
        self._exit.close()

    def __enter__(self) -> McpEnvServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class McpEpisode:
    """One process over one folder. Made by :meth:`McpEnvServer.open`."""

    def __init__(self, server: McpEnvServer, seed: int, start: bytes) -> None:
        self.server = server
        self.dead: str | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="agent-world-state-"))
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in close)
        try:
            unpack(start, self.folder)
            self._connection, self.client = self._connect(seed)
        except BaseException:
            self._errors.close()
            remove(self.folder)
            raise

    def _connect(self, seed: int) -> tuple[Any, Client]:
        server, clock = self.server, self.server.bundle.manifest.clock
        command, *arguments = sandboxed(server.program, self.folder, server.limits, seed, clock=clock)
        params = StdioServerParameters(command=command, args=arguments, env={}, cwd="/")
        assert server.portal is not None

        @contextlib.asynccontextmanager
        async def connected():
            # the handshake by itself: older servers fall over the probe for the newest revision
            with anyio.CancelScope(deadline=anyio.current_time() + START_S) as scope:
                async with Client(stdio_client(params, errlog=self._errors), mode="legacy") as client:
                    if server.tools:
                        await all_tools(client)  # the SDK checks results against the schemas that it has seen
                    scope.deadline = float("inf")
                    yield client
            if scope.cancelled_caught:
                raise TimeoutError(f"no handshake within {START_S:g} s")

        manager = server.portal.wrap_async_context_manager(connected())
        try:
            return manager, manager.__enter__()
        except Exception as err:
            why = f"its server does not start ({_reason(err)}): {self._last_words()}"
            raise DoesNotStart(f"{server.bundle.manifest.env_id}: {why}") from None

    def _last_words(self) -> str:
        self._errors.seek(0)
        text = self._errors.read(20_000).strip()
        return text.splitlines()[-1][:300] if text else "it wrote nothing"

    def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Run a tool. There is no transaction: what a server does before it fails stays done.

        Raises:
            InfrastructureError: the episode is closed or its process died.
        """
        refusal = self.server.check_arguments(name, arguments)
        self._require_alive()
        if refusal is not None:
            return refusal
        start = time.monotonic()
        try:
            assert self.server.portal is not None
            raw = self.server.portal.call(self._ask, self.server.names[name], arguments)
        except TimeoutError:
            message = f"{name} did not end within {self.server.limits.wall_s:g} s"
            self._die(message)
            return ToolResult(None, "timeout", message, "environment", time.monotonic() - start)
        except MCPError as err:
            if err.code == types.CONNECTION_CLOSED:
                self._die(f"its process died: {self._last_words()}")
                raise InfrastructureError(self.dead or "") from None
            known: dict[int, tuple[str, Fault]] = {types.INVALID_PARAMS: ("invalid_arguments", "caller")}
            code, fault = known.get(err.code, ("tool_failed", "environment"))
            return ToolResult(None, code, str(err)[:500], fault, time.monotonic() - start)
        except RuntimeError as err:  # of the SDK: the result breaks the tool's own output schema
            return ToolResult(None, "tool_failed", str(err)[:500], "environment", time.monotonic() - start)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._die(f"its process died: {self._last_words()}")
            raise InfrastructureError(self.dead or "") from None
        return _result(raw, self.server.limits.output_bytes, time.monotonic() - start)

    async def _ask(self, name: str, arguments: dict[str, Any]) -> types.CallToolResult:
        with anyio.fail_after(self.server.limits.wall_s):
            return await self.client.call_tool(name, arguments)

    def snapshot(self) -> State:
        """The state as it is now, as the lens sees it.

        Raises:
            InfrastructureError: the episode is over, or the folder cannot be read.
        """
        self._require_alive()
        return read_state(self.server.program, self.folder, self.server.limits)

    def digest(self) -> str:
        """Canonical digest of the state as it is now."""
        return digest(self.snapshot(), self.server.bundle.manifest.audit_tables)

    def save(self) -> bytes:
        """The folder as it is now; ``server.open(seed, saved)`` goes on from there with a new process."""
        self._require_alive()
        return pack(self.folder, self.server.limits.state_mb << 20)

    def run_solution(self, code: str, max_calls: int = 100) -> SolutionResult:
        """Run ``def solve(call) -> answer`` in a sandbox of its own that has no state and no network."""
        self._require_alive()
        calls: list[ToolStep] = []
        with tempfile.TemporaryDirectory(prefix="agent-world-guest-") as empty:
            ours, theirs = blocking_pair()
            guest = Program((_interpreter(), "-I", "-B", "/agent-world/guest.py"), tuple(python_paths()))
            process = subprocess.Popen(
                sandboxed(guest, Path(empty), self.server.limits, writable=False),
                stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={},
            )  # fmt: skip
            theirs.close()
            try:
                return self._guided(ours, code, calls, max_calls)
            except TimeoutError:
                error = f"the solution did not end within {self.server.limits.wall_s:g} s"
            except (EOFError, OSError, KeyError, TypeError, ValueError, frames.FrameTooLarge) as err:
                error = f"the solution broke the protocol: {type(err).__name__} {err}"
            finally:
                ours.close()
                process.kill()
                process.wait()
        return SolutionResult(None, calls, error)

    def _guided(self, sock: socket.socket, code: str, calls: list[ToolStep], most: int) -> SolutionResult:
        limits = self.server.limits
        left = limits.wall_s  # of the solution itself; the calls have their own time
        message: dict[str, Any] = {"code": code}
        while True:
            start = time.monotonic()
            frames.send(sock, message, deadline=start + left)
            reply, _ = frames.receive(sock, limits.output_bytes + frames.HEADROOM, start + left)
            left -= time.monotonic() - start
            if "ask" not in reply:
                failed = reply.get("failed")
                return SolutionResult(reply.get("answer"), calls, None if failed is None else str(failed))
            if len(calls) >= most:
                text = f"more than {most} calls"
                message = {"error": "too_many_calls", "message": text, "fault": "environment"}
                continue
            tool, arguments = reply["ask"]["tool"], reply["ask"]["arguments"]
            result = self.call(tool, arguments)
            if result.error_code not in ("unknown_tool", "invalid_arguments"):
                calls.append(ToolStep(tool=tool, arguments=arguments))
            message = {"value": result.value}
            if not result.ok:
                message = {"error": result.error_code, "message": result.error_message, "fault": result.fault}

    def close(self) -> None:
        """End the process and delete the folder."""
        if self.dead is None:
            self._die("the episode is closed")

    def _die(self, why: str) -> None:
        self.dead = why
        with contextlib.suppress(Exception):  # it may be dead already, in any way
            self._connection.__exit__(None, None, None)
        self.server._open.discard(self)
        self._errors.close()
        remove(self.folder)

    def _require_alive(self) -> None:
        if self.dead is not None:
            raise InfrastructureError(f"the episode has ended: {self.dead}")

    def __enter__(self) -> McpEpisode:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def all_tools(client: Client) -> list[types.Tool]:
    """What a server lists, page by page; at most 1,000 and a page."""
    found: list[types.Tool] = []
    cursor = None
    while True:
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if not cursor or len(found) > 1000:
            return found


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _reason(err: BaseException) -> str:
    while isinstance(err, BaseExceptionGroup):
        err = err.exceptions[0]
    return f"{type(err).__name__} {err}".strip()[:300]


def _result(raw: types.CallToolResult, limit: int, seconds: float) -> ToolResult:
    """An MCP result as ours. MCP doesn't say whose fault an error is: a refusal is taken as the caller's."""
    texts = [block.text for block in raw.content if isinstance(block, types.TextContent)]
    if raw.is_error:
        return ToolResult(None, *_refusal("\n".join(texts)), "caller", seconds)
    value = raw.structured_content
    if value is None:
        others: list[Any] = [
            _other(block) for block in raw.content if not isinstance(block, types.TextContent)
        ]
        value = [*map(_parsed, texts), *others]
        value = value[0] if len(value) == 1 else value
    if isinstance(value, str) and len(value) > limit:
        value = value[:limit] + TRUNCATED.format(len(value), limit)
    try:
        size = len(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError) as err:
        return ToolResult(None, "tool_failed", f"its result is not JSON: {err}"[:500], "environment", seconds)
    if size > limit + 200:
        text = f"the result has more than {limit} bytes"
        return ToolResult(None, "output_too_large", text, "environment", seconds)
    return ToolResult(value, seconds=seconds)


def _refusal(text: str) -> tuple[str, str]:
    """Code and message of an error; the shape ``{"error": {"code", "message"}}`` is common among servers."""
    parsed = _parsed(text)
    error = parsed.get("error") if isinstance(parsed, dict) else None
    if isinstance(error, dict) and isinstance(error.get("code"), str):
        return error["code"][:100], str(error.get("message", ""))[:500]
    return "tool_error", (error if isinstance(error, str) else text)[:500] or "it failed"


def _parsed(text: str) -> Any:
    """The JSON object or list that a text holds, else the text."""
    if text[:1] in "{[":
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(text)
    return text


def _other(block: Any) -> dict[str, Any]:
    """What stands for an image, a sound or a resource."""
    raw = cast("dict[str, Any]", block.model_dump(mode="json", by_alias=True, exclude_none=True))
    return {k: (f"({len(v)} characters)" if k in ("data", "blob") else v) for k, v in raw.items()}
