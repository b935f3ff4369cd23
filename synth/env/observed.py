"""The tool graph of a foreign server, from what its proven calls took and gave.

An edge leads from a tool whose result held a value to a tool that was called with it. Links come from values
seen, where schemas say nothing (most servers declare no outputs); :func:`synth.graph_schemas.infer_graph`
adds what names say. Read by :mod:`synth.importers.walks`; goes into the bundle's ``graph.json``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from synth.graph import connect
from synth.graph_schemas import infer_graph
from synth.types import Edge, Link, Tool, ToolGraph

SHORTEST = 3  # characters of a text that links; shorter ones occur by chance


def leaves(value: Any, path: str = "$") -> Iterator[tuple[str, Any]]:
    """(path, scalar) for every scalar of a JSON value; list items share ``[]``; JSON in texts is opened."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, f"{path}.{key}")
    elif isinstance(value, list):
        for part in value:
            yield from leaves(part, f"{path}[]")
    elif isinstance(value, str) and value[:1] in "{[" and value.strip():
        try:
            yield from leaves(json.loads(value), path)
        except ValueError:
            yield path, value
    elif value is not None:
        yield path, value


def gives(value: Any, wanted: Any) -> str | None:
    """The output path at which a result holds a value, whole or as a word of a text; None when nowhere."""
    for path, leaf in leaves(value):
        if leaf == wanted and type(leaf) is type(wanted):
            return path
        if isinstance(leaf, str) and not isinstance(wanted, bool) and _stands_in(str(wanted), leaf):
            return path
    return None


def _stands_in(word: str, text: str) -> bool:
    if word not in text or (len(word) < SHORTEST and not word.isdigit()):
        return False
    return re.search(rf"(?<![\w.]){re.escape(word)}(?![\w])(?!\.\d)", text) is not None


def observed_graph(tools: Sequence[Tool]) -> ToolGraph:
    """Edges by values and by names; by a value into a required parameter they are strong."""

    def find(source: Tool, target: Tool) -> tuple[tuple[Link, ...], tuple[Link, ...]]:
        required = set(target.input_schema.get("required") or ())
        found: dict[tuple[str, str], bool] = {}
        results = [case.expect for case in source.cases if case.error is None]
        for case in target.cases:
            if case.error is not None:
                continue
            for parameter, given in case.arguments.items():
                for _, wanted in leaves(given):
                    if isinstance(wanted, bool) or (isinstance(wanted, str) and len(wanted) < SHORTEST):
                        continue
                    if isinstance(wanted, int | float) and abs(wanted) < 100:
                        continue
                    path = next((p for p in (gives(r, wanted) for r in results) if p), None)
                    if path is not None:
                        found[path, parameter] = parameter in required
        links = tuple(Link(path=path, parameter=parameter) for path, parameter in found)
        return links, tuple(link for link in links if link.parameter in required)

    observed = connect(tools, find)
    named = {(e.source, e.target): e for e in infer_graph(tools).edges if e.weight > 1}
    edges: dict[tuple[str, str], Edge] = {(e.source, e.target): e for e in observed.edges}
    for pair, edge in named.items():
        if pair not in edges or edges[pair].weight < edge.weight:
            edges[pair] = edge
    linked = {frozenset(pair) for pair, e in edges.items() if e.weight > 1}
    kept = [e for pair, e in edges.items() if e.weight > 1 or frozenset(pair) not in linked]
    return ToolGraph(nodes=observed.nodes, edges=tuple(kept))
