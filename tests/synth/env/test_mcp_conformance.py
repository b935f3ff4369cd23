"""MCP conformance: bundles as the demo makes them, through the SDK's own client over both transports.

Every tool is listed and called over stdio (``agent-world mcp``, a process of its own) and over streamable
HTTP; both
answer what an episode here answers. 50 sessions at once share no state. The MCP Inspector's command line
is asked too, where ``AGENT_WORLD_INSPECTOR`` names its folder (``npm install
@modelcontextprotocol/inspector``). ``AGENT_WORLD_RUN`` names a run of the demo whose own bundles are to be
served; without it they are made anew.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
import uvicorn
from fixtures.make import write_library
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from test_differential import synthesized

from synth.env.bundle import read_bundle
from synth.env.episode import EnvServer
from synth.env.mcp_server import http_app
from synth.themes import builtin

SESSIONS = 50
INSPECTOR_S = 600  # it starts Node and our command line anew for each question: slow on a busy machine


def some_calls(bundle):
    """A case or an empty call of every tool."""
    cases = {tool.name: [c.arguments for c in tool.cases][:1] or [{}] for tool in bundle.tools}
    return [(name, arguments) for name, given in cases.items() for arguments in given]


def expected(path, calls):
    """What an episode of its own answers."""
    with EnvServer(path) as server, server.open(0) as episode:
        return [json.loads(episode.call(*call).to_json()) for call in calls]


async def through(client, calls):
    names = sorted(tool.name for tool in (await client.list_tools()).tools)
    results = [await client.call_tool(name, arguments) for name, arguments in calls]
    return names, [json.loads(r.content[0].text) for r in results]


def over_stdio(path, calls):
    arguments = ["-c", "import sys; from arena.cli import main; sys.exit(main())", "mcp", str(path)]
    params = StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))

    async def run():
        async with Client(stdio_client(params)) as client:
            return await through(client, calls)

    return anyio.run(run)


@contextmanager
def served(environment):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(http_app(environment), port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}/mcp"
    server.should_exit = True
    thread.join(20)


def over_http(path, calls):
    async def run(url):
        async with Client(url) as client:
            return await through(client, calls)

    with EnvServer(path) as environment, served(environment) as url:
        return anyio.run(run, url)


def conforms(path):
    bundle = read_bundle(path)
    calls = some_calls(bundle)
    wanted = (sorted(tool.name for tool in bundle.tools), expected(path, calls))
    assert over_http(path, calls) == wanted
    assert over_stdio(path, calls) == wanted


def themes_of_the_demo():
    return [theme.id for theme in builtin("demo")]


def bundle_of(theme, folder):
    """As the demo left it in ``AGENT_WORLD_RUN``, or made as the demo makes it."""
    run = os.environ.get("AGENT_WORLD_RUN")
    return Path(run) / "bundles" / theme if run else synthesized(folder, theme)


def test_a_bundle_answers_the_same_over_both_transports(tmp_path):
    conforms(synthesized(tmp_path, themes_of_the_demo()[0]))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("theme", themes_of_the_demo()[1:])
def test_every_bundle_of_the_demo_answers_the_same_over_both_transports(theme, tmp_path):
    conforms(bundle_of(theme, tmp_path))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_grown_bundles_answer_the_same_over_both_transports():
    grown = sorted(Path(os.environ.get("AGENT_WORLD_RUN", "/nowhere")).glob("bundles/*-v2"))
    if not grown:
        pytest.skip("AGENT_WORLD_RUN names no run of the demo with grown environments")
    for path in grown:
        conforms(path)


def test_fifty_sessions_at_once_share_no_state(tmp_path):
    """Each lends its own number of books; each then sees its own loans only, under ids that start alike."""

    async def one(url, number, seen):
        async with Client(url) as client:
            for _ in range(1 + number % 2):
                await client.call_tool("lend_book", {"book_id": "B-1", "member_id": "M-1"})
            await everyone.wait()
            loans = await client.call_tool("list_loans", {"member_id": "M-1"})
            seen[number] = [
                item["loan_id"] for item in loans.structured_content["items"] if item["loan_id"] >= "LN-9"
            ]

    async def all_of_them(url):
        seen = {}
        async with anyio.create_task_group() as group:
            for number in range(SESSIONS):
                group.start_soon(one, url, number, seen)
            await anyio.sleep(2)
            everyone.set()
        return seen

    everyone = anyio.Event()
    with EnvServer(write_library(tmp_path)) as environment, served(environment) as url:
        seen = anyio.run(all_of_them, url)
    assert len(seen) == SESSIONS
    for number, loans in seen.items():
        assert loans == ["LN-9001", "LN-9002"][: 1 + number % 2]


@pytest.mark.timeout(2 * INSPECTOR_S)
def test_the_inspectors_command_line_lists_and_calls(tmp_path):
    folder = os.environ.get("AGENT_WORLD_INSPECTOR")
    if not folder or not shutil.which("node"):
        pytest.skip("AGENT_WORLD_INSPECTOR names no folder with the MCP Inspector, or there is no node")
    program = Path(folder) / "node_modules" / ".bin" / "mcp-inspector"
    serve = [str(Path(sys.executable).parent / "agent-world"), "mcp", str(write_library(tmp_path))]

    def ask(*arguments):
        command = [str(program), "--cli", *serve, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSPECTOR_S, cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-1000:]
        return json.loads(done.stdout)

    assert {tool["name"] for tool in ask("--method", "tools/list")["tools"]} >= {"get_book", "lend_book"}
    book = ask("--method", "tools/call", "--tool-name", "get_book", "--tool-arg", "book_id=B-2")
    assert book["structuredContent"]["title"] == "A Field Guide to Moss"
