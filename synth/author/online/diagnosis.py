"""The diagnosis by a model: it reads failed episodes with tools, and says what new tasks should exercise.

Comes from: the counted diagnosis of :mod:`arena.diagnose` and the failed episodes as :class:`Case` records.
Goes to: ``diagnosis.json``. The counts stay those of the program. The model ranks, explains and writes
guides; each guide must name a counted kind of error, quote episodes word for word, and hold no value of a
measured task. What does not hold is told back; environments that the model leaves out keep their counted
guides.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from synth.answer_leaks import says
from synth.author import prompting
from synth.author.agent import AgentTool, Stop, run_agent
from synth.author.asking import Mend, Unusable
from synth.author.llm import LLM
from synth.author.online.scratch import run_python
from synth.types import Diagnosis, Guide, Weakness

MAX_TURNS = 30  # ours: 5 environments, some episodes of each, a program, a repair
MOST = 5  # environments that are ranked (ours; the rest keep their counted guides)
LONGER = 2  # calls that a wanted task may take beyond the longest failed one (ours)
SHOWN = 40  # episodes of one listing
QUOTE = 8  # characters; a shorter quote says nothing
_TEXT = {"type": "string"}
_GUIDE = {
    "type": "object",
    "required": ["error_kind", "text", "min_steps", "max_steps", "evidence"],
    "additionalProperties": False,
    "properties": {
        "error_kind": _TEXT,
        "text": {"type": "string", "minLength": 20},
        "tool_kinds": {"type": "array", "items": _TEXT},
        "min_steps": {"type": "integer", "minimum": 1},
        "max_steps": {"type": "integer", "minimum": 1},
        "changes_state": {"type": "boolean"},
        "branch": {"type": "boolean"},
        "evidence": {
            "type": "array",
            "minItems": 1,
            "maxItems": 3,
            "items": {
                "type": "object",
                "required": ["episode", "quote"],
                "additionalProperties": False,
                "properties": {"episode": _TEXT, "quote": {"type": "string", "minLength": QUOTE}},
            },
        },
    },
}
SUBMIT = {
    "type": "object",
    "required": ["ranked"],
    "additionalProperties": False,
    "properties": {
        "ranked": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["env_id", "why", "guides"],
                "additionalProperties": False,
                "properties": {
                    "env_id": _TEXT,
                    "why": {"type": "string", "minLength": 20},
                    "guides": {"type": "array", "minItems": 1, "maxItems": 3, "items": _GUIDE},
                },
            },
        }
    },
}


@dataclass(frozen=True)
class Case:
    """One failed episode, as a diagnosis reads it."""

    name: str  # task#sample
    env_id: str
    kind: str  # the counted kind of error
    detail: str
    text: str  # the whole episode in words
    steps: int  # calls of the gold solution
    values: tuple[Any, ...] = ()  # of its task: what a guide must not say


@dataclass
class Diagnostician:
    """One run; its methods are the agent's tools.

    Args:
        found: the counted diagnosis, weakest environment first.
        about: env_id -> {"class", "tools": {name: kind}}.
    """

    llm: LLM
    found: Diagnosis
    cases: Sequence[Case]
    about: Mapping[str, Mapping[str, Any]]
    seed: int = 0
    by_name: dict[str, Case] = field(init=False)
    weak: dict[str, Weakness] = field(init=False)

    def __post_init__(self) -> None:
        self.by_name = {case.name: case for case in self.cases}
        self.weak = {w.env_id: w for w in self.found.weaknesses}

    def run(self) -> Diagnosis:
        """The diagnosis.

        Raises:
            Unusable: the model never submits one that holds.
            Refused, BudgetExceeded, CallerError, InfrastructureError: see ``LLM.complete``.
        """
        inputs = {
            "round": self.found.round,
            "statistics": self.statistics(),
            "environments": self.environments(),
            "most": str(MOST),
        }
        outcome = run_agent(
            self.llm,
            prompting.load("diagnose").render(**inputs),
            self._tools(),
            stage="diagnosis",
            prompt="diagnose",
            max_turns=MAX_TURNS,
            sample=self.seed,
            nudge="Go on with a tool call; submit when you know enough.",
        )
        if not outcome.done:
            raise Unusable(f"diagnosis: {MAX_TURNS} turns and no diagnosis that holds")
        return outcome.value

    def statistics(self) -> str:
        """Counts of every weak environment, then of every class."""
        lines, classes = [], {}
        for w in self.found.weaknesses:
            kinds = ", ".join(f"{kind} {n}" for kind, n in w.error_kinds.items())
            lines.append(f"{w.env_id}: {100 * w.pass_rate:.0f}% passed; errors: {kinds}")
            classes.setdefault(w.taxonomy[0] if w.taxonomy else "unclassified", Counter()).update(
                w.error_kinds
            )
        for name, kinds in sorted(classes.items()):
            lines.append(f"class {name}: " + ", ".join(f"{k} {n}" for k, n in kinds.most_common()))
        return "\n".join(lines)

    def environments(self) -> str:
        lines = []
        for env_id in self.weak:
            known = self.about.get(env_id, {})
            tools = ", ".join(f"{name} ({kind})" for name, kind in known.get("tools", {}).items())
            lines.append(f"{env_id} (class {known.get('class', 'unclassified')}): {tools or 'tools unknown'}")
        return "\n".join(lines)

    # --- the agent's tools ---

    def _tools(self) -> list[AgentTool]:
        def tool(name: str, description: str, run: Any, **properties: Any) -> AgentTool:
            parameters = {"type": "object", "properties": properties, "additionalProperties": False}
            return AgentTool(name, description, parameters | {"required": list(properties)}, run)

        return [
            tool("list", "Failed episodes of an environment: name, kind, detail.", self.list, env_id=_TEXT),
            tool("read", "One failed episode, in full.", self.read, episode=_TEXT),
            tool("search", "Lines of any episode that hold all these words.", self.search, words=_TEXT),
            tool(
                "python", "Run code over `episodes`; prints and `result` come back.", self.python, code=_TEXT
            ),
            AgentTool("submit", "Hand in the diagnosis; ends the work when it holds.", SUBMIT, self.submit),
        ]

    def list(self, env_id: str) -> str:
        if env_id not in self.weak:
            raise Mend(f"no weak environment {env_id}; there are {', '.join(self.weak)}")
        of_env = [case for case in self.cases if case.env_id == env_id]
        lines = [f"{case.name}: {case.kind}: {case.detail}" for case in of_env[:SHOWN]]
        more = [f"({len(of_env) - SHOWN} more)"] if len(of_env) > SHOWN else []
        return "\n".join([*lines, *more])

    def read(self, episode: str) -> str:
        if episode not in self.by_name:
            raise Mend(f"no failed episode {episode[:80]}; list shows their names")
        return self.by_name[episode].text

    def search(self, words: str) -> str:
        wanted = words.casefold().split()
        hits = [
            f"{case.name}: {line.strip()}"
            for case in self.cases
            for line in case.text.splitlines()
            if wanted and all(word in line.casefold() for word in wanted)
        ]
        return "\n".join(hits[:SHOWN]) or "nothing found"

    def python(self, code: str) -> str:
        shown = ("name", "env_id", "kind", "detail", "text", "steps")
        given = {"episodes": [{key: getattr(case, key) for key in shown} for case in self.cases]}
        ran = run_python(code, given=given)
        parts = [ran.printed.rstrip(), f"error: {ran.error}" if ran.error else ""]
        parts += [] if ran.result is None else [f"result = {ran.result!r}"]
        return "\n".join(part for part in parts if part) or "(no output)"

    def submit(self, ranked: Sequence[dict[str, Any]]) -> str:
        raise Stop(self.checked(ranked))

    # --- what must hold ---

    def checked(self, ranked: Sequence[dict[str, Any]]) -> Diagnosis:
        """The diagnosis of a submission. Raises Mend with all faults found."""
        faults = []
        names = [item["env_id"] for item in ranked]
        faults += [f"{n} is ranked twice" for n in sorted({n for n in names if names.count(n) > 1})]
        faults += [f"{n} is no weak environment" for n in names if n not in self.weak]
        faults += [f"{len(names)} environments; rank at most {MOST}"] if len(names) > MOST else []
        for item in ranked:
            if item["env_id"] in self.weak:
                faults += self._faults(self.weak[item["env_id"]], item)
        if faults:
            raise Mend("; ".join(faults[:8]))
        first = tuple(self._weakness(self.weak[item["env_id"]], item) for item in ranked)
        rest = tuple(w for w in self.found.weaknesses if w.env_id not in names)
        author = f"llm:{self.llm.settings.model}"
        return self.found.model_copy(update={"weaknesses": first + rest, "author": author})

    def _faults(self, weak: Weakness, item: dict[str, Any]) -> list[str]:
        faults = []
        kinds = [guide["error_kind"] for guide in item["guides"]]
        faults += [f"two guides for {k}" for k in sorted({k for k in kinds if kinds.count(k) > 1})]
        cases = [case for case in self.cases if case.env_id == weak.env_id]
        longest = max((case.steps for case in cases), default=1) + LONGER
        known = set(self.about.get(weak.env_id, {}).get("tools", {}).values())
        for guide in item["guides"]:
            where = f"{weak.env_id}, guide for {guide['error_kind']}"
            if guide["error_kind"] not in weak.error_kinds:
                faults.append(f"{where}: not counted there; the kinds are {', '.join(weak.error_kinds)}")
            if not guide["min_steps"] <= guide["max_steps"] <= longest:
                faults.append(f"{where}: steps must be 1 to {longest}, the least first")
            if known and (unknown := sorted(set(guide.get("tool_kinds", ())) - known)):
                faults.append(
                    f"{where}: no tool is of kind {unknown[0]}; there are {', '.join(sorted(known))}"
                )
            told = f"{guide['text']} {item['why']}"
            said = next((v for case in cases for v in case.values if says(told, v)), None)
            if said is not None:
                faults.append(f"{where}: {said!r} is a value of a measured task; say it in general words")
            faults += [f"{where}: {fault}" for fault in self._quote_faults(weak.env_id, guide["evidence"])]
        return faults

    def _quote_faults(self, env_id: str, evidence: Sequence[dict[str, str]]) -> list[str]:
        faults = []
        for piece in evidence:
            case = self.by_name.get(piece["episode"])
            if case is None or case.env_id != env_id:
                faults.append(f"{piece['episode'][:80]} is no failed episode of this environment")
            elif _flat(piece["quote"]) not in _flat(case.text):
                faults.append(
                    f"{piece['quote'][:80]!r} does not stand in {piece['episode']}; copy it from there"
                )
        return faults

    def _weakness(self, weak: Weakness, item: dict[str, Any]) -> Weakness:
        guides, evidence = [], []
        for guide in item["guides"]:
            guides.append(
                Guide(
                    id=f"{weak.env_id}.{guide['error_kind']}",
                    text=" ".join(guide["text"].split()),
                    tool_kinds=tuple(sorted(set(guide.get("tool_kinds", ())))),
                    min_steps=guide["min_steps"],
                    max_steps=guide["max_steps"],
                    changes_state=guide.get("changes_state"),
                    branch=guide.get("branch"),
                )
            )
            evidence += [
                f"{e['episode']}: {guide['error_kind']}: {_flat(e['quote'])}" for e in guide["evidence"]
            ]
        why = " ".join(item["why"].split())
        return weak.model_copy(update={"guides": tuple(guides), "evidence": tuple(evidence), "why": why})


def _flat(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
