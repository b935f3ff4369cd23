"""The two completion endpoints: a checked request in, a whole answer or a stream of events out.

Both are plain ASGI answers: the samples are under way only while the answer is being sent, and end
with it, also when the client leaves (:func:`until_gone`).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, ClassVar

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from model.driver import Request, Sampling
from model.serving import answers
from model.serving.answers import Choice, Piece
from model.serving.chat import encode_raw
from model.serving.errors import ApiError, bad
from model.serving.metrics import Metrics
from model.serving.reading import Calls
from model.serving.schema import ChatRequest, CompletionRequest
from model.serving.served import Served, seed_of

Body = dict[str, Any]


@dataclass
class _Answer:
    """What both endpoints do: sample, and send it whole or in events.

    ``prompts``: one a prompt, in ids; each has ``n`` choices.
    """

    kind: ClassVar[str]  # of the answer's id
    object: ClassVar[str]
    object_streamed: ClassVar[str]

    served: Served
    metrics: Metrics
    request: ChatRequest | CompletionRequest
    prompts: list[list[int]]

    def __post_init__(self) -> None:
        self.head: Body = {"id": answers.new_id(self.kind), "created": int(time.time())}
        self.head |= {"model": self.served.name}

    # --- what differs ---

    def limit(self, prompt: list[int]) -> int:
        raise NotImplementedError

    def choice(self, index: int) -> Choice:
        raise NotImplementedError

    def whole(self, choice: Choice) -> Body:
        raise NotImplementedError

    def first(self, choice: Choice) -> list[Body]:
        return []

    def parts(self, choice: Choice, piece: Piece) -> list[Body]:
        raise NotImplementedError

    # --- what is the same ---

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; raises ApiError before anything is sent."""
        count = self.request.n * len(self.prompts)
        if count > self.served.in_flight:
            raise bad(f"n: {count} choices are more than this server takes ({self.served.in_flight})", "n")
        for prompt in self.prompts:
            self.served.check_prompt(prompt)
        self.metrics.prompt_tokens.inc(sum(map(len, self.prompts)))
        choices = [self.choice(index) for index in range(count)]
        done = False
        try:
            with self.served.sample([self._sample(choice.index) for choice in choices]) as handles:
                news = answers.pieces(choices, handles)
                work = self._stream if self.request.stream else self._collect
                done = await until_gone(receive, lambda: work(news, choices, scope, receive, send))
        finally:
            self.metrics.sampled_tokens.inc(sum(len(choice.tokens) for choice in choices))
            if not done:
                self.metrics.cancelled.inc()

    def prompt_of(self, index: int) -> list[int]:
        return self.prompts[index // self.request.n]

    def _sample(self, index: int) -> Request:
        r, prompt = self.request, self.prompt_of(index)
        return Request(
            ids=prompt,
            max_new=min(self.limit(prompt), self.served.max_len - len(prompt)),
            seed=seed_of(r.seed, index % r.n),
            sampling=Sampling(r.temperature, max(r.top_k, 0), r.top_p),
            stop_ids=r.stop_token_ids,
        )

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end a sample and are not shown."""
        return frozenset([self.served.tokenizer.eos_id, *self.request.stop_token_ids])

    def _usage(self, choices: Sequence[Choice]) -> Body:
        return answers.usage(sum(map(len, self.prompts)), choices)

    async def _collect(
        self, news: Any, choices: Sequence[Choice], scope: Scope, receive: Receive, send: Send
    ) -> None:
        async with aclosing(self._timed(news)) as timed:
            async for _ in timed:
                pass
        rows = []
        for choice in choices:
            row = {"index": choice.index, **self.whole(choice), "finish_reason": choice.finish}
            rows.append(row | self._ids(choice, choice.tokens, choice.versions))
        body = {**self.head, "object": self.object, "choices": rows, "usage": self._usage(choices)}
        body["system_fingerprint"] = _fingerprint(choices)
        if self.request.return_token_ids and self.kind == "chatcmpl":
            body["prompt_token_ids"] = self.prompts[0]
        await JSONResponse(body)(scope, receive, send)

    def _ids(self, choice: Choice, tokens: Sequence[int], versions: Sequence[int]) -> Body:
        if not self.request.return_token_ids:
            return {}
        ids: Body = {"token_ids": list(tokens), "policy_versions": list(versions)}
        if self.kind == "cmpl":
            ids["prompt_token_ids"] = self.prompt_of(choice.index)
        return ids

    async def _stream(
        self, news: Any, choices: Sequence[Choice], scope: Scope, receive: Receive, send: Send
    ) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with aclosing(self._events(news, choices)) as events:
            async for event in events:
                data = b"data: " + event.encode() + b"\n\n"
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def _events(self, news: Any, choices: Sequence[Choice]) -> AsyncGenerator[str]:
        """The JSON of each event; an error after the start is an event too."""
        head: Body = {**self.head, "object": self.object_streamed}
        options = self.request.stream_options
        if with_usage := bool(options and options.include_usage):
            head["usage"] = None
        for choice in choices:
            for row in self.first(choice):
                yield _dump({**head, "choices": [{"index": choice.index, **row, "finish_reason": None}]})
        try:
            async with aclosing(self._timed(news)) as timed:
                async for choice, piece in timed:
                    for row in self._rows(choice, piece):
                        yield _dump({**head, "choices": [row]})
        except ApiError as err:
            yield _dump(err.body())
            return
        if with_usage:
            yield _dump({**head, "choices": [], "usage": self._usage(choices)})

    async def _timed(self, news: Any) -> AsyncGenerator[tuple[Choice, Piece]]:
        """The same news; the first of a request is timed."""
        begun: float | None = time.perf_counter()
        async with aclosing(news):
            async for item in news:
                if begun is not None:
                    self.metrics.first_token.observe(time.perf_counter() - begun)
                    begun = None
                yield item

    def _rows(self, choice: Choice, piece: Piece) -> list[Body]:
        """The parts of a piece as rows of events: tokens with the first, the reason with the last."""
        versions = choice.versions[len(choice.versions) - len(piece.tokens) :]
        rows = [{"index": choice.index, **part, "finish_reason": None} for part in self.parts(choice, piece)]
        if rows and piece.tokens:
            rows[0] |= self._ids(choice, piece.tokens, versions)
        if rows and piece.finish:
            rows[-1]["finish_reason"] = piece.finish
        return rows


class ChatAnswer(_Answer):
    """``/v1/chat/completions``."""

    request: ChatRequest
    kind, object, object_streamed = "chatcmpl", "chat.completion", "chat.completion.chunk"

    @classmethod
    def make(cls, served: Served, metrics: Metrics, request: ChatRequest) -> ChatAnswer:
        if request.top_logprobs:
            raise bad(
                "top_logprobs: the engine gives the sampled token's log-probability only; ask for 0",
                "top_logprobs",
            )
        return cls(served, metrics, request, [served.chat.prompt(request)])

    def limit(self, prompt: list[int]) -> int:
        return self.request.limit or self.served.max_len

    def choice(self, index: int) -> Choice:
        r = self.request
        calling = bool(r.tools) and r.tool_choice != "none"
        calls = Calls(None if r.parallel_tool_calls else 1) if calling else None
        opening = self.served.chat.forced(r) if calling else ""
        return Choice(index, self.served.tokenizer, self.ends, r.stop, calls, opening)

    def whole(self, choice: Choice) -> Body:
        return {
            "message": answers.message(choice.deltas),
            "logprobs": self._logprobs(choice.tokens, choice.logprobs),
        }

    def _logprobs(self, tokens: Sequence[int], logprobs: Sequence[float]) -> Body | None:
        if not self.request.logprobs:
            return None
        return answers.chat_logprobs(self.served.tokenizer, tokens, logprobs)

    def first(self, choice: Choice) -> list[Body]:
        ids = {"prompt_token_ids": self.prompts[0]} if self.request.return_token_ids else {}
        return [{"delta": {"role": "assistant", "content": ""}, "logprobs": None, **ids}]

    def parts(self, choice: Choice, piece: Piece) -> list[Body]:
        before = choice.deltas[: len(choice.deltas) - len(piece.deltas)]
        opened = sum(delta.kind == "call" for delta in before)
        deltas = answers.delta_bodies(piece.deltas, opened)
        if not deltas and piece.tokens and (self.request.logprobs or self.request.return_token_ids):
            deltas = [{}]
        if piece.finish:
            deltas.append({})
        rows: list[Body] = [{"delta": delta, "logprobs": None} for delta in deltas]
        if rows and piece.tokens:
            rows[0]["logprobs"] = self._logprobs(piece.tokens, piece.logprobs)
        return rows


class CompletionAnswer(_Answer):
    """``/v1/completions``."""

    request: CompletionRequest
    kind, object, object_streamed = "cmpl", "text_completion", "text_completion"

    @classmethod
    def make(cls, served: Served, metrics: Metrics, request: CompletionRequest) -> CompletionAnswer:
        if request.logprobs is not None and (request.logprobs > 1 or request.echo):
            raise bad(
                "logprobs: the engine gives the sampled tokens' log-probabilities only; ask for 0 or 1, "
                "without echo",
                "logprobs",
            )
        prompts = [encode_raw(served.tokenizer, p) if isinstance(p, str) else p for p in request.prompts]
        return cls(served, metrics, request, prompts)

    def limit(self, prompt: list[int]) -> int:
        return self.request.max_tokens

    def choice(self, index: int) -> Choice:
        return Choice(index, self.served.tokenizer, self.ends, self.request.stop)

    def whole(self, choice: Choice) -> Body:
        text = "".join(delta.text for delta in choice.deltas)
        return {
            "text": self._echoed(choice) + text,
            "logprobs": self._logprobs(choice.tokens, choice.logprobs, 0),
        }

    def _echoed(self, choice: Choice) -> str:
        return self.served.tokenizer.decode(self.prompt_of(choice.index)) if self.request.echo else ""

    def _logprobs(self, tokens: Sequence[int], logprobs: Sequence[float], offset: int) -> Body | None:
        if self.request.logprobs is None:
            return None
        return answers.completion_logprobs(self.served.tokenizer, tokens, logprobs, offset)

    def first(self, choice: Choice) -> list[Body]:
        return [{"text": self._echoed(choice), "logprobs": None}] if self.request.echo else []

    def parts(self, choice: Choice, piece: Piece) -> list[Body]:
        text = "".join(delta.text for delta in piece.deltas)
        wanted = self.request.logprobs is not None or self.request.return_token_ids
        if not (text or piece.finish or (piece.tokens and wanted)):
            return []
        before = choice.tokens[: len(choice.tokens) - len(piece.tokens)]
        offset = sum(len(self.served.tokenizer.decode([token])) for token in before)
        logprobs = self._logprobs(piece.tokens, piece.logprobs, offset) if piece.tokens else None
        return [{"text": text, "logprobs": logprobs}]


async def until_gone(receive: Receive, work: Callable[[], Awaitable[None]]) -> bool:
    """Do ``work``, but stop when the client leaves; False when it left."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    doing, watching = asyncio.ensure_future(work()), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({doing, watching}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            doing.result()
            return True
        return False
    finally:
        for task in (doing, watching):
            task.cancel()
        await asyncio.gather(doing, watching, return_exceptions=True)


def _fingerprint(choices: Sequence[Choice]) -> str:
    versions = sorted({version for choice in choices for version in choice.versions})
    return "policy-" + "-".join(map(str, versions))


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
