"""A browser over HTTP for the miner: polite, bounded, and shut off from private addresses.

robots.txt is asked first (404: all is allowed; no answer or a server error: nothing is), each host is left a
second between pages, and pages are bounded in size, kind, time and redirects. A name is resolved once, all
its addresses must be public, and the connection goes to that very address: a name that resolves differently
the second time gains nothing. Proxies of the environment are not used, since they would resolve again.
"""

from __future__ import annotations

import hashlib
import ipaddress
import socket
import threading
import time
import urllib.robotparser
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import urljoin, urlsplit, urlunsplit

import httpx

from synth.author.web import Document, NotFound, html_text

AGENT = "agent-world-miner/1 (+https://github.com/agent-world)"
KINDS = {
    "text/html": "text/html",
    "application/xhtml+xml": "text/html",
    "text/plain": "text/plain",
    "text/markdown": "text/markdown",
    "text/csv": "text/csv",
    "text/tab-separated-values": "text/tab-separated-values",
    "application/json": "application/json",
    "application/jsonl": "application/jsonl",
    "application/x-ndjson": "application/jsonl",
}
REDIRECTS = 5


@dataclass
class HttpBrowser:
    """See :class:`synth.author.web.Browser`. Defaults are ours.

    Attributes:
        most_bytes: of a page; larger ones are refused, not cut (half a table is a wrong table).
        seconds: for connecting, and between two pieces of a page.
        pause: seconds between two pages of a host.
        allow: whether an address may be reached; public ones by default.
        ports: that may be reached.
    """

    most_bytes: int = 5_000_000
    seconds: float = 20.0
    pause: float = 1.0
    license: str = "unknown (see the page)"
    allow: Callable[[str], bool] = lambda address: ipaddress.ip_address(address).is_global
    ports: tuple[int, ...] = (80, 443)
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _robots: dict[str, urllib.robotparser.RobotFileParser] = field(default_factory=dict)
    _last: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fetch(self, url: str) -> Document:
        """Read a page.

        Raises:
            NotFound: it can't or may not be read; the text says why.
        """
        for _ in range(REDIRECTS + 1):
            if not self._robot(url).can_fetch(AGENT, url):
                raise NotFound(f"{url}: its robots.txt does not allow to read it")
            self._wait(urlsplit(url).netloc)
            status, headers, body = self._get(url)
            if status in (301, 302, 303, 307, 308) and headers.get("location"):
                url = urljoin(url, headers["location"])
                continue
            if status != 200:
                raise NotFound(f"{url}: the server says {status}")
            return self._document(url, headers, body)
        raise NotFound(f"{url}: more than {REDIRECTS} redirects")

    def _document(self, url: str, headers: httpx.Headers, body: bytes) -> Document:
        said = headers.get("content-type", "").split(";")[0].strip().lower()
        if said not in KINDS:
            raise NotFound(f"{url}: is {said or 'of no stated kind'}; only text and data are read")
        text = httpx.Response(200, headers={"content-type": headers["content-type"]}, content=body).text
        title = html_text(text).splitlines()[0][:120] if said.endswith("html") and html_text(text) else url
        return Document(
            url=url,
            title=title,
            kind=KINDS[said],
            text=text,
            sha256=hashlib.sha256(body).hexdigest(),
            license=self.license,
            retrieved=self.now().date().isoformat(),
            origin=url,
        )

    # --- manners ---

    def _robot(self, url: str) -> urllib.robotparser.RobotFileParser:
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        if origin not in self._robots:
            robot = urllib.robotparser.RobotFileParser()
            try:
                status, headers, body = self._get(f"{origin}/robots.txt")
                for _ in range(REDIRECTS):
                    if status not in (301, 302, 307, 308):
                        break
                    status, headers, body = self._get(urljoin(f"{origin}/robots.txt", headers["location"]))
            except NotFound as err:
                raise NotFound(f"{url}: {err}") from None
            if status == 200:
                robot.parse(body.decode("utf-8", "replace").splitlines())
            elif 400 <= status < 500:
                robot.parse(["User-agent: *", "Allow: /"])
            else:
                robot.parse(["User-agent: *", "Disallow: /"])
            self._robots[origin] = robot
        return self._robots[origin]

    def _wait(self, host: str) -> None:
        with self._lock:
            due = self._last.get(host, -self.pause) + self.pause
            wait = max(0.0, due - time.monotonic())
            self._last[host] = time.monotonic() + wait
        if wait:
            self.sleep(wait)

    # --- one request ---

    def _get(self, url: str) -> tuple[int, httpx.Headers, bytes]:
        """Status, headers and body of one GET, redirects not followed."""
        parts = urlsplit(url)
        host, address = self._resolved(url)
        shown = f"[{address}]" if ":" in address else address
        port = f":{parts.port}" if parts.port else ""
        pinned = urlunsplit((parts.scheme, shown + port, parts.path or "/", parts.query, ""))
        headers = {"Host": host + port, "User-Agent": AGENT, "Accept": ", ".join(KINDS)}
        try:
            with (
                httpx.Client(trust_env=False, timeout=self.seconds, follow_redirects=False) as client,
                client.stream("GET", pinned, headers=headers, extensions={"sni_hostname": host}) as response,
            ):
                body = bytearray()
                for piece in response.iter_bytes():
                    body += piece
                    if len(body) > self.most_bytes:
                        raise NotFound(f"{url}: more than {self.most_bytes:,} bytes")
                return response.status_code, response.headers, bytes(body)
        except (httpx.HTTPError, httpx.InvalidURL) as err:
            raise NotFound(f"{url}: {type(err).__name__}: {err}") from None

    def _resolved(self, url: str) -> tuple[str, str]:
        """Host and the address to connect to. Raises NotFound when it may not be reached."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError as err:
            raise NotFound(f"{url}: no address of a page ({err})") from None
        if parts.scheme not in ("http", "https") or not host or parts.username is not None:
            raise NotFound(f"{url}: only http and https pages, without a user name, are read")
        port = port or (443 if parts.scheme == "https" else 80)
        if port not in self.ports:
            raise NotFound(f"{url}: port {port} may not be reached")
        try:
            found = {info[4][0] for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        except (OSError, UnicodeError) as err:
            raise NotFound(f"{url}: {host} has no address ({err})") from None
        addresses = sorted(str(a).split("%")[0] for a in found)
        if not addresses or not all(self.allow(address) for address in addresses):
            raise NotFound(f"{url}: {host} is no public address")
        return host, addresses[0]
