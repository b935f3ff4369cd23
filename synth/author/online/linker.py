"""Links between tools by a model: what descriptions say beyond the schemas (:mod:`synth.graph_schemas`).

Goes to: :mod:`synth.graph_bench`, which holds the graph with and without them against gold ones. A link must
name tools and a parameter that are there; what does not is told back.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from synth.author.asking import Mend, ask
from synth.author.llm import LLM
from synth.sources.found import ToolDoc
from synth.verify import canonical

TARGETS = 10  # tools whose inputs one request asks about (ours: all of 40 in one reply would be cut off)


def link_tools(llm: LLM, tools: Sequence[ToolDoc]) -> set[tuple[str, str]]:
    """(source, target) of every link that the model sees among the tools.

    Raises:
        Unusable, Refused: the model does not get there.
        BudgetExceeded, CallerError, InfrastructureError: see :meth:`synth.author.llm.LLM.complete`.
    """
    parts = [tools[i : i + TARGETS] for i in range(0, len(tools), TARGETS)]
    with ThreadPoolExecutor(llm.settings.concurrency) as pool:
        found = list(pool.map(lambda part: _links_to(llm, tools, part), parts))
    return set().union(*found)


def _links_to(llm: LLM, tools: Sequence[ToolDoc], targets: Sequence[ToolDoc]) -> set[tuple[str, str]]:
    inputs = {"tools": "\n".join(map(_line, tools)), "targets": "\n".join(f"- {t.name}" for t in targets)}
    names = {tool.name for tool in tools}
    parameters = {t.name: set(t.input_schema.get("properties") or ()) for t in targets}

    def check(reply: dict[str, Any]) -> set[tuple[str, str]]:
        faults = []
        for link in reply["links"]:
            source, target, parameter = link["source"], link["target"], link["parameter"]
            if source not in names or source == target:
                faults.append(f"{source} -> {target}: {source} is no other tool of the list")
            elif target not in parameters:
                faults.append(f"{source} -> {target}: {target} is none of the targets")
            elif parameter not in parameters[target]:
                faults.append(f"{source} -> {target}: {target} has no parameter {parameter}")
        if faults:
            raise Mend("; ".join(faults[:10]))
        return {(link["source"], link["target"]) for link in reply["links"]}

    return ask(llm, "link_tools", inputs, check, stage="graph")


def _line(tool: ToolDoc) -> str:
    given = canonical(tool.input_schema.get("properties") or {})
    back = canonical((tool.output_schema or {}).get("properties") or {})
    return f"- {tool.name}: {tool.description} Parameters: {given} Results: {back}"
