"""The filter: which candidates are worth an environment, and why the others are not.

An environment needs state: records that tools read and change. A candidate is refused, with the reason
and the words that gave it away, when it only serves documentation, passes requests on to somebody else's
API or model, computes from its arguments alone, is about MCP itself, or shows no sign of records. The
signs are verbs and objects of its tools and words of its description; the word lists are ours, tuned on
a hand-read sample (see README.md of this package for how often they are right).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from synth.lexicon import pattern, words_of
from synth.sources.found import Found, ToolDoc, spaced

MIN_WORDS = 5  # a description this short says too little to build on
ENGLISH = 0.7  # least share of ASCII letters: taxonomy and author read English
MIN_TOOLS = 2  # of a theme that only its tools describe
ENOUGH = 2  # signs of state

WRITE = words_of("state", "write")
READ = words_of("state", "read")
OBJECT_STOP = words_of("state", "objects_stop")
MANAGES = pattern("state", "manages")
RECORDS = pattern("state", "records")
DOCUMENTATION = pattern("state", "documentation")
ABOUT_MCP = pattern("state", "about_mcp")
COMPUTES = pattern("state", "computes")
PROXY = pattern("state", "proxy")

REASONS = {  # in the order in which they are looked for
    "benchmark": "a benchmark: never a training theme",
    "withdrawn": "withdrawn or deprecated in its registry",
    "license": "no permissive license stated",
    "no text": f"fewer than {MIN_WORDS} words say what it is",
    "not English": "most of its text is not in English",
    "single function": f"fewer than {MIN_TOOLS} functions, and nothing else describes it",
    "about MCP": "a template, gateway or demonstration of MCP itself",
    "documentation": "serves documentation only",
    "computation": "computes from its arguments alone",
    "API proxy": "passes requests on to a live service; no records of its own",
    "no state": "no sign of records that tools could read and change",
}


@dataclass(frozen=True)
class Signs:
    """What speaks for state: verbs that change, things that are read, words of managing and of records."""

    writes: frozenset[str]
    objects: frozenset[str]
    manages: frozenset[str]
    records: frozenset[str]

    def score(self) -> int:
        """0 to 8: at most two points for each kind of sign."""
        return sum(min(2, len(s)) for s in (self.writes, self.objects, self.manages, self.records))


def judge(found: Found) -> tuple[str, str]:
    """(reason, evidence) of a refusal; ("", signs of state) for a candidate that stays.

    Licenses are not looked at here (:mod:`synth.sources.licenses`).
    """
    if found.refused:
        return found.refused, ""
    text = f"{found.name}. {found.description}"
    if len(found.description.split()) < MIN_WORDS and len(found.tools) < MIN_TOOLS:
        return "no text", found.description
    letters = [c for c in text if c.isalpha()]
    if letters and sum(c.isascii() for c in letters) / len(letters) < ENGLISH:
        return "not English", text[:60]
    signs = signs_of(found)
    if found.source == "prd":
        return _verdict(signs.score() >= ENOUGH, signs, "no state", "")
    if _only_tools(found) and len(found.tools) < MIN_TOOLS:
        return "single function", found.tools[0].name if found.tools else ""
    if hit := ABOUT_MCP.search(text):
        return "about MCP", hit.group(0)
    changes = len(signs.writes) >= 1 and len(signs.objects | signs.records) >= 1
    several = len(signs.writes) >= 2
    for reason, told in (
        ("documentation", DOCUMENTATION),
        ("computation", COMPUTES),
        ("API proxy", PROXY),
    ):
        if (hit := told.search(text)) and not several and not _manages_own(signs, changes, found):
            return reason, hit.group(0)
    if found.tools and all(verb_of(tool) not in WRITE | READ for tool in found.tools) and not signs.manages:
        return "computation", ", ".join(tool.name for tool in found.tools[:4])
    things = bool(signs.records) or len(signs.objects) >= 3  # named in words, or read by several tools
    return _verdict(signs.score() >= ENOUGH and (changes or things), signs, "no state", "")


def signs_of(found: Found) -> Signs:
    """Signs of state in tools and description."""
    verbs = {verb_of(tool) for tool in found.tools}
    objects = {word for tool in found.tools if verb_of(tool) in READ | WRITE for word in _object(tool)}
    text = f"{found.name}. {found.description} {found.text}"
    return Signs(
        writes=frozenset(verbs & WRITE),
        objects=frozenset(objects),
        manages=frozenset(_hits(MANAGES, text)),
        records=frozenset(_hits(RECORDS, text)),
    )


def verb_of(tool: ToolDoc) -> str:
    """The first known verb among the first three words of a tool's name, else the first word."""
    words = spaced(tool.name).split()
    return next((w for w in words[:3] if w in WRITE or w in READ), words[0] if words else "")


def _object(tool: ToolDoc) -> list[str]:
    """What a tool acts on: the words after its verb, singular."""
    words = spaced(tool.name).split()
    verb = verb_of(tool)
    rest = words[words.index(verb) + 1 :] if verb in words else words
    return [
        w[:-1] if len(w) > 3 and w.endswith("s") else w
        for w in rest[:2]
        if w not in OBJECT_STOP and len(w) > 2
    ]


def _manages_own(signs: Signs, changes: bool, found: Found) -> bool:
    """True if a candidate with proxy-like words has state in spite of them."""
    if found.tools:
        return changes and bool(signs.records or signs.manages)
    return len(signs.manages) >= 1 and len(signs.records) >= 2


def _only_tools(found: Found) -> bool:
    return found.origin in ("seal-tools", "openai functions")


def _verdict(kept: bool, signs: Signs, reason: str, evidence: str) -> tuple[str, str]:
    if not kept:
        return reason, evidence
    told = [*sorted(signs.writes)[:3], *sorted(signs.manages)[:2], *sorted(signs.records | signs.objects)[:4]]
    return "", ", ".join(told)


def _hits(pattern: re.Pattern[str], text: str) -> Iterable[str]:
    return (m.group(0).lower() for m in pattern.finditer(text))
