"""Rollouts against a remote OpenAI-compatible server: the driver's seam over HTTP.

    with RemoteDriver("http://127.0.0.1:8000/v1", "base", eos_id=template.tokenizer.eos_id) as driver:
        trajectories = run_episodes(driver, template, jobs, pool)

In: sessions as :mod:`rl.rollout` asks :class:`model.driver.Driver` for. Out: turns with token ids, their
log-probabilities and the policy's version. A turn is one request to ``/completions`` whose prompt is the
conversation's token ids, so nothing is decoded and encoded again (rule 1); the server keeps what cache it
likes. Any server will do that takes such prompts and returns the sampled ids: ``agent-world serve``, and vLLM
since 0.10.2 (``return_token_ids``) or with ``--return-tokens-as-token-ids``.

What can't be trained on is refused: a server that returns no ids or no log-probabilities, that changed the
prompt, or that ended a turn by another token than the template's.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from model.driver import OnChunk, Result, Sampling
from synth.errors import CallerError, InfrastructureError

TRIES = 6  # ours: with the waits between them about half a minute
OUT_S = 30.0  # ours: so long a server that failed is not asked while another one is there
_TOKEN = "token_id:"  # how vLLM writes an id where OpenAI has a text


class RemoteDriver:
    """Sessions whose turns a server decodes; a context manager, safe to use from several threads.

    Args:
        url: of the API, such as ``http://127.0.0.1:8000/v1``; or several, of servers with the same policy.
            A conversation stays with one server; when that is dead, hangs or fails, another answers.
        model: the name under which the server knows the policy.
        eos_id: the template's end of a turn.
        slots: requests at a time.
        version: stamped on turns when the server doesn't say (``policy_versions``); set it anew after giving
            the server other weights.
        api_key: sent as a bearer token.
        logprobs_at: the temperatures at which the server's log-probabilities are those of the distribution
            drawn from. vLLM's are raw by default, so 1 alone (and 0, where the engine's are too);
            ``agent-world serve`` has them at any temperature: None.
        timeout_s: of a request; a server that takes longer hangs.
        sleep: waits between tries; tests pass a short one.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        model: str,
        *,
        eos_id: int,
        slots: int = 32,
        version: int = 0,
        api_key: str | None = None,
        logprobs_at: Sequence[float] | None = (0.0, 1.0),
        timeout_s: float = 600.0,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self.urls = [one.rstrip("/") for one in ([url] if isinstance(url, str) else url)]
        self.model, self.eos_id, self.slots, self.version = model, eos_id, slots, version
        self._logprobs_at, self._sleep = logprobs_at, sleep
        self._failed_at: dict[str, float] = {}
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx.Limits(max_connections=slots, max_keepalive_connections=slots)
        self._http = httpx.Client(headers=headers, timeout=timeout_s, limits=limits)
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="remote")

    @property
    def engine(self) -> RemoteDriver:
        """Who is asked how many ``slots`` there are, as of a driver's engine."""
        return self

    def session(self, seed: int = 0) -> RemoteSession:
        """A conversation of several turns."""
        return RemoteSession(self, seed)

    def close(self) -> None:
        """Wait for requests under way and close the connections."""
        self._threads.shutdown(cancel_futures=True)
        self._http.close()

    def __enter__(self) -> RemoteDriver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def complete(
        self, ids: Sequence[int], seed: int, max_new: int, how: Sampling, stop_ids: Sequence[int]
    ) -> Result:
        """One turn.

        Raises:
            CallerError: the server refuses the request, or its answer can't be trained on.
            InfrastructureError: no answer after all tries.
        """
        if how.truncated:
            raise CallerError(
                "a cut-off distribution (top_p, top_k) can't be trained on; sample from all tokens"
            )
        if self._logprobs_at is not None and how.temperature not in self._logprobs_at:
            raise CallerError(
                f"temperature {how.temperature}: the server's log-probabilities may not be of what it draws "
                "from; if they are, make the RemoteDriver with logprobs_at=None"
            )
        seed = (seed + 2**63) % 2**64 - 2**63  # servers read a signed number
        url, answer = self._post(
            {
                "model": self.model,
                "prompt": list(ids),
                "max_tokens": max_new,
                "temperature": how.temperature,
                "seed": seed,
                "logprobs": 1,
                "return_token_ids": True,
                "stop_token_ids": [self.eos_id, *stop_ids],
            }
        )
        return self._read(url, answer, list(ids), {self.eos_id, *stop_ids})

    def _post(self, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Ask until there is an answer, waiting longer each time and as long as the server asks for.

        Returns:
            who answered, and the answer.
        """
        url = fault = ""
        for attempt in range(TRIES):
            wait = 0.5 * 2**attempt * random.uniform(0.75, 1.25)
            url = self._choose(body["seed"])
            try:
                response = self._http.post(f"{url}/completions", json=body)
            except httpx.HTTPError as err:
                fault = f"{type(err).__name__}: {err}"
            else:
                if response.status_code == 200:
                    return url, response.json()
                fault = f"{response.status_code}: {_message(response)}"
                if response.status_code < 500 and response.status_code not in (408, 429):
                    raise CallerError(f"{url}: the server refuses the request, {fault}")
                wait = max(wait, _asked_wait(response))
            self._failed_at[url] = time.monotonic()
            if attempt + 1 < TRIES and len(self._failed_at) == len(self.urls):  # nobody else to ask
                self._sleep(wait)
        raise InfrastructureError(f"{url}: no answer after {TRIES} tries, {fault}")

    def _choose(self, seed: int) -> str:
        """A conversation's own server, or while that is out the next one; the longest out when all are."""
        now = time.monotonic()
        for url in [url for url, at in list(self._failed_at.items()) if now - at > OUT_S]:
            self._failed_at.pop(url, None)
        up = [url for url in self.urls if url not in self._failed_at]
        if up:
            return up[seed % len(up)]
        return min(self.urls, key=lambda url: self._failed_at.get(url, 0.0))

    def _read(self, url: str, answer: dict[str, Any], ids: list[int], ends: set[int]) -> Result:
        choice = answer["choices"][0]
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
        tokens = _token_ids(choice)
        if tokens is None:
            raise CallerError(
                f"{url}: the server returns no token ids (return_token_ids: vLLM 0.10.2 or later)"
            )
        if logprobs is None or len(logprobs) != len(tokens) or not all(map(_finite, logprobs)):
            raise CallerError(f"{url}: the server returns no log-probability for each of its tokens")
        if (choice.get("prompt_token_ids") or ids) != ids:
            raise CallerError(f"{url}: the server changed the prompt; it must take token ids as they are")
        stopped = choice["finish_reason"] == "stop"
        if stopped and (not tokens or tokens[-1] not in ends):
            raise CallerError(
                f"{url}: a turn ended by another token than the template's ({self.eos_id}); "
                "serve the policy with its own generation_config.json"
            )
        versions = choice.get("policy_versions") or [self.version] * len(tokens)
        return Result(tokens, [float(x) for x in logprobs], versions, "stop" if stopped else "length")


class RemoteTurn:
    """A turn that the server decodes; see :class:`model.driver.Handle`."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._result: Result | None = None
        self._error: BaseException | None = None

    def result(self, timeout: float | None = None) -> Result:
        """The whole turn; raises as :meth:`RemoteDriver.complete`, or TimeoutError."""
        if not self._ended.wait(timeout):
            raise TimeoutError(f"the turn hasn't ended within {timeout} s")
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result


class RemoteSession:
    """A conversation; ``append`` and ``generate`` take turns, as in :class:`model.driver.Session`."""

    def __init__(self, driver: RemoteDriver, seed: int):
        self.seed = seed
        self.ids: list[int] = []
        self.turn: RemoteTurn | None = None
        self._driver, self._closed = driver, False

    def append(self, ids: Sequence[int]) -> None:
        """Add a message; it travels with the next turn."""
        self.ids.extend(ids)

    def generate(
        self,
        max_new: int,
        sampling: Sampling | None = None,
        stop_ids: Sequence[int] = (),
        on_chunk: OnChunk | None = None,
    ) -> RemoteTurn:
        """Sample a turn; ``on_chunk`` is called once, with None, at its end."""
        turn = self.turn = RemoteTurn()

        def decode() -> None:
            try:
                if self._closed:
                    turn._result = Result([], [], [], "cancelled")
                else:
                    turn._result = self._driver.complete(
                        self.ids, self.seed, max_new, sampling or Sampling(), stop_ids
                    )
                    self.ids.extend(turn._result.tokens)
            except BaseException as err:
                turn._error = err
            turn._ended.set()
            if on_chunk is not None:
                on_chunk(None)

        self._driver._threads.submit(decode)
        return turn

    def close(self) -> None:
        """Ask for nothing more."""
        self._closed = True


def _token_ids(choice: dict[str, Any]) -> list[int] | None:
    """The sampled ids, in either of the forms in which servers give them."""
    if choice.get("token_ids") is not None:
        return choice["token_ids"]
    texts = (choice.get("logprobs") or {}).get("tokens") or []
    if texts and all(text.startswith(_TOKEN) for text in texts):
        return [int(text.removeprefix(_TOKEN)) for text in texts]
    return None


def _finite(value: Any) -> bool:
    return isinstance(value, float | int) and math.isfinite(value)


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])[:300]
    except (ValueError, KeyError, TypeError):
        return response.text[:300]


def _asked_wait(response: httpx.Response) -> float:
    try:
        return float(response.headers.get("retry-after", 0))
    except ValueError:
        return 0.0
