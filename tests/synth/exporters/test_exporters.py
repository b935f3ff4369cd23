"""Exported packages: judged as here, and loaded by the real verifiers and OpenEnv where those are installed.

``AGENT_WORLD_VERIFIERS_PYTHON`` and ``AGENT_WORLD_OPENENV_PYTHON`` name interpreters that have
``verifiers>=0.4`` and
``openenv-core`` beside what synth needs (pydantic, jsonschema, networkx); without them those two tests skip.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from fixtures.make import write_library
from fixtures.rollouts import make_task

from synth.env.bundle import read_bundle
from synth.errors import CallerError
from synth.exporters.package import export
from synth.exporters.session import Exported

ROOT = Path(__file__).parents[3]
OPENENV = """
from library import BundleEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, ListToolsAction
env, out = BundleEnvironment(), {}
out["instruction"] = env.reset(task_id="library-2").metadata["instruction"]
out["tools"] = [t.name for t in env.step(ListToolsAction()).tools]
out["copies"] = env.step(CallToolAction(tool_name="get_book", arguments={"book_id": "B-2"})).result["copies"]
out["fault"] = env.step(CallToolAction(tool_name="get_book", arguments={"book_id": 7})).error.error_type.value
def answer(value):
    seen = env.step(CallToolAction(tool_name="submit_answer", arguments={"answer": value}))
    return seen.done, seen.reward
out["right"] = answer(1)
env.reset(task_id="library-2")
out["wrong"] = answer(5)
from server.app import app
from fastapi.testclient import TestClient
with TestClient(app) as client:
    out["health"] = client.get("/health").json()["status"]
"""
VERIFIERS = """
import asyncio, types
import verifiers.v1 as vf
from mcp.server.mcpserver import MCPServer
from verifiers.v1.utils.loaders import load_taskset, taskset_config_type
taskset = load_taskset(taskset_config_type("library")(id="library"))
tasks, out = list(taskset), {}
out["keys"], out["prompt"] = [t.key for t in tasks], tasks[1].data.prompt
out["gold"] = [asyncio.run(t.validate(None)) for t in tasks]
async def use():
    tools = type(tasks[1]).toolsets(tasks[1].config)[0]
    await tools.setup_task(tasks[1].data)
    server = MCPServer("library")
    tools.register(server)
    seen = await server.list_tools()
    await server.call_tool("get_book", {"book_id": "B-2"})
    return [t.name for t in seen], seen[0].input_schema["required"], [c.tool for c in tools.session.calls]
out["tools"], out["required"], out["calls"] = asyncio.run(use())
def reward(reply):
    state = types.SimpleNamespace(calls=[{"tool": "get_book", "arguments": {"book_id": "B-2"}}])
    return asyncio.run(tasks[1].verdict(types.SimpleNamespace(state=state, last_reply=reply)))
out["rewards"] = [reward('{"answer": 1}'), reward('{"answer": 2}'), reward("one"), reward("")]
"""


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    """A bundle and a file of three tasks over it."""
    room = tmp_path_factory.mktemp("export")
    bundle = read_bundle(write_library(room))
    (room / "tasks.jsonl").write_text("".join(make_task(bundle, n).to_json() + "\n" for n in (1, 2, 3)))
    return room


def in_package(variable: str, package: Path, code: str) -> dict:
    """Run code in a foreign interpreter, inside an exported package; what it left in ``out``."""
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"{variable} names no interpreter with that package")
    code += "\nimport json; print(json.dumps(out))"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{package}:{ROOT}"}
    done = subprocess.run(
        [python, "-c", code], cwd=package, env=env, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_package_holds_adapter_bundle_and_tasks_and_judges_as_here(room):
    files = export(room / "library", room / "tasks.jsonl", room / "vf", "verifiers")
    assert "library/__init__.py" in files
    assert "@" not in (room / "vf" / "pyproject.toml").read_text()
    package = Exported(room / "vf" / "library" / "data")
    try:
        calls = [{"tool": "get_book", "arguments": {"book_id": "B-2"}}]
        verdicts = [
            package.replay("library-2", calls, reply) for reply in ('{"answer": 1}', '{"answer": 3}', "1")
        ]
        assert [v.reward for v in verdicts] == [1.0, 0.0, 0.0]
        assert "_meta" not in package.tools()[0]
        with pytest.raises(CallerError, match="no such task"):
            package.open("nope")
    finally:
        package.close()


def test_writing_again_replaces_a_package_and_nothing_else(room, tmp_path):
    out = tmp_path / "p"
    assert export(room / "library", room / "tasks.jsonl", out, "openenv") == export(
        room / "library", room / "tasks.jsonl", out, "openenv"
    )
    (tmp_path / "mine").mkdir()
    with pytest.raises(CallerError, match="no exported package"):
        export(room / "library", room / "tasks.jsonl", tmp_path / "mine", "openenv")


def test_tasks_of_another_version_are_refused(room, tmp_path):
    text = (room / "tasks.jsonl").read_text().replace('"env_digest":"', '"env_digest":"0')
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(CallerError, match="another digest"):
        export(room / "library", tmp_path / "t.jsonl", tmp_path / "p", "verifiers")


def test_the_real_openenv_runs_it(room):
    export(room / "library", room / "tasks.jsonl", room / "oe", "openenv")
    out = in_package("AGENT_WORLD_OPENENV_PYTHON", room / "oe", OPENENV)
    assert (out["instruction"], out["copies"], out["fault"]) == ("How many copies of B-2?", 1, "invalid_args")
    assert out["tools"][-1] == "submit_answer"
    assert (out["right"], out["wrong"], out["health"]) == ([True, 1.0], [True, 0.0], "healthy")


def test_the_real_verifiers_runs_it(room):
    export(room / "library", room / "tasks.jsonl", room / "vf2", "verifiers")
    out = in_package("AGENT_WORLD_VERIFIERS_PYTHON", room / "vf2", VERIFIERS)
    assert (out["keys"], out["gold"]) == (["library-1", "library-2", "library-3"], [True] * 3)
    assert (out["tools"][1], out["required"], out["calls"]) == ("get_book", ["genre"], ["get_book"])
    assert out["rewards"] == [1.0, 0.0, 0.0, 0.0]
