"""What a model adds to tool graphs, measured with and without it: ``agent-world themes graph FILE --llm``."""

import json
import os
import subprocess
import sys

import pytest
import scripted_llm as scripted

NODES = [
    {"id": "find_town", "desc": "gives a place", "parameters": [{"name": "zip", "type": "string"}]},
    {"id": "plan_trip", "desc": "plans", "parameters": [{"name": "destination", "type": "string"}]},
    {"id": "water_plants", "desc": "waters", "parameters": []},
]
GOLD = [{"source": "find_town", "target": "plan_trip"}, {"source": "plan_trip", "target": "water_plants"}]


@pytest.fixture
def files(server, tmp_path):
    settings = tmp_path / "llm.toml"
    settings.write_text(
        f'model = "scripted-8b"\napi_base = "{server.url}"\n'
        'key_env = "AGENT_WORLD_TEST_KEY"\nbackoff_s = 0.01\n'
    )
    graph = tmp_path / "taskbench_small_graph_desc.json"
    graph.write_text(json.dumps({"nodes": NODES, "links": GOLD}))
    return graph, settings


def test_each_domain_is_scored_by_schemas_by_the_model_and_by_both(server, files):
    graph, settings = files
    command = [sys.executable, "-m", "arena.cli", "themes", "graph", graph, "--llm", settings, "--json"]
    env = {**os.environ, "AGENT_WORLD_TEST_KEY": scripted.KEY}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600, env=env)
    assert done.returncode == 0, done.stderr
    rows = {row["by"]: row for row in json.loads(done.stdout.splitlines()[-1])["domains"]}
    figures = {by: (r["inferred"], r["right"], r["precision"], r["recall"]) for by, r in rows.items()}
    assert figures == {
        "schemas": (0, 0, 0.0, 0.0),
        "model": (1, 1, 1.0, 0.5),
        "both": (1, 1, 1.0, 0.5),
    }
    assert server.prompts["link_tools"] == 2, "a link from a tool that is not there was told back"
