"""Programmatic tasks of the offline author: eight shapes with loops, branches and aggregation.

Every shape returns an instruction, a solution over ``call(name, **arguments)`` and a verifier. The
verifier works on the initial and final rows and knows nothing of the tools: it computes what should
have happened and compares type, value, the rows concerned, and that nothing else changed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from synth.author.base import ProgramDraft, World
from synth.author.offline import followup_tasks
from synth.author.offline.verifying import VERIFY_ANSWER, VERIFY_HEAD, VERIFY_STATE, names
from synth.types import Column, Guide, Table, Tool

ADDED = 0.5  # share of drafts over a grown environment that use what it gained (ours)


@dataclass
class Desk:
    """The tools and tables at hand for writing programs, and the rng."""

    world: World
    rng: random.Random

    def __post_init__(self) -> None:
        self.by_kind: dict[str, Tool] = {t.meta["kind"]: t for t in self.world.tools.values()}
        self.ledger: Table = next(
            t for t in self.world.tables.values() if t.kind == "ledger" and t.by_role("status")
        )
        self.stock: Table = next(
            t for t in self.world.tables.values() if t.kind == "ledger" and not t.by_role("status")
        )
        self.main: Table = self.world.tables[self.ledger.foreign_keys[0].table]
        self.name: Column = self.main.by_role("name")[0]
        self.key: str = self.main.primary_key
        self.q: Column = self.ledger.columns[2]
        self.left: str = self.stock.columns[2].name
        self.workflow: tuple[str, ...] = self.ledger.column("status").values or ()

    def has(self, *kinds: str) -> bool:
        return all(k in self.by_kind for k in kinds)

    def tool(self, kind: str) -> str:
        return self.by_kind[kind].name

    def param(self, kind: str, op: str) -> str:
        return next(p for p, o in self.by_kind[kind].meta["ops"].items() if o == op)

    @property
    def by_name(self) -> bool:
        ref = self.by_kind["list_ledger"].meta["inputs"][self.param("list_ledger", "entity")]
        return ref == f"{self.main.name}.{self.name.name}"

    def lines(self, key: Any) -> list[dict[str, Any]]:
        return [r for r in self.world.rows[self.ledger.name] if r[self.key] == key]

    def entities(self, count: int, busy: bool = False) -> list[dict[str, Any]]:
        """Distinct entities; ``busy`` ones have at least one ledger line."""
        rows = self.world.rows[self.main.name]
        if busy:
            keys = {r[self.key] for r in self.world.rows[self.ledger.name]}
            rows = [r for r in rows if r[self.key] in keys]
        return self.rng.sample(rows, count) if len(rows) >= count else []

    def reference(self, row: dict[str, Any], variable: str) -> str:
        """Source lines that bind ``variable`` to what entity parameters take."""
        if self.by_name:
            return f"    {variable} = {row[self.name.name]!r}\n"
        find = self.by_kind["find"]
        p = self.param("find", "name")
        return f"    {variable} = call({find.name!r}, {p}={row[self.name.name]!r})[{self.key!r}]\n"

    def list_lines(self, variable: str) -> str:
        p = self.param("list_ledger", "entity")
        return f"call({self.tool('list_ledger')!r}, {p}={variable})['items']"

    def verify_lines(self, key: Any) -> str:
        return f"    lines = [r for r in initial.rows({self.ledger.name!r}) if r[{self.key!r}] == {key!r}]\n"

    def verify_status(self, status: str) -> str:
        """Checks that exactly the lines in ``touched`` moved to ``status``."""
        pk = self.ledger.primary_key
        return (
            f"    before = {{r[{pk!r}]: r for r in initial.rows({self.ledger.name!r})}}\n"
            f"    after = {{r[{pk!r}]: r for r in final.rows({self.ledger.name!r})}}\n"
            f"    for key in touched:\n"
            f'        wanted = {{**before[key], "status": {status!r}}}\n'
            f'        checks.append((f"{{key}} is {status}, as it was otherwise", after.get(key) == wanted, str(after.get(key))))\n'
            f"    others = [k for k in before if k not in touched and before[k] != after.get(k)]\n"
            f'    checks.append(("other lines as before", not others and set(after) == set(before), str(others)))\n'
        )

    def verify_stock(self, change: str) -> str:
        """A check that every stock is as before, apart from what ``change`` (source of {key: units}) says."""
        return (
            f"    change = {change}\n"
            f"    stocks = {{r[{self.key!r}]: r for r in initial.rows({self.stock.name!r})}}\n"
            f"    stray = [r for r in final.rows({self.stock.name!r}) if r != {{**stocks[r[{self.key!r}]], "
            f"{self.left!r}: stocks[r[{self.key!r}]][{self.left!r}] + change.get(r[{self.key!r}], 0)}}]\n"
            f'    checks.append(("stock follows, others as before", not stray, str(stray)))\n'
        )

    def verify_old_lines(self, touched: str) -> str:
        """A check that every line that was there is as before, apart from the ``touched`` ones (source of a set)."""
        pk = self.ledger.primary_key
        return (
            f"    now = {{r[{pk!r}]: r for r in final.rows({self.ledger.name!r})}}\n"
            f"    moved = [r for r in initial.rows({self.ledger.name!r}) if r[{pk!r}] not in {touched} and now.get(r[{pk!r}]) != r]\n"
            f'    checks.append(("other lines as before", not moved, str(moved)))\n'
        )


def cancel_all(d: Desk) -> ProgramDraft | None:
    """Loop: call off every line of an entity in one status; answer how much that frees."""
    if not d.has("find", "list_ledger", "cancel"):
        return None
    status = d.workflow[d.rng.choice((0, 1))]
    rows = [r for r in d.entities(6, busy=True) if any(x["status"] == status for x in d.lines(r[d.key]))]
    if not rows:
        return None
    row, pk, q = rows[0], d.ledger.primary_key, d.q.name
    who = row[d.name.name]
    text = d.rng.choice((
        "Call off every {s} {u} of {w}. How many {q} does that free in all?",
        "All {us} of {w} that are {s} must be withdrawn; do it and give the sum of their {q}.",
        "Please withdraw each {s} {u} that {w} has, and report the total of {q} that became free.",
    ))  # fmt: skip
    solution = (
        "def solve(call):\n" + d.reference(row, "who") + "    freed = 0\n"
        f"    for line in {d.list_lines('who')}:\n"
        f"        if line['status'] == {status!r}:\n"
        f"            call({d.tool('cancel')!r}, {d.param('cancel', 'line')}=line[{pk!r}])\n"
        f"            freed += line[{q!r}]\n"
        "    return freed\n"
    )
    verify = (
        VERIFY_HEAD + d.verify_lines(row[d.key])
        + f"    touched = {{r[{pk!r}] for r in lines if r['status'] == {status!r}}}\n"
        f"    expected = sum(r[{q!r}] for r in lines if r['status'] == {status!r})\n"
        + VERIFY_ANSWER + d.verify_status(d.workflow[3]) + d.verify_stock(f"{{{row[d.key]!r}: expected}}")
        + VERIFY_STATE.format(allowed=names(d.ledger.name, d.stock.name))
    )  # fmt: skip
    instruction = text.format(s=status, u=d.ledger.singular, us=d.ledger.plural, w=who, q=d.q.label)
    return ProgramDraft(
        instruction, solution, verify, "loop:cancel_all", loop=True, aggregate=True, given=(who,)
    )


def branch_cancel(d: Desk) -> ProgramDraft | None:
    """Branch: if a line is in the first status call it off, else confirm nothing and report what is left."""
    if not d.has("find", "list_ledger", "cancel", "create"):
        return None
    rows = d.entities(1)
    if not rows:
        return None
    row, pk = rows[0], d.ledger.primary_key
    who, n, status = row[d.name.name], d.rng.randint(1, 3), d.workflow[0]
    text = d.rng.choice((
        "If {w} has a {s} {u}, call off the first of them; if not, make a new {u} of {n} {q} there. How many {q} are left at {w} then?",
        "Check {w}: with a {s} {u} on file, withdraw the first one, otherwise enter a {u} of {n} {q}. Report the {q} left.",
    ))  # fmt: skip
    p = d.param("create", "entity")
    solution = (
        "def solve(call):\n" + d.reference(row, "who")
        + f"    waiting = [x for x in {d.list_lines('who')} if x['status'] == {status!r}]\n"
        "    if waiting:\n"
        f"        return call({d.tool('cancel')!r}, {d.param('cancel', 'line')}=waiting[0][{pk!r}])[{d.left!r}]\n"
        f"    return call({d.tool('create')!r}, {p}=who, {d.q.name}={n})[{d.left!r}]\n"
    )  # fmt: skip
    verify = (
        VERIFY_HEAD + d.verify_lines(row[d.key])
        + f"    waiting = sorted(r[{pk!r}] for r in lines if r['status'] == {status!r})\n"
        f"    held = {{r[{pk!r}]: r[{d.q.name!r}] for r in lines}}\n"
        f"    left = next(r[{d.left!r}] for r in initial.rows({d.stock.name!r}) if r[{d.key!r}] == {row[d.key]!r})\n"
        f"    expected = left + held[waiting[0]] if waiting else left - {n}\n"
        + VERIFY_ANSWER
        + f"    after = [r for r in final.rows({d.ledger.name!r}) if r[{d.key!r}] == {row[d.key]!r}]\n"
        f"    known = {{r[{pk!r}] for r in lines}}\n"
        f"    if waiting:\n"
        f"        status = next((r['status'] for r in after if r[{pk!r}] == waiting[0]), None)\n"
        f'        checks.append(("the first one is {d.workflow[3]}", status == {d.workflow[3]!r} and len(after) == len(lines), str(status)))\n'
        f"    else:\n"
        f"        new = [r for r in after if r[{pk!r}] not in known]\n"
        f'        checks.append(("one new line", len(new) == 1 and new[0][{d.q.name!r}] == {n}, str(new)))\n'
        + d.verify_stock(f"{{{row[d.key]!r}: expected - left}}") + d.verify_old_lines("waiting[:1]")
        + VERIFY_STATE.format(allowed=names(d.ledger.name, d.stock.name))
    )  # fmt: skip
    article = text.format(s=status, u=d.ledger.singular, w=who, q=d.q.label, n=n)
    return ProgramDraft(article, solution, verify, "branch:cancel_or_create", branch=True, given=(who, n))


def sum_lines(d: Desk) -> ProgramDraft | None:
    """Aggregate: total quantity over an entity's lines in one status; reads only."""
    if not d.has("find", "list_ledger"):
        return None
    status = d.rng.choice(d.workflow[:2])
    rows = [r for r in d.entities(6, busy=True) if any(x["status"] == status for x in d.lines(r[d.key]))]
    if not rows:
        return None
    row, q = rows[0], d.q.name
    who = row[d.name.name]
    text = d.rng.choice((
        "How many {q} do the {s} {us} of {w} add up to?",
        "Add up the {q} over all {us} of {w} that are {s}.",
    ))  # fmt: skip
    solution = (
        "def solve(call):\n" + d.reference(row, "who") + "    total = 0\n"
        f"    for line in {d.list_lines('who')}:\n"
        f"        if line['status'] == {status!r}:\n            total += line[{q!r}]\n    return total\n"
    )
    verify = (
        VERIFY_HEAD + d.verify_lines(row[d.key])
        + f"    expected = sum(r[{q!r}] for r in lines if r['status'] == {status!r})\n"
        + VERIFY_ANSWER + VERIFY_STATE.format(allowed="set()")
    )  # fmt: skip
    instruction = text.format(s=status, us=d.ledger.plural, w=who, q=d.q.label)
    return ProgramDraft(
        instruction, solution, verify, "aggregate:sum_lines", loop=True, aggregate=True, given=(who,)
    )


def compare(d: Desk) -> ProgramDraft | None:
    """Branch over two look-ups: the larger or smaller of two values; reads only."""
    measures = [
        m
        for m in d.main.by_role("measure")
        if "find" in d.by_kind and m.name in d.by_kind["find"].output_schema["properties"]
    ]
    pair = d.entities(2)
    if not measures or len(pair) < 2:
        return None
    m = d.rng.choice(measures)
    a, b = pair
    if a[m.name] is None or b[m.name] is None or a[m.name] == b[m.name]:
        return None
    more = d.rng.random() < 0.5
    word, op = ("higher", "max") if more else ("lower", "min")
    text = d.rng.choice((
        "Of {a} and {b}, take the one with the {h} {m}. What is that {m}?",
        "Compare the {m} of {a} and {b} and give me the {h} value.",
        "Which is {h}, the {m} of {a} or that of {b}? Answer with the value.",
    ))  # fmt: skip
    p, tool = d.param("find", "name"), d.tool("find")
    both = [a[d.name.name], b[d.name.name]]
    solution = (
        "def solve(call):\n    values = []\n"
        f"    for name in {both!r}:\n        values.append(call({tool!r}, {p}=name)[{m.name!r}])\n"
        f"    return {op}(values)\n"
    )
    verify = (
        VERIFY_HEAD
        + f"    values = [r[{m.name!r}] for r in initial.rows({d.main.name!r}) if r[{d.key!r}] in {[a[d.key], b[d.key]]!r}]\n"
        f"    expected = {op}(values)\n" + VERIFY_ANSWER + VERIFY_STATE.format(allowed="set()")
    )
    instruction = text.format(a=both[0], b=both[1], h=word, m=m.label)
    return ProgramDraft(
        instruction,
        solution,
        verify,
        "loop:compare",
        loop=True,
        branch=True,
        aggregate=True,
        given=tuple(both),
    )


def level_stock(d: Desk) -> ProgramDraft | None:
    """Branch: move units from the entity that has more left to the other one."""
    pair = d.entities(2)
    if not d.has("find", "stock", "transfer") or len(pair) < 2:
        return None
    a, b = pair
    left = {r[d.key]: r[d.left] for r in d.world.rows[d.stock.name]}
    n = d.rng.randint(1, 4)
    if left[a[d.key]] == left[b[d.key]] or max(left[a[d.key]], left[b[d.key]]) < n:
        return None
    text = d.rng.choice((
        "See whether {a} or {b} has more {q} left, and move {n} from that one to the other. How many {q} does the giver keep?",
        "Take {n} {q} from whichever of {a} and {b} has more left and give them to the other; report what the giver has left.",
    ))  # fmt: skip
    p = d.param("stock", "entity")
    solution = (
        "def solve(call):\n" + d.reference(a, "one") + d.reference(b, "two")
        + f"    first = call({d.tool('stock')!r}, {p}=one)[{d.left!r}]\n"
        f"    second = call({d.tool('stock')!r}, {p}=two)[{d.left!r}]\n"
        "    giver, taker = (one, two) if first > second else (two, one)\n"
        f"    done = call({d.tool('transfer')!r}, {d.param('transfer', 'from')}=giver, {d.param('transfer', 'to')}=taker, {d.q.name}={n})\n"
        "    return done['from_left']\n"
    )  # fmt: skip
    verify = (
        VERIFY_HEAD
        + f"    before = {{r[{d.key!r}]: r[{d.left!r}] for r in initial.rows({d.stock.name!r})}}\n"
        f"    after = {{r[{d.key!r}]: r[{d.left!r}] for r in final.rows({d.stock.name!r})}}\n"
        f"    one, two = {a[d.key]!r}, {b[d.key]!r}\n"
        f"    giver, taker = (one, two) if before[one] > before[two] else (two, one)\n"
        f"    expected = before[giver] - {n}\n" + VERIFY_ANSWER
        + f'    checks.append(("giver", after[giver] == before[giver] - {n}, str(after[giver])))\n'
        f'    checks.append(("taker", after[taker] == before[taker] + {n}, str(after[taker])))\n'
        + d.verify_stock(f"{{giver: -{n}, taker: {n}}}")
        + VERIFY_STATE.format(allowed=names(d.stock.name))
    )  # fmt: skip
    both = (a[d.name.name], b[d.name.name])
    instruction = text.format(a=both[0], b=both[1], q=d.q.label, n=n)
    return ProgramDraft(
        instruction, solution, verify, "branch:level_stock", branch=True, aggregate=True, given=(*both, n)
    )


def confirm_smallest(d: Desk) -> ProgramDraft | None:
    """Aggregate, then write: confirm the smallest line that is still in the first status."""
    if not d.has("find", "list_ledger", "confirm"):
        return None
    status, pk, q = d.workflow[0], d.ledger.primary_key, d.q.name
    for row in d.entities(12, busy=True):
        amounts = [x[q] for x in d.lines(row[d.key]) if x["status"] == status]
        if amounts and amounts.count(min(amounts)) == 1:
            break
    else:
        return None
    who = row[d.name.name]
    text = d.rng.choice((
        "Among the {s} {us} of {w}, make the one with the fewest {q} {t}. How many {q} does it have?",
        "Find the smallest {s} {u} of {w} by {q}, move it on to {t}, and tell me its {q}.",
    ))  # fmt: skip
    solution = (
        "def solve(call):\n" + d.reference(row, "who")
        + f"    waiting = [x for x in {d.list_lines('who')} if x['status'] == {status!r}]\n"
        f"    smallest = min(waiting, key=lambda x: x[{q!r}])\n"
        f"    call({d.tool('confirm')!r}, {d.param('confirm', 'line')}=smallest[{pk!r}])\n"
        f"    return smallest[{q!r}]\n"
    )  # fmt: skip
    verify = (
        VERIFY_HEAD + d.verify_lines(row[d.key])
        + f"    waiting = [r for r in lines if r['status'] == {status!r}]\n"
        f"    smallest = min(waiting, key=lambda r: r[{q!r}])\n    touched = {{smallest[{pk!r}]}}\n"
        f"    expected = smallest[{q!r}]\n" + VERIFY_ANSWER + d.verify_status(d.workflow[1])
        + VERIFY_STATE.format(allowed=names(d.ledger.name))
    )  # fmt: skip
    instruction = text.format(
        s=status, u=d.ledger.singular, us=d.ledger.plural, w=who, q=d.q.label, t=d.workflow[1]
    )
    return ProgramDraft(
        instruction,
        solution,
        verify,
        "aggregate:confirm_smallest",
        aggregate=True,
        given=(who, d.workflow[1]),
    )


def create_each(d: Desk) -> ProgramDraft | None:
    """Loop: one new line of the same size for each of two entities; answer the sum of what is left."""
    pair = d.entities(2)
    if not d.has("find", "create") or len(pair) < 2:
        return None
    n = d.rng.randint(1, 3)
    both = [r[d.name.name] for r in pair]
    keys = [r[d.key] for r in pair]
    text = d.rng.choice((
        "Make a {u} of {n} {q} for each of {a} and {b}. How many {q} are left at the two together?",
        "{a} and {b} both need a {u} with {n} {q}. Enter them and report the sum of {q} left.",
    ))  # fmt: skip
    p = d.param("create", "entity")
    solution = (
        "def solve(call):\n" + d.reference(pair[0], "one") + d.reference(pair[1], "two")
        + "    left = 0\n    for who in (one, two):\n"
        f"        left += call({d.tool('create')!r}, {p}=who, {d.q.name}={n})[{d.left!r}]\n    return left\n"
    )  # fmt: skip
    verify = (
        VERIFY_HEAD
        + f"    expected = sum(r[{d.left!r}] - {n} for r in initial.rows({d.stock.name!r}) if r[{d.key!r}] in {keys!r})\n"
        + VERIFY_ANSWER
        + f"    known = {{r[{d.ledger.primary_key!r}] for r in initial.rows({d.ledger.name!r})}}\n"
        f"    new = [r for r in final.rows({d.ledger.name!r}) if r[{d.ledger.primary_key!r}] not in known]\n"
        f'    checks.append(("one new line each", sorted(str(r[{d.key!r}]) for r in new) == sorted(map(str, {keys!r})), str(new)))\n'
        f'    checks.append(("sizes", all(r[{d.q.name!r}] == {n} for r in new), str(new)))\n'
        f"    gone = len(known) + len(new) != len(final.rows({d.ledger.name!r}))\n"
        f'    checks.append(("no line lost", not gone, ""))\n'
        + d.verify_stock(f"{{key: -{n} for key in {keys!r}}}") + d.verify_old_lines("()")
        + VERIFY_STATE.format(allowed=names(d.ledger.name, d.stock.name))
    )  # fmt: skip
    instruction = text.format(u=d.ledger.singular, n=n, q=d.q.label, a=both[0], b=both[1])
    return ProgramDraft(
        instruction, solution, verify, "loop:create_each", loop=True, aggregate=True, given=(*both, n)
    )


def guarded_create(d: Desk) -> ProgramDraft | None:
    """Branch: create only when enough is left, else report what is left."""
    rows = d.entities(1)
    if not rows or not d.has("find", "stock", "create"):
        return None
    row = rows[0]
    who, n, bar = row[d.name.name], d.rng.randint(1, 3), d.rng.randint(8, 40)
    text = d.rng.choice((
        "If {w} has at least {k} {q} left, make a {u} of {n} {q} for it. Either way, tell me how many {q} it has left in the end.",
        "Provided that {w} still has {k} or more {q} free, enter a {u} with {n} {q}; otherwise do nothing. Report the {q} left.",
    ))  # fmt: skip
    p = d.param("stock", "entity")
    solution = (
        "def solve(call):\n" + d.reference(row, "who")
        + f"    left = call({d.tool('stock')!r}, {p}=who)[{d.left!r}]\n    if left >= {bar}:\n"
        f"        left = call({d.tool('create')!r}, {d.param('create', 'entity')}=who, {d.q.name}={n})[{d.left!r}]\n    return left\n"
    )  # fmt: skip
    verify = (
        VERIFY_HEAD
        + f"    left = next(r[{d.left!r}] for r in initial.rows({d.stock.name!r}) if r[{d.key!r}] == {row[d.key]!r})\n"
        f"    wanted = {n} if left >= {bar} else 0\n    expected = left - wanted\n" + VERIFY_ANSWER
        + f"    known = {{r[{d.ledger.primary_key!r}] for r in initial.rows({d.ledger.name!r})}}\n"
        f"    new = [r for r in final.rows({d.ledger.name!r}) if r[{d.ledger.primary_key!r}] not in known]\n"
        f"    fits = [r[{d.key!r}] == {row[d.key]!r} and r[{d.q.name!r}] == {n} for r in new]\n"
        f'    checks.append(("lines", len(new) == (1 if wanted else 0) and all(fits), str(new)))\n'
        + d.verify_stock(f"{{{row[d.key]!r}: -wanted}}") + d.verify_old_lines("()")
        + VERIFY_STATE.format(allowed=names(d.ledger.name, d.stock.name))
    )  # fmt: skip
    instruction = text.format(w=who, k=bar, q=d.q.label, u=d.ledger.singular, n=n)
    return ProgramDraft(
        instruction, solution, verify, "branch:guarded_create", branch=True, given=(who, n, bar)
    )


SHAPES: tuple[Callable[[Desk], ProgramDraft | None], ...] = (
    cancel_all, branch_cancel, sum_lines, compare, level_stock, confirm_smallest, create_each, guarded_create,
)  # fmt: skip


def write_program(world: World, guide: Guide | None, rng: random.Random) -> ProgramDraft | None:
    """Draw a shape that the guide allows, and write it for this environment."""
    desk = Desk(world, rng)
    shapes = followup_tasks.SHAPES if desk.has("dues") and rng.random() < ADDED else SHAPES
    draft = rng.choice(shapes)(desk)
    if draft is None or guide is None:
        return draft
    if guide.branch is not None and guide.branch != draft.branch:
        return None
    return draft
