"""Web search for the miner through two providers' APIs, Brave Search and Tavily.

Both are one HTTP request; what comes back is a list of addresses, which the browser then reads. Keys come
from the environment (``BRAVE_API_KEY``, ``TAVILY_API_KEY``) when a request leaves and stand in no error.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from synth.author.web import Hit
from synth.errors import CallerError, InfrastructureError

ADDRESSES = {
    "brave": "https://api.search.brave.com/res/v1/web/search",
    "tavily": "https://api.tavily.com/search",
}


@dataclass(frozen=True)
class WebSearch:
    """See :class:`synth.author.web.Search`.

    Attributes:
        provider: whose API.
        address: of the API, when it is not the provider's own (a proxy).
        tries: for a provider that is busy or broken; the wait doubles from a second (ours).
    """

    provider: Literal["brave", "tavily"]
    address: str | None = None
    tries: int = 4
    sleep: Callable[[float], None] = time.sleep

    def search(self, query: str, limit: int = 8) -> list[Hit]:
        """The provider's results.

        Raises:
            CallerError: no key, or the provider refuses it.
            InfrastructureError: no answer after all tries.
        """
        name = f"{self.provider.upper()}_API_KEY"
        key = os.environ.get(name)
        if not key:
            raise CallerError(f"web search: {name} is not set; set it, or search a folder instead")
        problem = ""
        for attempt in range(self.tries):
            if attempt:
                self.sleep(2.0 ** (attempt - 1))
            try:
                answer = self._ask(query, limit, key)
            except httpx.HTTPError as err:
                problem = type(err).__name__
                continue
            if answer.status_code in (401, 402, 403):
                raise CallerError(f"web search: {self.provider} says {answer.status_code}; check {name}")
            if answer.status_code == 200:
                return self._hits(answer, limit)
            problem = f"status {answer.status_code}"
        raise InfrastructureError(f"web search: {self.provider}: {problem} ({self.tries} tries)")

    def _ask(self, query: str, limit: int, key: str) -> httpx.Response:
        address = self.address or ADDRESSES[self.provider]
        with httpx.Client(timeout=30.0) as client:
            if self.provider == "brave":
                headers = {"X-Subscription-Token": key, "Accept": "application/json"}
                return client.get(address, params={"q": query, "count": limit}, headers=headers)
            headers = {"Authorization": f"Bearer {key}"}
            return client.post(address, json={"query": query, "max_results": limit}, headers=headers)

    def _hits(self, answer: httpx.Response, limit: int) -> list[Hit]:
        try:
            value: Any = answer.json()
            found = value.get("web", {}).get("results", []) if self.provider == "brave" else value["results"]
            words = "description" if self.provider == "brave" else "content"
            return [Hit(r["url"], _plain(r["title"]), _plain(r.get(words) or "")) for r in found[:limit]]
        except (ValueError, KeyError, TypeError, AttributeError) as err:
            raise InfrastructureError(f"web search: {self.provider}: odd answer ({err!r})") from None


def _plain(text: str) -> str:
    return re.sub(r"<[^>]+>", "", text)[:400]
