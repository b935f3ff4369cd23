"""The HTTP application: routes, the key, limits, errors in OpenAI's shape, metrics.

A Starlette application around one :class:`model.serving.served.Served`; :mod:`model.serving.run`
serves it with uvicorn. Browsers of other pages can't use it: there are no CORS headers, and a body
must say that it is JSON, which a page can't do without asking first.
"""

from __future__ import annotations

import dataclasses
import hmac
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from model.serving.endpoints import ChatAnswer, CompletionAnswer, _Answer
from model.serving.errors import ApiError, bad, from_validation
from model.serving.metrics import Metrics
from model.serving.schema import ChatRequest, CompletionRequest
from model.serving.served import Served

MAX_BODY = 8 * 2**20  # bytes of a request; ours: many times the longest context that is served

R = TypeVar("R", ChatRequest, CompletionRequest)


def make_app(served: Served, *, api_key: str | None = None, max_body: int = MAX_BODY) -> Starlette:
    """The application. It closes ``served`` when it ends.

    Args:
        api_key: clients of ``/v1`` must send it as a bearer token; None: everybody may call.
        max_body: bytes of a request.
    """
    metrics = Metrics(served.driver.stats)

    async def read(request: Request, kind: type[R]) -> R:
        found = kind_of(await _json(request, max_body), kind)
        if found.model != served.name:
            raise ApiError(
                404, f"The model {found.model!r} does not exist; this server has {served.name!r}.",
                param="model", code="model_not_found",
            )  # fmt: skip
        return found

    async def chat(request: Request) -> _Answer:
        return ChatAnswer.make(served, metrics, await read(request, ChatRequest))

    async def complete(request: Request) -> _Answer:
        return CompletionAnswer.make(served, metrics, await read(request, CompletionRequest))

    card = {"id": served.name, "object": "model", "created": served.created, "owned_by": "agent-world"}
    card["max_model_len"] = served.max_len

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [card]})

    async def model(request: Request) -> Response:
        if request.path_params["name"] != served.name:
            raise ApiError(404, "there is no such model", param="model", code="model_not_found")
        return JSONResponse(card)

    async def health(_: Request) -> Response:
        fault = served.fault()
        body = {"status": "ok" if fault is None else fault, **dataclasses.asdict(served.driver.stats())}
        return JSONResponse(body, 200 if fault is None else 503)

    async def numbers(_: Request) -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            served.close()

    routes = [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", complete, methods=["POST"]),
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model),
        Route("/health", health),
        Route("/metrics", numbers),
    ]
    return Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(_Measured, metrics=metrics), Middleware(_Keyed, key=api_key)],
        exception_handlers={ApiError: _api_error, HTTPException: _http_error, ClientDisconnect: _left},
    )


def kind_of(body: Any, kind: type[R]) -> R:
    """A checked request; raises ApiError that names the field."""
    try:
        return kind.model_validate(body)
    except ValidationError as err:
        raise from_validation(err) from None


async def _json(request: Request, limit: int) -> Any:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "the body must be application/json, and say so in Content-Type")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise ApiError(413, f"the body is longer than {limit} bytes")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as err:
        raise bad(f"the body is no JSON: {err}") from None


def _api_error(_: Request, err: Exception) -> Response:
    assert isinstance(err, ApiError)
    return JSONResponse(err.body(), err.status, err.headers)


def _http_error(request: Request, err: Exception) -> Response:
    assert isinstance(err, HTTPException)
    error = ApiError(err.status_code, f"{request.method} {request.url.path}: {err.detail}")
    return JSONResponse(error.body(), err.status_code, err.headers)


def _left(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it; nginx's number for it, for the metrics


class _Keyed:
    """Asks for the key on ``/v1``; it is compared in constant time and never repeated."""

    def __init__(self, app: ASGIApp, key: str | None):
        self._app, self._key = app, None if key is None else f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._key is not None and scope["path"].startswith("/v1"):
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._key):
                error = ApiError(401, "a valid API key is needed", code="invalid_api_key")
                headers = {"WWW-Authenticate": "Bearer"}
                await JSONResponse(error.body(), 401, headers)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class _Measured:
    """Counts requests by path and status, and their time to the last byte."""

    def __init__(self, app: ASGIApp, metrics: Metrics):
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        begun, status = time.perf_counter(), "cancelled"
        path = scope["path"]
        known = path in ("/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/metrics")

        async def noting(event: Message) -> None:
            nonlocal status
            if event["type"] == "http.response.start":
                status = str(event["status"])
            await send(event)

        try:
            await self._app(scope, receive, noting)
        finally:
            label = path if known else "other"
            self._metrics.requests.labels(label, status).inc()
            self._metrics.seconds.labels(label).observe(time.perf_counter() - begun)
