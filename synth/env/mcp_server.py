"""Any bundle as a real MCP server, with the official SDK: over stdio, or over streamable HTTP.

A session is an episode: each client gets a fresh state in the sandbox when it first calls a tool, and its
process ends with the session. Over stdio one process is one session. Over HTTP the session is the one of the
handshake (``Mcp-Session-Id``); the protocol revision of 2026-07-28 has no sessions over HTTP, so a client
that offers it is told to shake hands, which clients do by themselves.

Faults stay apart: an unknown tool is a protocol error (-32602); bad arguments, a rule that refused and a
broken tool are results with ``isError`` whose ``_meta["agent-world/fault"]`` says ``caller`` or
``environment``; a dead sandbox is a protocol error (-32603) with ``data.fault = "infrastructure"``.

Resources are documents only: the environment's card and the text files of its state as they are in the
session. Tables are state, which is read through tools; ``tables=True`` shows them too, for people.
"""

from __future__ import annotations

import json
import mimetypes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, unquote

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from synth.env.bundle import mcp_tool
from synth.env.episode import ToolResult
from synth.env.serving import EpisodeLike, ServerLike
from synth.env.state import open_readonly, rows, table_names
from synth.errors import InfrastructureError
from synth.types import Tool

FAULT = "agent-world/fault"
IDLE_S = 1800.0  # an HTTP session that is silent for so long ends (the SDK's default)
_TEXT = (".md", ".txt", ".csv", ".json", ".jsonl", ".yaml", ".yml", ".html", ".htm", ".sql", ".tex", ".xml")


class Session:
    """The episode of one client; opened at its first use, used by one call at a time."""

    def __init__(self, environment: ServerLike, seed: int) -> None:
        self._environment = environment
        self._seed = seed
        self._episode: EpisodeLike | None = None
        self._lock = anyio.Lock()

    async def use(self, action: Any) -> Any:
        """``action(episode)`` on a worker thread.

        Raises:
            MCPError: the sandbox failed; code -32603.
        """
        async with self._lock:
            try:
                if self._episode is None:
                    self._episode = await anyio.to_thread.run_sync(self._environment.open, self._seed)
                return await anyio.to_thread.run_sync(action, self._episode)
            except InfrastructureError as err:
                raise MCPError(types.INTERNAL_ERROR, str(err), {"fault": "infrastructure"}) from None

    async def close(self) -> None:
        """End the episode and its process."""
        if self._episode is not None:
            await anyio.to_thread.run_sync(self._episode.close)


def build_server(
    environment: ServerLike, *, seed: int = 0, tables: bool = False, http: bool = False
) -> Server:
    """An SDK server over an environment in use.

    Args:
        seed: of every session's episode (clock, ids, randomness).
        tables: list tables as resources too.
        http: sessions belong to connections; otherwise the whole server is one session (stdio).
    """
    manifest = environment.bundle.manifest
    listed = [_listed(tool) for tool in environment.bundle.tools]
    names = {tool.name for tool in listed}
    documents = _Documents(environment, tables)

    @asynccontextmanager
    async def lifespan(_: Server) -> AsyncIterator[Session | None]:
        session = None if http else Session(environment, seed)
        try:
            yield session
        finally:
            if session is not None:
                with anyio.CancelScope(shield=True):
                    await session.close()

    def session_of(ctx: Any) -> Session:
        if ctx.lifespan_context is not None:
            return ctx.lifespan_context
        connection = (
            ctx.session._connection
        )  # the SDK (2.3) has no public way yet to its own per-client state
        if "session" not in connection.state:
            connection.state["session"] = Session(environment, seed)
            connection.exit_stack.push_async_callback(connection.state["session"].close)
        return connection.state["session"]

    async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=listed)

    async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        if params.name not in names:
            raise MCPError(
                types.INVALID_PARAMS, f"there is no tool {params.name[:80]!r}", {"fault": "caller"}
            )
        arguments = dict(params.arguments or {})
        result: ToolResult = await session_of(ctx).use(lambda episode: episode.call(params.name, arguments))
        return tool_result(result)

    async def list_resources(ctx: Any, params: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=documents.listed())

    async def read_resource(ctx: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        uri = str(params.uri)
        text = documents.card(uri)
        if text is None:
            text = await session_of(ctx).use(lambda episode: documents.read(uri, episode))
        if text is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no resource {uri[:200]}", {"uri": uri})
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=uri, mime_type=_mime(uri), text=text)]
        )

    server: Server = Server(
        manifest.env_id,
        version=manifest.digest[:12],
        title=manifest.theme.name,
        instructions=manifest.theme.description,
        lifespan=lifespan,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
    )
    if http:
        server.middleware.append(_handshake_only)
    return server


async def _handshake_only(ctx: Any, call_next: Any) -> Any:
    """Refuse the revision without sessions, naming those with; clients then fall back to the handshake."""
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        data = {"supported": list(HANDSHAKE_PROTOCOL_VERSIONS), "requested": ctx.protocol_version}
        raise MCPError(
            types.UNSUPPORTED_PROTOCOL_VERSION, "state belongs to a session: initialize first", data
        )
    return await call_next(ctx)


def _listed(tool: Tool) -> types.Tool:
    raw = mcp_tool(tool)
    raw.pop("_meta")  # tables and columns behind the parameters: for synthesis, not for agents
    if tool.output_schema.get("type") != "object":  # all that revisions before 2026 allow
        raw.pop("outputSchema")
    return types.Tool.model_validate(raw)


def tool_result(result: ToolResult) -> types.CallToolResult:
    """A call's outcome as MCP says it."""
    content: list[Any] = [types.TextContent(text=result.to_json().encode("utf-8", "replace").decode())]
    if not result.ok:
        return types.CallToolResult(content=content, is_error=True, _meta={FAULT: result.fault})
    structured = result.value if isinstance(result.value, dict) else None
    return types.CallToolResult(content=content, structured_content=structured)


class _Documents:
    """The resources of a bundle."""

    def __init__(self, environment: ServerLike, tables: bool) -> None:
        bundle = environment.bundle
        self._root = f"agent-world://{quote(bundle.manifest.env_id)}/"
        card = bundle.path / "README.md"
        self._card = card.read_text("utf-8") if card.is_file() else None
        self._files = [p for p in sorted(bundle.state.files) if p.lower().endswith(_TEXT)]
        audit = bundle.manifest.audit_tables
        names = table_names(open_readonly(bundle.state)) if tables else []
        self._tables = [name for name in names if name not in audit]

    def listed(self) -> list[types.Resource]:
        found = [("README.md", "The environment's card: collections, tools, rules")] if self._card else []
        found += [(f"files/{quote(path)}", f"The document {path}") for path in self._files]
        found += [(f"tables/{quote(name)}.json", f"Rows of the table {name}") for name in self._tables]
        return [
            types.Resource(uri=self._root + path, name=unquote(path), description=text, mime_type=_mime(path))
            for path, text in found
        ]

    def card(self, uri: str) -> str | None:
        return self._card if uri == self._root + "README.md" else None

    def read(self, uri: str, episode: EpisodeLike) -> str | None:
        """A document as it is in this session; None when there is none of that name."""
        path = unquote(uri.removeprefix(self._root)) if uri.startswith(self._root) else ""
        kind, _, name = path.partition("/")
        if kind == "files" and name.lower().endswith(_TEXT):
            content = episode.snapshot().files.get(name)
            return None if content is None else content.decode("utf-8", "replace")
        table = name.removesuffix(".json")
        if kind == "tables" and table in self._tables:
            return json.dumps(rows(episode.snapshot(), table), ensure_ascii=False)
        return None


def _mime(path: str) -> str:
    if path.endswith((".md", ".markdown")):
        return "text/markdown"
    return mimetypes.guess_type(path)[0] or "text/plain"


def serve_stdio(environment: ServerLike, *, seed: int = 0, tables: bool = False) -> None:
    """Serve one session on standard input and output; returns when the client goes."""

    async def run() -> None:
        server = build_server(environment, seed=seed, tables=tables)
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    anyio.run(run)


def http_app(environment: ServerLike, *, seed: int = 0, tables: bool = False, host: str = "127.0.0.1") -> Any:
    """The ASGI application of streamable HTTP at ``/mcp``; at most ``limits.processes`` sessions."""
    server = build_server(environment, seed=seed, tables=tables, http=True)
    most = environment.limits.processes
    return server.streamable_http_app(host=host, max_sessions=most, session_idle_timeout=IDLE_S)


def serve_http(
    environment: ServerLike, *, host: str = "127.0.0.1", port: int = 8000, seed: int = 0, tables: bool = False
) -> None:
    """Serve any number of sessions at ``http://HOST:PORT/mcp`` until interrupted."""
    import uvicorn

    uvicorn.run(
        http_app(environment, seed=seed, tables=tables, host=host), host=host, port=port, log_level="warning"
    )
