"""Search and browse: what the miner knows of the world, behind two small protocols.

The default is a local folder (:class:`FolderCorpus`): its files are found with SQLite's FTS5 and BM25,
nothing leaves the machine. :mod:`synth.author.browser` goes out. :class:`Recorded` keeps whatever was read
in the store, so that a run that goes on later reads the same pages (the prompts hold them).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Protocol

from synth.author.store import Store, content_hash
from synth.errors import CallerError

KINDS = {
    ".csv": "text/csv",
    ".tsv": "text/tab-separated-values",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".md": "text/markdown",
    ".txt": "text/plain",
    ".html": "text/html",
    ".htm": "text/html",
}
PASSAGE = 1500  # characters of a searchable passage (ours)
LISTING = "sources.jsonl"  # in a corpus folder: {"path", "license", "origin", "retrieved"} a line


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


class FolderCorpus:
    """A folder of documents and data files as the only web: search and browse in one.

    Addresses are ``file:<path below the folder>``. Licenses, origins and dates come from ``sources.jsonl``
    in the folder; a file that it does not list has ``license`` and no date.

    Raises:
        CallerError: no such folder, nothing readable in it, or a bad listing.
    """

    def __init__(self, folder: str | Path, license: str = "unknown") -> None:
        self.folder = Path(folder).resolve()
        if not self.folder.is_dir():
            raise CallerError(f"{folder}: no such folder; name the folder of the miner's documents")
        self._license = license
        self._listed = _listing(self.folder / LISTING)
        self._paths = [
            p.relative_to(self.folder).as_posix()
            for p in sorted(self.folder.rglob("*"))
            if p.is_file() and p.suffix.lower() in KINDS and p.name != LISTING
        ]
        if not self._paths:
            raise CallerError(f"{folder}: no documents in it; the kinds are {', '.join(sorted(KINDS))}")
        self._index: bytes | None = None

    @property
    def digest(self) -> str:
        """Changes when a file does: its name and bytes."""
        sums = [(p, hashlib.sha256((self.folder / p).read_bytes()).hexdigest()) for p in self._paths]
        return content_hash(sums)

    def search(self, query: str, limit: int = 8) -> list[Hit]:
        """The best passages by BM25, one a file; every word may be missing, none must be there."""
        words = re.findall(r"\w+", query)
        if not words:
            return []
        db = self._database()
        match = " OR ".join(f'"{word}"' for word in words)
        found = db.execute(
            "SELECT path, title, snippet(passages, 2, '', '', ' ... ', 24) FROM passages "
            "WHERE passages MATCH ? ORDER BY bm25(passages, 4.0, 4.0, 1.0), rowid",
            [match],
        )
        hits: dict[str, Hit] = {}
        for path, title, snippet in found:
            hits.setdefault(path, Hit(f"file:{path}", title, snippet))
            if len(hits) == limit:
                break
        db.close()
        return list(hits.values())

    def fetch(self, url: str) -> Document:
        path = url.removeprefix("file:")
        if path not in self._paths:
            raise NotFound(f"{url}: no such document; search for one")
        data = (self.folder / path).read_bytes()
        listed = self._listed.get(path, {})
        return Document(
            url=f"file:{path}",
            title=Path(path).stem.replace("_", " "),
            kind=KINDS[Path(path).suffix.lower()],
            text=data.decode("utf-8-sig", "replace"),
            sha256=hashlib.sha256(data).hexdigest(),
            license=listed.get("license", self._license),
            retrieved=listed.get("retrieved", "unknown"),
            origin=listed.get("origin", f"file:{path}"),
        )

    def _database(self) -> sqlite3.Connection:
        """The index, built with the first search and copied for each one (connections stay in a thread)."""
        db = sqlite3.connect(":memory:")
        if self._index is not None:
            db.deserialize(self._index)
            return db
        db.execute("CREATE VIRTUAL TABLE passages USING fts5(path, title, body, tokenize='porter unicode61')")
        for path in self._paths:
            document = self.fetch(path)
            text = document.readable()
            starts = range(0, max(1, len(text)), PASSAGE)
            rows = [(path, document.title, text[at : at + PASSAGE + 100]) for at in starts]
            db.executemany("INSERT INTO passages VALUES (?, ?, ?)", rows)
        db.commit()
        self._index = db.serialize()
        return db


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


def _listing(path: Path) -> dict[str, dict[str, str]]:
    if not path.exists():
        return {}
    listed = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            item = json.loads(line)
            listed[item["path"]] = {k: str(item[k]) for k in ("license", "origin", "retrieved") if k in item}
        except (ValueError, KeyError, TypeError):
            raise CallerError(f'{path}:{number}: want {{"path", "license", "origin", "retrieved"}}') from None
    return listed


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
