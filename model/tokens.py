"""The chat template and the parser of an assistant's turn: conversations as token ids.

The law (rule 1 of the house): the ids of a conversation are only ever extended. Each piece below
is encoded by itself and the ids are concatenated; what the policy sampled stays as sampled.
A conversation is Qwen's, in its tool form::

    <|im_start|>system
    Call tools with <tool_call>. Finish with {"answer": value}.
    <tools>
    {"type": "function", "function": {...}}            one line a tool
    </tools><|im_end|>
    <|im_start|>user
    How high is Lombok?<|im_end|>
    <|im_start|>assistant                              prompt() ends here
    <tool_call>
    {"name": "get_airport", "arguments": {"name": "Lombok"}}
    </tool_call><|im_end|>                             sampled
    <|im_start|>user                                   observation() begins at the line break before
    <tool_response>
    {"elevation": 52}
    </tool_response><|im_end|>
    <|im_start|>assistant                              and ends here
    {"answer": 52}<|im_end|>                           sampled; a turn without a call is the answer

Tools come as MCP tool objects (dictionaries); see :func:`tool_text` for what is kept of them. Other models'
forms, and which form a policy folder asks for: :mod:`model.templates`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, Protocol

from model.tokenizer import SYSTEM, Tokenizer, train_tokenizer

__all__ = [
    "Call",
    "ChatTemplate",
    "ParsedTurn",
    "Tokenizer",
    "answer_text",
    "call_text",
    "tool_text",
    "train_tokenizer",
]

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
ONLY_FIRST = "only the first tool call of a turn is executed"


@dataclasses.dataclass(frozen=True)
class Call:
    """A tool call: name and arguments. ``tool`` is another word for the name."""

    name: str
    arguments: dict[str, Any]

    @property
    def tool(self) -> str:
        return self.name


class CallLike(Protocol):
    """A call of another package: the records of an environment say ``tool``."""

    @property
    def tool(self) -> str: ...
    @property
    def arguments(self) -> dict[str, Any]: ...


@dataclasses.dataclass(frozen=True)
class ParsedTurn:
    """What an assistant's turn says.

    Exactly one of ``call`` and ``answer_text`` is set, or neither and ``error`` says why. With a
    call, ``error`` may hold a remark on what was left out (further calls, unknown keys).
    """

    text: str
    call: Call | None = None
    answer_text: str | None = None
    error: str | None = None


def tool_text(tool: dict[str, Any]) -> str:
    """One line of the tool list: the function form of an MCP tool, with a line break.

    Kept: name, description and the input schema, with ``type``, ``enum``, ``items`` and
    ``description`` first in each property. Left out, as a caller needs none of it: ``title``,
    ``additionalProperties``, ``outputSchema``, ``annotations``, ``_meta``. ``required`` stands there
    only when it isn't all of the properties (``[]``: none); no ``required`` means all of them.
    """
    schema = _shorten(tool.get("inputSchema") or {})
    parameters = {"type": "object", "properties": schema.pop("properties", {})} | schema
    function = {"name": tool["name"], "description": tool.get("description", ""), "parameters": parameters}
    return _dump({"type": "function", "function": function}) + "\n"


def _shorten(schema: Any) -> Any:
    """A JSON schema without what a caller doesn't need, in a fixed order of keys."""
    if not isinstance(schema, dict):
        return schema
    first = ("type", "enum", "items", "description")
    names = [*(k for k in first if k in schema), *(k for k in schema if k not in first)]
    out = {k: schema[k] for k in names if k not in ("title", "additionalProperties", "$schema")}
    if isinstance(out.get("items"), dict):
        out["items"] = _shorten(out["items"])
    if isinstance(out.get("properties"), dict):
        out["properties"] = {k: _shorten(v) for k, v in out["properties"].items()}
        listed = out.pop("required", None) or ()
        required = [name for name in out["properties"] if name in listed]
        if len(required) < len(out["properties"]):
            out["required"] = required
    return out


def call_text(call: Call | CallLike) -> str:
    """A tool call as the policy writes it."""
    return f"{CALL_OPEN}\n{call_json(call.tool, _dump(call.arguments))}\n{CALL_CLOSE}"


def call_json(name: str, arguments: str) -> str:
    """The object of a call, its arguments as they were written."""
    return f'{{"name": {_dump(name)}, "arguments": {arguments}}}'


def answer_text(value: Any) -> str:
    """The final turn: a strict JSON object with one key, ``answer``."""
    return _dump({"answer": value})


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class ChatTemplate:
    """Builds the ids of conversations, piece by piece, and reads the policy's turns.

    This is the form of the shipped policy; a subclass overrides what another model does differently.
    """

    call_opening = f"{CALL_OPEN}\n"  # before the object of a turn's first call
    result_role, result_tags = "user", ("<tool_response>\n", "\n</tool_response>")
    one_system_turn = False  # is a client's system message part of the opening turn?

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self._pieces: dict[str, list[int]] = {}  # ids of fixed pieces and tool lines, met again and again
        self._turn = [*self._fixed("\n"), tokenizer.start_id]

    def prompt(self, tools: Sequence[dict[str, Any]], instruction: str) -> list[int]:
        """Ids up to where the assistant speaks first.

        Args:
            tools: MCP tool objects, in the order in which they are listed.
            instruction: the user's message.
        """
        return self.opening(tools) + self.message("user", instruction) + self.speaks()

    def opening(self, tools: Sequence[dict[str, Any]], system: str | None = None) -> list[int]:
        """Ids of the first turn, which lists the tools.

        Args:
            system: a client's own system message, where the form has :attr:`one_system_turn`.
        """
        t = self.tokenizer
        ids = [t.start_id, *self._fixed(SYSTEM)]
        for tool in tools:
            ids += self._fixed(tool_text(tool))
        return [*ids, *self._fixed("</tools>"), t.eos_id]

    def message(self, role: str, text: str) -> list[int]:
        """Ids of a whole turn that somebody else has written, after an earlier one."""
        return [*self._turn, *self._fixed(f"{role}\n"), *self.tokenizer.encode(text), self.tokenizer.eos_id]

    def result(self, text: str) -> list[int]:
        """Ids of a tool's output as a turn."""
        before, after = self.result_tags
        ids = [*self._turn, *self._fixed(f"{self.result_role}\n{before}"), *self.tokenizer.encode(text)]
        return [*ids, *self._fixed(after), self.tokenizer.eos_id]

    def speaks(self) -> list[int]:
        """Ids after which the assistant speaks."""
        return self._turn + self._fixed("assistant\n")

    def calls_text(self, calls: Sequence[tuple[str, str]]) -> str:
        """A turn's calls as the policy writes them; each a name and its arguments as JSON."""
        return "".join(f"{CALL_OPEN}\n{call_json(*call)}\n{CALL_CLOSE}" for call in calls)

    def observation(self, text: str) -> list[int]:
        """Ids that follow a sampled ``<|im_end|>``: the tool's output and the assistant's next opening."""
        return self.result(text) + self.speaks()

    def assistant(self, message: Call | CallLike | str) -> list[int]:
        """Ids of an assistant's turn, ending in ``<|im_end|>``: a call, or a text as it is."""
        if not isinstance(message, str):
            message = self.calls_text([(message.tool, _dump(message.arguments))])
        return [*self.tokenizer.encode(message), self.tokenizer.eos_id]

    def answer(self, value: Any) -> list[int]:
        """Ids of the final turn with this answer."""
        return self.assistant(answer_text(value))

    def parse(self, ids: Sequence[int]) -> ParsedTurn:
        """Read a sampled turn; anything at all may stand in it, and nothing raises.

        Args:
            ids: the sampled ids, with or without the closing ``<|im_end|>``.
        """
        ids = list(ids)
        if self.tokenizer.eos_id in ids:
            ids = ids[: ids.index(self.tokenizer.eos_id)]
        text = self.tokenizer.decode(ids)
        _, opened, rest = text.partition(CALL_OPEN)
        if not opened:
            return ParsedTurn(text, answer_text=text.strip())
        body, _, after = rest.partition(CALL_CLOSE)
        try:
            call, remark = self.read(body)
        except ValueError as err:
            return ParsedTurn(text, error=f"malformed tool call: {err}")
        if CALL_OPEN in after:
            remark = "; ".join(filter(None, [remark, ONLY_FIRST]))
        return ParsedTurn(text, call=call, error=remark)

    def read(self, body: str) -> tuple[Call, str | None]:
        """The call between the tags and a remark; raises as :func:`read_call` does."""
        return read_call(body)

    def _fixed(self, text: str) -> list[int]:
        if text not in self._pieces:
            self._pieces[text] = self.tokenizer.encode(text)
        return self._pieces[text]


def read_call(body: str) -> tuple[Call, str | None]:
    """The call in the JSON between the tags, and a remark.

    Raises:
        ValueError: no call can be read; the message is meant for the policy.
    """
    return call_of(read_json(body))


def read_json(body: str) -> Any:
    """A strict JSON value that can be written down again; raises as :func:`read_call` does."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    try:
        value = json.loads(body, parse_constant=refuse)
        _dump(value).encode()  # whoever gets the call must be able to write it down
    except UnicodeEncodeError:
        raise ValueError("an escape stands for half a character") from None
    except json.JSONDecodeError as err:
        raise ValueError(f"not valid JSON at character {err.pos}: {err.msg}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def call_of(value: Any) -> tuple[Call, str | None]:
    """:func:`read_call` of a value."""
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    name, arguments = value.pop("name", None), value.pop("arguments", {})
    if not isinstance(name, str) or not name:
        raise ValueError('"name" must be a tool\'s name')
    if not isinstance(arguments, dict):
        raise ValueError('"arguments" must be a JSON object')
    return Call(name, arguments), f"unknown keys ignored: {', '.join(sorted(value))}" if value else None
