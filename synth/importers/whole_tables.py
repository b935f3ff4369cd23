"""Which tables of an imported environment a program can read as a whole, and the code that does it.

Goes to :mod:`synth.importers.programs`: by one call that gives all records, or by a listing of a folder and a
read of each file in it.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from synth.env.observed import gives
from synth.importers.readings import records as read_records
from synth.importers.walks import scalars
from synth.importers.workshop import Workshop, naming
from synth.types import ToolStep
from synth.verify import canonical


@dataclass(frozen=True)
class Source:
    """How all records of a table are read: code that sets ``found``, the reads that it makes, and where."""

    table: str
    code: str
    fields: dict[str, str]  # column -> field of the records
    where: str


def plain(name: str) -> str:
    """As field names come out of :func:`read_records`."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()).strip("_")


def sources(shop: Workshop) -> list[Source]:
    """Tables that a program can read as a whole."""
    found = []
    for table, records in shop.tables.items():
        made = _read_at_once(shop, table, records) or _list_and_read(shop, table, records)
        if made is not None:
            found.append(made)
    return found


def _fields(got: list[dict[str, Any]], records: list[dict[str, Any]]) -> dict[str, str]:
    """Column -> field, for the columns whose values came back in full; empty when the name is not among
    them."""
    name = str(naming(records))
    fields = {}
    for column in records[0]:
        wanted = Counter(canonical(r.get(column)) for r in records)
        if not wanted - Counter(canonical(r.get(plain(column))) for r in got):
            fields[column] = plain(column)
    return fields if name in fields else {}


def call_text(step: ToolStep) -> str:
    return f"call({step.tool!r}, **{step.arguments!r})"


def _read_at_once(shop: Workshop, table: str, records: list[dict[str, Any]]) -> Source | None:
    for read in shop.reads:
        fields = _fields(read_records(read.value), records)
        if len(fields) > 1:
            code = f"found = records({call_text(read.step)})"
            return Source(table, code, fields, shop.context(read.step))
    return None


def _list_and_read(shop: Workshop, table: str, records: list[dict[str, Any]]) -> Source | None:
    """A listing of a folder, then one read of all files in it."""
    folder = next((f for f in shop.known.folders() if f.rpartition("/")[2] == table), None)
    if folder is None:
        return None
    files = shop.known.files(folder)
    ends = {f.rpartition(".")[2] for f in files}
    listed = [r for r in shop.reads if folder in scalars(r.step.arguments) and all(
        gives(r.value, f.rpartition("/")[2]) for f in files)]  # fmt: skip
    many = [
        (tool, name) for tool in shop.tools for case in shop.proven(tool, False)
        for name, value in case.arguments.items()
        if tool.read_only and isinstance(value, list) and value and set(value) <= set(files)
    ]  # fmt: skip
    if len(ends) != 1 or not listed or not many:
        return None
    tool, name = many[0]
    text = (
        f"import re\n"
        f"    names = sorted(set(re.findall(r'[\\w-]+\\.{ends.pop()}', str({call_text(listed[0].step)}))))\n"
        f"    found = records(call({tool.name!r}, {name}=[{folder + '/'!r} + name for name in names]))"
    )
    got = shop.run([ToolStep(tool=tool.name, arguments={name: sorted(files)})])
    fields = _fields(read_records(got[0].value), records) if got else {}
    return Source(table, text, fields, f"In the folder {folder}: ") if len(fields) > 1 else None
