"""Which form a policy folder speaks, and the forms of other models beside the house's.

The chat template that a folder carries (``chat_template.jinja``, ``tokenizer_config.json``) decides:
SmolLM2's gives :class:`SmolTemplate`; none, or any other, gives the house's form, which is Qwen's
(:class:`model.tokens.ChatTemplate`).

SmolLM2's own template, as the GGUF metadata has it, knows roles and texts only. Its system prompt for
functions (of the 1.7B model; read in Ollama's package ``smollm2``) lists the tools as one JSON list in
``<tools>`` and has the calls of a turn as one JSON list in ``<tool_call>``. That form is kept; the sentences
around it are ours, as a rollout takes many turns and ends in an answer, which theirs don't allow. A result is
a turn of role ``tool``, as their template renders one (Ollama's package writes Qwen's ``<tool_response>``)::

    <|im_start|>system
    Answer the request with the help of these tools:
    <tools>[{"type": "function", "function": {...}}, ...]</tools>
    ...<|im_end|>
    <|im_start|>user
    How high is Lombok?<|im_end|>
    <|im_start|>assistant
    <tool_call>[
    {"name": "get_airport", "arguments": {"name": "Lombok"}}
    ]</tool_call><|im_end|>
    <|im_start|>tool
    {"elevation": 52}<|im_end|>
    <|im_start|>assistant
    {"answer": 52}<|im_end|>
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from model.tokenizer import Tokenizer
from model.tokens import CALL_CLOSE, CALL_OPEN, ONLY_FIRST, Call, ChatTemplate, call_json, call_of, read_json

__all__ = ["SmolTemplate", "folder_template", "template_for", "with_tools"]

BEFORE_TOOLS = "Answer the request with the help of these tools:\n<tools>"
AFTER_TOOLS = (
    "</tools>\n\nTo call a tool, write nothing but a list with the call, in this form:\n"
    '<tool_call>[\n{"name": "tool", "arguments": {"argument": "value"}}\n]</tool_call>\n'
    'Its result comes next. When no call is needed any more, finish with {"answer": value} and nothing else.'
)
_DEFAULT = re.compile(r"<\|im_start\|>system(?:\n|\\n)([^<]*)<\|im_end\|>")

# Put before SmolLM2's own template: a list of tools and calls become messages of plain text.
_JINJA = (
    "{%- if tools %}"
    "{%- set ns = namespace(all=[], calls='') %}"
    "{%- set own = messages[0].content ~ '\n\n' if messages[0].role == 'system' else '' %}"
    "{%- set ns.all = [{'role': 'system', 'content': own ~ BEFORE ~ (tools | tojson) ~ AFTER}] %}"
    "{%- for m in (messages[1:] if own else messages) %}"
    "{%- set ns.calls = '' %}"
    "{%- for c in m.tool_calls or [] %}"
    "{%- set one = {'name': c.function.name, 'arguments': c.function.arguments} | tojson %}"
    "{%- set ns.calls = ns.calls ~ (',\n' if ns.calls else '<tool_call>[\n') ~ one %}"
    "{%- endfor %}"
    "{%- set text = (m.content or '') ~ (ns.calls ~ '\n]</tool_call>' if ns.calls else '') %}"
    "{%- set ns.all = ns.all + [{'role': m.role, 'content': text}] %}"
    "{%- endfor %}"
    "{%- set messages = ns.all %}"
    "{%- endif -%}"
)


def folder_template(tokenizer: Tokenizer) -> str:
    """The chat template (Jinja) that stands beside a tokenizer; empty if none does."""
    if "chat_template.jinja" in tokenizer.side_files:
        return tokenizer.side_files["chat_template.jinja"]
    settings = json.loads(tokenizer.side_files.get("tokenizer_config.json", "{}"))
    found = settings.get("chat_template") or ""
    return found if isinstance(found, str) else ""


def is_smollm2(jinja: str) -> bool:
    """True for SmolLM2's own template and :func:`with_tools` of it; SmolLM3's (``xml_tools``) is another."""
    return "named SmolLM" in jinja and "xml_tools" not in jinja


def template_for(tokenizer: Tokenizer) -> ChatTemplate:
    """The template that a policy folder asks for."""
    jinja = folder_template(tokenizer)
    return SmolTemplate(tokenizer, jinja) if is_smollm2(jinja) else ChatTemplate(tokenizer)


def with_tools(jinja: str) -> str:
    """SmolLM2's template with tools, for other programs: the twin of :class:`SmolTemplate`.

    Without tools it renders what it rendered before; any other model's template comes back as it is.
    """
    if not is_smollm2(jinja) or "tools" in jinja:
        return jinja
    quoted = {"BEFORE": BEFORE_TOOLS, "AFTER": AFTER_TOOLS}
    return re.sub("BEFORE|AFTER", lambda found: f"'{quoted[found.group()]}'", _JINJA) + jinja


class SmolTemplate(ChatTemplate):
    """SmolLM2's form: tools and calls as JSON lists.

    Args:
        jinja: the folder's template, for the system message that stands where there is none.
    """

    call_opening = f"{CALL_OPEN}[\n"
    result_role, result_tags = "tool", ("", "")
    one_system_turn = True

    def __init__(self, tokenizer: Tokenizer, jinja: str = ""):
        super().__init__(tokenizer)
        found = _DEFAULT.search(jinja)
        self.default_system = found.group(1) if found else ""

    def opening(self, tools: Sequence[dict[str, Any]], system: str | None = None) -> list[int]:
        text = self.default_system if system is None else system
        if tools:
            own = "" if system is None else f"{system}\n\n"
            listed = json.dumps([function_of(tool) for tool in tools], ensure_ascii=False)
            text = f"{own}{BEFORE_TOOLS}{listed}{AFTER_TOOLS}"
        return [self.tokenizer.start_id, *self._fixed(f"system\n{text}"), self.tokenizer.eos_id]

    def calls_text(self, calls: Sequence[tuple[str, str]]) -> str:
        if not calls:
            return ""
        return self.call_opening + ",\n".join(call_json(*call) for call in calls) + f"\n]{CALL_CLOSE}"

    def read(self, body: str) -> tuple[Call, str | None]:
        value = read_json(body)
        calls = value if isinstance(value, list) else [value]
        if not calls:
            raise ValueError("the list is empty; without a call, give the answer alone")
        call, remark = call_of(calls[0])
        return call, "; ".join(filter(None, [remark, ONLY_FIRST if calls[1:] else None])) or None


def function_of(tool: dict[str, Any]) -> dict[str, Any]:
    """The function form of an MCP tool, its input schema whole."""
    parameters = tool.get("inputSchema") or {"type": "object", "properties": {}}
    function = {"name": tool["name"], "description": tool.get("description", ""), "parameters": parameters}
    return {"type": "function", "function": function}
