"""Messages and tools of a chat request as token ids: the twin of ``model/chat_template.txt``.

A chat arrives as text, so here, unlike in rollouts, assistant turns are encoded again (whoever trains
uses token ids and ``/v1/completions``). Control tokens come from here alone: the same characters
inside a message are plain text. A tool call keeps the arguments as the client wrote them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from model.serving.schema import ChatRequest, Message, NamedTool, ToolSpec
from model.tokenizer import CONTROL, SYSTEM, Tokenizer
from model.tokens import CALL_CLOSE, CALL_OPEN, tool_text

_CONTROL = re.compile("|".join(map(re.escape, CONTROL)))


class Chat:
    """The house's template over whole conversations."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer

    def prompt(self, request: ChatRequest) -> list[int]:
        """Ids up to where the assistant speaks, or up to where a call that was asked for goes on."""
        tools = [] if request.tool_choice == "none" else request.tools
        return self.render(request.messages, [tool.mcp() for tool in tools]) + self.tokenizer.encode(
            forced_call(request)
        )

    def render(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[int]:
        """A conversation that ends where the assistant speaks next; tools are MCP tool objects."""
        encode, start, end = self.tokenizer.encode, self.tokenizer.start_id, self.tokenizer.eos_id
        ids = [start, *encode(SYSTEM)]
        for tool in tools:
            ids += encode(tool_text(tool))
        ids += [*encode("</tools>"), end]
        turn = [*encode("\n"), start]
        for message in messages:
            ids += turn
            if message.role == "tool":
                ids += [*encode("user\n<tool_response>\n"), *encode(message.content)]
                ids += encode("\n</tool_response>")
            else:
                role = "system" if message.role == "developer" else message.role
                ids += [*encode(f"{role}\n"), *encode(said(message))]
            ids.append(end)
        return [*ids, *turn, *encode("assistant\n")]


def said(message: Message) -> str:
    """A message's text with its calls, in the form in which the policy writes them."""
    calls = [_call_text(call.function.name, call.function.arguments) for call in message.tool_calls]
    return message.content + "".join(calls)


def _call_text(name: str, arguments: str) -> str:
    quoted = json.dumps(name, ensure_ascii=False)
    return f'{CALL_OPEN}\n{{"name": {quoted}, "arguments": {arguments or "{}"}}}\n{CALL_CLOSE}'


def forced_call(request: ChatRequest) -> str:
    """The beginning of a call, where ``tool_choice`` asks for one: the model writes the rest.

    A named tool, or the only one, fixes the name; with ``required`` and several tools the model
    chooses it. Nothing else is constrained: arguments may still be no JSON, or cut off.
    """
    choice = request.tool_choice
    if isinstance(choice, NamedTool):
        tool = next(tool for tool in request.tools if tool.function.name == choice.function.name)
    elif choice == "required" and len(request.tools) == 1:
        (tool,) = request.tools
    elif choice == "required":
        return f'{CALL_OPEN}\n{{"name": "'
    else:
        return ""
    # an argument's opening quote is part of the token that a policy knows here
    opened = '{"' if _needs_arguments(tool) else "{"
    return f'{CALL_OPEN}\n{{"name": {json.dumps(tool.function.name)}, "arguments": {opened}'


def _needs_arguments(tool: ToolSpec) -> bool:
    schema = tool.function.parameters
    return bool(schema.get("required", schema.get("properties")))


def encode_raw(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a prompt of ``/v1/completions``: control tokens are read, the caller writes all of it."""
    ids: list[int] = []
    named: dict[str, int] = dict(
        zip(CONTROL, (tokenizer.pad_id, tokenizer.start_id, tokenizer.eos_id), strict=True)
    )
    at = 0
    for found in _CONTROL.finditer(text):
        ids += [*tokenizer.encode(text[at : found.start()]), named[found.group()]]
        at = found.end()
    return ids + tokenizer.encode(text[at:])
