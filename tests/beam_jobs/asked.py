"""A stage for the tests that touches all that can fail: a model asks, a sandbox judges, the store keeps.

The trouble that an element makes itself (``AGENT_WORLD_TEST_TROUBLE``, JSON: name -> "worker" or "sandbox")
is no part of its payload, so that its key stays the same when the trouble is over.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from beam_jobs.models import open_author, spent
from beam_jobs.stage import Element, Output, Retry, Stage
from beam_jobs.store import Store
from synth.author.asking import Mend, Unusable, read_json
from synth.env.sandbox import Limits
from synth.env.state import State
from synth.env.verifier import VerifierServer
from synth.errors import InfrastructureError

SOUND = "def verify(initial, final, answer): return [('square', answer['square'] == answer['n'] ** 2, '')]"
HANGS = "def verify(initial, final, answer):\n    while True: pass"
TROUBLE = "AGENT_WORLD_TEST_TROUBLE"


@contextmanager
def tools() -> Iterator[VerifierServer]:
    with VerifierServer(limits=Limits(wall_s=4.0)) as judge:
        yield judge


def work(store: Store, payload: dict[str, Any], judge: VerifierServer) -> Output:
    n = payload["n"]
    trouble = json.loads(os.environ.get(TROUBLE, "{}")).get(str(n))
    author = open_author(payload["author"])
    asked = [{"role": "user", "content": f"The square of {n}"}]
    reply = author.llm.complete(asked, stage="asked", prompt="square")  # type: ignore[attr-defined]
    try:
        value = read_json(reply, {"type": "object", "required": ["square"]})
    except Mend as err:
        raise Unusable(f"asked: {err}") from None
    if trouble == "worker":
        os.kill(os.getpid(), signal.SIGKILL)
    empty = State(_empty())
    code = HANGS if trouble == "sandbox" else SOUND
    verdict = judge.run(code, empty, empty, {"n": n, **value}, [])
    if verdict.error:
        raise InfrastructureError(verdict.error)
    path = f"squares/{n}.json"
    store.write(path, json.dumps({"n": n, **value, "passed": verdict.passed}) + "\n")
    return Output((path,), {"squares": 1, **spent(author)})


def _empty() -> bytes:
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE empty (id)")
        return db.serialize()


STAGE = Stage("asked", version=1, work=work, tools=tools, retry=Retry(attempts=2, wait=0.05))


def elements(count: int, author: str) -> list[Element]:
    payloads = [{"n": n, "author": author} for n in range(count)]
    return [Element(str(p["n"]), STAGE.key(p), f"number {p['n']}", p) for p in payloads]
