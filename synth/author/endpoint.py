"""One request to a provider, through LiteLLM: the only module that knows it.

LiteLLM's answers come out as plain dictionaries, its many errors as four: :class:`TryAgain` (the provider
is at fault or busy), :class:`Refused` (its filter), :class:`TooLong` (the prompt) and CallerError
(key, model or request). The provider's key is read from the environment here, and cut out of every error
text. LiteLLM is imported with the first request: that takes seconds.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from synth.author.settings import Settings
from synth.errors import CallerError, EnvironmentFault


class Refused(EnvironmentFault):
    """The model declines this piece of work."""


class TooLong(EnvironmentFault):
    """The prompt, or the conversation by now, is longer than the model takes."""


@dataclass(frozen=True)
class Call:
    """One tool call of a reply; ``arguments`` as the model wrote them."""

    id: str
    name: str
    arguments: str


class TryAgain(Exception):
    """The provider is at fault, or busy; ``wait`` is what it asks for, in seconds."""

    def __init__(self, text: str, wait: float = 0.0) -> None:
        super().__init__(text)
        self.wait = wait


@cache
def _litellm() -> Any:
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no download on import
    import litellm

    litellm.suppress_debug_info = True
    litellm.drop_params = True
    return litellm


def _full_name(settings: Settings, model: str) -> str:
    """With ``api_base``, a name without a provider that LiteLLM knows is the endpoint's own."""
    known = {str(getattr(p, "value", p)) for p in _litellm().provider_list}
    return model if settings.api_base is None or model.split("/")[0] in known else f"openai/{model}"


def price_of(settings: Settings, model: str) -> tuple[float, float] | None:
    """US dollars for a million tokens in and out, or None when nobody says."""
    if settings.usd_per_million is not None:
        return settings.usd_per_million
    if settings.api_base is not None:
        return None
    found = _litellm().model_cost.get(model) or _litellm().model_cost.get(model.split("/", 1)[-1]) or {}
    if "input_cost_per_token" not in found:
        return None
    return found["input_cost_per_token"] * 1e6, found.get("output_cost_per_token", 0.0) * 1e6


def usd(tokens_in: int, tokens_out: int, price: tuple[float, float]) -> float:
    return (tokens_in * price[0] + tokens_out * price[1]) / 1e6


def complete(settings: Settings, request: dict[str, Any]) -> dict[str, Any]:
    """One HTTP request. Its errors come out as ours, without the key."""
    litellm = _litellm()
    key = os.environ.get(settings.key_env) or ("none" if settings.api_base else None)
    more = {"response_format": {"type": "json_object"}} if request["json_mode"] else {}
    more |= {"tools": request["tools"]} if request["tools"] else {}
    more |= {"api_key": key} if key else {}
    try:
        answer = litellm.completion(
            model=_full_name(settings, request["model"]),
            messages=request["messages"],
            temperature=request["temperature"],
            max_tokens=request["max_tokens"],
            seed=request["sample"] % 2**31,
            timeout=settings.timeout_s,
            api_base=settings.api_base,
            num_retries=0,
            max_retries=0,
            **request["extra"],
            **more,
        )
    except Exception as err:
        raise _ours(litellm, err, key, request["model"]) from None
    return _plain(answer)


def _ours(litellm: Any, err: Exception, key: str | None, model: str) -> Exception:
    """The error in our family: try again, refused, the caller's, or unknown and so worth another try."""
    text = f"{type(err).__name__}: {err}".replace(key or "\0", "***").replace("\n", " ")[:300]
    if isinstance(err, litellm.ContentPolicyViolationError):
        return Refused(f"{model}: the provider's filter refused: {text}")
    if isinstance(err, litellm.ContextWindowExceededError):
        return TooLong(f"{model}: the prompt is longer than the model takes: {text}")
    theirs = (litellm.RateLimitError, litellm.InternalServerError, litellm.ServiceUnavailableError)
    theirs += (litellm.BadGatewayError, litellm.Timeout, litellm.APIConnectionError)
    if isinstance(err, theirs):
        return TryAgain(text, _asked_wait(err))
    mistakes = (litellm.AuthenticationError, litellm.PermissionDeniedError, litellm.NotFoundError)
    mistakes += (litellm.BadRequestError, litellm.UnprocessableEntityError)
    if isinstance(err, mistakes):
        return CallerError(
            f"{model}: the endpoint refuses the request: {text}; check model, api_base and key"
        )
    return TryAgain(text)


def _asked_wait(err: Exception) -> float:
    headers = getattr(getattr(err, "response", None), "headers", None) or {}
    try:
        return float(headers.get("retry-after", 0))
    except (TypeError, ValueError):
        return 0.0


def _plain(answer: Any) -> dict[str, Any]:
    """What is kept of LiteLLM's object: text, calls, how it ended, and the usage (apart)."""
    try:
        choice = answer.choices[0]
        message = choice.message
    except (AttributeError, IndexError, TypeError):
        raise TryAgain("the endpoint's answer has no choice in it") from None
    calls = [
        asdict(Call(str(c.id), str(c.function.name), str(c.function.arguments or "{}")))
        for c in (message.tool_calls or [])
    ]
    text = message.content or ""
    refusal = getattr(message, "refusal", None)
    if refusal or choice.finish_reason == "content_filter":
        finish, text = "refusal", str(refusal or text)
    else:
        finish = "length" if choice.finish_reason == "length" else "stop"
    usage = getattr(answer, "usage", None)
    used = (int(getattr(usage, "prompt_tokens", 0) or 0), int(getattr(usage, "completion_tokens", 0) or 0))
    used = used if any(used) else None  # an endpoint that does not say: the caller estimates
    return {"text": text, "calls": calls, "finish": finish, "usage": used}
