"""Messages and tools of a chat request as token ids: in the form that the policy
folder asks for (:mod:`model.templates`).

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
from model.templates import template_for
from model.tokenizer import CONTROL, Tokenizer

_CONTROL = re.compile("|".join(map(re.escape, CONTROL)))


class Chat:
    """The template of a policy folder over whole conversations."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.template = template_for(tokenizer)

    def prompt(self, request: ChatRequest) -> list[int]:
        """Ids up to where the assistant speaks, or up to where a call that was asked for goes on."""
        tools = [] if request.tool_choice == "none" else request.tools
        ids = self.render(request.messages, [tool.mcp() for tool in tools])
        return ids + self.tokenizer.encode(self.forced(request))

    def forced(self, request: ChatRequest) -> str:
        """:func:`forced_call` in the policy's form."""
        return forced_call(request, self.template.call_opening)

    def render(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[int]:
        """A conversation that ends where the assistant speaks next; tools are MCP tool objects."""
        template, system = self.template, None
        if template.one_system_turn and messages and messages[0].role in ("system", "developer"):
            system, messages = messages[0].content, messages[1:]
        ids = template.opening(tools, system)
        for message in messages:
            if message.role == "tool":
                ids += template.result(message.content)
            else:
                role = "system" if message.role == "developer" else message.role
                ids += template.message(role, self.said(message))
        return ids + template.speaks()

    def said(self, message: Message) -> str:
        """A message's text with its calls, in the form in which the policy writes them."""
        calls = [(call.function.name, call.function.arguments or "{}") for call in message.tool_calls]
        return message.content + self.template.calls_text(calls)


def forced_call(request: ChatRequest, opening: str) -> str:
    """The beginning of a call, where ``tool_choice`` asks for one: the model writes the rest.

    A named tool, or the only one, fixes the name; with ``required`` and several tools the model
    chooses it. Nothing else is constrained: arguments may still be no JSON, or cut off.

    Args:
        opening: what stands before the first call's object.
    """
    choice = request.tool_choice
    if isinstance(choice, NamedTool):
        tool = next(tool for tool in request.tools if tool.function.name == choice.function.name)
    elif choice == "required" and len(request.tools) == 1:
        (tool,) = request.tools
    elif choice == "required":
        return f'{opening}{{"name": "'
    else:
        return ""
    # an argument's opening quote is part of the token that a policy knows here
    opened = '{"' if _needs_arguments(tool) else "{"
    return f'{opening}{{"name": {json.dumps(tool.function.name)}, "arguments": {opened}'


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
