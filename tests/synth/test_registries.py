"""Crawls against a real HTTP server on loopback: pages, limits, retries, refusals, resume."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
import stamina

from synth.errors import CallerError, InfrastructureError
from synth.sources import files
from synth.sources.http import Client
from synth.sources.registries import crawl


class Registry(ThreadingHTTPServer):
    """Serves three layouts; ``trouble`` holds the answers given before the real ones."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []
        self.tokens: list[str | None] = []
        self.trouble: list[tuple[int, dict[str, str], bytes]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self):
        self.server.asked.append(self.path)
        self.server.tokens.append(self.headers.get("Authorization"))
        if self.server.trouble:
            code, headers, body = self.server.trouble.pop(0)
        else:
            code, headers, body = 200, {}, json.dumps(answer(self.path)).encode()
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


def answer(path: str):
    """Five servers in pages of two."""
    parts = urlsplit(path)
    query = {k: v[-1] for k, v in parse_qs(parts.query).items()}
    names = [f"acme/desk-{i}" for i in range(5)]
    if parts.path == "/v0.1/servers":
        assert query["version"] == "latest"
        start = int(query.get("cursor", 0))
        page = [{"server": {"name": n, "description": "d", "version": "1"}} for n in names[start : start + 2]]
        return {"servers": page, "metadata": {"nextCursor": str(start + 2) if start + 2 < 5 else ""}}
    if parts.path == "/servers":
        now = int(query["page"])
        page = [{"qualifiedName": n, "displayName": n} for n in names[2 * now - 2 : 2 * now]]
        return {"servers": page, "pagination": {"currentPage": now, "totalPages": 3}}
    if parts.path.startswith("/servers/"):
        return {
            "qualifiedName": parts.path[9:],
            "description": "d",
            "tools": [{"name": "book"}, {"name": "cancel"}],
        }
    if parts.path == "/-/v1/search":
        start = int(query["from"])
        return {
            "objects": [{"package": {"name": n, "license": "MIT"}} for n in names[start : start + 2]],
            "total": 5,
        }
    return {"info": {"name": parts.path.split("/")[2], "summary": "d", "license": "MIT"}, "urls": []}


@pytest.fixture
def server():
    with Registry() as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def no_long_waits():
    with stamina.set_testing(True, attempts=3):  # three attempts, no waiting between them
        yield


def quick(**other) -> Client:
    return Client(rate=1e6, **other)


def keys(path) -> list[str]:
    return [f.key for f in files.read_file(path)[0]]


@pytest.mark.parametrize("name", ["official", "smithery", "npm"])
def test_all_pages_are_fetched_and_read_back(server, tmp_path, name):
    out = tmp_path / "r.jsonl"
    assert crawl(name, out, base=server.url, client=quick()) == 5
    assert keys(out) == [f"{name}/acme/desk-{i}" for i in range(5)]


def test_smitherys_details_bring_the_tools_and_its_key_travels_in_a_header_only(
    server, tmp_path, monkeypatch
):
    monkeypatch.setenv("SMITHERY_API_KEY", "sesame")
    out = tmp_path / "r.jsonl"
    crawl("smithery", out, base=server.url, most=2)
    found, _ = files.read_file(out)
    assert [len(f.tools) for f in found] == [2, 2]
    assert set(server.tokens) == {"Bearer sesame"}
    assert not any("sesame" in p.read_text("utf-8") for p in tmp_path.rglob("*") if p.is_file())


def test_pypi_takes_names(server, tmp_path):
    out = tmp_path / "r.jsonl"
    assert crawl("pypi", out, base=server.url, names=["a-mcp", "b-mcp"], client=quick()) == 2
    assert keys(out) == ["pypi/a-mcp", "pypi/b-mcp"]
    with pytest.raises(CallerError, match="name the projects with --name"):
        crawl("pypi", out, base=server.url, client=quick())


def test_busy_and_failing_servers_are_asked_again(server, tmp_path):
    server.trouble = [(429, {"Retry-After": "0"}, b""), (503, {}, b"")]
    assert crawl("official", tmp_path / "r.jsonl", base=server.url, client=quick()) == 5
    assert len(server.asked) == 3 + 2


def test_a_server_that_stays_busy_is_left_alone(server, tmp_path):
    server.trouble = [(503, {}, b"")] * 9
    with pytest.raises(InfrastructureError, match="still answers 503"):
        crawl("official", tmp_path / "r.jsonl", base=server.url, client=quick())
    assert len(server.asked) == 3


def test_a_long_retry_after_is_not_sat_out(server, tmp_path):
    server.trouble = [(429, {"Retry-After": "86400"}, b"")]
    with pytest.raises(InfrastructureError, match="still answers 429"):
        crawl("official", tmp_path / "r.jsonl", base=server.url, client=quick())
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("code", "body", "line"),
    [
        (401, b"", "refused with 401; set its key"),
        (404, b"", "refused with 404"),
        (200, b"<html>", "no JSON"),
    ],
)
def test_refusals_are_not_repeated(server, tmp_path, code, body, line):
    server.trouble = [(code, {}, body)]
    with pytest.raises(CallerError, match=line):
        crawl("official", tmp_path / "r.jsonl", base=server.url, client=quick())
    assert len(server.asked) == 1


def test_another_api_behind_the_address_is_named(server, tmp_path):
    server.trouble = [(200, {}, b'{"message": "hi"}')]
    with pytest.raises(CallerError, match="field servers: no list"):
        crawl("official", tmp_path / "r.jsonl", base=server.url, client=quick())


@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_broken_crawl_goes_on_and_asks_for_no_page_twice(server, tmp_path, done):
    out = tmp_path / "r.jsonl"
    client = quick()
    working, left = client.get, [done]

    def breaks(address):
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return working(address)

    client.get = breaks
    with pytest.raises(KeyboardInterrupt):
        crawl("official", out, base=server.url, client=client)
    assert not out.exists()
    assert crawl("official", out, base=server.url, client=quick()) == 5
    assert len(server.asked) == len(set(server.asked)) == 3


def test_a_damaged_page_is_asked_for_again_and_foreign_pages_are_refused(server, tmp_path):
    out = tmp_path / "r.jsonl"
    crawl("official", out, base=server.url, client=quick())
    (tmp_path / "r.jsonl.pages" / "00001.json").write_text("{half")
    assert crawl("official", out, base=server.url, client=quick()) == 5
    assert len(server.asked) == 4
    with pytest.raises(CallerError, match="is a page of"):
        crawl("official", out, base="http://127.0.0.1:1", client=quick())


def test_requests_keep_their_distance(server):
    waits: list[float] = []
    client = Client(rate=0.5, wait=waits.append)
    for _ in range(3):
        client.get(f"{server.url}/v0.1/servers?version=latest")
    assert len(waits) == 2
    assert all(1.0 < pause <= 2.0 for pause in waits)


def test_unknown_registries_and_missing_addresses(tmp_path):
    with pytest.raises(CallerError, match="choose from official, smithery, npm, pypi"):
        crawl("glama", tmp_path / "r.jsonl")
    with pytest.raises(CallerError, match="npm: name the address of its API with --url"):
        crawl("npm", tmp_path / "r.jsonl")


def test_an_unreachable_server_is_the_infrastructures_fault(tmp_path):
    with pytest.raises(InfrastructureError, match="unreachable"):
        crawl("official", tmp_path / "r.jsonl", base="http://127.0.0.1:1", client=quick())
