"""Both search APIs over a real local server that answers in their layouts."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from synth.author.web import Hit
from synth.author.websearch import WebSearch
from synth.errors import CallerError, InfrastructureError

PAGES = [{"url": f"https://lakes.example/{n}", "title": f"Lake <b>{n}</b>"} for n in range(5)]
HITS = [Hit(f"https://lakes.example/{n}", f"Lake {n}", f"about {n}") for n in range(2)]


@pytest.fixture
def api():
    """An API that is broken once and then answers; ``asked`` holds (method, query, limit, key)."""

    class Handler(BaseHTTPRequestHandler):
        asked, statuses = [], [500, 200]

        def do_GET(self):
            query = parse_qs(urlsplit(self.path).query)
            key = self.headers["x-subscription-token"]
            self.answer((query["q"][0], int(query["count"][0]), key), "description", lambda r: {"web": r})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            key = self.headers["authorization"].removeprefix("Bearer ")
            self.answer((body["query"], body["max_results"], key), "content", lambda r: r)

        def answer(self, asked, field, wrapped):
            self.asked.append(asked)
            status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
            found = [{**page, field: f"about {n}"} for n, page in enumerate(PAGES)]
            data = json.dumps(wrapped({"results": found})).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Handler.url = f"http://127.0.0.1:{server.server_address[1]}/"
    yield Handler
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("provider", ["brave", "tavily"])
def test_results_come_from_either_provider(api, provider, monkeypatch):
    monkeypatch.setenv(f"{provider.upper()}_API_KEY", "secret-1")
    waits = []
    search = WebSearch(provider, api.url, sleep=waits.append)
    assert search.search("deep lakes", 2) == HITS
    assert api.asked == [("deep lakes", 2, "secret-1")] * 2
    assert waits == [1.0]


def test_a_refused_key_is_the_callers_mistake_and_is_not_shown(api, monkeypatch):
    api.statuses[:] = [401]
    monkeypatch.setenv("BRAVE_API_KEY", "secret-1")
    with pytest.raises(CallerError, match="check BRAVE_API_KEY") as err:
        WebSearch("brave", api.url).search("x")
    assert "secret-1" not in str(err.value)
    monkeypatch.delenv("BRAVE_API_KEY")
    with pytest.raises(CallerError, match="BRAVE_API_KEY is not set"):
        WebSearch("brave", api.url).search("x")


def test_a_provider_that_stays_broken_is_an_infrastructure_error(api, monkeypatch):
    api.statuses[:] = [503]
    monkeypatch.setenv("TAVILY_API_KEY", "k")
    with pytest.raises(InfrastructureError, match="status 503"):
        WebSearch("tavily", api.url, sleep=lambda s: None).search("x")
