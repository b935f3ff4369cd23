"""A result that is too large reaches the agent cut, with a note; the same way every time."""

from __future__ import annotations

import json

import pytest
from fixtures.make import extra_tool, library, with_tools

from synth.env.bundle import write_bundle
from synth.env.episode import EnvServer, Limits

LIMIT = 20_000
BODIES = {
    "rows": "[{'n': n, 'text': 'x' * 50} for n in range(5_000)]",
    "text": "'é' * 1_000_000",
    "deep": "{'a': {'b': [['y' * 500] * 500] * 500}}",
    "wide": "{str(n): n for n in range(50_000)}",
    "fits": "[1, 2, {'three': None}]",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    tools = [extra_tool(name, f"def {name}(ctx):\n    return {body}") for name, body in BODIES.items()]
    write = "def write(ctx):\n    ctx.files['done'] = b'1'\n    return ['z' * 100] * 10_000"
    path = tmp_path_factory.mktemp("large") / "library"
    write_bundle(with_tools(library(), *tools, extra_tool("write", write, read_only=False)), path)
    with EnvServer(path, limits=Limits(output_bytes=LIMIT, wall_s=30)) as server:
        yield server


@pytest.mark.parametrize("name", ["rows", "text", "deep", "wide"])
def test_what_is_too_large_is_cut_and_says_so(server, name):
    with server.open(seed=1) as one, server.open(seed=2) as other:
        result = one.call(name, {})
        assert result.ok
        shown = json.loads(result.to_json())
        assert set(shown) == {"note", "result"}
        assert shown["note"].startswith("cut: the result is too large; lists show their first ")
        assert len(json.dumps(result.value, ensure_ascii=False).encode()) <= LIMIT
        assert other.call(name, {}).to_json() == result.to_json()


def test_the_first_entries_stay_as_they_are(server):
    with server.open(seed=1) as episode:
        rows = episode.call("rows", {}).value
        assert rows == [{"n": n, "text": "x" * 50} for n in range(len(rows))]
        assert len(rows) == 100


def test_a_result_that_fits_has_no_note(server):
    with server.open(seed=1) as episode:
        result = episode.call("fits", {})
        assert (result.value, result.note) == ([1, 2, {"three": None}], None)


def test_what_a_write_did_stays_done(server):
    with server.open(seed=1) as episode:
        assert episode.call("write", {}).note is not None
        assert episode.snapshot().files == {"done": b"1"}


def test_a_solution_never_computes_with_a_cut_result(server):
    with server.open(seed=1) as episode:
        done = episode.run_solution("def solve(call):\n    return len(call('rows'))")
        assert "output_too_large" in (done.error or "")
        assert episode.call("fits", {}).ok
        assert episode.call("rows", {}).note is not None
