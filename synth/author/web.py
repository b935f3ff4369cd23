"""Search and browse: what the miner knows of the world, behind two small protocols.

The default is what lies on this machine (:mod:`synth.author.library`): nothing leaves it.
:mod:`synth.author.browser` and :mod:`synth.author.websearch` go out. :class:`Recorded` keeps what was read
in the store, so that a run that goes on later reads the same pages (the prompts hold them).
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html.parser import HTMLParser
from typing import Protocol

from synth.author.store import Store, content_hash


class NotFound(Exception):
    """There is no such page, or it can't be read; the text says why."""


@dataclass(frozen=True)
class Hit:
    """One search result."""

    url: str
    title: str
    snippet: str


@dataclass(frozen=True)
class Document:
    """A page or file that was read."""

    url: str
    title: str
    kind: str  # media type without parameters
    text: str  # decoded; HTML as it came
    sha256: str  # of the bytes
    license: str
    retrieved: str  # ISO date
    origin: str  # the address that provenance states

    def readable(self) -> str:
        """Plain text: for HTML the visible text, a table row a line; for the rest the text itself."""
        return html_text(self.text) if self.kind == "text/html" else self.text

    def main(self) -> str:
        """What a reader wants of it: for HTML the article without menus, where trafilatura is installed
        (the extra ``web``) and finds one; else :meth:`readable`, which tracing always uses."""
        if self.kind == "text/html":
            with contextlib.suppress(ImportError):
                import trafilatura  # pyright: ignore[reportMissingImports]

                return trafilatura.extract(self.text, include_tables=True) or self.readable()
        return self.readable()


class Search(Protocol):
    def search(self, query: str, limit: int) -> list[Hit]: ...


class Browser(Protocol):
    def fetch(self, url: str) -> Document:
        """Raises NotFound."""
        ...


class Recorded:
    """Search and browse through the store: what was read once is read again from there."""

    def __init__(self, search: Search, browser: Browser, store: Store, name: str) -> None:
        self._search, self._browser, self._store, self._name = search, browser, store, name

    def search(self, query: str, limit: int = 8) -> list[Hit]:
        key = content_hash([self._name, "search", query, limit])
        found = self._store.page(key)
        if found is None:
            hits = self._search.search(query, limit)
            found = json.dumps([asdict(hit) for hit in hits]).encode()
            self._store.keep_page(key, found)
        return [Hit(**item) for item in json.loads(found)]

    def fetch(self, url: str) -> Document:
        key = content_hash([self._name, "fetch", url])
        found = self._store.page(key)
        if found is None:
            found = json.dumps(asdict(self._browser.fetch(url))).encode()
            self._store.keep_page(key, found)
        return Document(**json.loads(found))


# --- HTML ---------------------------------------------------------------------------------------


class _Text(HTMLParser):
    """Visible text; block elements and table rows end a line, cells are set apart by a bar."""

    BLOCKS = re.compile(r"p|div|li|tr|h[1-6]|section|article|table|ul|ol|br|d[td]|caption")
    HIDDEN = ("script", "style", "noscript", "template", "head")

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self._hidden += tag in self.HIDDEN
        if self.BLOCKS.fullmatch(tag):
            self.parts.append("\n")
        elif tag in ("td", "th"):
            self.parts.append(" | ")

    def handle_endtag(self, tag: str) -> None:
        self._hidden = max(0, self._hidden - (tag in self.HIDDEN))
        if self.BLOCKS.fullmatch(tag):
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(re.sub(r"\s+", " ", data))


def html_text(html: str) -> str:
    """The visible text of a page; a paragraph or table row a line."""
    parser = _Text()
    parser.feed(html)
    parser.close()
    lines = (" ".join(line.split()).removeprefix("| ") for line in "".join(parser.parts).splitlines())
    return "\n".join(line for line in lines if line)
