"""The shipped base policy behind a real server, on a real port, once for this folder."""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # litellm downloads nothing

import httpx
import openai
import pytest
from fixtures.compiled import compile_once  # noqa: F401

import model
from model.serving.run import listen, make_server, open_engine, open_policy

BASE = Path(model.__file__).parent / "base"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_airport",
            "description": "One airport by name.",
            "parameters": {
                "type": "object",
                "properties": {"name": {"type": "string"}},
                "required": ["name"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "list_countries",
            "description": "All countries.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
]


@contextmanager
def running(served, **how):
    """A server in a thread; gives its root URL."""
    socket = listen(port=0)
    server = make_server(served, **how)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]}, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


def until(condition, seconds=60):
    """Wait for something that must come to pass."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


@pytest.fixture(scope="session")
def served():
    return open_policy(BASE, open_engine(BASE, slots=8), waiting=64)


@pytest.fixture(scope="session")
def url(served):
    with running(served) as url:
        yield url


@pytest.fixture(scope="session")
def client(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=240)


@pytest.fixture
def post(url):
    return lambda path, body, **more: httpx.post(f"{url}/v1/{path}", json=body, timeout=240, **more)
