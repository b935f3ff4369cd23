"""A FastAPI application as the tools of an environment; used by :mod:`synth.env.host`, inside the sandbox.

No port is opened and no server runs: a call becomes one ASGI request to the application, in this process.
The database of SQLAlchemy is the one in ``/state``, whatever the source says. Needs FastAPI and SQLAlchemy in
the interpreter that runs it; beside them the standard library only.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from sqlite_clock import hold_clock  # type: ignore[import-not-found]  # beside this file, in the sandbox


class Refusal(Exception):
    """The application answered with an error status."""

    def __init__(self, status: int, detail: Any) -> None:
        super().__init__(f"{status}: {detail if isinstance(detail, str) else json.dumps(detail)}")


def _import_old_pydantic() -> None:
    """FastAPI asks for ``pydantic.v1``, whose dates can't derive from the class that holds the clock."""
    held = datetime.date
    original = held.__mro__[1] if held.__mro__[1] is not object else held
    datetime.date = original
    try:
        import_module("pydantic.v1")
    except Exception:  # another version, which does without
        return
    finally:
        datetime.date = held


class Application:
    """Tools that are endpoints: ``spec["tools"]`` say method, path, and where each argument goes."""

    def __init__(self, spec: dict[str, Any], state: Path, load: Any) -> None:
        sqlalchemy, fastapi = import_module("sqlalchemy"), import_module("fastapi")
        _import_old_pydantic()
        real, url = sqlalchemy.create_engine, f"sqlite:///{state / spec['database']}"

        def engine(*_: Any, **__: Any) -> Any:
            made = real(url, connect_args={"check_same_thread": False})
            clock = os.environ["AGENT_WORLD_CLOCK"]
            import_module("sqlalchemy.event").listen(made, "connect", lambda db, _: hold_clock(db, clock))
            return made

        setattr(sqlalchemy, "create_engine", engine)  # noqa: B010
        module = load(spec["file"], "application")
        self.app = next(v for v in vars(module).values() if isinstance(v, fastapi.FastAPI))
        self.tools = {tool["name"]: tool for tool in spec["tools"]}

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """One request; the JSON body of the answer.

        Raises:
            Refusal: the status is 400 or above.
        """
        tool = self.tools[name]
        given: dict[str, dict[str, Any]] = {"path": {}, "query": {}, "body": {}}
        for key, value in arguments.items():
            given[tool["where"][key]][key] = value
        path = tool["path"]
        for key, value in given["path"].items():
            path = path.replace("{" + key + "}", quote(str(value), safe=""))
        query = {k: json.dumps(v) if isinstance(v, bool) else v for k, v in given["query"].items()}
        body = b""
        if "body" in tool["where"].values():
            body = json.dumps(given["body"]).encode()
        status, content = asyncio.run(self._request(tool["method"], path, urlencode(query, doseq=True), body))
        text = content.decode("utf-8", "replace")
        try:
            value = json.loads(text) if text else None
        except ValueError:
            value = text
        if status >= 400:
            raise Refusal(status, value.get("detail", value) if isinstance(value, dict) else value)
        return value

    async def _request(self, method: str, path: str, query: str, body: bytes) -> tuple[int, bytes]:
        headers = [(b"host", b"localhost"), (b"content-length", str(len(body)).encode())]
        if body:
            headers.append((b"content-type", b"application/json"))
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http",
            "method": method, "path": path, "raw_path": path.encode(), "root_path": "",
            "query_string": query.encode(),
            "headers": headers, "client": ("localhost", 1), "server": ("localhost", 80),
        }  # fmt: skip
        status, parts = 500, []

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))

        await self.app(scope, receive, send)
        return status, b"".join(parts)

    def after(self) -> None:
        """Nothing: the application has written its database itself."""
