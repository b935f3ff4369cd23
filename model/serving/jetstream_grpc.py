"""``agent-world serve --grpc``: JetStream's own orchestrator and service over our engine.

In: an engine with its tokenizer. Out: the service ``jetstream_proto.Orchestrator`` (Decode, HealthCheck) of
google-jetstream 0.2.2, on an address that is given: JetStream's own server listens everywhere. Text comes
without a chat template and is continued at temperature 1; the protocol has neither seed nor temperature.
Needs the extra ``jetstream``.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc

from model.engine import Engine
from model.jetstream import logging_as_it_was, register

with logging_as_it_was():
    from jetstream.core import orchestrator  # pyright: ignore[reportMissingImports]
    from jetstream.core.proto import jetstream_pb2_grpc  # pyright: ignore[reportMissingImports]


@asynccontextmanager
async def orchestrated(engine: Engine, address: str) -> AsyncIterator[int]:
    """Serve inside the block; gives the port, which is a free one when the address says 0.

    Raises:
        OSError: the address can't be bound.
    """
    register()
    driver = orchestrator.Driver(
        prefill_engines=[engine],
        generate_engines=[engine],
        prefill_params=[engine.load_params()],
        generate_params=[engine.load_params()],
        interleaved_mode=True,
        jax_padding=False,
    )
    server = grpc.aio.server()
    try:
        jetstream_pb2_grpc.add_OrchestratorServicer_to_server(
            orchestrator.LLMOrchestrator(driver=driver), server
        )
        try:
            port = server.add_insecure_port(address)
        except RuntimeError as err:
            raise OSError(str(err)) from None
        await server.start()
        yield port
    finally:
        await server.stop(grace=5)
        await asyncio.to_thread(driver.stop)


def serve_grpc(engine: Any, address: str, ready: Callable[[int], None]) -> None:
    """Serve until SIGINT or SIGTERM; ``ready`` is called with the port."""

    async def run() -> None:
        told = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(NotImplementedError):
                asyncio.get_running_loop().add_signal_handler(number, told.set)
        async with orchestrated(engine, address) as port:
            ready(port)
            await told.wait()

    asyncio.run(run())
