"""The client of language models: any provider that LiteLLM reaches, any OpenAI-compatible endpoint.

One exchange in (messages, tools), one :class:`Reply` out, read from the store when it was made before
(:mod:`synth.author.store`). Requests are limited in number, retried when the provider is at fault, stopped
by a budget. Who asks for JSON with a schema uses :mod:`synth.author.asking`.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from synth.author.endpoint import Call, Refused, TooLong, TryAgain, complete, price_of, usd
from synth.author.limits import limits_of
from synth.author.settings import Settings
from synth.author.store import Budget, Store, content_hash
from synth.errors import AgentWorldError, CallerError, InfrastructureError

__all__ = ["LLM", "Call", "Message", "Refused", "Reply", "Settings", "TooLong"]

FORMAT = 1  # of the hashed request; raise it to forget all exchanges
CHARS_PER_TOKEN = 3.0  # ours, careful: English prose has about 4, JSON and code about 3
Message = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """What came back."""

    text: str
    calls: tuple[Call, ...]
    finish: Literal["stop", "length", "refusal"]
    key: str  # of the exchange

    def message(self) -> Message:
        """The reply as the next request's history."""
        said: Message = {"role": "assistant", "content": self.text}
        if self.calls:
            said["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in self.calls
            ]
        return said


class LLM:
    """A model behind a store. Safe to use from several threads.

    Args:
        settings: see :class:`Settings`.
        sleep: waits between tries; tests pass a short one.
    """

    def __init__(self, settings: Settings, sleep: Callable[[float], None] = time.sleep) -> None:
        self.settings = settings
        self.store = Store(settings.folder)
        self.budget = Budget(settings.budget_usd, settings.budget_tokens)
        self._sleep = sleep
        self._room, self._pace = limits_of(settings, sleep)

    def complete(
        self,
        messages: Sequence[Message],
        *,
        stage: str,
        prompt: str,
        tools: Sequence[dict[str, Any]] = (),
        sample: int = 0,
        model: str | None = None,
    ) -> Reply:
        """One exchange; one that was cut off is made again with twice the room, up to ``longest``.

        Args:
            stage: what it is for, in the ledger.
            prompt: which prompt, in the ledger.
            tools: OpenAI tool objects.
            sample: equal requests with different numbers are different exchanges.
            model: instead of ``settings.model``.

        Raises:
            BudgetExceeded: it might cost more than is left.
            CallerError: the endpoint refuses key, model or request.
            Refused: the provider's filter does not let the prompt pass.
            TooLong: the model does not take so long a prompt.
            InfrastructureError: no answer after all retries.
        """
        room = self.settings.max_tokens
        while True:
            reply = self._one(list(messages), stage, prompt, list(tools), sample, model, room)
            if reply.finish != "length" or room >= self.settings.longest:
                return reply
            room = min(2 * room, self.settings.longest)

    def _one(
        self, messages: list[Message], stage: str, prompt: str, tools: list[dict[str, Any]], sample: int,
        model: str | None, room: int,
    ) -> Reply:  # fmt: skip
        request = {
            "format": FORMAT,
            "model": model or self.settings.model,  # the address is left out: endpoints move
            "messages": messages,
            "tools": tools,
            "temperature": self.settings.temperature,
            "max_tokens": room,
            "json_mode": self.settings.json_mode and not tools,
            "extra": self.settings.extra,
            "sample": sample,
        }
        key = content_hash(request)
        found = self.store.answer(key)
        if found is None:
            with self.store.only_one(key):
                found = self.store.answer(key) or self._send(key, stage, prompt, request)
        return _reply(found, key)

    def _send(self, key: str, stage: str, prompt: str, request: dict[str, Any]) -> dict[str, Any]:
        priced = price_of(self.settings, request["model"])
        if priced is None and self.budget.usd is not None:
            raise CallerError(
                f"model {request['model']}: field usd_per_million: its price is unknown, "
                "so a budget in dollars can't be kept; state the price"
            )
        price = priced or (0.0, 0.0)
        most = int(len(json.dumps([request["messages"], request["tools"]])) / CHARS_PER_TOKEN) + 16
        cost = (most, request["max_tokens"], usd(most, request["max_tokens"], price))
        self.store.reserve(key, stage, prompt, request, cost, self.budget)
        try:
            with self._room.place():  # kept before the room is free: a kill loses no more than is under way
                answer = self._try(key, request, cost[0] + cost[1])
                used_in, used_out = answer.pop("usage") or (most, len(answer["text"]) // 3)
                self.store.keep(key, answer, (used_in, used_out, usd(used_in, used_out, price)))
        except AgentWorldError:
            self.store.release(key)
            raise
        return answer

    def _try(self, key: str, request: dict[str, Any], tokens: int) -> dict[str, Any]:
        """Send until there is an answer, waiting longer each time; when a pause is asked for, all wait."""
        rng = random.Random(key)
        for attempt in range(self.settings.retries + 1):
            try:
                self._pace.wait(tokens)
                return complete(self.settings, request)
            except TryAgain as err:
                if attempt == self.settings.retries:
                    raise InfrastructureError(f"{request['model']}: {err} ({attempt + 1} tries)") from None
                wait = min(60.0, self.settings.backoff_s * 2**attempt) * rng.uniform(0.75, 1.25)
                self._pace.pause(err.wait)
                self._sleep(wait)
        raise AssertionError("unreachable")


def _reply(stored: dict[str, Any], key: str) -> Reply:
    return Reply(stored["text"], tuple(Call(**c) for c in stored["calls"]), stored["finish"], key)
