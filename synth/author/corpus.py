"""The offline web of the miner: tables that installed data packages ship with a license.

``corpus.jsonl`` is the catalogue, one :class:`Source` a line: which file of which package holds a
table, under which license, and a data dictionary (which columns are worth keeping, what they are
called and how their strings are read). :func:`open_source` reads the raw rows straight from the
installed distribution with the standard library (the packages themselves are never imported: most
of them pull pandas) and says where they come from. :mod:`synth.author.cleaning` cleans the rows and
:mod:`synth.mining` samples them.
A license is the one that the package states for that file; ``license_source`` says where it says so.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import sqlite3
import zipfile
from contextlib import closing
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

from pydantic import Field

from synth.errors import CallerError
from synth.types import Record

CATALOGUE = Path(__file__).with_name("corpus.jsonl")
REVIEWED = "2026-11-29"  # the day on which the catalogue and its licenses were last gone through


class SourceColumn(Record):
    """One entry of a data dictionary.

    ``source`` is a raw column, a template over raw columns such as ``"{county}, {state}"``, or
    ``"#AP"``: an opaque key with that prefix. ``clean`` lists verbs of :mod:`synth.author.cleaning`; ``map``
    replaces values (``"*"`` for all others); ``bands`` turns a number into words by upper limits.
    """

    name: str
    source: str
    role: Literal["key", "name", "category", "measure", "date", "ref", "text"]
    label: str
    type: Literal["integer", "real", "text"] = "text"
    clean: tuple[str, ...] = ()
    map: dict[str, str] = Field(default_factory=dict)
    bands: tuple[tuple[float, str], ...] = ()
    keep: int = 8  # a category keeps its most frequent values
    nullable: bool = False
    to: str | None = None  # ref: id of the source it points to
    match: str | None = None  # ref: the column there that holds the same values; its key by default

    @property
    def opaque(self) -> bool:
        """A key that mining makes."""
        return self.source.startswith("#")


class Source(Record):
    """One table of the offline web, and how to read it."""

    id: str
    package: str
    path: str  # file inside the distribution; a folder of JSON files ends in "/"
    member: str | None = None  # SQL table or SELECT, JSON member, XML element
    header: tuple[str, ...] = ()  # column names of a CSV file that has no header line
    stride: int = 1  # read every n-th row of a big file
    unpivot: tuple[str, str, str] | None = None  # id column, name column, value column
    where: dict[str, tuple[str, ...] | None] = Field(default_factory=dict)  # allowed values; None: not empty
    license: str
    license_source: str
    table: str
    singular: str
    plural: str
    description: str
    columns: tuple[SourceColumn, ...]
    rows: int = 80  # sample size
    by: str | None = None  # category of the strata

    @property
    def key(self) -> SourceColumn:
        return next(c for c in self.columns if c.role == "key")


@dataclass(frozen=True)
class Opened:
    """Raw rows of a source and the facts of their origin."""

    rows: list[dict[str, Any]]
    total: int  # rows in the file, before ``stride``
    package: str
    version: str
    license: str
    sha256: str
    origin: str


@lru_cache(maxsize=1)
def catalogue() -> dict[str, Source]:
    """All sources by id, in the order of ``corpus.jsonl``.

    Raises:
        CallerError: a line is damaged, or two have the same id.
    """
    found: dict[str, Source] = {}
    for number, line in enumerate(CATALOGUE.read_text("utf-8").splitlines(), start=1):
        source = Source.from_json(line, where=f"{CATALOGUE.name}:{number}")
        if source.id in found:
            raise CallerError(f"{CATALOGUE.name}:{number}: field id: {source.id} occurs twice; rename one")
        found[source.id] = source
    return found


def source(source_id: str) -> Source:
    """The catalogue entry of a source.

    Raises:
        CallerError: there is none of that id.
    """
    try:
        return catalogue()[source_id]
    except KeyError:
        raise CallerError(
            f"no source {source_id!r} in the catalogue; take one of {', '.join(list(catalogue())[:5])}, ..."
        ) from None


def open_source(source_id: str) -> Opened:
    """Read the raw rows of a source; a file is read once a process.

    Raises:
        CallerError: the id is unknown, the package is not installed, or it lacks the file.
    """
    entry = source(source_id)
    files = locate(entry.package, entry.path)
    rows, total = _read(files, entry.member, entry.header, entry.stride)
    if entry.unpivot:
        rows = _unpivot(rows, *entry.unpivot)
        total = len(rows)
    return Opened(
        rows=rows,
        total=total,
        package=entry.package,
        version=metadata.version(entry.package),
        license=entry.license,
        sha256=digest(files),
        origin=f"{entry.package}:{entry.path}" + (f"#{entry.table}" if entry.member else ""),
    )


@cache
def locate(package: str, path: str) -> tuple[Path, ...]:
    """The installed files of a source, sorted by name (one file, or those of a folder).

    Raises:
        CallerError: the package is not installed, or it lacks the file.
    """
    try:
        listed = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        raise CallerError(f"the data package {package} is not installed; pip install {package}") from None
    if path.endswith("/"):
        found = [f for f in listed if str(f).startswith(path) and f.suffix == ".json"]
    else:
        found = [f for f in listed if str(f) == path]
    if not found:
        raise CallerError(
            f"package {package} {metadata.version(package)} has no file {path}; install another version"
        )
    return tuple(sorted((Path(str(f.locate())) for f in found), key=lambda p: p.name))


@cache
def digest(files: tuple[Path, ...]) -> str:
    """sha256 of a file; of the lines "sha256  name" where a source has several."""
    sums = [hashlib.sha256(f.read_bytes()).hexdigest() for f in files]
    if len(files) == 1:
        return sums[0]
    lines = "".join(f"{s}  {f.name}\n" for s, f in zip(sums, files, strict=True))
    return hashlib.sha256(lines.encode()).hexdigest()


@cache
def _read(
    files: tuple[Path, ...], member: str | None, header: tuple[str, ...], stride: int
) -> tuple[list[dict[str, Any]], int]:
    file = files[0]
    if len(files) > 1:
        rows = [_flat(json.loads(f.read_text("utf-8"))) for f in files]
        return rows, len(rows)
    if file.name.endswith(".csv.gz"):
        return _csv(gzip.decompress(file.read_bytes()), header, stride)
    if file.name.endswith(".csv.zip"):
        with zipfile.ZipFile(file) as archive:
            return _csv(archive.read(archive.namelist()[0]), header, stride)
    match file.suffix:
        case ".csv":
            return _csv(file.read_bytes(), header, stride)
        case ".json":
            rows = _json(json.loads(file.read_text("utf-8")), member)
        case ".db":
            rows = _sqlite(file, member or "")
        case ".xml":
            tree = ElementTree.parse(file)
            rows = [{field.tag: field.text for field in item} for item in tree.iter(member)]
        case _:
            raise CallerError(f"{file.name}: no reader for this kind of file")
    return rows, len(rows)


def _csv(data: bytes, header: tuple[str, ...], stride: int) -> tuple[list[dict[str, Any]], int]:
    reader = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), skipinitialspace=True)
    names = list(header) or next(reader)
    rows: list[dict[str, Any]] = []
    total = 0
    for total, values in enumerate(reader, start=1):
        if (total - 1) % stride == 0:
            rows.append(dict(zip(names, values, strict=False)))
    return rows, total


def _json(value: Any, member: str | None) -> list[dict[str, Any]]:
    """A list of objects, the list in a member of an object, or the nodes of a graph.

    The nodes of a graph (members ``nodes`` and ``links``) get ``_degree`` and ``_weight``: how many
    links touch a node and the sum of their values. Links get the names of their ends.
    """
    if isinstance(value, list):
        return [_flat(item) for item in value]
    if "links" not in value:
        return [_flat(item) for item in value[member]]
    nodes, links = value["nodes"], value["links"]
    if member == "links":
        return [
            {**k, "source": nodes[k["source"]]["name"], "target": nodes[k["target"]]["name"]} for k in links
        ]
    touching = [[k["value"] for k in links if i in (k["source"], k["target"])] for i in range(len(nodes))]
    return [
        {**node, "_degree": len(values), "_weight": sum(values)}
        for node, values in zip(nodes, touching, strict=True)
    ]


def _sqlite(file: Path, member: str) -> list[dict[str, Any]]:
    query = member if member.lower().startswith("select ") else f'SELECT * FROM "{member}"'
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(query)]


def _flat(item: dict[str, Any]) -> dict[str, Any]:
    """Nested objects as dotted names; of a list the first item."""
    flat: dict[str, Any] = {}
    for key, value in item.items():
        if isinstance(value, dict) and key != "geoJSON":
            flat.update({f"{key}.{inner}": v for inner, v in value.items()})
        elif isinstance(value, list):
            flat[key] = value[0] if value and isinstance(value[0], str | int | float) else None
        else:
            flat[key] = value
    return flat


def _unpivot(rows: list[dict[str, Any]], keep: str, name: str, value: str) -> list[dict[str, Any]]:
    """One row a cell: the columns other than ``keep`` become values of ``name``."""
    return [
        {keep: row[keep], name: column, value: cell}
        for row in rows
        for column, cell in row.items()
        if column != keep
    ]
