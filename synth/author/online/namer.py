"""Names of taxonomy classes by a model: the second level named, and merged to the first.

Comes from: the drafted mapping of :mod:`synth.classes` (terms, examples, word-count scores). Goes to: the
same mapping, a file that people review. A first-level name must be one of ours, a second-level name unlike
all others; what is not is told back. Classes that the model does not get right keep their drafted names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from synth.author.asking import GIVEN_UP, Mend, ask
from synth.author.llm import LLM

TOGETHER = 25  # classes of one request (ours: half of the paper's 50; all in one reply would be long)


@dataclass(frozen=True)
class LLMNamer:
    """See :class:`synth.classes.Namer`."""

    llm: LLM

    @property
    def label(self) -> str:
        return f"llm:{self.llm.settings.model}"

    def names(self, mapping: Sequence[dict[str, Any]], first: Sequence[str]) -> list[dict[str, Any]]:
        """The mapping with better names; ``named_by`` says whose they are.

        Raises:
            BudgetExceeded, CallerError, InfrastructureError: see :meth:`synth.author.llm.LLM.complete`.
        """
        named: list[dict[str, Any]] = []
        for start in range(0, len(mapping), TOGETHER):
            part = mapping[start : start + TOGETHER]
            taken = [record["second_level"] for record in named]
            try:
                found = self._part(part, first, taken)
            except GIVEN_UP:
                found = {}
            named += [{**r, **found.get(r["cluster"], {})} for r in part]
        return named

    def _part(
        self, part: Sequence[dict[str, Any]], first: Sequence[str], taken: Sequence[str]
    ) -> dict[int, dict[str, str]]:
        def check(reply: dict[str, Any]) -> dict[int, dict[str, str]]:
            return _checked(reply["classes"], [r["cluster"] for r in part], first, taken)

        shown = ("cluster", "themes", "terms", "examples", "first_level")
        inputs = {
            "first": "\n".join(first),
            "classes": [{key: record[key] for key in shown} for record in part],
            "taken": "\n".join(taken) or "none",
        }
        found = ask(self.llm, "name_classes", inputs, check, stage="taxonomy")
        return {cluster: {**names, "named_by": self.label} for cluster, names in found.items()}


def _checked(
    classes: Sequence[dict[str, Any]], wanted: Sequence[int], first: Sequence[str], taken: Sequence[str]
) -> dict[int, dict[str, str]]:
    """Names by class number. Raises Mend with all faults found."""
    faults = []
    given = [item["cluster"] for item in classes]
    faults += [f"class {c} is not named" for c in wanted if c not in given]
    faults += [f"class {c} is none of the list" for c in sorted(set(given) - set(wanted))]
    faults += [f"class {c} is named twice" for c in sorted({c for c in given if given.count(c) > 1})]
    seen = {name.casefold() for name in taken}
    for item in classes:
        name = " ".join(item["second_level"].split())
        if name.casefold() in seen:
            faults.append(f"class {item['cluster']}: the name {name!r} is taken")
        if item["first_level"] not in first:
            faults.append(f"class {item['cluster']}: {item['first_level']!r} is no first-level name")
        seen.add(name.casefold())
    if faults:
        raise Mend("; ".join(faults[:12]))
    return {
        item["cluster"]: {
            "second_level": " ".join(item["second_level"].split()),
            "first_level": item["first_level"],
        }
        for item in classes
    }
