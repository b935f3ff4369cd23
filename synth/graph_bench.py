"""Inferred tool graphs against TaskBench's gold graphs: precision, recall and F1 by domain.

TaskBench (MIT) documents tools of three domains with their dependency links. Two domains declare input
and output types; their links say whose output another can take. The third, daily life, declares
parameters only, and its gold graph links every tool with every other (any order in time): it is reported,
and no schema could earn recall there. What a model adds to the schemas is
measured the same way. The files are measured against, never used as themes.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from synth.errors import CallerError
from synth.graph_schemas import infer_graph
from synth.sources.found import ToolDoc

Pairs = set[tuple[str, str]]
Linker = Callable[[list[ToolDoc]], Pairs]


@dataclass(frozen=True)
class Score:
    """How well inferred links agree with gold ones."""

    domain: str
    tools: int
    declares_types: bool
    gold: int
    inferred: int
    right: int
    precision: float
    recall: float
    f1: float
    by: str = "schemas"  # schemas, model, or both: whose links

    def to_json(self) -> dict[str, Any]:
        """For reports."""
        return asdict(self)


def score(
    domain: str, tools: int, declares: bool, inferred: Pairs, gold: Pairs, by: str = "schemas"
) -> Score:
    """Compare two sets of (source, target)."""
    right = len(inferred & gold)
    precision = right / len(inferred) if inferred else 0.0
    recall = right / len(gold) if gold else 0.0
    f1 = 2 * precision * recall / (precision + recall) if right else 0.0
    figures = (round(precision, 4), round(recall, 4), round(f1, 4))
    return Score(domain, tools, declares, len(gold), len(inferred), right, *figures, by)


def taskbench(paths: Iterable[Path], linker: Linker | None = None) -> list[Score]:
    """Scores of TaskBench ``*graph_desc.json[.gz]`` files, in the order given.

    Args:
        linker: a model's links among tools (:func:`synth.author.online.linker.link_tools`); each file then
            has three scores: of the schemas alone, of the model alone, and of both together.

    Raises:
        CallerError: a file is absent, or no TaskBench graph.
    """
    return [found for path in paths for found in _measure(path, linker)]


def tools_of(document: dict[str, Any]) -> list[ToolDoc]:
    """TaskBench nodes as documented tools: types become schemas, parameters keep their names."""
    return [_tool(node) for node in document["nodes"]]


def edges(tools: list[ToolDoc]) -> Pairs:
    """The strong and weak edges that the schemas alone give."""
    return {(e.source, e.target) for e in infer_graph(tools).edges if e.kind != "independent"}


def _measure(path: Path, linker: Linker | None) -> list[Score]:
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        document = json.loads(raw)
        gold = {(link["source"], link["target"]) for link in document["links"]}
        tools = tools_of(document)
    except OSError as err:
        raise CallerError(f"{path}: cannot be read ({err.strerror}); name a graph_desc.json") from None
    except (ValueError, KeyError, TypeError):
        raise CallerError(
            f"{path}: fields nodes, links: not a TaskBench graph; name a graph_desc.json"
        ) from None
    declares = all("output-type" in node for node in document["nodes"])
    domain = path.name.split(".")[0].removeprefix("taskbench_").removesuffix("_graph_desc")
    found = {"schemas": edges(tools)}
    if linker is not None:
        found["model"] = linker(tools)
        found["both"] = found["schemas"] | found["model"]
    return [score(domain, len(tools), declares, pairs, gold, by) for by, pairs in found.items()]


def _tool(node: dict[str, Any]) -> ToolDoc:
    given = {f"input_{i}": {"type": kind} for i, kind in enumerate(node.get("input-type") or (), start=1)}
    given |= {p["name"]: {"type": p.get("type", "string")} for p in node.get("parameters") or ()}
    back = {f"output_{i}": {"type": kind} for i, kind in enumerate(node.get("output-type") or (), start=1)}
    return ToolDoc(
        name=node["id"],
        description=node.get("desc", ""),
        input_schema={"type": "object", "properties": given, "required": list(given)},
        output_schema={"type": "object", "properties": back} if back else {},
    )
