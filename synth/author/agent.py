"""The ReAct loop: a model, some tools, and an end that a tool declares.

The miner (search, browse, python, submit) and the solver of the 2-of-5 filter (an environment's tools)
run in it. Tool calls come in the API's own form or, from endpoints without it, as a JSON object
``{"tool": ..., "arguments": ...}`` in the text. A call that can't be read or that fails is an observation
like any other; only infrastructure errors leave the loop.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from synth.author.asking import Mend, declines, fit, read_json
from synth.author.llm import LLM, Call, Message, Refused, Reply

OBSERVATION = 6000  # characters of a tool's result that the model sees (ours)


class Stop(Exception):
    """Raised by a tool: the work is done; ``value`` is its result."""

    def __init__(self, value: Any) -> None:
        super().__init__("done")
        self.value = value


@dataclass(frozen=True)
class AgentTool:
    """One tool of an agent: ``run(**arguments)`` gives text, or raises :class:`Mend` or :class:`Stop`."""

    name: str
    description: str
    parameters: dict[str, Any]  # JSON Schema of an object
    run: Callable[..., str]
    checked: bool = True  # whether the arguments are held against the schema here

    def spec(self) -> dict[str, Any]:
        """The OpenAI tool object."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class Outcome:
    """How a loop ended: a tool's value, or the last words of a model that stopped calling."""

    value: Any  # what Stop carried
    text: str  # the last reply
    done: bool  # by Stop
    turns: int


def run_agent(
    llm: LLM,
    messages: Sequence[Message],
    tools: Sequence[AgentTool],
    *,
    stage: str,
    prompt: str,
    max_turns: int,
    sample: int = 0,
    model: str | None = None,
    nudge: str | None = None,
) -> Outcome:
    """Let the model work until a tool says stop, it stops calling, or the turns are used up.

    Args:
        nudge: said when the model stops calling; without it that ends the loop.

    Raises:
        Refused: the model declines.
        BudgetExceeded, CallerError, InfrastructureError: see :meth:`LLM.complete`.
    """
    history = list(messages)
    by_name = {tool.name: tool for tool in tools}
    specs = [tool.spec() for tool in tools]
    text = ""
    for turn in range(1, max_turns + 1):
        reply = llm.complete(history, stage=stage, prompt=prompt, tools=specs, sample=sample, model=model)
        text = reply.text
        calls = reply.calls or _written_call(reply, by_name)
        if not calls:
            if declines(reply):
                raise Refused(f"{stage}: the model declines: {text.strip()[:160]!r}")
            if nudge is None and reply.finish != "length":
                return Outcome(None, text, False, turn)
            history += [reply.message(), {"role": "user", "content": nudge or "Your reply was cut off."}]
            continue
        history.append(reply.message())
        for call in calls:
            try:
                seen = _do(by_name, call)
            except Stop as stop:
                return Outcome(stop.value, text, True, turn)
            history.append(_observation(reply, call, seen))
    return Outcome(None, text, False, max_turns)


def _observation(reply: Reply, call: Call, seen: str) -> Message:
    if len(seen) > OBSERVATION:
        seen = f"{seen[:OBSERVATION]}\n... (cut; {len(seen) - OBSERVATION:,} more characters)"
    if reply.calls:
        return {"role": "tool", "tool_call_id": call.id, "content": seen}
    return {"role": "user", "content": f"Result of {call.name}:\n{seen}"}


def _do(by_name: dict[str, AgentTool], call: Call) -> str:
    tool = by_name.get(call.name)
    if tool is None:
        return f"error: there is no tool {call.name[:80]!r}; the tools are {', '.join(by_name)}"
    try:
        arguments = json.loads(call.arguments)
        if tool.checked or not isinstance(arguments, dict):
            fit(arguments, tool.parameters if tool.checked else {"type": "object"})
        return tool.run(**arguments)
    except ValueError as err:
        return f"error: the arguments are not JSON: {err}"
    except Mend as err:
        return f"error: {err}"


def _written_call(reply: Reply, by_name: dict[str, AgentTool]) -> tuple[Call, ...]:
    """A call that the model wrote as text."""
    if '"tool"' not in reply.text:
        return ()
    try:
        value = read_json(reply, None)
    except Mend:
        return ()
    if not isinstance(value, dict) or value.get("tool") not in by_name:
        return ()
    return (Call("text", value["tool"], json.dumps(value.get("arguments") or {})),)
