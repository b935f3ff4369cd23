"""Tasks for an imported environment, made without anybody's help, verified like all others.

    explore     every proven read, varied, is run once on the pristine state; results are kept
    questions   facts of the state (:mod:`synth.importers.facts`), asked in words; the gold calls are a walk
    of the
                tool graph to a result that really holds the answer
    writes      proven writes with other values, told in words; judged by what they change
    programs    :mod:`synth.importers.programs`: loops, branches and sums over the same

Every draft goes through replay and all gates (:func:`synth.importers.tasks.judge`); what fails is counted
with its reason. The same bundle, seed and count give the same tasks.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from synth.env.mcp_client import McpEnvServer
from synth.env.verifier import VerifierServer
from synth.importers.phrasing import capital, shown, singular, words
from synth.importers.programs import drafts
from synth.importers.tasks import RawTask, judge_all
from synth.importers.walks import Read, lead_up, scalars
from synth.importers.workshop import Workshop, Written, askable, is_sql, literal, naming, writes
from synth.types import Task, ToolStep
from synth.verify import is_number

DRAFTS = 6  # ours: drafts a wanted task
DRY = 300  # ours: draws in a row that give no draft, after which a source has run out

Progress = Callable[[int, int, str], None]  # tasks that hold, tasks wanted, what is being made


def questions(shop: Workshop) -> Iterator[RawTask]:
    """Drafts that ask for a fact; ends where no read gives what a question needs."""
    rng = shop.rng("questions")
    names = sorted(shop.tables)
    dry = 0
    while names and dry < DRY:
        table = rng.choice(names)
        records = shop.tables[table]
        name = str(naming(records))
        kind = rng.choice(("look up", "look up", "find", "count", "most"))
        columns = [
            c
            for c in records[0]
            if c not in (name, "name_of_file") and all(askable(r.get(c)) for r in records)
        ]
        if not columns:
            names.remove(table)
            continue
        drafts = list(_question(shop, table, records, name, rng.choice(columns), kind, rng))
        dry = 0 if drafts else dry + 1
        yield from drafts


def _question(
    shop: Workshop, table: str, records: list[dict[str, Any]], name: str, column: str, kind: str,
    rng: random.Random
) -> Iterator[RawTask]:  # fmt: skip
    one, record, label = singular(table), rng.choice(records), words(column)
    cells = [r[column] for r in records]
    same = [r for r in records if r[column] == record[column]]
    quoted = {c: '"' + c.replace('"', '""') + '"' for c in (table, name, column)}
    if kind == "look up":
        text = f"What is the {label} of the {one} {shown(record[name])}?"
        needs, answer = [record[name], record[column]], record[column]
        sql = f"SELECT {quoted[column]} FROM {quoted[table]} WHERE {quoted[name]} = {literal(record[name])}"
    elif kind == "find" and len(same) == 1:
        text = f"Which {one} has the {label} {shown(record[column])}? Answer with its {words(name)}."
        needs, answer = [record[name], record[column]], record[name]
        sql = f"SELECT {quoted[name]} FROM {quoted[table]} WHERE {quoted[column]} = {literal(record[column])}"
    elif kind == "count" and len(same) > 1 and isinstance(record[column], str):
        text = f"How many {one} entries have the {label} {shown(record[column])}? Answer with a number."
        needs, answer = [r[name] for r in same], len(same)
        sql = f"SELECT COUNT(*) AS n FROM {quoted[table]} WHERE {quoted[column]} = {literal(record[column])}"
    elif kind == "most" and all(map(is_number, cells)) and cells.count(max(cells)) == 1:
        text = f"Which {one} has the highest {label}? Answer with its {words(name)}."
        needs, answer = [*cells, *(r[name] for r in records)], records[cells.index(max(cells))][name]
        sql = f"SELECT {quoted[name]} FROM {quoted[table]} ORDER BY {quoted[column]} DESC LIMIT 1"
    else:
        return
    pattern = f"imported {kind}"
    if False in shop.sql and rng.random() < 0.5:
        tool, parameter = shop.sql[False]
        step = ToolStep(tool=tool.name, arguments={parameter: sql})
        before = _schema_reads(shop, table) if rng.random() < 0.6 else []
        yield RawTask("", capital(text), _calls([*(r.step for r in before), step]), answer, pattern=pattern)
        return
    holding = [r for r in shop.reads if all(r.holds(v) for v in needs)][:3]
    for read in rng.sample(holding, len(holding))[:1]:
        told = shop.context(read.step) + text
        chain = lead_up(read.step, told, shop.reads, shop.known, shop.linked)
        if chain is not None and len(chain) < 4:
            steps = [*chain, read]
            enough = next(i for i, r in enumerate(steps, 1) if all(r.holds(v) for v in needs))
            yield RawTask(
                "", capital(told), _calls([r.step for r in steps[:enough]]), answer, pattern=pattern
            )


def _schema_reads(shop: Workshop, table: str) -> list[Read]:
    """The shortest read that names a table: how an agent would learn what there is."""
    found = [r for r in shop.reads if r.holds(table) and not any(map(is_sql, scalars(r.step.arguments)))]
    return found[:1]


def changes(shop: Workshop) -> Iterator[RawTask]:
    """Endless drafts that ask for one or two changes, some after a look."""
    rng = shop.rng("changes")
    source = writes(shop, "changes")
    for first in source:
        if rng.random() < 0.25:
            second = next(source)
            text = f"{capital(first.text)}. Then {second.text}."
            yield RawTask("", text, _calls([first.step, second.step]), pattern="imported write twice")
            continue
        hidden = _hide(shop, first, rng) if rng.random() < 0.5 else None
        if hidden is not None:
            yield hidden
        else:
            yield RawTask("", f"{capital(first.text)}.", _calls([first.step]), pattern="imported write")


def _hide(shop: Workshop, written: Written, rng: random.Random) -> RawTask | None:
    """The same write with a record told by another of its values, which has to be looked up."""
    for value in scalars(written.step.arguments):
        if not isinstance(value, str) or written.text.count(shown(value)) != 1:
            continue
        for table, records in shop.tables.items():
            name = naming(records)
            record = next((r for r in records if r.get(str(name)) == value), None)
            if record is None:
                continue
            options = [
                c for c in record
                if c not in (name, "name_of_file") and askable(record[c]) 
                and [r.get(c) for r in records].count(record[c]) == 1
                and str(record[c]) not in written.text
            ]  # fmt: skip
            if not options:
                continue
            column = rng.choice(options)
            told = f"(that of the {singular(table)} with the {words(column)} {shown(record[column])})"
            text = capital(written.text.replace(shown(value), told)) + "."
            sources = [r for r in shop.reads if r.holds(value) and r.holds(record[column])]
            for read in sources[:2]:
                chain = lead_up(read.step, text, shop.reads, shop.known, shop.linked)
                if chain is not None and len(chain) < 3:
                    steps = [*(r.step for r in chain), read.step, written.step]
                    return RawTask("", text, _calls(steps), pattern="imported look and write")
    return None


def _calls(steps: list[ToolStep]) -> list[dict[str, Any]]:
    return [{"tool": s.tool, "args": s.arguments} for s in steps]


@dataclass
class Made:
    """Tasks that hold, and why the others don't."""

    tasks: list[Task]
    refused: Counter[str]

    def to_json(self) -> dict[str, Any]:
        return {
            "tasks": len(self.tasks),
            "routes": dict(Counter(t.route for t in self.tasks)),
            "writes": sum(t.changes_state for t in self.tasks),
            "patterns": dict(Counter(t.pattern for t in self.tasks)),
            "tools": len({s.tool for t in self.tasks for s in t.chain}),
            "refused": dict(self.refused.most_common()),
        }


def make(server: McpEnvServer, count: int, seed: int = 0, progress: Progress | None = None) -> Made:
    """Up to ``count`` tasks: a third each of questions, changes and programs, as far as they go.

    Where they don't go far enough, the reasons say so: every draft that was refused, and ``... ran out`` for
    a source that had no more drafts.

    Raises:
        InfrastructureError: the sandbox failed.
    """
    shop = Workshop(server, seed)
    made = Made([], Counter())
    seen: set[str] = set()
    report = progress or (lambda *_: None)
    with VerifierServer(server.provider) as verifiers:
        share = -(-count // 3)
        report(0, count, "programs")
        made.tasks += drafts(shop, verifiers, share, made.refused, seen)
        sources = (("changes", changes(shop), share), ("questions", questions(shop), count))
        for name, source, wanted in sources:
            goal = min(count, len(made.tasks) + wanted)
            for raw in islice(source, DRAFTS * wanted + 20):
                report(len(made.tasks), count, name)
                if len(made.tasks) >= goal:
                    break
                if raw.instruction in seen:
                    continue
                seen.add(raw.instruction)
                tasks, rows = judge_all(server, [raw], verifiers, tool_names(server))
                made.tasks += tasks
                made.refused.update(_reason(row.why) for row in rows if row.outcome == "refused")
            else:
                if len(made.tasks) < goal:
                    made.refused[f"{name} ran out"] += 1
    report(len(made.tasks), count, "")
    return made


def tool_names(server: McpEnvServer) -> dict[str, str]:
    """Tools by their names here: drafts use those already."""
    return {name: name for name in server.tools}


def _reason(why: str) -> str:
    return re.sub(r'".*?"|\d+', "*", why)[:80]
