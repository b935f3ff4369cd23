"""From an executed chain of calls to a question in plain words.

A chain is read backwards. A step whose output no later step uses is an *intent*: the thing asked or the
change wanted. The steps that feed it become noun phrases ("the airport with the highest elevation in
Norway", "the pending permit of Oslo"). One or two intents make a task. No tool, table or column
identifier is used; values come from real results.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from synth.author.base import Executed, Worded, World
from synth.author.offline import followup_tasks, followups
from synth.types import Column, Criterion, Table, Tool

WRITES = ("create", "update", "confirm", "cancel", "transfer", *followups.WRITES)
COUNT_ASKS = ("How many {0} are there {1}?", "Count the {0} {1}.", "Tell me the number of {0} {1}.")
FIELD_ASKS = (
    "What is the {0} of {1}?", "Tell me the {0} of {1}.", "I need the {0} of {1}.",
    "Look up {1} and give me its {0}.", "For {1}, what is the {0}?", "Please report the {0} of {1}.",
)  # fmt: skip
LEFT_ASKS = (
    "How many {0} are left there afterwards?", "Report how many {0} remain there.",
    "Then tell me the {0} that are left.", "What is the number of {0} left after that?",
)  # fmt: skip
CREATE = (
    "Make a new {unit} of {n} {q} for {who}.", "Please enter a {unit} for {who} with {n} {q}.",
    "{who} needs a {unit} of {n} {q}; set it up.", "Register a {unit} of {n} {q} for {who}.",
)  # fmt: skip
UPDATE = (
    "Change {line} to {n} {q}.", "Set {line} to {n} {q}.", "{line} should have {n} {q} instead; fix that.",
    "Adjust {line} so that it has {n} {q}.",
)  # fmt: skip
CONFIRM = (
    "Move {line} on to {status}.", "Mark {line} as {status}.", "{line} can become {status} now; do that.",
    "Please make {line} {status}.",
)  # fmt: skip
CANCEL = (
    "Call off {line}.", "Cancel {line}.", "{line} is no longer wanted; take it back.", "Please withdraw {line}.",
)  # fmt: skip
TRANSFER = (
    "Move {n} {q} from {a} to {b}.", "Take {n} {q} from {a} and give them to {b}.",
    "{b} should get {n} {q} out of what {a} has free.", "Shift {n} {q} from {a} over to {b}.",
)  # fmt: skip
TRANSFER_ASKS = {
    "from_left": ("How many {q} does {a} have left?", "What remains at {a}?"),
    "to_left": ("How many {q} does {b} have left then?", "How many are free at {b} now?"),
}


@dataclass
class Writer:
    """Wording for one chain; remembers the world and the rng."""

    world: World
    steps: list[Executed]
    rng: random.Random

    # --- schema helpers ------------------------------------------------------------------

    def tool(self, i: int) -> Tool:
        return self.world.tools[self.steps[i].step.tool]

    def kind(self, i: int) -> str:
        return self.tool(i).meta["kind"]

    def table(self, kind: str) -> Table | None:
        return next((t for t in self.world.tables.values() if t.kind == kind), None)

    @property
    def ledger(self) -> Table:
        return next(t for t in self.world.tables.values() if t.kind == "ledger" and t.by_role("status"))

    @property
    def main(self) -> Table:
        return self.world.tables[self.ledger.foreign_keys[0].table]

    @property
    def quantity(self) -> Column:
        return self.ledger.columns[2]

    def column(self, ref: str) -> Column:
        table, name = ref.split(".")
        return self.world.tables[table].column(name)

    def label(self, column: Column) -> str:
        """The column's label, or its name in plain words."""
        plain = column.name.replace("_", " ")
        return self.rng.choice((column.label, column.label, plain))

    def parameter(self, i: int, op: str) -> str | None:
        return next((p for p, o in self.tool(i).meta["ops"].items() if o == op), None)

    # --- noun phrases ----------------------------------------------------------------------

    def clauses(self, i: int) -> str:
        """The filters of a step in words: "whose country is Norway and with at least 3 engines"."""
        step, tool, parts = self.steps[i].step, self.tool(i), []
        for p, op in tool.meta["ops"].items():
            if p not in step.arguments or op not in ("eq", "ge", "le"):
                continue
            label, value = self.label(self.column(tool.meta["inputs"][p])), self.value(i, p)
            if op == "eq":
                parts.append(
                    self.rng.choice(("whose {0} is {1}", "with {0} {1}", "where the {0} is {1}")).format(
                        label, value
                    )
                )
            elif op == "ge":
                parts.append(f"with a {label} of at least {value}")
            else:
                parts.append(f"with a {label} of at most {value}")
        return " and ".join(parts)

    def value(self, i: int, p: str) -> str:
        """A parameter's value in words: literal, or the phrase of where it came from."""
        source = self.steps[i].sources.get(p)
        if source is None:
            return str(self.steps[i].step.arguments[p])
        j, path = source
        name = path.split(".")[-1]
        return f"the same {name.replace('_', ' ')} as {self.entity_of(j)}"

    def entity_of(self, j: int) -> str:
        """Noun phrase of the entity that step ``j`` returned."""
        kind, step = self.kind(j), self.steps[j].step
        one = self.main.singular
        if kind == "find":
            p = next(iter(step.arguments))
            source = self.steps[j].sources.get(p)
            if source is not None:
                return self.entity_of(source[0])
            return self.rng.choice(("{1}", "{1}", "the {0} {1}", "the {0} called {1}")).format(
                one, step.arguments[p]
            )
        if kind == "rank":
            measure = self.label(self.column(self.tool(j).meta["measure"]))
            clauses = self.clauses(j)
            return f"the {one} {clauses + ' ' if clauses else ''}that has the {step.arguments['order']} {measure}"
        if kind == "search":
            only = self.steps[j].value["total"] == 1
            how = (
                "the only {0} {1}"
                if only
                else self.rng.choice(("the first {0} by name {1}", "the alphabetically first {0} {1}"))
            )
            return how.format(one, self.clauses(j))
        if kind == "get_ledger":
            return f"the {one} of {self.line_of(j)}"
        raise LookupError(f"{kind} names no entity")

    def entity(self, i: int, op: str = "entity") -> str:
        """Noun phrase of the entity that a step takes."""
        p = self.parameter(i, op)
        assert p is not None
        source = self.steps[i].sources.get(p)
        if source is not None:
            return self.entity_of(source[0])
        column = self.column(self.tool(i).meta["inputs"][p])
        if column.role != "name":
            raise LookupError("an opaque key was sampled")
        return str(self.steps[i].step.arguments[p])

    def line_of(self, i: int) -> str:
        """Noun phrase of the ledger line that a step takes."""
        unit = self.ledger.singular
        p = self.parameter(i, "line")
        assert p is not None
        source = self.steps[i].sources.get(p)
        key = self.steps[i].step.arguments[p]
        if source is None:
            return f"{unit} {key}"
        j, _ = source
        if self.kind(j) == "list_ledger":
            return self.pick(j, key)
        if self.kind(j) in WRITES:
            return "it"
        raise LookupError(f"{self.kind(j)} names no line")

    def pick(self, j: int, key: str) -> str:
        """The line ``key`` among those that step ``j`` listed, by what sets it apart."""
        items = self.steps[j].value["items"]
        unit, q, who = self.ledger.singular, self.quantity, self.entity(j)
        chosen = next(item for item in items if item[self.ledger.primary_key] == key)
        ways = []
        if len(items) == 1:
            ways.append(f"the only {unit} of {who}")
        if sum(item["status"] == chosen["status"] for item in items) == 1:
            ways += [
                f"the {chosen['status']} {unit} of {who}",
                f"the {unit} of {who} that is {chosen['status']}",
            ]
        if len(items) > 1:
            amounts = [item[q.name] for item in items]
            if amounts.count(chosen[q.name]) == 1:
                if chosen[q.name] == max(amounts):
                    ways.append(f"the {unit} of {who} with the most {q.label}")
                elif chosen[q.name] == min(amounts):
                    ways.append(f"the {unit} of {who} with the fewest {q.label}")
                ways.append(f"the {unit} of {who} with {chosen[q.name]} {q.label}")
        if not ways:
            raise LookupError("nothing sets this line apart")
        return self.rng.choice(ways)

    # --- intents -----------------------------------------------------------------------------

    def ask(self, i: int) -> tuple[str, Any]:
        """The question of a reading step, and its answer."""
        kind, value, rng = self.kind(i), self.steps[i].value, self.rng
        field = lambda column, who: rng.choice(FIELD_ASKS).format(self.label(column), who)  # noqa: E731
        if kind == "find":
            known = [
                c
                for c in self.main.columns
                if value.get(c.name) is not None and c.role not in ("key", "name")
            ]
            if not known:
                raise LookupError("nothing to ask")
            column = rng.choice(known)
            return field(column, self.entity_of(i)), value[column.name]
        if kind == "rank":
            measure = self.column(self.tool(i).meta["measure"])
            name = self.main.by_role("name")[0]
            clauses, order = self.clauses(i), self.steps[i].step.arguments["order"]
            if rng.random() < 0.6:
                text = rng.choice(
                    ("Which {0} {1}has the {2} {3}?", "Name the {0} {1}that has the {2} {3}.")
                ).format(self.main.singular, clauses + " " if clauses else "", order, self.label(measure))
                return text, value[name.name]
            return (
                f"What is the {order} {self.label(measure)} of any {self.main.singular}{' ' + clauses if clauses else ''}?",
                value[measure.name],
            )
        if kind in ("search", "count"):
            total = value["total"] if kind == "search" else value["count"]
            return rng.choice(COUNT_ASKS).format(self.main.plural, self.clauses(i)), total
        if kind == "summary":
            stat = rng.choice(("average", "highest", "lowest"))
            measure = self.label(self.column(self.tool(i).meta["measure"]))
            return rng.choice(
                ("What is the {0} {1} of the {2} {3}?", "Give me the {0} {1} over all {2} {3}.")
            ).format(stat, measure, self.main.plural, self.clauses(i)), value[stat]
        if kind in ("profile", "limits"):
            table = self.world.tables[self.tool(i).meta["table"]]
            known = [c for c in table.columns if c.role == "measure" and value.get(c.name) is not None]
            column = rng.choice(known)
            p = next(iter(self.steps[i].step.arguments))
            key = table.column(table.primary_key)
            text = rng.choice(
                (
                    "What is the {0} where the {1} is {2}?",
                    "For {1} {2}, give me the {0}.",
                    "Tell me the {0} for the {1} {2}.",
                )
            )
            return text.format(column.label, self.label(key), self.value(i, p)), value[column.name]
        if kind == "stock":
            stock = self.world.tables[self.tool(i).meta["table"]]
            column = rng.choice(stock.by_role("measure"))
            return rng.choice(("How many {0} does {1} have{2}?", "Tell me how many {0} {1} has{2}.")).format(
                self.quantity.label, self.entity(i), " left" if column.name.endswith("_left") else " in total"
            ), value[column.name]
        if kind == "list_ledger":
            if not value["items"]:
                raise LookupError("no lines")
            chosen = rng.choice(value["items"])
            if rng.random() < 0.2:
                return f"How many {self.ledger.plural} does {self.entity(i)} have?", len(value["items"])
            line = self.pick(i, chosen[self.ledger.primary_key])
            columns = [
                c
                for c in (self.quantity, self.ledger.columns[0], self.ledger.column("status"))
                if not self._spoken(line, chosen[c.name])
            ]
            column = rng.choice(columns)
            return field(column, line), chosen[column.name]
        if kind == "get_ledger":
            line = self.line_of(i)
            columns = [
                c
                for c in (self.quantity, self.ledger.column("status"), self.ledger.column("opened"))
                if not self._spoken(line, value.get(c.name))
            ]
            column = rng.choice(columns)
            return field(column, line), value[column.name]
        if kind == "children":
            child = self.world.tables[self.tool(i).meta["table"]]
            return f"How many {child.plural} does {self.entity(i)} have?", value["total"]
        if kind == "dues":
            return followup_tasks.ask(self, i)
        raise LookupError(f"nothing to ask of {kind}")

    @staticmethod
    def _spoken(text: str, value: Any) -> bool:
        return value is None or f" {value} " in f" {text} "

    def act(self, i: int) -> str:
        """The sentence of a write step."""
        kind, rng, step = self.kind(i), self.rng, self.steps[i].step
        if kind in followups.WRITES:
            return followup_tasks.act(self, i)
        q = self.quantity
        amount = step.arguments.get(q.name)
        if kind == "create":
            return rng.choice(CREATE).format(
                unit=self.ledger.singular, n=amount, q=q.label, who=self.entity(i)
            )
        if kind == "transfer":
            return rng.choice(TRANSFER).format(
                n=amount, q=q.label, a=self.entity(i, "from"), b=self.entity(i, "to")
            )
        line = self.line_of(i)
        if kind == "update":
            return rng.choice(UPDATE).format(line=line, n=amount, q=q.label)
        if kind == "confirm":
            return rng.choice(CONFIRM).format(line=line, status=self.steps[i].value["status"])
        return rng.choice(CANCEL).format(line=line)

    def result(self, i: int) -> tuple[str, Any]:
        """What to report after a write, and the answer."""
        value, q = self.steps[i].value, self.quantity
        if self.kind(i) in followups.WRITES:
            return followup_tasks.result(self, i)
        if self.kind(i) == "transfer":
            field = self.rng.choice(("from_left", "to_left"))
            a, b = self.entity(i, "from"), self.entity(i, "to")
            return self.rng.choice(TRANSFER_ASKS[field]).format(q=q.label, a=a, b=b), value[field]
        left = next(k for k in value if k.endswith("_left"))
        return self.rng.choice(LEFT_ASKS).format(q.label), value[left]

    # --- the whole ---------------------------------------------------------------------------

    def path(self, i: int) -> list[int]:
        """Steps that feed step ``i``, in order, and ``i`` itself."""
        found: list[int] = []
        for source in self.steps[i].sources.values():
            if source is not None:
                found += [j for j in self.path(source[0]) if j not in found]
        return [*found, i]

    def intent(self, i: int) -> tuple[str, Any]:
        chain = self.path(i)
        writes = [j for j in chain if self.kind(j) in WRITES]
        if not writes:
            return self.ask(i)
        sentences = [_capital(self.act(j)) for j in writes]
        if i in writes:
            text, answer = self.result(i)
        else:
            raise LookupError("a question after a write is its own intent")
        return " ".join([*(s if n == 0 else _then(s) for n, s in enumerate(sentences)), text]), answer


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _then(sentence: str) -> str:
    return f"Then {sentence[:1].lower()}{sentence[1:]}"


def criteria_for(answer: Any) -> tuple[Criterion, ...]:
    """One criterion for every value of the answer.

    Numbers with decimals may be off by 0.01 up to 1 in size and by 1% above (:func:`synth.verify.same_number`):
    averages are rounded to 2 digits, and people round. Whole numbers are exact.
    """

    def one(field: str, value: Any) -> Criterion:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return Criterion(
                field=field, check="number", expected=value, tolerance=0.0 if isinstance(value, int) else 0.01
            )
        return Criterion(field=field, check="text", expected=value)

    if isinstance(answer, list):
        return tuple(one(f"answer[{i}]", value) for i, value in enumerate(answer))
    return (one("answer", answer),)


def word_chain(world: World, steps: list[Executed], rng: random.Random) -> Worded | None:
    """Write the question of a chain, or None when it makes no sensible one.

    A chain is refused when a step feeds nothing and more than two intents would be asked, when a line
    or entity can't be told apart in words, or when the answer stands in the question.
    """
    writer = Writer(world, steps, rng)
    used = {source[0] for step in steps for source in step.sources.values() if source is not None}
    ends = [i for i in range(len(steps)) if i not in used]
    if len(ends) > 2:
        return None
    try:
        parts = [writer.intent(i) for i in ends]
    except LookupError:
        return None
    texts = [_capital(text) for text, _ in parts]
    if len(parts) == 1:
        instruction, answer = texts[0], parts[0][1]
    else:
        joint = rng.choice(("Also: {0}", "And one more thing. {0}", "Then: {0}", "Besides that, {0}"))
        second = texts[1][:1].lower() + texts[1][1:] if joint.startswith("Besides") else texts[1]
        instruction = f"{texts[0]} {joint.format(second)} Answer with a list of both, in this order."
        answer = [parts[0][1], parts[1][1]]
    kinds = "+".join(">".join(writer.kind(j) for j in writer.path(i)) for i in ends)
    given = tuple(v for step in steps for v in step.step.arguments.values())
    return Worded(
        instruction=instruction, answer=answer, criteria=criteria_for(answer), pattern=kinds, given=given
    )
