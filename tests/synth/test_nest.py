"""One sandbox that stays open for many environments: each has a process of its own in it."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

import pytest
from fixtures.make import extra_tool, library, with_tools, write_library, write_parking
from fixtures.processes import descendants, living

from synth.env import sandbox
from synth.env.bundle import write_bundle
from synth.env.episode import EnvServer, VerifierServer
from synth.env.sandbox import Limits
from synth.env.serving import open_environment
from synth.env.zygote import Nest, Zygote
from synth.errors import InfrastructureError

REMEMBER = """
import builtins

def remember(ctx, *, word):
    before = getattr(builtins, "kept", None)
    builtins.kept = word
    return before
"""

LOOK = """
import builtins

def verify(initial, final, answer):
    return [("nothing kept", not hasattr(builtins, "kept"), "")]
"""


@pytest.fixture(scope="module", params=["bwrap", "landlock"])
def provider(request):
    reason = sandbox._why_not(request.param)
    if reason is not None:
        pytest.skip(f"{request.param}: {reason}")
    return sandbox.provider(request.param)


@pytest.fixture
def nest(provider):
    with Nest(provider) as nest:
        yield nest


def processes_of(nest: Nest) -> set[int]:
    """The nest's process and all below it."""
    assert nest._zygote._process is not None
    return {nest._zygote._process.pid} | descendants(nest._zygote._process.pid)


def played(server) -> list:
    with server.open(seed=5) as episode:
        calls = [episode.call("search_books", {"genre": "travel"}), episode.call("no_such_tool", {})]
        return [*(replace(call, seconds=0.0) for call in calls), episode.digest()]


def test_an_environment_is_the_same_in_a_nest(provider, nest, tmp_path):
    bundle = write_library(tmp_path)
    with EnvServer(bundle, provider=provider) as alone, open_environment(bundle, provider=nest) as server:
        assert played(server) == played(alone)


def test_environments_and_verifiers_share_no_process(nest, tmp_path):
    path = tmp_path / "remembers"
    write_bundle(with_tools(library(), extra_tool("remember", REMEMBER, {"word": {}})), path)
    with EnvServer(path, provider=nest) as one, EnvServer(path, provider=nest) as other:
        for server in (one, other, one):
            with server.open(seed=1) as episode:
                assert episode.call("remember", {"word": "x"}).value is None
                assert episode.call("remember", {"word": "y"}).value == "x"
        state = one.bundle.state
        with VerifierServer(nest) as judge:
            verdict = judge.run(LOOK, state, state, "x", one.bundle.manifest.tables)
            assert verdict.passed, verdict


def test_what_is_forked_in_a_nest_is_as_locked_as_what_is_started(nest):
    with Zygote(nest, Limits(), "probe") as zygote:
        zygote.probe()


def test_one_environment_ends_and_the_others_stay(nest, tmp_path):
    library, parking = write_library(tmp_path), write_parking(tmp_path)
    with EnvServer(library, provider=nest) as first:
        with EnvServer(parking, provider=nest) as second:
            assert second.alive
        assert first.alive
        assert played(first)


def test_a_nest_that_is_gone_says_so(provider, tmp_path):
    bundle = write_library(tmp_path)
    nest = Nest(provider)
    with EnvServer(bundle, provider=nest) as server:
        for pid in processes_of(nest):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(InfrastructureError, match=r"gone|did not start"):
            EnvServer(bundle, provider=nest)
    nest.close()
    assert not server.alive


def test_nothing_is_left_when_a_nest_closes(provider, tmp_path):
    bundle = write_library(tmp_path)
    with Nest(provider) as nest, EnvServer(bundle, provider=nest) as server, server.open(seed=1):
        there = processes_of(nest)
        assert len(there) >= 3
    deadline = time.monotonic() + 30
    while there & living().keys() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not there & living().keys()
