"""Calls executed again, and answers moved a little: the ground truth of the gates and of the scripted solver.

A task's chain holds concrete arguments, so a replay in a fresh episode with the task's seed is
exact. Used by :mod:`synth.task_gates` and :mod:`synth.solver`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from synth.env import state as states
from synth.types import ToolStep
from synth.verify import canonical, is_number

if TYPE_CHECKING:
    from synth.env.bundle import Bundle
    from synth.env.episode import ToolResult
    from synth.env.serving import ServerLike
    from synth.env.state import State


@dataclass(frozen=True)
class Replay:
    """What a list of calls did in a fresh episode."""

    results: tuple[ToolResult, ...]
    final: State | None  # None: a tool ran into its limits, and took the episode with it
    audit_tables: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> str:
        """Canonical digest of the final state, audit tables left out."""
        return "" if self.final is None else states.digest(self.final, self.audit_tables)

    def same_as(self, other: Replay) -> bool:
        """Whether the agent saw the same, and left the same state."""
        seen = [result.to_json() for result in self.results]
        same_state = self.final == other.final or self.digest == other.digest  # the same bytes mostly
        return same_state and seen == [result.to_json() for result in other.results]


def replay(server: ServerLike, steps: Sequence[ToolStep], seed: int) -> Replay:
    """Execute ``steps`` in order in a fresh episode.

    Raises:
        InfrastructureError: the sandbox died.
    """
    audit = server.bundle.manifest.audit_tables
    results = []
    with server.open(seed) as episode:
        for step in steps:
            results.append(episode.call(step.tool, step.arguments))
            if episode.dead is not None:
                return Replay(tuple(results), None, audit)
        return Replay(tuple(results), episode.snapshot(), audit)


def perturbed(answer: Any) -> list[Any]:
    """Answers that are near the right one, and wrong.

    A number moves by 1, or by 1% of a large integer and 10% of a real; text gains a letter; in a list or an
    object each element moves in turn (the first 8), and the last one is left out.
    """
    if isinstance(answer, bool):
        return [not answer]
    if isinstance(answer, int):
        return [answer + max(1, abs(answer) // 100)]
    if is_number(answer):
        return [answer + max(0.5, abs(answer) / 10)]
    if isinstance(answer, str):
        return [answer + "x"]
    if isinstance(answer, list):
        moved = [[*answer[:i], perturbed(answer[i])[0], *answer[i + 1 :]] for i in range(min(8, len(answer)))]
        return [*moved, answer[:-1]] if answer else [["x"]]
    if isinstance(answer, dict) and answer:
        moved = [{**answer, key: perturbed(answer[key])[0]} for key in list(answer)[:8]]
        return [*moved, {key: answer[key] for key in list(answer)[:-1]}]
    return ["x"]


def other_values(bundle: Bundle, step: ToolStep, parameter: str) -> list[Any]:
    """Other values of the column that a parameter takes its values from, in a fixed order."""
    inputs = next((tool.meta.get("inputs", {}) for tool in bundle.tools if tool.name == step.tool), {})
    table, _, column = str(inputs.get(parameter, "")).partition(".")
    schema = next((t for t in bundle.manifest.tables if t.name == table), None)
    if schema is None or column not in [c.name for c in schema.columns]:
        return []
    values = {canonical(row[column]): row[column] for row in states.rows(bundle.state, table)}
    values.pop(canonical(step.arguments[parameter]), None)
    return [values[key] for key in sorted(values) if values[key] is not None]


def answer_read_from(steps: Sequence[ToolStep | None], run: Replay, gold: Replay, answer: Any) -> Any:
    """The answer as a solver reads it off ``run``: at the place where the gold run had it.

    None where that place is empty now. An answer that stood nowhere (it was counted or computed)
    comes out near, and wrong.
    """
    if isinstance(answer, list) and answer:
        return [answer_read_from(steps, run, gold, item) for item in answer]
    places = [(i, path) for i, r in enumerate(gold.results) for path in paths(r.value, answer)]
    if not places:
        return perturbed(answer)[0]
    index, path = places[-1]
    position = sum(step is not None for step in steps[:index])
    if steps[index] is None or position >= len(run.results):
        return None
    value = run.results[position].value
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return None if isinstance(value, list | dict) else value


def paths(value: Any, wanted: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where a value stands in a result: keys and indexes, in document order."""
    if canonical(value) == canonical(wanted):
        yield path
    elif isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from paths(item, wanted, (*path, key))
