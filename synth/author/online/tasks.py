"""Tasks of both routes by a model: a question for executed calls, and programs with their verifiers.

Graph route: the model says where in the real results the answer stands; a program reads it. The
instruction is held against the calls: what they took from nowhere must be said, what an earlier call gave
must not. Program route: solution and verifier are tried in the sandbox through the world's bench, gold,
idle and slightly wrong. Faults go back with the real error; what can't be mended is given up (None), and the
stage draws again.
"""

from __future__ import annotations

import ast
import random
import re
from typing import Any

from synth.author.asking import GIVEN_UP, Mend, ask
from synth.author.base import Executed, ProgramDraft, Worded, World
from synth.author.llm import LLM
from synth.author.offline.wording import criteria_for
from synth.author.online import schema
from synth.judging import checkable
from synth.leaks import find_leaks
from synth.told import says_value, scalars
from synth.types import Criterion, Guide
from synth.verify import canonical, fold

SHAPES = (
    "a loop over a list, with a condition on each item",
    "a branch: what is done depends on what is found",
    "a sum, count, average or extreme over several calls",
    "a comparison of two or more entities, then one change",
    "several changes in an order that matters",
)
HARDER = ("plainly", "plainly", "hide one clue behind a description of it")
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")


# --- graph route ----------------------------------------------------------------------------------


def word_chain(llm: LLM, world: World, steps: list[Executed], rng: random.Random) -> Worded | None:
    """A question for executed calls, or None when they make no sensible one."""
    seed = rng.randrange(1_000_000)
    inputs = {
        "theme": world.env_id.replace("_", " "),
        "harder": rng.choice(HARDER),
        "steps": _shown(world, steps),
    }
    try:
        return ask(llm, "word_chain", inputs, lambda r: _worded(world, steps, r), stage="tasks", sample=seed)
    except GIVEN_UP:
        return None


def _shown(world: World, steps: list[Executed]) -> str:
    lines = []
    for number, step in enumerate(steps, 1):
        tool = world.tools[step.step.tool]
        lines.append(f"{number}. {tool.description}")
        for name, value in step.step.arguments.items():
            source = step.sources.get(name)
            how = "say" if source is None else f"hide: from step {source[0] + 1}, {source[1]}"
            label = tool.input_schema["properties"][name].get("description") or name.replace("_", " ")
            lines.append(f"   {label}: {canonical(value)} ({how})")
        lines.append(f"   result: {canonical(step.value)[:1500]}")
    return "\n".join(lines)


def _worded(world: World, steps: list[Executed], reply: dict[str, Any]) -> Worded | None:
    """The question with its real answer; None when the model finds no sense in it. Raises Mend."""
    if not reply["sensible"]:
        return None
    instruction = " ".join((reply.get("instruction") or "").split())
    if len(instruction) < 15 or not reply.get("answer"):
        raise Mend("a sensible task has an instruction and at least one place of its answer")
    values = [value_at(steps, pick) for pick in reply["answer"]]
    answer = values[0] if len(values) == 1 else values
    parts = answer if isinstance(answer, list) else answer.values() if isinstance(answer, dict) else [answer]
    if any(isinstance(part, dict | list) or part is None for part in parts) or not list(parts):
        raise Mend(f"the answer must be a scalar or a flat list of scalars, not {canonical(answer)[:120]}")
    given = [v for s in steps for p, v in s.step.arguments.items() if s.sources.get(p) is None]
    criteria = criteria_for(answer)
    if reply.get("must_state"):
        answer, criteria = _with_statement(steps, values, " ".join(reply["must_state"].split()))
    _require_told(world, steps, instruction)
    leaks = find_leaks(instruction, world.tools.values(), world.tables.values(), answer, given)
    if leaks:
        raise Mend("the instruction gives away " + ", ".join(leaks))
    kinds = ">".join(world.tools[s.step.tool].meta["kind"] for s in steps)
    return Worded(instruction, answer, criteria, kinds, tuple(given))


def _with_statement(
    steps: list[Executed], values: list[Any], statement: str
) -> tuple[list[Any], tuple[Criterion, ...]]:
    """The answer with a sentence as its last part, which a judge reads; the values stay with the programs.

    Raises Mend where a program could check it, or where it says nothing that the calls returned.
    """
    if any(isinstance(value, list | dict) for value in values):
        raise Mend("must_state: a sentence goes with single values, not with a list of them")
    if checkable(statement):
        raise Mend(f"must_state: {statement!r} is no sentence; point at the value with answer instead")
    told = [v for step in steps for v in scalars(step.value) if isinstance(v, str | int | float)]
    if not any(says_value(fold(statement), value) for value in told if not isinstance(value, bool)):
        raise Mend("must_state: holds no name and no number that a call returned")
    judged = Criterion(field=f"answer[{len(values)}]", check="text", expected=statement, how="judge")
    return [*values, statement], (*criteria_for(values), judged)


def value_at(steps: list[Executed], pick: dict[str, Any]) -> Any:
    """The value at a place in a step's real result; ``.length`` counts a list. Raises Mend."""
    if pick["step"] > len(steps):
        raise Mend(f"answer: there is no step {pick['step']}")
    value: Any = steps[pick["step"] - 1].value
    rest = pick["path"][1:]
    if "".join(match.group() for match in _STEP.finditer(rest)) != rest:
        raise Mend(f"answer: the path {pick['path']} can't be read; write $.items[0].name")
    for name, index in _STEP.findall(rest):
        try:
            if name == "length" and isinstance(value, list):
                value = len(value)
            else:
                value = value[int(index)] if index else value[name]
        except (KeyError, IndexError, TypeError):
            raise Mend(f"answer: nothing stands at {pick['path']} of step {pick['step']}") from None
    return value


def _require_told(world: World, steps: list[Executed], instruction: str) -> None:
    """Instruction against arguments: what comes from nowhere is said, what a call gave is not."""
    text = fold(instruction)
    said = {v for s in steps for p, v in s.step.arguments.items() if s.sources.get(p) is None}
    for number, step in enumerate(steps, 1):
        schema_ = world.tools[step.step.tool].input_schema["properties"]
        for name, value in step.step.arguments.items():
            source = step.sources.get(name)
            if source is None and "enum" not in schema_[name] and not says_value(text, value):
                raise Mend(f"step {number} needs {value!r} ({name.replace('_', ' ')}), which nothing says")
            hidden = source is not None and value not in said and isinstance(value, str)
            if hidden and len(value) >= 3 and says_value(text, value):
                raise Mend(
                    f"the instruction gives away {value!r}, which step {number} gets from another call"
                )


# --- program route ----------------------------------------------------------------------------------


def write_program(llm: LLM, world: World, guide: Guide | None, rng: random.Random) -> ProgramDraft | None:
    """A programmatic task that was tried on the world's bench, or None."""
    seed = rng.randrange(1_000_000)
    changes = rng.random() < 0.5 if guide is None or guide.changes_state is None else guide.changes_state
    low, high = (guide.min_steps, guide.max_steps) if guide is not None else (3, 8)
    wanted = f"{rng.choice(SHAPES)}; {low} to {high} calls; "
    wanted += "the state must be changed" if changes else "nothing may be changed"
    added = world.notes.get("added_tools")
    wanted += f"; at least one call to one of {', '.join(added)}" if added else ""
    wanted += f". Guide: {guide.text}" if guide is not None else ""
    inputs = {
        "theme": world.env_id.replace("_", " "),
        "wanted": wanted,
        "tools": "\n".join(
            f"{t.name}: {t.description} parameters {canonical(t.input_schema.get('properties', {}))} "
            f"result {canonical(t.output_schema)}"
            for t in world.tools.values()
        ),
        "schema": schema.describe(list(world.tables.values())),
        "sample": schema.sample(world.rows, rng),
    }
    try:
        return ask(llm, "write_program", inputs, lambda r: _tried(world, r, seed), stage="tasks", sample=seed)
    except GIVEN_UP:
        return None


def _tried(world: World, reply: dict[str, Any], seed: int) -> ProgramDraft:
    """The draft, after it was run. Raises Mend with what happened."""
    branch, loop, aggregate = shape_of(reply["solution"])
    flags = [n for n, on in (("branch", branch), ("loop", loop), ("aggregate", aggregate)) if on]
    draft = ProgramDraft(
        instruction=" ".join(reply["instruction"].split()),
        solution=reply["solution"],
        verifier=reply["verifier"],
        pattern=f"program:{'+'.join(flags) or 'sequence'}",
        branch=branch,
        loop=loop,
        aggregate=aggregate,
        given=tuple(reply["given"]),
    )
    if world.bench is not None:
        faults = world.bench.faults(draft, seed)
        if faults:
            raise Mend("; ".join(faults[:4]))
    return draft


def shape_of(solution: str) -> tuple[bool, bool, bool]:
    """Whether a solution branches, loops and aggregates. Raises Mend when it does not parse."""
    try:
        nodes = list(ast.walk(ast.parse(solution)))
    except (SyntaxError, ValueError) as err:
        raise Mend(f"the solution does not compile: {err}") from None
    loops = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    called = {n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    return (
        any(isinstance(n, ast.If | ast.IfExp) for n in nodes),
        any(isinstance(n, loops) for n in nodes),
        bool(called & {"sum", "len", "max", "min", "sorted"})
        or any(isinstance(n, ast.AugAssign) for n in nodes),
    )
