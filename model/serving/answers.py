"""From sampled chunks to what clients read: choices, log-probabilities, usage, whole or as events.

One :class:`Choice` follows one sample. A whole answer is put together from the same pieces that a
streamed one sends, so both say the same.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from model.driver import Chunk, Handle
from model.serving.reading import Calls, Delta, Text
from model.serving.served import stopped
from model.tokenizer import Tokenizer


@dataclass(frozen=True)
class Piece:
    """News of one choice: what to show, and the tokens that came with it. ``finish`` ends it."""

    deltas: list[Delta]
    tokens: list[int]
    logprobs: list[float]
    finish: str | None = None


@dataclass
class Choice:
    """One sample while it arrives.

    Args:
        calls: reads tool calls; None: everything is text.
        opening: text that the prompt gave the model to begin with (a call that was asked for).
    """

    index: int
    tokenizer: Tokenizer
    ends: frozenset[int]
    stops: Sequence[str] = ()
    calls: Calls | None = None
    opening: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)  # of the policy, one a token
    deltas: list[Delta] = field(default_factory=list)
    finish: str | None = None

    def __post_init__(self) -> None:
        self._text = Text(self.tokenizer, self.stops)

    def read(self, chunk: Chunk) -> Piece:
        """Take sampled tokens; those after a stop string are left out."""
        shown, first = "", len(self.tokens)
        for token, logprob in zip(chunk.tokens, chunk.logprobs, strict=True):
            self.tokens.append(token)
            self.logprobs.append(logprob)
            self.versions.append(chunk.version)
            shown += "" if token in self.ends else self._text.add(token)
            if self._text.stopped is not None:
                break
        return self._piece(self._read(shown), first)

    def end(self, finish: str | None) -> Piece:
        """No tokens follow."""
        deltas = self._read(self._text.end())
        if self.calls:
            deltas += self.calls.end()
        called = any(delta.kind == "call" for delta in [*self.deltas, *deltas])
        self.finish = "length" if finish == "length" else "tool_calls" if called else "stop"
        return self._piece(deltas, len(self.tokens))

    @property
    def stopped(self) -> bool:
        """A stop string was met."""
        return self._text.stopped is not None

    def _read(self, text: str) -> list[Delta]:
        if self.calls is None:
            return [Delta("content", text)] if text else []
        opening, self.opening = self.opening, ""
        return self.calls.add(opening + text)

    def _piece(self, deltas: list[Delta], first: int) -> Piece:
        self.deltas += deltas
        return Piece(deltas, self.tokens[first:], self.logprobs[first:], self.finish)


async def pieces(
    choices: Sequence[Choice], handles: Sequence[Handle]
) -> AsyncGenerator[tuple[Choice, Piece]]:
    """News of all choices in the order in which they come; each choice's last has ``finish``.

    Raises:
        ApiError: 503, the driver ended before the choices did.
    """
    news: asyncio.Queue[tuple[Choice, Piece] | Exception] = asyncio.Queue()

    async def follow(choice: Choice, handle: Handle) -> None:
        try:
            chunks: Any = aiter(handle)
            async with aclosing(chunks):  # leaving early cancels the turn
                async for chunk in chunks:
                    await news.put((choice, choice.read(chunk)))
                    if choice.stopped:
                        break
            if not choice.stopped and handle.finish_reason == "cancelled":
                raise stopped("it is shutting down")
            await news.put((choice, choice.end("stop" if choice.stopped else handle.finish_reason)))
        except RuntimeError as err:
            await news.put(stopped(err))
        except Exception as err:
            await news.put(err)

    tasks = [asyncio.create_task(follow(*pair)) for pair in zip(choices, handles, strict=True)]
    try:
        going = len(tasks)
        while going:
            item = await news.get()
            if isinstance(item, Exception):
                raise item
            going -= item[1].finish is not None
            yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def new_id(kind: str) -> str:
    """``chatcmpl-...`` or ``cmpl-...``."""
    return f"{kind}-{uuid.uuid4().hex}"


def usage(prompt_tokens: int, choices: Sequence[Choice]) -> dict[str, int]:
    """Prompts count once, however many choices they have."""
    sampled = sum(len(choice.tokens) for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": sampled,
        "total_tokens": prompt_tokens + sampled,
    }


def message(deltas: Sequence[Delta]) -> dict[str, Any]:
    """The assistant's message that the deltas make."""
    content = "".join(delta.text for delta in deltas if delta.kind == "content")
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        if delta.kind == "call":
            function = {"name": delta.text, "arguments": ""}
            calls.append({"id": delta.id, "type": "function", "function": function})
        elif delta.kind == "arguments":
            calls[-1]["function"]["arguments"] += delta.text
    said: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if calls:
        said |= {"content": content or None, "tool_calls": calls}
    return said


def delta_bodies(deltas: Sequence[Delta], calls_before: int) -> list[dict[str, Any]]:
    """The deltas as events carry them; ``calls_before``: calls of this choice that were opened before."""
    bodies: list[dict[str, Any]] = []
    index = calls_before - 1
    for delta in deltas:
        if delta.kind == "content":
            bodies.append({"content": delta.text})
            continue
        if delta.kind == "call":
            index += 1
            function = {"name": delta.text, "arguments": ""}
            call = {"index": index, "id": delta.id, "type": "function", "function": function}
        else:
            call = {"index": index, "function": {"arguments": delta.text}}
        bodies.append({"tool_calls": [call]})
    return bodies


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[int], logprobs: Sequence[float]) -> dict[str, Any]:
    """``logprobs`` of a chat choice. ``bytes`` is null for a token that is part of a character."""
    content = []
    for token, logprob in zip(tokens, logprobs, strict=True):
        text = tokenizer.decode([token])
        raw = None if "\ufffd" in text else list(text.encode())
        content.append({"token": text, "logprob": logprob, "bytes": raw, "top_logprobs": []})
    return {"content": content, "refusal": None}


def completion_logprobs(
    tokenizer: Tokenizer, tokens: Sequence[int], logprobs: Sequence[float], offset: int = 0
) -> dict[str, Any]:
    """``logprobs`` of a completion choice; ``offset``: characters of the choice before these tokens."""
    texts = [tokenizer.decode([token]) for token in tokens]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": list(logprobs),
        "top_logprobs": None,
        "text_offset": offsets,
    }
