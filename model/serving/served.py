"""One policy as it is served: its name, its words, and the driver that samples from it."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from model.driver import Busy, Driver, Handle, Request
from model.serving.chat import Chat
from model.serving.errors import ApiError, bad, busy
from model.tokenizer import Tokenizer


@dataclass
class Served:
    """What the endpoints need.

    Args:
        name: of the model; clients name it in their requests.
        driver: decodes; closed with the server.
        max_len: tokens of a prompt and its continuation.
        in_flight: samples that one request may ask for: what the driver takes at most.
        created: seconds since 1970, for ``/v1/models``.
    """

    name: str
    tokenizer: Tokenizer
    driver: Driver
    max_len: int
    in_flight: int
    created: int = 0
    chat: Chat = field(init=False)

    def __post_init__(self) -> None:
        self.chat = Chat(self.tokenizer)

    def check_prompt(self, ids: Sequence[int]) -> None:
        """Raise what clients know as a context that is too long, or unknown ids."""
        if len(ids) >= self.max_len:
            raise bad(
                f"This model's maximum context length is {self.max_len} tokens, and your prompt has "
                f"{len(ids)} tokens; shorten it.",
                "prompt",
                "context_length_exceeded",
            )
        if not ids:
            raise bad("prompt: is empty", "prompt")
        if max(ids) >= self.tokenizer.vocab_size:
            raise bad(f"prompt: token ids must be below {self.tokenizer.vocab_size}", "prompt")

    @contextmanager
    def sample(self, requests: Sequence[Request]) -> Iterator[list[Handle]]:
        """Submit all of the requests or none; leaving the block cancels what still runs: its slots are freed.

        Raises:
            ApiError: 400 for a request that the engine can't take, 429 when there is no room, 503 when the
                driver has ended.
        """
        handles: list[Handle] = []
        try:
            for request in requests:
                handles.append(self._submit(request))
            yield handles
        finally:
            for handle in handles:
                if not handle.done:
                    handle.cancel()

    def _submit(self, request: Request) -> Handle:
        try:
            return self.driver.submit(request)
        except Busy:
            raise busy() from None
        except ValueError as err:
            raise bad(str(err)) from None
        except RuntimeError as err:
            raise stopped(err) from None

    def fault(self) -> str | None:
        """Why nothing can be served, or None."""
        try:
            self.driver.session().close()
        except RuntimeError as err:
            return str(err)
        return None

    def close(self) -> None:
        """End the driver."""
        self.driver.close()


def stopped(why: object) -> ApiError:
    """503: the driver has ended. Five seconds are ours: about what a new process needs."""
    return ApiError(503, f"the engine has stopped: {why}", code="engine_stopped", retry_after=5)


def seed_of(seed: int | None, choice: int) -> int:
    """Sampling seed (64 bits) of one choice of a request.

    The first choice takes the client's seed as it is, so a rollout gets from the server what the engine
    gives at that seed; further ones are derived from it. Without a seed it is drawn.
    """
    if seed is None:
        return secrets.randbits(64)
    if choice == 0:
        return seed % 2**64
    return int.from_bytes(hashlib.sha256(f"{seed}:{choice}".encode()).digest()[:8], "big")
