"""The miner's browser: polite, bounded, and shut off from private addresses. Over a real local server."""

import socket
import sys
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.author.browser import HttpBrowser
from synth.author.store import Store
from synth.author.web import Hit, NotFound, Recorded

PAGES = {
    "/robots.txt": (200, "text/plain", "User-agent: *\nDisallow: /private/\n"),
    "/lakes": (200, "text/html; charset=utf-8", "<html><body><h1>Vänern</h1><p>106 m</p></body></html>"),
    "/latin": (200, "text/plain; charset=latin-1", "Vänern".encode("latin-1")),
    "/data.csv": (200, "text/csv", "a,b\n1,2\n"),
    "/private/x": (200, "text/plain", "no"),
    "/photo": (200, "image/png", b"\x89PNG"),
    "/big": (200, "text/plain", "x" * 5000),
    "/moved": (302, "/lakes", ""),
    "/loop": (302, "/loop", ""),
    "/inside": (302, "http://192.168.0.1/admin", ""),
    "/to-private": (302, "/private/x", ""),
}


class Site:
    def __init__(self, pages):
        self.asked = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                site.asked.append((self.path, self.headers["host"], self.headers["user-agent"]))
                status, kind, body = pages.get(self.path, (404, "text/plain", ""))
                data = body if isinstance(body, bytes) else body.encode()
                self.send_response(status)
                self.send_header("location" if status == 302 else "content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def url(self, path, host="127.0.0.1"):
        return f"http://{host}:{self.port}{path}"


@pytest.fixture
def site():
    made = []

    def make(pages=PAGES):
        made.append(Site(pages))
        return made[-1]

    yield make
    for one in made:
        one.http.shutdown()
        one.http.server_close()


def browser(site, **more):
    """A browser that may reach the test's own server, and nothing else that is private."""
    fields = {"allow": lambda address: address == "127.0.0.1", "ports": (80, 443, site.port), "pause": 0.0}
    return HttpBrowser(**{**fields, "now": lambda: datetime(2026, 11, 30, tzinfo=UTC), **more})


def test_a_page_comes_with_its_facts(site):
    s = site()
    page = browser(s).fetch(s.url("/lakes"))
    assert page.readable() == "Vänern\n106 m"
    assert (page.title, page.kind, page.retrieved, page.origin) == (
        "Vänern",
        "text/html",
        "2026-11-30",
        s.url("/lakes"),
    )
    assert browser(s).fetch(s.url("/latin")).text == "Vänern"
    assert browser(s).fetch(s.url("/data.csv")).kind == "text/csv"
    assert s.asked[0][0] == "/robots.txt"
    assert all(agent.startswith("agent-world") for _, _, agent in s.asked)


ARTICLE = """<html><head><title>Lakes</title></head><body>
<nav><ul><li><a href="/">Home</a></li><li><a href="/contact">Contact</a></li></ul></nav>
<main><article><h1>Lakes of Sweden</h1>
<p>Vänern is the largest lake of Sweden and the third largest of Europe. It is 106 metres deep.</p>
<p>Vättern is the second largest lake of the country. It is 128 metres deep, and known to be clear.</p>
<table><tr><th>Lake</th><th>Depth</th></tr><tr><td>Vänern</td><td>106</td></tr></table>
</article></main><footer><p>Cookie settings. All rights reserved.</p></footer></body></html>"""


def test_a_reader_gets_the_article_and_tracing_the_whole_page(site, monkeypatch):
    pytest.importorskip("trafilatura", reason="the extra 'web' is not installed")
    s = site({"/a": (200, "text/html; charset=utf-8", ARTICLE)})
    page = browser(s).fetch(s.url("/a"))
    main = page.main()
    assert "third largest of Europe" in main
    assert "Vänern | 106" in main, "tables are kept"
    assert "Contact" not in main
    assert "Cookie" not in main
    assert "Contact" in page.readable()
    monkeypatch.setitem(sys.modules, "trafilatura", None)
    assert page.main() == page.readable(), "without the extra"


def test_robots_are_respected_also_after_a_redirect(site):
    s = site()
    for path in ("/private/x", "/to-private"):
        with pytest.raises(NotFound, match=r"robots\.txt"):
            browser(s).fetch(s.url(path))
    assert "/private/x" not in [path for path, _, _ in s.asked]


def test_without_robots_all_is_read_and_with_a_broken_one_nothing(site):
    s = site({"/lakes": PAGES["/lakes"]})
    assert browser(s).fetch(s.url("/lakes")).title == "Vänern"
    s = site({"/lakes": PAGES["/lakes"], "/robots.txt": (503, "text/plain", "")})
    with pytest.raises(NotFound, match=r"robots\.txt"):
        browser(s).fetch(s.url("/lakes"))


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/photo", "image/png"),
        ("/big", "more than 1,000 bytes"),
        ("/none", "says 404"),
        ("/loop", "redirects"),
        ("/inside", "no public address"),
    ],
)
def test_what_is_not_read(site, path, why):
    s = site()
    with pytest.raises(NotFound, match=why):
        browser(s, most_bytes=1000).fetch(s.url(path))


def test_a_redirect_within_the_site_is_followed(site):
    s = site()
    assert browser(s).fetch(s.url("/moved")).url == s.url("/lakes")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/x",
        "http://localhost/x",
        "http://10.1.2.3/",
        "http://192.168.1.1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://0.0.0.0/",
        "http://2130706433/",  # 127.0.0.1 as a number
        "http://example.com:8080/",
        "http://user:pw@example.com/",
        "file:///etc/passwd",
        "ftp://example.com/",
        "http:///x",
        "http://example.com:port/",
    ],
)
def test_private_addresses_and_odd_urls_are_refused_unasked(url):
    with pytest.raises(NotFound):
        HttpBrowser(pause=0.0).fetch(url)


@given(st.ip_addresses(v=4, network="10.0.0.0/8") | st.ip_addresses(v=6, network="fc00::/7"))
def test_no_private_address_is_allowed(address):
    assert not HttpBrowser().allow(str(address))


def test_a_name_with_one_private_address_is_refused_and_the_checked_one_is_used(site, monkeypatch):
    s = site()
    answers = [["127.0.0.1", "10.0.0.1"], ["127.0.0.1"], ["127.0.0.1"], ["10.0.0.1"]]

    def resolve(host, port, *_, **__):
        found = answers.pop(0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in found]

    real = socket.getaddrinfo
    monkeypatch.setattr(
        "synth.author.browser.socket.getaddrinfo",
        lambda host, *a, **k: resolve(host, *a, **k) if host == "lakes.example" else real(host, *a, **k),
    )
    with pytest.raises(NotFound, match="no public address"):
        browser(s).fetch(s.url("/lakes", "lakes.example"))
    assert browser(s).fetch(s.url("/lakes", "lakes.example")).title == "Vänern"
    assert s.asked[-1][1] == f"lakes.example:{s.port}"
    assert answers == [["10.0.0.1"]], "each connection went to the address that was checked"


def test_a_host_is_left_its_pause(site):
    s = site()
    waits = []
    b = browser(s, pause=5.0, sleep=waits.append)
    b.fetch(s.url("/lakes"))
    b.fetch(s.url("/data.csv"))
    assert len(waits) == 1
    assert 4.0 < waits[0] <= 5.0


def test_what_was_read_once_is_read_from_the_store(site, tmp_path):
    s = site()

    class Words:
        calls = 0

        def search(self, query, limit):
            Words.calls += 1
            return [Hit(s.url("/lakes"), "lakes", query)]

    def web():
        return Recorded(Words(), browser(s), Store(tmp_path), "test")

    first = web().fetch(s.url("/lakes"))
    hits = web().search("lakes", 3)
    asked = len(s.asked)
    assert web().fetch(s.url("/lakes")) == first
    assert web().search("lakes", 3) == hits
    assert (len(s.asked), Words.calls) == (asked, 1)
