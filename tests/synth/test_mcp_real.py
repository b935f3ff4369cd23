"""Real MCP servers from the registries as environments; slow, and only those that are installed here.

``AGENT_WORLD_MCP_SERVERS`` names a folder with one folder a server: a virtual environment, or a node folder:

    python -m venv $DIR/mcp-server-git && $DIR/mcp-server-git/bin/pip install mcp-server-git
    mkdir $DIR/server-memory && cd $DIR/server-memory && npm install @modelcontextprotocol/server-memory
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from pathlib import Path

import pytest
from synth_sandbox import bubblewrap_works

from synth.env.mcp_client import McpEnvServer
from synth.env.mcp_import import import_server
from synth.importers.tasks import RawTask, judge

SERVERS = Path(os.environ.get("AGENT_WORLD_MCP_SERVERS", "/nowhere"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not bubblewrap_works(), reason="imported servers need bubblewrap"),
]


def installed(path: str) -> str:
    found = SERVERS / path
    if not found.exists():
        pytest.skip(f"{found} is not installed")
    return str(found)


def test_server_memory(tmp_path):
    script = installed("server-memory/node_modules/@modelcontextprotocol/server-memory/dist/index.js")
    state = tmp_path / "state"
    state.mkdir()
    ada = {"type": "entity", "name": "Ada", "entityType": "person", "observations": ["likes pears"]}
    (state / "memory.jsonl").write_text(json.dumps(ada) + "\n")
    mei = {"name": "Mei", "entityType": "person", "observations": ["paints boats"]}
    given = {
        "create_entities": [{"entities": [mei]}],
        "read_graph": [{}],
        "delete_entities": [{"entityNames": ["Ada"]}],
    }
    env = {"MEMORY_FILE_PATH": "{state}/memory.jsonl"}
    report = import_server(["node", script], state, tmp_path / "memory", given=given, env=env)
    effects = {name: report.tools[name]["effect"] for name in given}
    assert effects == {"create_entities": "write", "read_graph": "read", "delete_entities": "write"}
    task = RawTask(
        "1", "Remember a person called Mei, who paints boats.",
        [{"tool": "create_entities", "args": given["create_entities"][0]}],
    )  # fmt: skip
    with McpEnvServer(tmp_path / "memory") as server:
        tasks, rows = judge(server, [task])
    assert [row.outcome for row in rows] == ["changed"], rows
    assert tasks[0].changes_state


def test_mcp_sqlite(tmp_path):
    script = installed("mcp-sqlite/node_modules/mcp-sqlite/mcp-sqlite-server.js")
    state = tmp_path / "state"
    state.mkdir()
    db = sqlite3.connect(state / "shop.db")
    db.executescript(
        "CREATE TABLE product (id INTEGER PRIMARY KEY, name TEXT); INSERT INTO product VALUES (1, 'lamp')"
    )
    db.close()
    desk = {"table": "product", "data": {"name": "desk"}}
    given = {"create_record": [desk], "query": [{"sql": "SELECT name FROM product"}]}
    report = import_server(["node", script, "{state}/shop.db"], state, tmp_path / "shop", given=given)
    assert (report.tools["create_record"]["effect"], report.tools["query"]["effect"]) == ("write", "read")
    with McpEnvServer(tmp_path / "shop") as server, server.open(0) as episode:
        episode.call("create_record", desk)
        assert b"desk" in episode.snapshot().tables
        assert b"desk" not in server.bundle.state.tables


def test_mcp_server_git(tmp_path):
    command = installed("mcp-server-git/bin/mcp-server-git")
    repository = tmp_path / "state" / "repo"
    repository.mkdir(parents=True)
    who = {f"GIT_{role}_{part}": "x" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    for arguments in (["init", "-b", "main"], ["commit", "--allow-empty", "-m", "Start"]):
        subprocess.run(["git", *arguments], cwd=repository, check=True, env={**os.environ, **who})
    (repository / "notes.txt").write_text("prune in March\n")
    here = {"repo_path": "/state/repo"}
    given = {"git_add": [{**here, "files": ["notes.txt"]}], "git_status": [here], "git_log": [here]}
    given["git_create_branch"] = [{**here, "branch_name": "spring"}]
    report = import_server(
        [command, "--repository", "{state}/repo"], tmp_path / "state", tmp_path / "git", given=given
    )
    effects = {name: report.tools[name]["effect"] for name in given}
    assert effects == {
        "git_add": "write",
        "git_status": "read",
        "git_log": "read",
        "git_create_branch": "write",
    }
    with McpEnvServer(tmp_path / "git") as server:
        ids = []
        for _ in range(2):
            with server.open(0) as episode:
                episode.call("git_add", given["git_add"][0])
                episode.call("git_commit", {**here, "message": "Keep notes"})
                ids.append(episode.digest())
    assert ids[0] == ids[1]  # a commit's id holds its time, which stands still
