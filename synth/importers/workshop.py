"""What there is to make tasks from: an imported environment's tables, reads and writes, run once.

Every proven read, varied, is run on the pristine state and its result kept. Goes to the makers of questions
and changes (:mod:`synth.importers.maker`) and of programs (:mod:`synth.importers.programs`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from synth.env.mcp_client import McpEnvServer
from synth.errors import InfrastructureError
from synth.importers.phrasing import order, shown, singular, values, words
from synth.importers.walks import Known, Read, Records, Variation, scalars
from synth.types import Tool, ToolCase, ToolStep
from synth.verify import canonical, is_number

VARIATIONS = 8  # ours: variations of a proven read that are run
LONGEST = 60  # characters of a value that is asked for
_HASH = re.compile(r"[0-9a-f]{12,}|refs/\S+|ref: \S+")
_SQL = re.compile(r"\s*(SELECT|UPDATE|DELETE)\b", re.IGNORECASE)


@dataclass
class Workshop:
    """One environment being looked at: what it holds, and what its reads answer."""

    server: McpEnvServer
    seed: int
    known: Known = field(init=False)
    linked: set[tuple[str, str]] = field(init=False)

    def __post_init__(self) -> None:
        self.known = Known.of(self.server.bundle)
        graph = self.server.bundle.graph
        self.linked = {(e.source, e.target) for e in graph.edges if e.weight > 1} if graph else set()

    def rng(self, *parts: object) -> random.Random:
        return random.Random(":".join(map(str, (self.seed, self.server.bundle.manifest.digest, *parts))))

    def proven(self, tool: Tool, writes: bool) -> list[ToolCase]:
        """Calls that worked on the pristine state, and changed it or didn't."""
        return [c for c in tool.cases if c.error is None and not c.before and bool(c.changes) == writes]

    @property
    def tools(self) -> list[Tool]:
        return list(self.server.tools.values())

    @cached_property
    def sql(self) -> dict[bool, tuple[Tool, str]]:
        """By whether it writes: a tool that takes SQL, and the parameter's name."""
        found: dict[bool, tuple[Tool, str]] = {}
        for tool in self.tools:
            for case in tool.cases:
                for name, value in case.arguments.items():
                    if case.error is None and isinstance(value, str) and _SQL.match(value):
                        found.setdefault(bool(case.changes), (tool, name))
        return found

    @cached_property
    def reads(self) -> list[Read]:
        """All reads that were run, shortest result first."""
        steps: dict[str, ToolStep] = {}
        for tool in self.tools:
            for index, case in enumerate(self.proven(tool, False)):
                made = [case.arguments]
                if tool.read_only:
                    rng = self.rng("read", tool.name, index)
                    made += [
                        Variation(self.known, tool, case.arguments, rng).arguments for _ in range(VARIATIONS)
                    ]
                if tool.read_only or any(
                    isinstance(v, str) and _SQL.match(v) for v in case.arguments.values()
                ):
                    for arguments in made:
                        step = ToolStep(tool=tool.name, arguments=arguments)
                        steps.setdefault(canonical(step.model_dump()), step)
        return sorted(self.run(list(steps.values())), key=lambda read: len(read.text))

    def run(self, steps: list[ToolStep]) -> list[Read]:
        """Reads that work, in one episode."""
        found = []
        with self.server.open(0) as episode:
            for step in steps:
                try:
                    result = episode.call(step.tool, step.arguments)
                except InfrastructureError:
                    break
                if result.ok:
                    found.append(Read(step, result.value, canonical(result.value)))
        return found

    @cached_property
    def tables(self) -> Records:
        """Tables that can be asked about: three records or more, and a column that tells them apart."""
        return {t: r for t, r in self.known.records.items() if len(r) >= 3 and naming(r) is not None}

    def context(self, step: ToolStep) -> str:
        """Where to look, in words: the file or folder that a call is about."""
        cases = self.server.tools[step.tool].cases
        for value in scalars(step.arguments):
            if isinstance(value, str) and f"{value}/" in self.known.paths:
                return f"In the folder {value}: "
            if isinstance(value, str) and value in self.known.paths:
                constant = value in step.arguments.values() and all(
                    value in c.arguments.values() for c in cases
                )
                return f"In {value}: " if constant else f"In the folder {value.rpartition('/')[0]}: "
        return ""


def naming(records: list[dict[str, Any]]) -> str | None:
    """The column whose text tells the records apart."""
    for column in records[0]:
        cells = [r.get(column) for r in records]
        if (
            column != "name_of_file"
            and all(isinstance(c, str) and askable(c) for c in cells)
            and len(set(cells)) == len(cells)
        ):
            return column
    return None


def askable(value: Any) -> bool:
    """A value that a person may say or be told."""
    if isinstance(value, str):
        text = value.strip()
        return (
            0 < len(text) <= LONGEST
            and "\n" not in text
            and not _HASH.fullmatch(text)
            and text[0] not in "{["
        )
    return is_number(value)


def literal(value: Any) -> str:
    """A value in SQL."""
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def is_sql(value: Any) -> bool:
    return isinstance(value, str) and _SQL.match(value) is not None


@dataclass(frozen=True)
class Written:
    """One write in words."""

    step: ToolStep
    text: str


def writes(shop: Workshop, label: str) -> Iterator[Written]:
    """Endless variations of proven writes, told in words; none where no write was proven."""
    rng = shop.rng("writes", label)
    cases = [(tool, case) for tool in shop.tools for case in shop.proven(tool, True)]
    plain = [(t, c) for t, c in cases if not any(map(is_sql, scalars(c.arguments)))]
    sql = True in shop.sql and bool(shop.tables)
    while plain or sql:
        if sql and (not plain or rng.random() < 0.3):
            yield from _sql_write(shop, rng)
            continue
        tool, case = rng.choice(plain)
        arguments = Variation(shop.known, tool, case.arguments, rng).arguments
        told = values(_in_words(arguments, shop.known.records))
        text = order(tool, other=rng.random() < 0.5) + (f", with {told}" if told else "")
        yield Written(ToolStep(tool=tool.name, arguments=arguments), text)


def _in_words(value: Any, tables: Collection[str]) -> Any:
    """Names of tables as a person would say them: "order lines"."""
    if isinstance(value, dict):
        return {name: _in_words(inner, tables) for name, inner in value.items()}
    if isinstance(value, list):
        return [_in_words(part, tables) for part in value]
    return words(value) if isinstance(value, str) and "_" in value and value in tables else value


def _sql_write(shop: Workshop, rng: random.Random) -> Iterator[Written]:
    tool, parameter = shop.sql[True]
    for table in rng.sample(sorted(shop.tables), len(shop.tables))[:1]:
        records = shop.tables[table]
        name, record = str(naming(records)), rng.choice(records)
        where = f'WHERE "{name}" = {literal(record[name])}'
        numbers = [c for c in record if is_number(record[c]) and words(c) != "id"]
        if numbers and rng.random() < 0.7:
            column = rng.choice(numbers)
            value = rng.randint(2, 90)
            sql = f'UPDATE "{table}" SET "{column}" = {value} {where}'
            text = f"set the {words(column)} of the {singular(table)} {shown(record[name])} to {value}"
        else:
            sql, text = (
                f'DELETE FROM "{table}" {where}',
                f"take out the {singular(table)} {shown(record[name])}",
            )
        yield Written(ToolStep(tool=tool.name, arguments={parameter: sql}), text)
