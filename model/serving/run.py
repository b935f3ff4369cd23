"""From a policy folder to a running server.

In: a policy folder (:mod:`model.hf`). Out: an HTTP server that runs until it is told to stop; a
second signal doesn't wait for answers under way.
"""

from __future__ import annotations

import logging
import socket
import time
from pathlib import Path
from typing import Any

import uvicorn

from model.driver import Driver
from model.engine import Engine
from model.hf import load_policy
from model.serving.app import make_app
from model.serving.served import Served

GRACE_S = 10  # for answers under way when the server is told to stop; ours


def open_engine(folder: str | Path, *, slots: int = 32, max_len: int | None = None, **how: Any) -> Engine:
    """Load a policy into an engine that knows its tokenizer.

    Args:
        slots: sequences at a time.
        max_len: tokens of a prompt and its continuation; by default the policy's own.
        how: as :func:`model.hf.load_policy` takes it (``dtype``, ``mesh``, ``adapter``, ...).

    Raises:
        FileNotFoundError, ValueError: as :func:`model.hf.load_policy`, or max_len is too large.
    """
    config, params, tokenizer = load_policy(folder, **how)
    length = max_len or config.max_len
    if length > config.max_len:
        raise ValueError(f"max_len: the policy was made for {config.max_len} tokens, not {length}")
    return Engine(config, params, slots=slots, max_len=length, eos_id=tokenizer.eos_id, tokenizer=tokenizer)


def open_policy(
    folder: str | Path, engine: Engine | None = None, *, name: str | None = None, waiting: int = 256
) -> Served:
    """Start decoding.

    Args:
        engine: of the policy in ``folder``; by default one with its usual sizes.
        name: under which clients ask for it; by default the folder's.
        waiting: requests that may wait for a slot before others are refused.
    """
    engine = engine or open_engine(folder)
    return Served(
        name=name or Path(folder).resolve().name,
        tokenizer=engine.tokenizer,
        driver=Driver(engine, max_waiting=waiting),
        max_len=engine.max_len,
        in_flight=engine.slots + waiting,
        created=int(time.time()),
    )


def listen(host: str = "127.0.0.1", port: int = 8000) -> socket.socket:
    """A socket that takes connections from now on; port 0 takes any free one. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=1024)


def make_server(served: Served, *, api_key: str | None = None) -> uvicorn.Server:
    """The HTTP server; ``run(sockets=[...])`` it. It ends ``served`` with itself."""
    config = uvicorn.Config(
        make_app(served, api_key=api_key),
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )
    return uvicorn.Server(config)


def serve_http(served: Served, on: socket.socket, *, api_key: str | None = None) -> None:
    """Serve until SIGINT or SIGTERM."""
    make_server(served, api_key=api_key).run(sockets=[on])
