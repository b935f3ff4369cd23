"""Published tasks as tasks of ours: replayed, and graded on the outcome.

A published task has a text, the calls that solve it, and a reference answer; often also prose about how to
grade the path. Here the calls are replayed in fresh episodes; what they leave behind and the answer become
checks, and the prose is dropped. The gates of :mod:`synth.task_gates` then try to fool it. Every task is
``kept``, ``changed`` (kept, but graded otherwise than published) or ``refused``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from synth.admission import check_task
from synth.env.mcp_client import McpEnvServer
from synth.env.verifier import VerifierServer
from synth.jsonl import read_jsonl
from synth.replay import replay
from synth.tasks_graph import task_id
from synth.types import Criterion, Difficulty, Program, Rubric, Task, ToolStep
from synth.verify import canonical, is_number, state_change

# EnvScaler's way: each function sees the attributes before (a global) and after (its argument)
CHECKS = """\
import json

CHECKS = {checks!r}


def verify(initial, final, answer):
    before, after = (json.loads(state.files["object.json"]) for state in (initial, final))
    found = [("answer", answer == {done!r}, "")]
    for number, code in enumerate(CHECKS):
        scope = {{"initial_state": before}}
        exec(code, scope)
        found.append((f"check {{number}}", scope["check_func"](after) is True, ""))
    return found
"""
DONE = "ok"  # what agents answer where there is nothing to report
SEED = 0  # of imported tasks' episodes


@dataclass(frozen=True)
class RawTask:
    """A task as published.

    Attributes:
        calls: ``{"tool", "args"}`` in order.
        answer: a value, or its JSON text.
        prose: how many lines of its rubric only a judge could read.
        checks: sources of ``check_func(final_state) -> bool`` over an object's attributes (EnvScaler's).
        verifier: code of a whole verifier program, where the publisher has one.
        fault: why it cannot be read.
        pattern: which shape it has, for diagnosis.
    """

    id: str
    instruction: str
    calls: list[dict[str, Any]] = field(default_factory=list)
    answer: Any = None
    prose: int = 0
    checks: list[str] = field(default_factory=list)
    verifier: str | None = None
    fault: str | None = None
    pattern: str = "imported"


def read_tasks(path: Path) -> list[RawTask]:
    """Tasks written for an environment: JSONL, ``{"task", "calls": [{"tool", "args"}], "answer"}`` a line.

    Raises:
        CallerError: the file or a line of it is not that.
    """
    form = '{"task": ..., "calls": [{"tool": ..., "args": {...}}], "answer": ...}'
    return read_jsonl(path, _raw_task, form)


def _raw_task(number: int, line: str) -> RawTask:
    raw = json.loads(line)
    calls = [{"tool": str(call["tool"]), "args": dict(call["args"])} for call in raw["calls"]]
    return RawTask(f"line {number}", str(raw["task"]), calls, raw.get("answer"))


@dataclass(frozen=True)
class TaskRow:
    """What became of a task."""

    id: str
    outcome: str  # kept, changed, refused
    why: str = ""

    def to_json(self) -> dict[str, str]:
        return asdict(self)


class Refused(Exception):
    """This task cannot be used; the text says why."""


def judge(server: McpEnvServer, raw: Sequence[RawTask]) -> tuple[list[Task], list[TaskRow]]:
    """The tasks that hold, and a row for each one.

    Raises:
        InfrastructureError: the sandbox failed.
    """
    with VerifierServer(server.provider) as verifiers:
        published = {name: ours for ours, name in server.names.items()}
        return judge_all(server, raw, verifiers, published)


def judge_all(
    server: McpEnvServer, raw: Sequence[RawTask], verifiers: VerifierServer, names: Mapping[str, str]
) -> tuple[list[Task], list[TaskRow]]:
    """:func:`judge` with a verifier server at hand; ``names`` says which tool of ours a call's name means."""
    tasks, rows = [], []
    for item in raw:
        try:
            task, changes = _convert(server, item, names)
            faults = check_task(server, server.bundle, task, verifiers)
            if faults:
                raise Refused(f"{faults[0].gate}: {faults[0].detail}"[:300])
        except Refused as err:
            rows.append(TaskRow(item.id, "refused", str(err)))
            continue
        tasks.append(task)
        rows.append(TaskRow(item.id, "changed" if changes else "kept", "; ".join(changes)))
    return tasks, rows


def _convert(server: McpEnvServer, raw: RawTask, names: Mapping[str, str]) -> tuple[Task, list[str]]:
    if raw.fault:
        raise Refused(raw.fault)
    chain = _chain(names, raw)
    first = replay(server, chain, SEED)
    for number, (step, result) in enumerate(zip(chain, first.results, strict=False), 1):
        if not result.ok:
            text = f"step {number}, {step.tool}: {result.error_code}: {result.error_message}"
            raise Refused(f"its calls do not work here: {text}"[:300])
    if first.final is None:
        raise Refused("its calls do not end")
    manifest = server.bundle.manifest
    changed = state_change(server.bundle.state, first.final, manifest.tables, manifest.audit_tables)
    answer, changes = _answer(raw, [result.value for result in first.results], bool(changed))
    if raw.prose:
        changes.append(f"{raw.prose} rubric lines in prose dropped, graded on answer and state")
    state = Criterion(field="state", check="diff", expected=changed)
    verifier: Rubric | Program = Rubric(criteria=(*_criteria(answer), state))
    if raw.checks:
        verifier = Program(code=CHECKS.format(checks=raw.checks, done=DONE))
    elif raw.verifier is not None:
        verifier = Program(code=raw.verifier)
    route = "program" if isinstance(verifier, Program) else "graph"
    instruction = raw.instruction + (f' Answer "{DONE}" when all is done.' if answer == DONE else "")
    writes = sum(not server.tools[step.tool].read_only for step in chain)
    task = Task(
        id=task_id(manifest.env_id, route, raw.instruction, manifest.digest),
        env_id=manifest.env_id,
        env_digest=manifest.digest,
        route=route,
        instruction=instruction,
        reference_answer=answer,
        verifier=verifier,
        chain=tuple(chain),
        difficulty=Difficulty(steps=len(chain), tools=len({s.tool for s in chain}), writes=writes),
        changes_state=bool(changed),
        pattern=raw.pattern,
        seed=SEED,
    )
    return task, changes


def _chain(ours: Mapping[str, str], raw: RawTask) -> list[ToolStep]:
    if not raw.calls:
        raise Refused("no calls that solve it: nothing to prove it with")
    missing = [call["tool"] for call in raw.calls if call["tool"] not in ours]
    if missing:
        raise Refused(f"needs the tool {missing[0]}, which was refused")
    return [ToolStep(tool=ours[call["tool"]], arguments=call["args"]) for call in raw.calls]


def _answer(raw: RawTask, values: list[Any], changes_state: bool) -> tuple[Any, list[str]]:
    """The answer in the form that agents here give, and what was changed about it."""
    answer = raw.answer
    if isinstance(answer, str) and answer.strip()[:1] in ("{", "["):
        try:
            answer = json.loads(answer)
        except ValueError:
            raise Refused("its reference answer is cut in the middle of its JSON") from None
    if answer is None or (isinstance(answer, dict | list) and not _leaves(answer)):
        if changes_state:
            return DONE, [f"no reference answer: graded on the state, and asks for {DONE!r}"]
        raise Refused("its reference answer is empty, and it changes nothing")
    parts = answer.values() if isinstance(answer, dict) else answer if isinstance(answer, list) else [answer]
    if any(isinstance(part, dict | list) for part in parts):
        if changes_state:
            return DONE, [f"nested reference answer: graded on the state, and asks for {DONE!r}"]
        raise Refused("its reference answer is nested, and it changes nothing")
    seen = {canonical(leaf) for value in values for leaf in _leaves(value)}
    text = canonical(values)
    for leaf in _leaves(answer):
        if (
            canonical(leaf) not in seen
            and not (isinstance(leaf, str) and leaf in text)
            and not _counted(leaf)
        ):
            raise Refused(f"the calls do not return its answer here: {canonical(leaf)[:100]}")
    return answer, []


def _counted(leaf: Any) -> bool:
    """Small numbers and truth values may be counted or concluded rather than read."""
    return isinstance(leaf, bool) or (is_number(leaf) and float(leaf).is_integer() and abs(leaf) < 1000)


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for part in value.values() for leaf in _leaves(part)]
    if isinstance(value, list):
        return [leaf for part in value for leaf in _leaves(part)]
    return [] if value is None else [value]


def _criteria(answer: Any) -> list[Criterion]:
    if isinstance(answer, dict):
        return [Criterion(field=f"answer.{k}", check=_check(v), expected=v) for k, v in answer.items()]
    return [Criterion(field="answer", check=_check(answer), expected=answer)]


def _check(value: Any) -> Any:
    return "text" if isinstance(value, str) else "number" if is_number(value) else "equals"
