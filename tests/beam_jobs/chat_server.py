"""A local OpenAI-compatible endpoint that squares the number in the last message, or fails at it.

``fault(n, times)`` names the trouble for the number n that arrives for the ``times``-th time: "timeout" (it
says nothing until the client has gone), "malformed" (no JSON), "busy" (429), or None.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fixtures.http_server import Handler, served

SILENCE = 8.0  # seconds; longer than the timeout of every client here


class Chat:
    """``seen`` arrivals by number, ``most`` requests that were under way at once, ``times`` of arrivals."""

    def __init__(self) -> None:
        self.fault: Callable[[int, int], str | None] = lambda n, times: None
        self.seen: Counter[int] = Counter()
        self.times: list[float] = []
        self.most = self.under_way = 0
        self.pause = 0.0
        self.lock = threading.Lock()
        self.url = ""

    def author(self, folder: Path, **more: Any) -> str:
        """The name of an author that asks here; its settings and its store lie in the folder."""
        fields = {"model": "squarer", "api_base": self.url, "timeout_s": 3.0, "backoff_s": 0.01, "retries": 1}
        fields |= {"usd_per_million": [2.0, 10.0], **more}
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "llm.toml"
        path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items()))
        return f"llm:{path}"

    def answer(self, request: dict[str, Any]) -> tuple[int, Any]:
        n = int(re.findall(r"\d+", request["messages"][-1]["content"])[-1])
        with self.lock:
            self.seen[n] += 1
            self.times.append(time.monotonic())
            trouble = self.fault(n, self.seen[n])
        if trouble == "timeout":
            time.sleep(SILENCE)
            return 0, None
        if trouble == "busy":
            return 429, {"error": {"message": "busy"}}
        said = "the square, well" if trouble == "malformed" else json.dumps({"square": n * n})
        message = {"role": "assistant", "content": said}
        usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {"id": "x", "object": "chat.completion", "created": 1, "model": "squarer"}
        return 200, {**answer, "choices": [choice], "usage": usage}


@contextmanager
def serve() -> Iterator[Chat]:
    chat = Chat()

    class Answers(Handler):
        def do_POST(self) -> None:
            request = json.loads(self.body())
            with chat.lock:
                chat.under_way += 1
                chat.most = max(chat.most, chat.under_way)
            try:
                time.sleep(chat.pause)
                status, content = chat.answer(request)
            finally:
                with chat.lock:
                    chat.under_way -= 1
            if not status:
                self.close_connection = True
                return
            self.say(content, status)

    with served(Answers) as address:
        chat.url = f"{address}/v1"
        yield chat
