"""``agent-world serve``: a policy behind OpenAI's HTTP API, or JetStream's gRPC service."""

from __future__ import annotations

import os
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import typer

KEY = "AGENT_WORLD_API_KEY"


class Dtype(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"


def serve(
    policy: Annotated[
        Path | None,
        typer.Argument(metavar="CKPT", help="A policy folder; without it the shipped base policy."),
    ] = None,
    host: Annotated[str, typer.Option(help="Other than local: everybody there can call.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8000,
    name: Annotated[str | None, typer.Option(help="Of the model; by default the folder's.")] = None,
    slots: Annotated[int, typer.Option(min=1, help="Sequences that decode at a time.")] = 32,
    max_len: Annotated[
        int | None, typer.Option(min=2, help="Tokens of prompt and answer; by default the policy's own.")
    ] = None,
    waiting: Annotated[
        int, typer.Option(min=0, help="Requests that may wait for a slot; further ones get a 429.")
    ] = 256,
    adapter: Annotated[
        Path | None, typer.Option(help="A LoRA adapter's folder, merged into the weights.")
    ] = None,
    mesh: Annotated[
        str | None, typer.Option(help="Cut the weights over devices of this machine: tensor=4.")
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Of weights and products.")] = Dtype.float32,
    batch_invariant: Annotated[
        bool,
        typer.Option("--batch-invariant", help="Same bits in any batch, by sums in float64; for CPUs."),
    ] = False,
    compile_cache: Annotated[
        Path | None, typer.Option(help="A folder for compiled programs: the next start is quicker.")
    ] = None,
    grpc: Annotated[
        bool, typer.Option("--grpc", help="Serve JetStream's gRPC service instead (extra: jetstream).")
    ] = False,
) -> int:
    """Serve a policy.

    HTTP as OpenAI's clients speak it: /v1/models, /v1/chat/completions with tools and streaming,
    /v1/completions with token ids, /health, and /metrics for Prometheus. If the environment variable
    AGENT_WORLD_API_KEY is set, clients of /v1 must send it as their key. Ends at Ctrl-C.

    \b
    Examples:
      agent-world serve
      agent-world serve RUN/train/grpo/policy --port 8001 --name mine
      AGENT_WORLD_API_KEY=... agent-world serve POLICY --host 0.0.0.0
      agent-world serve POLICY --grpc --port 9000
      agent-world serve POLICY --mesh tensor=4 --dtype bfloat16
    """
    from arena.measure import BASE
    from beam_jobs.mirror import fetched
    from rl.place import local_mesh
    from synth.errors import CallerError

    try:
        from model.serving.run import listen, open_engine, open_policy, serve_http
    except ImportError as err:
        raise CallerError(f"serve: {err.name} is missing; pip install 'agent-world[serve]'") from None
    if compile_cache is not None:
        from model.compile_cache import use_compile_cache

        use_compile_cache(compile_cache)
    key = os.environ.get(KEY) or None
    with fetched(policy or BASE) as folder:
        try:
            how = {"dtype": dtype.value, "compute_dtype": dtype.value, "adapter": adapter}
            how["batch_invariant"] = batch_invariant
            cut = None if mesh is None else local_mesh(mesh)
            engine = open_engine(folder, slots=slots, max_len=max_len, mesh=cut, **how)
            socket = None if grpc else listen(host, port)
        except (OSError, ValueError) as err:
            raise CallerError(f"serve {folder}: {err}") from None
        served = None if grpc else open_policy(folder, engine, name=name, waiting=waiting)
    if not _local(host) and (grpc or key is None):
        typer.echo(f"warning: everybody who reaches {host} can use this server; there is no key", err=True)
    if socket is None or served is None:
        return _serve_grpc(engine, host, port)
    address = f"http://{host}:{socket.getsockname()[1]}/v1"
    typer.echo(f"{served.name}: {address}, {slots} slots of {served.max_len} tokens")
    serve_http(served, socket, api_key=key)
    return 0


def _serve_grpc(engine: object, host: str, port: int) -> int:
    from synth.errors import CallerError

    try:
        from model.serving.jetstream_grpc import serve_grpc
    except ImportError as err:
        raise CallerError(
            f"serve --grpc: {err.name} is missing; pip install 'agent-world[jetstream]'"
        ) from None
    try:
        serve_grpc(engine, f"{host}:{port}", lambda bound: typer.echo(f"gRPC at {host}:{bound}"))
    except OSError as err:
        raise CallerError(f"serve --grpc: {err}") from None
    return 0


def _local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
