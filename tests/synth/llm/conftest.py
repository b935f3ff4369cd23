"""The scripted endpoint as a fixture, and its key in the environment."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import scripted_llm


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("AGENT_WORLD_TEST_KEY", scripted_llm.KEY)


@pytest.fixture
def server():
    with scripted_llm.Scripted() as running:
        yield running


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """All stages, run once (:mod:`lake_stages`)."""
    from lake_stages import Run

    patch = pytest.MonkeyPatch()
    patch.setenv("AGENT_WORLD_TEST_KEY", scripted_llm.KEY)
    with scripted_llm.Scripted() as server:
        yield Run(tmp_path_factory.mktemp("run"), server)
    patch.undo()
