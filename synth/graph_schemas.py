"""The tool graph of tools that carry no references: links inferred from JSON Schemas alone.

An output can fill a parameter when both mean the same thing. What a slot means is read, in this order, from

1. a declared type beyond JSON's own ("image", "audio"; also ``format`` and ``x-type``): equal types link;
2. its name: ``flight_id`` and ``flightId`` are "flight id"; a name that says little (``id``, ``name``,
   ``status``) is taken with its owner, which is the array or object around it, else what the tool acts on.

JSON types must agree (an integer fills a number, nothing fills an object). A link into a required
identifier is strong: a person doesn't know it by heart. All other links are weak.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from synth.embedding import singular
from synth.graph import connect
from synth.lexicon import words_of
from synth.sources.found import spaced
from synth.sources.state import READ, WRITE
from synth.types import Link, ToolGraph

JSON_TYPES = frozenset({"string", "integer", "number", "boolean", "array", "object", "null"})
VAGUE = words_of("graph", "vague")
IDENTIFIERS = words_of("graph", "identifiers")
SWITCHES = words_of("graph", "switches")
WRAPPERS = words_of("graph", "wrappers")
FRONT = words_of("graph", "front")
PLAIN_FORMATS = words_of("graph", "plain_formats")
DEEPEST = 4  # levels of nested output


class Documented(Protocol):
    """A tool as its document shows it: :class:`synth.types.Tool` and ``ToolDoc`` both are."""

    @property
    def name(self) -> str: ...
    @property
    def input_schema(self) -> dict[str, Any]: ...
    @property
    def output_schema(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Slot:
    """One parameter or one value of an output."""

    path: str  # parameter name, or "$.items[].flight_id"
    meanings: frozenset[str]  # "type:image", or words such as "flight id"
    json_type: str  # "" where undeclared
    required: bool = False
    identifier: bool = False


@dataclass(frozen=True)
class Signature:
    """All slots of one tool."""

    name: str
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]


def signature(tool: Documented) -> Signature:
    """Read a tool's slots from its schemas."""
    owner = acts_on(tool.name)
    required = set(tool.input_schema.get("required") or ())
    inputs = tuple(
        _slot(name, name, schema, owner, name in required)
        for name, schema in (tool.input_schema.get("properties") or {}).items()
        if not set(spaced(name).split()) <= SWITCHES
    )
    outputs = tuple(_outputs(tool.output_schema, "$", "", owner, DEEPEST))
    return Signature(tool.name, inputs, outputs)


def links(source: Signature, target: Signature) -> tuple[Link, ...]:
    """Every (output path, parameter) pair that means the same."""
    return tuple(
        Link(path=given.path, parameter=wanted.path)
        for wanted in target.inputs
        for given in source.outputs
        if given.meanings & wanted.meanings and _fits(given.json_type, wanted.json_type)
    )


def infer_graph(tools: Sequence[Documented]) -> ToolGraph:
    """The graph of tools from their names and schemas; ``_meta`` is not looked at."""
    signatures = {tool.name: signature(tool) for tool in tools}

    def find(source: Documented, target: Documented) -> tuple[tuple[Link, ...], tuple[Link, ...]]:
        found = links(signatures[source.name], signatures[target.name])
        opaque = {s.path for s in signatures[target.name].inputs if s.required and s.identifier}
        return found, tuple(link for link in found if link.parameter in opaque)

    return connect(tools, find)


def acts_on(name: str) -> str:
    """What a tool is about, from its name: list_open_orders -> "order"; "" for a bare verb."""
    words = [w for w in spaced(name).split() if w not in WRITE | READ]
    for stop in ("by", "for", "with", "from", "in", "of", "to", "at"):
        words = words[: words.index(stop)] if stop in words[1:] else words
    return singular(words[-1]) if words else ""


def _outputs(schema: Any, path: str, name: str, owner: str, depth: int) -> Iterator[Slot]:
    """The leaves of an output schema."""
    if not isinstance(schema, Mapping) or depth == 0:
        return
    if isinstance(schema.get("items"), Mapping):
        inner = singular(spaced(name)) if name and spaced(name) not in WRAPPERS else owner
        yield from _outputs(schema["items"], f"{path}[]", "", inner, depth)
    elif isinstance(schema.get("properties"), Mapping):
        inner = singular(spaced(name)) if name and spaced(name) not in WRAPPERS else owner
        for field, below in schema["properties"].items():
            yield from _outputs(below, f"{path}.{field}", field, inner, depth - 1)
    elif schema.get("type") or name:
        yield _slot(path, name, schema, owner, False)


def _slot(path: str, name: str, schema: Any, owner: str, required: bool) -> Slot:
    schema = schema if isinstance(schema, Mapping) else {}
    kind = _json_type(schema)
    declared = _declared(schema)
    words = [singular(w) for w in spaced(name).split()]
    words = words[1:] if len(words) > 1 and words[0] in FRONT else words
    meaning = " ".join(words)
    if words and set(words) <= VAGUE:
        qualified = meaning if owner in words else f"{owner} {meaning}".strip()
        meanings = {qualified} if owner else set()
    else:
        meanings = {meaning} if meaning else set()
        if len(words) == 1:  # "airport" is filled by the airport's name or id
            meanings |= {f"{meaning} {mark}" for mark in ("id", "name", "code")}
    identifier = bool(words) and (words[-1] in IDENTIFIERS)
    return Slot(path, frozenset({f"type:{declared}"} if declared else meanings), kind, required, identifier)


def _declared(schema: Mapping[str, Any]) -> str:
    """A type beyond JSON's own: ``x-type``, ``type: image``, ``format: email``; "" without one."""
    for given in (schema.get("x-type"), schema.get("type"), schema.get("format")):
        word = given.strip().lower() if isinstance(given, str) else ""
        if (
            word
            and word not in JSON_TYPES | PLAIN_FORMATS
            and not re.fullmatch(r"(str|int|bool|dict|any)\w*", word)
        ):
            return word
    return ""


def _json_type(schema: Mapping[str, Any]) -> str:
    kinds = schema.get("type")
    if isinstance(kinds, list):
        kinds = next((k for k in kinds if k != "null"), "")
    return kinds if isinstance(kinds, str) and kinds in JSON_TYPES else ""


def _fits(given: str, wanted: str) -> bool:
    """Whether a value of one JSON type can fill another; an array is filled by its elements."""
    if not given or not wanted or given == wanted:
        return wanted not in ("object", "boolean")
    return (given, wanted) == ("integer", "number") or wanted == "array"
