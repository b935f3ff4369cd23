"""What a client may ask for: the request bodies of the two completion endpoints, checked.

The names are OpenAI's; ``top_k``, ``stop_token_ids``, ``return_token_ids`` and prompts of token ids
are vLLM's extensions. A field that would change the answer and isn't served here is refused by
name; fields without influence on the answer are taken and left (``_IDLE``). Limits are ours.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

MAX_N = 32  # choices of a request
MAX_PROMPTS = 64  # prompts of a request to /v1/completions
MAX_STOPS = 16  # stop strings; OpenAI's own limit is 4
MAX_STOP_IDS = 7  # the engine's: eight with the end of the turn
MAX_TOOLS = 128  # OpenAI's
MAX_MESSAGES = 2048
# fields without influence on the answer
_IDLE = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "verbosity",
    "reasoning_effort",
    "skip_special_tokens",
    "spaces_between_special_tokens",
)
# fields that are served at this value only
_ONLY: dict[str, Any] = {
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "logit_bias": {},
    "best_of": 1,
    "suffix": "",
    "min_p": 0,
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "ignore_eos": False,
}


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value or []


Stops = Annotated[
    list[Annotated[str, Field(min_length=1)]], BeforeValidator(_listed), Field(max_length=MAX_STOPS)
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class StreamOptions(_Strict):
    include_usage: bool = False
    include_obfuscation: bool = False  # never done; clients may say so


class _Sampling(_Strict):
    """What both endpoints share."""

    model: str
    n: int = Field(default=1, ge=1, le=MAX_N)
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1)  # 0 or -1: the whole vocabulary
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)
    stop: Stops = []
    stop_token_ids: list[int] = Field(default=[], max_length=MAX_STOP_IDS)
    return_token_ids: bool = False

    @model_validator(mode="before")
    @classmethod
    def _leave_or_refuse(cls, body: Any) -> Any:
        """Null is the same as absent; fields that do nothing go; those not served are refused."""
        if not isinstance(body, dict):
            raise ValueError("the body must be a JSON object")
        body = {name: value for name, value in body.items() if value is not None}
        for name, only in _ONLY.items():
            if body.get(name, only) != only:
                raise ValueError(f"{name}: this server only serves {json.dumps(only)}")
        return {name: value for name, value in body.items() if name not in _IDLE and name not in _ONLY}


class FunctionCall(_Strict):
    name: str = Field(min_length=1)
    arguments: str = "{}"


class ToolCall(_Strict):
    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None  # some clients send a streamed call back as they got it


class Message(BaseModel):
    """One message. Clients send whole replies back, so fields that are not read are let pass."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str = ""
    tool_calls: list[ToolCall] = []

    @field_validator("content", mode="before")
    @classmethod
    def _text(cls, value: Any) -> Any:
        """Parts become their text; null becomes nothing."""
        if not isinstance(value, list):
            return "" if value is None else value
        for part in value:
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part["text"], str):
                raise ValueError('only parts of {"type": "text"} are served')
        return "".join(part["text"] for part in value)

    @field_validator("tool_calls", mode="before")
    @classmethod
    def _calls(cls, value: Any) -> Any:
        return value or []


class Function(_Strict):
    name: str = Field(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")
    description: str = ""
    parameters: dict[str, Any] = {}
    strict: bool | None = None  # nothing is constrained; arguments are checked by whoever runs the tool

    @model_validator(mode="before")
    @classmethod
    def _no_nulls(cls, body: Any) -> Any:
        return {k: v for k, v in body.items() if v is not None} if isinstance(body, dict) else body


class ToolSpec(_Strict):
    type: Literal["function"] = "function"
    function: Function

    def mcp(self) -> dict[str, Any]:
        """The tool as the chat template takes it."""
        f = self.function
        return {"name": f.name, "description": f.description, "inputSchema": f.parameters}


class _Named(_Strict):
    name: str


class NamedTool(_Strict):
    type: Literal["function"] = "function"
    function: _Named


class ChatRequest(_Sampling):
    """Body of ``/v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    tools: list[ToolSpec] = Field(default=[], max_length=MAX_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | NamedTool = "auto"
    parallel_tool_calls: bool = True
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=20)

    @model_validator(mode="after")
    def _fits_together(self) -> ChatRequest:
        names = [tool.function.name for tool in self.tools]
        choice = self.tool_choice
        if isinstance(choice, NamedTool) and choice.function.name not in names:
            raise ValueError(f"tool_choice: there is no tool {choice.function.name!r} in tools")
        if choice == "required" and not names:
            raise ValueError("tool_choice: 'required' needs tools")
        if len(set(names)) < len(names):
            raise ValueError("tools: two tools have the same name")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs: needs logprobs to be true")
        return self

    @property
    def limit(self) -> int | None:
        """Tokens to sample at most; None: what the context has room for."""
        return self.max_completion_tokens or self.max_tokens


Ids = Annotated[list[Annotated[int, Field(ge=0, strict=True)]], Field(min_length=1)]


class CompletionRequest(_Sampling):
    """Body of ``/v1/completions``. A prompt is a text or token ids, or a list of either."""

    prompt: str | Ids | list[str] | list[Ids]
    max_tokens: int = Field(default=16, ge=0)  # OpenAI's default; 0 only with echo
    echo: bool = False
    logprobs: int | None = Field(default=None, ge=0, le=20)

    @model_validator(mode="after")
    def _fits_together(self) -> CompletionRequest:
        if not 1 <= len(self.prompts) <= MAX_PROMPTS:
            raise ValueError(f"prompt: 1 to {MAX_PROMPTS} prompts, not {len(self.prompts)}")
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens: must be at least 1 without echo")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """One entry a prompt."""
        value: Any = self.prompt
        return [value] if isinstance(value, str) or (value and isinstance(value[0], int)) else value
