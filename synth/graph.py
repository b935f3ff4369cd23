"""The tool graph: which tool's output can fill which tool's parameter.

Edges follow the paper (section 1.6): strong (3) where B requires what only another tool can give,
weak (2) where B's input can come from A or from elsewhere, independent (1) where nothing links them.
They are inferred from the tools' ``_meta`` references ("table.column") and the schema: a required
parameter that refers to a key of a mined or ledger table is opaque, so its links are strong. For tools
of others, which carry no references, :mod:`synth.graph_schemas` infers them from the schemas alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import networkx as nx

from synth.types import Edge, Link, Table, Tool, ToolGraph

Links = tuple[Link, ...]


class _Named(Protocol):
    @property
    def name(self) -> str: ...


def opaque_refs(tables: Sequence[Table]) -> set[str]:
    """References that a person does not know by heart: keys of mined and ledger tables."""
    return {f"{t.name}.{t.primary_key}" for t in tables if t.kind in ("mined", "ledger")} | {
        f"{t.name}.{fk.column}" for t in tables if t.kind in ("mined", "ledger") for fk in t.foreign_keys
        if fk.table in {o.name for o in tables if o.kind in ("mined", "ledger")}
    }  # fmt: skip


def links_between(source: Tool, target: Tool) -> tuple[Link, ...]:
    """Every (output path, parameter) pair that refers to the same column."""
    outputs: dict[str, str] = source.meta.get("outputs", {})
    inputs: dict[str, str] = target.meta.get("inputs", {})
    return tuple(
        Link(path=path, parameter=parameter)
        for parameter, wanted in inputs.items()
        for path, given in outputs.items()
        if wanted and given == wanted
    )


def build_graph(tools: Sequence[Tool], tables: Sequence[Table]) -> ToolGraph:
    """Infer the edges between all ordered pairs of distinct tools."""
    opaque = opaque_refs(tables)

    def find(source: Tool, target: Tool) -> tuple[tuple[Link, ...], tuple[Link, ...]]:
        links = links_between(source, target)
        required = set(target.input_schema.get("required", []))
        strong = tuple(
            link
            for link in links
            if link.parameter in required and target.meta["inputs"][link.parameter] in opaque
        )
        return links, strong

    return connect(tools, find)


def connect(tools: Sequence[_Named], find: Callable[[Any, Any], tuple[Links, Links]]) -> ToolGraph:
    """The graph over all ordered pairs of distinct tools.

    Args:
        tools: anything with a name.
        find: (all links, those that make the edge strong) from one tool to another.
    """
    edges: list[Edge] = []
    linked: set[frozenset[str]] = set()
    for source in tools:
        for target in tools:
            if source.name == target.name:
                continue
            links, strong = find(source, target)
            if not links:
                continue
            edges.append(
                Edge(
                    source=source.name,
                    target=target.name,
                    kind="strong" if strong else "weak",
                    weight=3 if strong else 2,
                    links=strong or links,
                )
            )
            linked.add(frozenset((source.name, target.name)))
    for source in tools:
        for target in tools:
            if source.name != target.name and frozenset((source.name, target.name)) not in linked:
                edges.append(Edge(source=source.name, target=target.name, kind="independent", weight=1))
    return ToolGraph(nodes=tuple(t.name for t in tools), edges=tuple(edges))


def to_networkx(graph: ToolGraph) -> nx.DiGraph:
    """The graph with attributes ``kind``, ``weight`` and ``links`` on its edges."""
    g = nx.DiGraph()
    g.add_nodes_from(graph.nodes)
    for e in graph.edges:
        g.add_edge(e.source, e.target, kind=e.kind, weight=e.weight, links=e.links)
    return g
