"""Instruction against calls: what a solution takes from nowhere must be said by the person who asks.

Comes from: a worded chain with its real results. Goes to: :mod:`synth.tasks_graph`, which draws again, and
the model's task writer, who is told. A value that no earlier result holds, that no closed set
of the tool's schema offers and that nothing says can't be known: only luck would solve the task.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from synth.answer_leaks import WORD_VALUES, spoken_numbers
from synth.types import Tool, ToolStep
from synth.verify import canonical, fold, is_number


def untold(
    instruction: str, steps: Sequence[ToolStep], results: Sequence[Any], tools: Mapping[str, Tool]
) -> list[str]:
    """Arguments that come from nowhere, each as one line; empty when there are none.

    Args:
        results: what the steps returned, in order; a step sees those before it.
    """
    text, seen, found = fold(instruction), set(), []
    for number, step in enumerate(steps, 1):
        properties = tools[step.tool].input_schema.get("properties", {}) if step.tool in tools else {}
        for name, value in step.arguments.items():
            schema = properties.get(name, {})
            closed = "enum" in schema or "default" in schema or isinstance(value, bool | list | dict)
            closed = closed or value is None
            if not closed and canonical(value) not in seen and not says_value(text, value):
                found.append(f"step {number} needs {value!r} ({name.replace('_', ' ')}), which nothing says")
        if number <= len(results):
            seen.update(map(canonical, scalars(results[number - 1])))
    return found


def says_value(folded: str, value: Any) -> bool:
    """Whether a folded text says a value: as it is, or a number in figures or words."""
    if isinstance(value, bool):
        return True  # a flag is said in other words
    if is_number(value):
        figures = {float(n.replace(",", "")) for n in re.findall(r"\d[\d,]*(?:\.\d+)?", folded)}
        words = set(spoken_numbers(folded))
        words |= {WORD_VALUES[w] for w in re.findall(r"[a-z]+", folded) if w in WORD_VALUES}
        return float(abs(value)) in figures or abs(value) in words
    return re.search(rf"(?<!\w){re.escape(fold(str(value)))}(?!\w)", folded) is not None


def scalars(value: Any) -> Iterable[Any]:
    """All plain values in a result, in document order."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from scalars(item)
    else:
        yield value
