"""A bundle as a real MCP server: the SDK's own client over both transports, one fresh state a session."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time

import anyio
import mcp_types as types
import pytest
from fixtures.make import extra_tool, library, with_tools, write_library, write_parking
from mcp import Client, MCPError, StdioServerParameters

from synth.env.bundle import write_bundle
from synth.env.episode import EnvServer
from synth.env.mcp_server import FAULT, build_server, http_app
from synth.env.sandbox import Limits

COMMAND = "import typer; from arena.cli_env import mcp; app = typer.Typer(); app.command()(mcp); app()"
LEND = {"book_id": "B-1", "member_id": "M-2"}
ODD = "null \u0000, \u2028, \U0001f6b2 and 12345678901234567890123"


def odd_library(folder):
    """The library with a document in its state, and tools that break or talk strangely."""
    tools = (
        extra_tool("boom", "def boom(ctx): return 1 / 0"),
        extra_tool("vanish", "import os\ndef vanish(ctx): os._exit(1)"),
        extra_tool("flood", "def flood(ctx): return 'x' * 5_000_000"),
        extra_tool("echo", "def echo(ctx, *, value): return {'value': value}", {"value": {}}),
        extra_tool(
            "note", "def note(ctx, *, text): ctx.files['rules.md'] = text.encode()",
            {"text": {"type": "string"}}, read_only=False,
        ),
    )  # fmt: skip
    write_bundle(
        with_tools(library(), *tools), folder / "odd", files={"rules.md": b"# Rules\n", "a.bin": b"\0"}
    )
    return folder / "odd"


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    with EnvServer(odd_library(tmp_path_factory.mktemp("bundles"))) as environment:
        yield environment


@contextlib.contextmanager
def http(environment):
    """The environment on a free port of this machine; yields its URL."""
    import uvicorn

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(128)
        config = uvicorn.Config(http_app(environment), log_level="error")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}/mcp"
        finally:
            server.should_exit = True
            thread.join(30)


@pytest.fixture(params=["stdio", "http"])
def endpoint(request, tmp_path):
    """What an SDK client needs to reach the library bundle over either transport."""
    path = write_library(tmp_path)
    if request.param == "stdio":
        yield StdioServerParameters(command=sys.executable, args=["-c", COMMAND, str(path)])
        return
    with EnvServer(path) as environment, http(environment) as url:
        yield url


def in_client(target, use):
    """Run ``await use(client)`` in a connected client."""

    async def run():
        async with Client(target) as client:
            return await use(client)

    return anyio.run(run)


def test_a_client_lists_and_calls_the_tools_over_both_transports(endpoint):
    async def use(client):
        listed = (await client.list_tools()).tools
        before = await client.call_tool("get_book", {"book_id": "B-1"})
        lent = await client.call_tool("lend_book", LEND)
        after = await client.call_tool("get_book", {"book_id": "B-1"})
        return listed, before, lent, after

    listed, before, lent, after = in_client(endpoint, use)
    assert [tool.name for tool in listed] == ["search_books", "get_book", "list_loans", "lend_book"]
    assert [tool.annotations.read_only_hint for tool in listed] == [True, True, True, False]
    assert listed[3].input_schema["required"] == ["book_id", "member_id"]
    assert lent.structured_content == {"loan_id": "LN-9001", "book_id": "B-1", "member_id": "M-2"}
    assert json.loads(lent.content[0].text) == lent.structured_content
    assert (before.structured_content["copies"], after.structured_content["copies"]) == (2, 1)


def test_every_session_starts_from_the_pristine_state(endpoint):
    async def lend(client):
        return (await client.call_tool("lend_book", LEND)).structured_content["loan_id"]

    assert [in_client(endpoint, lend) for _ in range(2)] == ["LN-9001", "LN-9001"]


@pytest.mark.parametrize("write", [write_library, write_parking])
def test_the_text_is_what_an_episode_shows_its_agent(write, tmp_path):
    with EnvServer(write(tmp_path)) as environment:
        cases = [(tool.name, case) for tool in environment.bundle.tools for case in tool.cases]
        for name, case in cases:

            async def use(client, name=name, case=case):
                return await client.call_tool(name, case.arguments)

            got = in_client(build_server(environment), use)
            with environment.open(0) as episode:
                expected = episode.call(name, case.arguments)
            assert got.content[0].text == expected.to_json()
            assert got.is_error == (case.error is not None)


def test_fifty_concurrent_sessions_share_no_state(tmp_path):
    async def session(url, number, copies):
        async with Client(url) as client:
            for _ in range(number % 3):
                await client.call_tool("lend_book", {"book_id": "B-4", "member_id": "M-1"})
            book = await client.call_tool("get_book", {"book_id": "B-4"})
            loan = await client.call_tool("lend_book", LEND)
            copies[number] = (book.structured_content["copies"], loan.structured_content["loan_id"])

    async def all_at_once(url):
        copies: dict[int, tuple[int, str]] = {}
        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(session, url, number, copies)
        return copies

    with EnvServer(write_library(tmp_path)) as environment, http(environment) as url:
        copies = anyio.run(all_at_once, url)
        assert copies == {n: (3 - n % 3, f"LN-{9001 + n % 3}") for n in range(50)}
        for _ in range(200):
            if not environment._open:
                break
            time.sleep(0.05)
        assert not environment._open  # every session's process ended with it


def test_a_client_without_sessions_is_asked_for_the_handshake(tmp_path):
    async def use(client):
        return client.protocol_version

    with EnvServer(write_library(tmp_path)) as environment, http(environment) as url:
        assert in_client(url, use) < "2026"

        async def modern():
            async with Client(url, mode="2026-07-28") as client:
                await client.call_tool("get_book", {"book_id": "B-1"})

        with pytest.raises(BaseException) as caught:  # noqa: PT011 (a group, or the error itself)
            anyio.run(modern)
        assert "initialize first" in str(caught.value) + str(getattr(caught.value, "exceptions", ""))


def outcome(environment, tool, arguments):
    async def use(client):
        try:
            return await client.call_tool(tool, arguments)
        except MCPError as err:
            return err

    return in_client(build_server(environment), use)


@pytest.mark.parametrize(
    ("tool", "arguments", "code", "fault"),
    [
        ("get_book", {"book_id": 7}, "invalid_arguments", "caller"),
        ("get_book", {}, "invalid_arguments", "caller"),
        ("get_book", {"book_id": "B-77"}, "not_found", "caller"),
        ("boom", {}, "tool_failed", "environment"),
    ],
)
def test_faults_of_caller_and_environment_are_results_that_say_whose(odd, tool, arguments, code, fault):
    got = outcome(odd, tool, arguments)
    assert got.is_error
    assert json.loads(got.content[0].text)["error"]["code"] == code
    assert got.meta[FAULT] == fault


def test_a_result_that_is_too_large_says_that_it_was_cut(odd):
    got = outcome(odd, "flood", {})
    assert not got.is_error
    assert json.loads(got.content[0].text)["note"].startswith("cut: ")


def test_an_unknown_tool_and_a_dead_sandbox_are_protocol_errors(odd):
    unknown = outcome(odd, "nope", {})
    assert (unknown.code, unknown.data) == (types.INVALID_PARAMS, {"fault": "caller"})
    dead = outcome(odd, "vanish", {})
    assert (dead.code, dead.data) == (types.INTERNAL_ERROR, {"fault": "infrastructure"})


@pytest.mark.parametrize("value", [ODD, None, 10**30, -0.5, {"a": [{"b": None}]}, [[[[[]]]]]])
def test_odd_values_survive_the_trip(odd, value):
    got = outcome(odd, "echo", {"value": value})
    assert got.structured_content == {"value": value}


def test_resources_are_documents_and_never_tables(odd):
    async def use(client):
        found = (await client.list_resources()).resources
        card = await client.read_resource(found[0].uri)
        await client.call_tool("note", {"text": "# New rules"})
        document = await client.read_resource(found[1].uri)
        with pytest.raises(MCPError):
            await client.read_resource("agent-world://library/tables/book.json")
        with pytest.raises(MCPError):
            await client.read_resource("agent-world://library/files/a.bin")
        return [r.name for r in found], card.contents[0].text, document.contents[0]

    names, card, document = in_client(build_server(odd), use)
    assert names == ["README.md", "files/rules.md"]
    assert card.startswith("# Library")
    assert (document.text, document.mime_type) == ("# New rules", "text/markdown")  # as it is in this session


def test_people_may_look_at_tables_but_not_at_audit_tables(odd):
    async def use(client):
        names = [r.name for r in (await client.list_resources()).resources]
        book = await client.read_resource("agent-world://library/tables/book.json")
        return names, json.loads(book.contents[0].text)

    names, book = in_client(build_server(odd, tables=True), use)
    assert names[2:] == ["tables/book.json", "tables/loan.json", "tables/member.json"]
    assert len(book) == 5


def test_more_sessions_than_the_sandbox_may_hold_are_refused(tmp_path):
    async def two(url):
        async with Client(url) as first:
            await first.list_tools()
            with pytest.raises(BaseException):  # noqa: B017, PT011 (HTTP 503, in a group)
                async with Client(url) as second:
                    await second.list_tools()

    with (
        EnvServer(write_library(tmp_path), limits=Limits(processes=1)) as environment,
        http(environment) as url,
    ):
        anyio.run(two, url)
