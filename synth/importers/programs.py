"""Programmatic tasks for imported environments: sums, branches and loops over what a server answers.

The solution reads records out of real results (:func:`synth.importers.readings.records`, whose source it
carries) and computes, branches or writes in a loop. The verifier never asks the server: it derives the
answer from
the states (:func:`synth.importers.facts.logical`, carried too), and compares what changed with what the right
branch changes. Drafts are run, judged and gated like all others.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from synth.admission import check_task
from synth.env.verifier import VerifierServer
from synth.importers.drafted import Draft, task_of_draft
from synth.importers.phrasing import capital, order, shown, singular, values, words
from synth.importers.tasks import DONE
from synth.importers.walks import Variation, scalars
from synth.importers.whole_tables import Source, call_text, sources
from synth.importers.workshop import Workshop, askable, literal, naming, writes
from synth.types import Task, ToolStep
from synth.verify import is_number

LOOPS = range(2, 6)  # ours: writes of one loop


def drafts(
    shop: Workshop, verifiers: VerifierServer, count: int, refused: Counter[str], seen: set[str]
) -> list[Task]:
    """Up to ``count`` programmatic tasks that hold; reasons of the others go to ``refused``."""
    found = sources(shop)
    tasks: list[Task] = []
    if not found:
        refused["program: no table comes back whole"] += 1
        return tasks
    rng = shop.rng("programs")
    changed = writes(shop, "programs")
    kinds = (_sum, _best, _branch, _branch, _loop, _loop)
    for number in range(count * 8):
        if len(tasks) == count:
            break
        source = rng.choice(found)
        draft = kinds[number % len(kinds)](shop, source, rng, changed)
        if draft is None or draft.instruction in seen:
            continue
        seen.add(draft.instruction)
        try:
            task = task_of_draft(shop, verifiers, source, draft, rng.randrange(1_000_000))
            faults = check_task(shop.server, shop.server.bundle, task, verifiers)
            if faults:
                raise ValueError(f"{faults[0].gate}: {faults[0].detail}")
            tasks.append(task)
        except ValueError as err:
            refused["program: " + re.sub(r'".*?"|\\d+', "*", str(err))[:70]] += 1
    return tasks


@dataclass(frozen=True)
class _Part:
    """Records that share a value: the words, and the condition over ``r`` in both languages."""

    label: str
    records: list[dict[str, Any]]
    solve: str
    verify: str


def _part(shop: Workshop, source: Source, rng: random.Random, sizes: range = range(2, 99)) -> _Part | None:
    records = shop.tables[source.table]
    name = naming(records)
    options = []
    for column, at in source.fields.items():
        if column in (name, "name_of_file"):
            continue
        cells = [r.get(column) for r in records]
        for value in dict.fromkeys(c for c in cells if isinstance(c, str) and askable(c)):
            same = [r for r in records if r.get(column) == value]
            if len(same) in sizes and len(same) < len(records):
                label = f"with the {words(column)} {shown(value)}"
                options.append(
                    (label, same, f"r.get({at!r}) == {value!r}", f"r.get({column!r}) == {value!r}")
                )
        numbers = sorted({c for c in cells if is_number(c)})
        if len(numbers) == len(set(cells)) and len(numbers) > 3 and words(column) != "id":
            for least in numbers[1:-1]:
                same = [r for r in records if r[column] >= least]
                if len(same) in sizes and len(same) < len(records):
                    label = f"whose {words(column)} is at least {least}"
                    conditions = [f"r.get({c!r}) is not None and r[{c!r}] >= {least!r}" for c in (at, column)]
                    options.append((label, same, *conditions))
    return _Part(*rng.choice(options)) if options else None


def _measure(shop: Workshop, source: Source, rng: random.Random) -> str | None:
    records = shop.tables[source.table]
    options = [c for c in source.fields if words(c) != "id" and all(is_number(r.get(c)) for r in records)]
    return rng.choice(options) if options else None


def _sum(shop: Workshop, source: Source, rng: random.Random, _: Iterator[Any]) -> Draft | None:
    part, column = _part(shop, source, rng), _measure(shop, source, rng)
    if part is None:
        return None
    one = singular(source.table)
    if column is None or rng.random() < 0.4:
        text = f"How many {one} entries {part.label} are there? Answer with a number."
        solve, verify = f"sum(1 for r in found if {part.solve})", f"sum(1 for r in found if {part.verify})"
    else:
        text = f"What do the {words(column)} values of all {one} entries {part.label} add up to?"
        text += " Round to two decimals."
        at = source.fields[column]
        solve = f"round(sum(r[{at!r}] for r in found if {part.solve}), 2)"
        verify = f"round(sum(r[{column!r}] for r in found if {part.verify}), 2)"
    return Draft(
        source.where + text, f"return {solve}", f"    return {verify}, 'none'", {"none": []}, "imported sum"
    )


def _best(shop: Workshop, source: Source, rng: random.Random, _: Iterator[Any]) -> Draft | None:
    part, column = _part(shop, source, rng, range(3, 99)), _measure(shop, source, rng)
    if part is None or column is None:
        return None
    name = str(naming(shop.tables[source.table]))
    cells = [r[column] for r in part.records]
    most = rng.random() < 0.5
    if cells.count((max if most else min)(cells)) != 1:
        return None
    how, function = ("highest", "max") if most else ("lowest", "min")
    text = f"Of the {singular(source.table)} entries {part.label}, which has the {how} {words(column)}?"
    text += f" Answer with its {words(name)}."
    made = [
        f"return {function}((r for r in found if {condition}), key=lambda r: r[{by!r}])[{of!r}]"
        for condition, by, of in (
            (part.solve, source.fields[column], source.fields[name]),
            (part.verify, column, name),
        )
    ]
    return Draft(source.where + text, made[0], f"    {made[1]}, 'none'", {"none": []}, "imported best")


def _branch(shop: Workshop, source: Source, rng: random.Random, changed: Iterator[Any]) -> Draft | None:
    part, pair = _part(shop, source, rng), list(islice(changed, 2))
    if part is None or len(pair) < 2:
        return None
    first, second = pair
    size = len(part.records)
    limit = rng.choice([size - 1, size, size + 1])
    text = (
        f"If there are more than {limit} {singular(source.table)} entries {part.label}, then {first.text}. "
        f"Otherwise {second.text}. "
    )
    body = (
        f"if sum(1 for r in found if {part.solve}) > {limit}:\n"
        f"        {call_text(first.step)}\n    else:\n        {call_text(second.step)}\n    return {DONE!r}"
    )
    verify = f"    return {DONE!r}, 'then' if sum(1 for r in found if {part.verify}) > {limit} else 'else'"
    return Draft(
        _finished(source.where, text), body, verify, {"then": [first.step], "else": [second.step]},
        "imported branch", branch=True, aggregate=False,
    )  # fmt: skip


def _finished(where: str, text: str) -> str:
    return f'{where}{capital(text)}Answer "{DONE}" when all is done.'


MARK = "\x00"


def _loop(shop: Workshop, source: Source, rng: random.Random, _: Iterator[Any]) -> Draft | None:
    """A proven write for each record of a part: one of its values is the record's name."""
    part = _part(shop, source, rng, LOOPS)
    if part is None:
        return None
    name = str(naming(shop.tables[source.table]))
    known = {r[name] for r in shop.tables[source.table]}
    options: list[tuple[str, str, Callable[[str], ToolStep]]] = []
    for tool in shop.tools:
        for case in shop.proven(tool, True):
            given = [v for v in scalars(case.arguments) if isinstance(v, str) and v in known]
            if len(given) != 1:
                continue
            varied = Variation(shop.known, tool, case.arguments, rng).arguments
            named = [v for v in scalars(varied) if isinstance(v, str) and v in known]
            if len(named) != 1:
                continue
            form = json.dumps(varied).replace(json.dumps(named[0]), json.dumps(MARK))
            if form.count(json.dumps(MARK)) == 1:
                told = values(json.loads(form)).replace(shown(MARK), f"its {words(name)}")

                def step(value: str, tool: str = tool.name, form: str = form) -> ToolStep:
                    return ToolStep(
                        tool=tool, arguments=json.loads(form.replace(json.dumps(MARK), json.dumps(value)))
                    )

                options.append((f"{order(tool)}, with {told}", form, step))
    if True in shop.sql:
        options.append(_sql_loop(shop, source, rng, name))
    if not options:
        return None
    told, form, make = rng.choice(options)
    tool = make("x").tool
    text = f"For every {singular(source.table)} entry {part.label}, {told}. "
    body = (
        f"import json\n    for value in [r[{source.fields[name]!r}] for r in found if {part.solve}]:\n"
        f"        text = {form!r}.replace({json.dumps(MARK)!r}, json.dumps(value))\n"
        f'        call({tool!r}, **json.loads(text.replace({MARK!r}, value.replace("\'", "\'\'"))))\n'
        f"    return {DONE!r}"
    )
    steps = [make(r[name]) for r in part.records]
    verify = f"    return {DONE!r}, 'loop' if [r for r in found if {part.verify}] else 'none'"
    return Draft(
        _finished(source.where, text),
        body,
        verify,
        {"loop": steps},
        "imported loop",
        loop=True,
        aggregate=False,
    )


def _sql_loop(
    shop: Workshop, source: Source, rng: random.Random, name: str
) -> tuple[str, str, Callable[[str], ToolStep]]:
    tool, parameter = shop.sql[True]
    column, value = _measure(shop, source, rng) or name, rng.randint(2, 90)

    def step(text: str) -> ToolStep:
        sql = f'UPDATE "{source.table}" SET "{column}" = {value} WHERE "{name}" = {literal(text)}'
        return ToolStep(tool=tool.name, arguments={parameter: sql})

    form = json.dumps({parameter: step("x").arguments[parameter].replace("'x'", f"'{MARK}'")})
    form = form.replace(json.dumps(MARK)[1:-1], MARK)
    return f"set its {words(column)} to {value}", form, step
