"""``agent-world serve --grpc``: JetStream's own client stub, orchestrator and proto over our engine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from serving.conftest import BASE

pytest.importorskip("jetstream", reason="needs the extra jetstream (google-jetstream, TensorFlow)")

import grpc
from jetstream.core.proto import jetstream_pb2, jetstream_pb2_grpc

from model.engine import Engine
from model.sampling import Sampling
from model.serving.jetstream_grpc import orchestrated
from model.serving.run import open_engine
from model.slots import Slots


@pytest.fixture(scope="module")
def engine():
    made = open_engine(BASE, slots=4, max_len=256)
    return Engine(
        made.config, made.params, slots=4, max_len=256, eos_id=made.eos_id, tokenizer=made.tokenizer,
        sampling=Sampling(0.0),
    )  # fmt: skip


def greedy(engine, ids, count):
    """What the engine says by itself."""
    slots = Slots(engine)
    slots.insert(slots.prefill(ids), 0)
    (made,) = slots.generate([0], [0], temperature=0.0, max_new=count)
    return made.tokens


async def talk(engine, contents, max_tokens):
    """All requests at once through the stub; (token ids, text) of each, and health."""
    async with (
        orchestrated(engine, "127.0.0.1:0") as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        stub = jetstream_pb2_grpc.OrchestratorStub(channel)
        health = await stub.HealthCheck(jetstream_pb2.HealthCheckRequest())

        async def decode(content):
            ids, text = [], ""
            async for part in stub.Decode(jetstream_pb2.DecodeRequest(max_tokens=max_tokens, **content)):
                for sample in part.stream_content.samples:
                    ids += sample.token_ids
                    text += sample.text
            return ids, text

        return await asyncio.gather(*map(decode, contents)), health


def test_the_stub_gets_what_the_engine_says(engine):
    texts = ["one two three", "How high is Lombok airport?", "a", "the end", "one more", "six"]
    Content = jetstream_pb2.DecodeRequest
    prompts = [engine.tokenizer.encode(text) for text in texts]
    contents = [{"token_content": Content.TokenContent(token_ids=ids)} for ids in prompts]
    contents.append({"text_content": Content.TextContent(text=texts[0])})
    answers, health = asyncio.run(talk(engine, contents, 24))
    assert health.is_live
    for ids, (tokens, _) in zip(prompts, answers, strict=False):
        wanted = greedy(engine, ids, 24)
        shown = wanted[: wanted.index(engine.eos_id)] if engine.eos_id in wanted else wanted
        said = [t for t in tokens if t != engine.eos_id]
        assert said == shown
    assert answers[-1][1]  # text for text


@pytest.mark.timeout(900)
def test_the_command_serves_until_it_is_told_to_end():
    """``agent-world serve --grpc`` as a process: it says where, the stub gets an answer, SIGTERM ends it."""
    words = "serve --grpc --port 0 --slots 2 --max-len 256"
    command = [sys.executable, "-m", "arena.cli", *words.split()]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    try:
        assert line.startswith("gRPC at 127.0.0.1:")
        with grpc.insecure_channel(line.split()[-1]) as channel:
            stub = jetstream_pb2_grpc.OrchestratorStub(channel)
            text = jetstream_pb2.DecodeRequest.TextContent(text="How high is Lombok airport?")
            parts = list(stub.Decode(jetstream_pb2.DecodeRequest(text_content=text, max_tokens=8)))
        assert sum(len(sample.token_ids) for part in parts for sample in part.stream_content.samples) > 0
    finally:
        process.send_signal(signal.SIGTERM)
        errors = process.communicate()[1]
    assert process.returncode == 0, errors[-2000:]
