"""Run the code of verifiers, in a sandbox of its own that never sees an environment's tools.

A verifier is ``def verify(initial, final, answer) -> list[(name, passed, detail)]``. ``initial`` and
``final`` have ``.rows(table)``, ``.query(sql, *params)``, ``.files`` and ``initial.diff(final)`` (the
normalized difference). One warm server forks a child for each verification.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from synth.env import frames
from synth.env.sandbox import Limits, Provider, pick_provider
from synth.env.state import State
from synth.env.zygote import Zygote
from synth.errors import InfrastructureError
from synth.types import Check, Table, Verdict


def _failed(name: str, detail: str) -> Verdict:
    return Verdict(passed=False, checks=(Check(name=name, passed=False, detail=detail),))


class VerifierServer:
    """A warm sandbox for verifiers; safe to use from several threads.

    Args:
        provider: isolation; by default the strongest that works here.
        limits: limits of one verification.
    """

    def __init__(self, provider: Provider | None = None, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.provider = provider or pick_provider()
        self._lock = threading.Lock()
        self._zygote: Zygote | None = None

    def run(
        self,
        code: str,
        initial: State,
        final: State,
        answer: Any,
        tables: Sequence[Table],
        audit_tables: Sequence[str] = (),
    ) -> Verdict:
        """One verification.

        Returns:
            The verdict. A verifier that raises has failed the episode (check ``verifier_raised``), and so
            has an answer that is not JSON; when the sandbox dies or the time is up, ``error`` is set and
            there is no reward.
        """
        try:
            json.dumps(answer, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError) as err:
            return _failed("answer_is_json", str(err))
        first, first_blob = initial.pack()
        second, second_blob = final.pack()
        request = {
            "code": code,
            "answer": answer,
            "tables": [t.model_dump(mode="json") for t in tables],
            "audit_tables": list(audit_tables),
            "initial": first,
            "final": second,
            "cut": len(first_blob),
        }
        try:
            reply = self._exchange(request, first_blob + second_blob)
        except InfrastructureError as err:
            return Verdict(passed=False, error=str(err))
        if "failed" in reply:
            return _failed("verifier_raised", str(reply["failed"]))
        try:
            checks = tuple(Check(name=n, passed=p, detail=d) for n, p, d in reply["checks"])
        except (KeyError, TypeError, ValueError):
            return Verdict(passed=False, error="the verifier broke the protocol")
        return Verdict(passed=bool(checks) and all(c.passed for c in checks), checks=checks)

    def _exchange(self, request: dict[str, Any], blob: bytes) -> dict[str, Any]:
        zygote = self._warm()
        deadline = time.monotonic() + self.limits.wall_s
        number, sock = zygote.fork()
        try:
            frames.send(sock, request, blob, deadline=deadline)
            reply, _ = frames.receive(sock, self.limits.output_bytes + frames.HEADROOM, deadline)
            return reply
        except TimeoutError:
            raise InfrastructureError(f"the verifier did not end within {self.limits.wall_s:g} s") from None
        except (EOFError, OSError):
            raise InfrastructureError("the verifier's process died") from None
        except (frames.FrameTooLarge, ValueError) as err:
            raise InfrastructureError(f"the verifier broke the protocol: {err}") from None
        finally:
            zygote.kill(number)
            sock.close()

    def _warm(self) -> Zygote:
        with self._lock:
            if self._zygote is not None and not self._zygote.alive:
                self._zygote.close()
                self._zygote = None
            if self._zygote is None:
                self._zygote = Zygote(self.provider, self.limits, "verifier")
            return self._zygote

    def close(self) -> None:
        """End the sandbox."""
        with self._lock:
            if self._zygote is not None:
                self._zygote.close()
                self._zygote = None

    def __enter__(self) -> VerifierServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_servers: dict[tuple[int, str], VerifierServer] = {}  # by process id and provider
_servers_lock = threading.Lock()


def run_verifier(
    code: str,
    initial: State,
    final: State,
    answer: Any,
    tables: Sequence[Table],
    audit_tables: Sequence[str] = (),
    provider: Provider | None = None,
) -> Verdict:
    """:meth:`VerifierServer.run` on a server of this process that stays warm."""
    with _servers_lock:
        chosen = provider or pick_provider()
        server = _servers.get((os.getpid(), chosen.name))
        if server is None:
            server = _servers[os.getpid(), chosen.name] = VerifierServer(chosen)
            atexit.register(server.close)
    return server.run(code, initial, final, answer, tables, audit_tables)
