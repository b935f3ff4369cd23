"""A careful reader of paged JSON APIs: rate limit, retries, and a folder of pages to go on from.

Every page lies in the folder as it came, with the address of the next one; a killed crawl asks only for
what it hasn't got. 429 and 5xx answers, time-outs and dropped connections are tried again (with
``Retry-After`` obeyed); other refusals end the crawl with one line. Keys travel in a header and are never
written down.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx
import stamina

from synth.errors import CallerError, InfrastructureError

RATE = 2.0  # requests a second (ours: polite to a public registry)
ATTEMPTS = 6
LONGEST = 120.0  # seconds; a server that asks for more is left alone until the next run
TIMEOUT = 30.0
MOST_BYTES = 50_000_000  # of one answer

Next = Callable[[Any, str], str | None]  # (page, its address) -> the address of the next page


@dataclass
class Client:
    """Fetches JSON.

    Attributes:
        rate: most requests a second.
        headers: sent with each request, such as ``Authorization``.
        wait: how waiting is done; tests pass one that doesn't.
    """

    rate: float = RATE
    headers: Mapping[str, str] = field(default_factory=dict)
    attempts: int = ATTEMPTS
    wait: Callable[[float], None] = time.sleep
    _last: float = 0.0

    def get(self, address: str) -> Any:
        """The JSON behind an address.

        Raises:
            CallerError: the server refuses for good (400 to 499 but 429), or answers no JSON.
            InfrastructureError: it stays unreachable or busy.
        """
        try:
            for attempt in stamina.retry_context(
                on=_again, attempts=self.attempts, timeout=None, wait_initial=0.5, wait_max=30.0
            ):
                with attempt:
                    return self._once(address)
        except httpx.HTTPStatusError as err:
            code = err.response.status_code
            if code == 429 or code >= 500:
                raise InfrastructureError(
                    f"{address}: still answers {code}; run the command again later"
                ) from None
            hint = "; set its key (see --help)" if code in (401, 403) else ""
            raise CallerError(f"{address}: refused with {code}{hint}") from None
        except httpx.HTTPError as err:
            raise InfrastructureError(
                f"{address}: unreachable ({type(err).__name__}); run the command again"
            ) from None
        raise AssertionError("retry_context returns or raises")

    def _once(self, address: str) -> Any:
        pause = self._last + 1.0 / self.rate - time.monotonic()
        if pause > 0:
            self.wait(pause)
        self._last = time.monotonic()
        with httpx.stream(
            "GET", address, headers=dict(self.headers), timeout=TIMEOUT, follow_redirects=True
        ) as answer:
            answer.raise_for_status()
            held = bytearray()
            for part in answer.iter_bytes():
                held += part
                if len(held) > MOST_BYTES:
                    raise CallerError(
                        f"{address}: answers more than {MOST_BYTES:,} bytes; ask for smaller pages"
                    )
        try:
            return json.loads(bytes(held))
        except ValueError:
            raise CallerError(f"{address}: answers no JSON; is it the address of the API?") from None

    def pages(self, address: str, following: Next, folder: Path) -> Iterator[Any]:
        """All pages from an address on, those in the folder first.

        Raises:
            CallerError: the folder holds pages of another address.
        """
        folder.mkdir(parents=True, exist_ok=True)
        upcoming: str | None = address
        number = 0
        while upcoming:
            path = folder / f"{number:05d}.json"
            held = _held(path)
            if held is None:
                held = {"address": upcoming, "page": self.get(upcoming)}
                write_whole(path, json.dumps(held))
            elif held["address"] != upcoming:
                raise CallerError(
                    f"{path}: is a page of {held['address']}; empty the folder, or name another"
                )
            yield held["page"]
            upcoming, number = following(held["page"], upcoming), number + 1


def write_whole(path: Path, text: str) -> None:
    """Beside, then renamed: a killed crawl leaves no half page."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(text, "utf-8")
    os.replace(beside, path)


def _held(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        held = json.loads(path.read_text("utf-8"))
        return held if {"address", "page"} <= set(held) else None
    except ValueError:
        return None  # damaged: asked for again


def _again(err: Exception) -> bool | float:
    """Whether to try again, or after how many seconds the server wants to be asked again."""
    if isinstance(err, httpx.HTTPStatusError):
        if err.response.status_code != 429 and err.response.status_code < 500:
            return False
        asked = _retry_after(err.response.headers.get("Retry-After"))
        return True if asked is None else asked if asked <= LONGEST else False
    return isinstance(err, httpx.TransportError)


def _retry_after(value: str | None) -> float | None:
    """Seconds, from a number or an HTTP date."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
