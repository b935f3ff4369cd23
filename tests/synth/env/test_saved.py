"""A moment of an episode can be saved, gone back to, gone over to, and read as a difference."""

from __future__ import annotations

import pytest
from fixtures.make import extra_tool, library, with_tools

from synth.env import sandbox
from synth.env.bundle import write_bundle
from synth.env.episode import EnvServer, Limits
from synth.env.sandbox import UnsafeLocal
from synth.errors import InfrastructureError

NOTE = """
SEEN = []


def note(ctx, *, text):
    SEEN.append(text)
    ctx.files["notes.md"] = ctx.files.get("notes.md", b"") + text.encode()
    ctx.db.execute("UPDATE book SET copies = copies - 1 WHERE book_id = 'B-1'")
    return [ctx.now(), ctx.new_id("N"), ctx.rng.random(), len(SEEN)]
"""


@pytest.fixture(scope="module", params=["bwrap", "landlock", "gvisor", "unsafe-local"])
def server(request, tmp_path_factory):
    if request.param != "unsafe-local" and (why := sandbox._why_not(request.param)):
        pytest.skip(f"{request.param}: {why}")
    path = tmp_path_factory.mktemp("saved") / "library"
    tool = extra_tool("note", NOTE, {"text": {"type": "string"}}, read_only=False)
    write_bundle(with_tools(library(), tool), path)
    kind = UnsafeLocal() if request.param == "unsafe-local" else sandbox.provider(request.param)
    with EnvServer(path, provider=kind, limits=Limits(wall_s=30)) as server:
        yield server


def steps(episode, words):
    return [episode.call("note", {"text": word}).value for word in words]


def test_going_back_gives_what_came_after_once_more(server):
    with server.open(seed=5) as episode:
        steps(episode, ["a", "b"])
        saved, digest = episode.save(), episode.digest()
        first, later = steps(episode, ["c", "d"]), episode.digest()
        assert later != digest
        episode.restore(saved)
        assert episode.digest() == digest
        again = steps(episode, ["c", "d"])
        assert [row[:3] for row in again] == [row[:3] for row in first]  # clock, ids and randomness go on
        assert [row[3] for row in again] == [1, 2]  # what tools kept for themselves is gone
        assert episode.digest() == later


def test_another_episode_can_go_on_from_there(server):
    with server.open(seed=5) as one, server.open(seed=5) as other:
        steps(one, ["a"])
        saved = one.save()
        other.restore(saved)
        assert [row[:3] for row in steps(one, ["b"])] == [row[:3] for row in steps(other, ["b"])]
        assert one.digest() == other.digest()


def test_a_restored_database_is_guarded_as_before(server):
    with server.open(seed=5) as episode:
        episode.restore(episode.save())
        assert episode.call("lend_book", {"book_id": "B-77", "member_id": "M-1"}).error_code == "not_found"
        refused = episode.call("lend_book", {"book_id": "B-1", "member_id": "M-77"})
        assert not refused.ok
        assert episode.changes() == ""


def test_changes_are_readable(server):
    with server.open(seed=5) as episode:
        assert episode.changes() == ""
        steps(episode, ["hello"])
        middle = episode.snapshot()
        assert episode.call("lend_book", {"book_id": "B-2", "member_id": "M-1"}).ok
        lines = episode.changes().splitlines()
        assert "+ file notes.md" in lines
        assert any(line.startswith("book B-1: copies ") and " -> " in line for line in lines)
        assert any(line.startswith("+ loan LN-9002: ") and '"B-2"' in line for line in lines)
        assert "B-1" not in episode.changes(middle)


def test_a_state_that_is_no_database_ends_the_episode(server):
    with server.open(seed=5) as episode:
        saved = episode.save()
        broken = type(saved)(type(saved.state)(b"nonsense"), 0, 0)
        with pytest.raises(InfrastructureError, match="died"):
            episode.restore(broken)
    assert server.alive
