"""Questions and programs over what follows from a ledger line (:mod:`synth.author.offline.followups`).

:mod:`.wording` and :mod:`.programs` hand over to this file where a grown environment has such tools; in other
environments nothing of it is used, so their tasks stay as they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from synth.author.base import ProgramDraft
from synth.author.offline.followups import FLOW
from synth.author.offline.verifying import VERIFY_ANSWER, VERIFY_HEAD, VERIFY_STATE, names
from synth.types import Table

if TYPE_CHECKING:
    from synth.author.offline.programs import Desk
    from synth.author.offline.wording import Writer

OWED_ASKS = (
    "How much is owed on {line} for its {dues}?", "Tell me what {line} still owes in {dues}.",
    "What do the {billed} {dues} of {line} come to?",
)  # fmt: skip
COUNT_ASKS = ("How many {dues} does {line} have?", "Count the {dues} of {line}.")
FIELD_ASKS = (
    "What is the {field} of {due}?",
    "Tell me the {field} of {due}.",
    "I need the {field} of {due}.",
)
CHARGE = ("Put {a} of {n} on {line}.", "{line} gets {a} of {n}; enter it.", "Bill {line} with {a} of {n}.")
SETTLE = ("{due} has been paid; record that.", "Mark {due} as paid.", "Take in {due}.")
WAIVE = ("Let {due} go.", "{due} need not be paid any more; record that.", "Mark {due} as waived.")
OWED_AFTER = (
    "How much is still owed on it afterwards?", "Report what is owed on that {unit} then.",
    "Then tell me how much of its {dues} is open.",
)  # fmt: skip


# --- questions ---------------------------------------------------------------------------------------


def dues_table(w: Writer, i: int) -> Table:
    return w.world.tables[w.tool(i).meta["table"]]


def ask(w: Writer, i: int) -> tuple[str, Any]:
    """The question of a listing of follow-ups, and its answer."""
    value, table, line = w.steps[i].value, dues_table(w, i), w.line_of(i)
    draw = w.rng.random()
    if draw < 0.45 or not value["items"]:
        text = w.rng.choice(OWED_ASKS).format(line=line, dues=table.plural, billed=FLOW[0])
        return text, value["owed"]
    if draw < 0.6:
        return w.rng.choice(COUNT_ASKS).format(line=line, dues=table.plural), len(value["items"])
    chosen = w.rng.choice(value["items"])
    due = _pick(w, i, chosen[table.primary_key])
    columns = [table.column(n) for n in (table.primary_key, "amount", "status")]
    columns = [c for c in columns if not w._spoken(due, chosen[c.name])]
    if not columns:
        raise LookupError("nothing is left to ask")
    column = w.rng.choice(columns)
    return w.rng.choice(FIELD_ASKS).format(field=column.label, due=due), chosen[column.name]


def _pick(w: Writer, j: int, key: str) -> str:
    """The follow-up ``key`` among those that step ``j`` listed, by what sets it apart."""
    items, table = w.steps[j].value["items"], dues_table(w, j)
    noun, line = table.singular, w.line_of(j)
    chosen = next(item for item in items if item[table.primary_key] == key)
    ways = [f"the only {noun} of {line}"] if len(items) == 1 else []
    if sum(item["status"] == chosen["status"] for item in items) == 1:
        ways += [
            f"the {chosen['status']} {noun} of {line}",
            f"the {noun} of {line} that is {chosen['status']}",
        ]
    amounts = [item["amount"] for item in items]
    if len(items) > 1 and amounts.count(chosen["amount"]) == 1:
        if chosen["amount"] == max(amounts):
            ways.append(f"the highest {noun} of {line}")
        ways.append(f"the {noun} of {chosen['amount']} on {line}")
    if not ways:
        raise LookupError("nothing sets this one apart")
    return w.rng.choice(ways)


def _due_of(w: Writer, i: int) -> str:
    """Noun phrase of the follow-up that a step takes."""
    parameter = w.parameter(i, "due")
    assert parameter is not None
    source = w.steps[i].sources.get(parameter)
    if source is None:
        raise LookupError("an opaque key was sampled")
    j, _ = source
    if w.kind(j) == "dues":
        return _pick(w, j, w.steps[i].step.arguments[parameter])
    if w.kind(j) == "charge":
        return f"that {dues_table(w, j).singular}"
    raise LookupError(f"{w.kind(j)} names none")


def act(w: Writer, i: int) -> str:
    """The sentence of a step that writes a follow-up."""
    kind, noun = w.kind(i), dues_table(w, i).singular
    if kind == "charge":
        article = "an" if noun[0] in "aeiou" else "a"
        amount = w.steps[i].step.arguments["amount"]
        return w.rng.choice(CHARGE).format(a=f"{article} {noun}", n=amount, line=w.line_of(i))
    return w.rng.choice(SETTLE if kind == "settle" else WAIVE).format(due=_due_of(w, i))


def result(w: Writer, i: int) -> tuple[str, Any]:
    """What to report after such a step, and the answer."""
    text = w.rng.choice(OWED_AFTER).format(unit=w.ledger.singular, dues=dues_table(w, i).plural)
    return text, w.steps[i].value["owed"]


# --- programs ----------------------------------------------------------------------------------------


def _dues(d: Desk) -> Table:
    return d.world.tables[d.by_kind["dues"].meta["table"]]


def _busy(d: Desk, billed: bool) -> dict[str, Any] | None:
    """An entity with one to four lines, some of which have (open) follow-ups."""
    table, pk = _dues(d), d.ledger.primary_key
    rows = [r for r in d.world.rows[table.name] if not billed or r["status"] == FLOW[0]]
    keys = {r[pk] for r in rows}
    for row in d.entities(8, busy=True) or d.entities(3, busy=True):
        lines = d.lines(row[d.key])
        if 1 <= len(lines) <= 4 and any(line[pk] in keys for line in lines):
            return row
    return None


def _dues_of(d: Desk, variable: str) -> str:
    pk, line = d.ledger.primary_key, d.param("dues", "line")
    return f"call({d.tool('dues')!r}, {line}={variable}[{pk!r}])"


def _verify_head(d: Desk, row: dict[str, Any], expected: str) -> str:
    pk, table = d.ledger.primary_key, _dues(d)
    return (
        VERIFY_HEAD + d.verify_lines(row[d.key])
        + f"    keys = {{r[{pk!r}] for r in lines}}\n"
        f"    open_ = [r for r in initial.rows({table.name!r}) if r[{pk!r}] in keys and r['status'] == {FLOW[0]!r}]\n"
        f"    expected = {expected}\n" + VERIFY_ANSWER
    )  # fmt: skip


def owed_in_all(d: Desk) -> ProgramDraft | None:
    """Loop over the lines of an entity: what is owed on all of them together; reads only."""
    row = _busy(d, billed=True) if d.has("find", "list_ledger", "dues") else None
    if row is None:
        return None
    who, table = row[d.name.name], _dues(d)
    text = d.rng.choice((
        "How much is owed in {dues} on all {us} of {w} together?",
        "Add up what the {us} of {w} still owe in {dues}.",
    ))  # fmt: skip
    solution = (
        "def solve(call):\n" + d.reference(row, "who") + "    owed = 0\n"
        f"    for line in {d.list_lines('who')}:\n        owed += {_dues_of(d, 'line')}['owed']\n    return owed\n"
    )
    verify = _verify_head(d, row, "sum(r['amount'] for r in open_)") + VERIFY_STATE.format(allowed="set()")
    instruction = text.format(dues=table.plural, us=d.ledger.plural, w=who)
    return ProgramDraft(
        instruction, solution, verify, "loop:owed_in_all", loop=True, aggregate=True, given=(who,)
    )


def settle_all(d: Desk) -> ProgramDraft | None:
    """Loop in a loop with a branch: settle every open follow-up of an entity's lines; answer the sum."""
    row = _busy(d, billed=True) if d.has("find", "list_ledger", "dues", "settle") else None
    if row is None:
        return None
    who, table = row[d.name.name], _dues(d)
    key, tool = table.primary_key, d.tool("settle")
    text = d.rng.choice((
        "All {billed} {dues} on the {us} of {w} have been paid; record that, and give their sum.",
        "Mark every {billed} {due} on any {u} of {w} as paid. How much is that in all?",
    ))  # fmt: skip
    solution = (
        "def solve(call):\n" + d.reference(row, "who") + "    paid = 0\n"
        f"    for line in {d.list_lines('who')}:\n        for due in {_dues_of(d, 'line')}['items']:\n"
        f"            if due['status'] == {FLOW[0]!r}:\n"
        f"                call({tool!r}, {d.param('settle', 'due')}=due[{key!r}])\n"
        "                paid += due['amount']\n    return paid\n"
    )
    verify = (
        _verify_head(d, row, "sum(r['amount'] for r in open_)")
        + f"    touched = {{r[{key!r}] for r in open_}}\n"
        f"    now = {{r[{key!r}]: r for r in final.rows({table.name!r})}}\n"
        f"    wanted = {{r[{key!r}]: {{**r, 'status': {FLOW[1]!r}}} if r[{key!r}] in touched else r "
        f"for r in initial.rows({table.name!r})}}\n"
        "    stray = sorted(k for k in set(now) | set(wanted) if now.get(k) != wanted.get(k))\n"
        f'    checks.append(("every open one is {FLOW[1]}, others as before", not stray, str(stray)))\n'
        + VERIFY_STATE.format(allowed=names(table.name))
    )  # fmt: skip
    instruction = text.format(
        billed=FLOW[0], dues=table.plural, due=table.singular, us=d.ledger.plural, u=d.ledger.singular, w=who
    )
    return ProgramDraft(
        instruction, solution, verify, "loop:settle_all", branch=True, loop=True, aggregate=True,
        given=(who, FLOW[1]),
    )  # fmt: skip


SHAPES = (owed_in_all, settle_all)
