"""Words for tasks over imported servers: what a person would say, without the names that tools give things.

A write is told by what the tool's own description says it does, as an order, and by its values; a question by
the record that it is about. What still gives away a name is refused by the gates (:mod:`synth.leaks`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from synth.types import Tool

OTHER_VERBS = {
    "create": "set up", "add": "put in", "delete": "take out", "remove": "take out", "write": "put down",
    "update": "change", "move": "shift", "rename": "retitle", "copy": "duplicate", "insert": "enter",
    "replace": "swap", "edit": "revise", "clear": "empty", "make": "carry out", "switch": "change over",
}  # fmt: skip
PLAIN = {
    "from": "source",
    "to": "target",
    "at": "place",
    "cell": "cell address",
}  # names that no sentence bears
NOT_VERBS = {"sales", "files", "this", "its", "is", "has", "does"}


def words(name: str) -> str:
    """A name as words: ``entityType`` and ``entity_type`` are "entity type"."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    text = re.sub(r"[^A-Za-z0-9]+", " ", spaced).strip().lower()
    return PLAIN.get(text, text)


def singular(name: str) -> str:
    """One of a table's records in words."""
    text = words(re.sub(r"\.\w+$", "", name)).removeprefix("git ")  # the lens' own prefix, and a tool's name
    if text.endswith("ies"):
        return f"{text[:-3]}y"
    return text[:-1] if text.endswith("s") and not text.endswith("ss") else text


def order(tool: Tool, other: bool = False) -> str:
    """What a tool does, as an order: the first sentence of its description.

    Args:
        other: take another verb, where there is one.
    """
    text = re.split(r"(?<=[a-z)])\.(?:\s|$)|\n|;|:\s", tool.description.strip())[0]
    text = re.sub(r"\s*\([^)]*\)", "", text).strip().rstrip(".")
    text = re.sub(r"\bmultiple\b\s*|\bspecified\b\s*", "", text)
    first, _, rest = text.partition(" ")
    verb = first.lower()
    if verb.endswith("s") and not verb.endswith("ss") and verb not in NOT_VERBS:
        verb = verb[:-2] if re.search(r"(?:ch|sh|x|ss)es$", verb) else verb[:-1]
    if other:
        verb = OTHER_VERBS.get(verb, verb)
    return f"{verb} {rest}".strip()


def values(arguments: Mapping[str, Any]) -> str:
    """A call's arguments in words: "name Mei; observations paints boats"."""
    return "; ".join(part for name, value in arguments.items() if (part := _told(words(name), value)))


def _told(label: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{label} with {', '.join(_told(words(k), v) for k, v in value.items())}" if value else ""
    if isinstance(value, list):
        if all(isinstance(part, Mapping) for part in value):
            return "; ".join(values(part) for part in value)
        if any(isinstance(part, list) for part in value):
            return f"{label} " + " / ".join(", ".join(map(shown, row)) for row in value)
        return f"{label} " + " and ".join(map(shown, value))
    return f"{label} {shown(value)}" if value is not None else ""


def shown(value: Any) -> str:
    """A value in a sentence: quoted where it has more than one word."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = str(value)
    return f'"{text.strip()}"' if " " in text.strip() else text.strip()


def capital(text: str) -> str:
    """The first letter large."""
    return text[:1].upper() + text[1:]
