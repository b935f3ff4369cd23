"""Run the code of verifiers, in a sandbox of its own that never sees an environment's tools.

A verifier is ``def verify(initial, final, answer) -> list[(name, passed, detail)]``. ``initial`` and
``final`` have ``.rows(table)``, ``.query(sql, *params)``, ``.files`` and ``initial.diff(final)`` (the
normalized difference). One warm server forks a child for each
request: one verification, or several of one task.
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


def _unfit(answer: Any) -> Verdict | None:
    """The verdict on an answer that is not JSON; None when it is."""
    try:
        json.dumps(answer, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as err:
        return _failed("answer_is_json", str(err))
    return None


def _verdict(said: Any) -> Verdict:
    """What the sandbox said of one outcome, which is not trusted to have any form."""
    try:
        if "failed" in said:
            return _failed("verifier_raised", str(said["failed"]))
        checks = tuple(Check(name=n, passed=p, detail=d) for n, p, d in said["checks"])
    except (KeyError, TypeError, ValueError):
        return Verdict(passed=False, error="the verifier broke the protocol")
    return Verdict(passed=bool(checks) and all(c.passed for c in checks), checks=checks)


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
        return self.run_all(code, initial, [(final, answer)], tables, audit_tables)[0]

    def run_all(
        self,
        code: str,
        initial: State,
        outcomes: Sequence[tuple[State, Any]],
        tables: Sequence[Table],
        audit_tables: Sequence[str] = (),
    ) -> list[Verdict]:
        """Verdicts on several outcomes (final state, answer) of one task, in order; a sandboxed process and
        one transfer of the states serve all of them. The code runs anew for each, with views of its own; only
        what it alters in modules is seen by the next. What breaks the process leaves all without a verdict.
        """
        verdicts = [_unfit(answer) for _, answer in outcomes]
        asked = [n for n, verdict in enumerate(verdicts) if verdict is None]
        if asked:
            chosen = [outcomes[n] for n in asked]
            for n, verdict in zip(
                asked, self._judged(code, initial, chosen, tables, audit_tables), strict=True
            ):
                verdicts[n] = verdict
        return [verdict for verdict in verdicts if verdict is not None]

    def _judged(
        self,
        code: str,
        initial: State,
        outcomes: Sequence[tuple[State, Any]],
        tables: Sequence[Table],
        audit_tables: Sequence[str],
    ) -> list[Verdict]:
        finals = {id(final): final for final, _ in outcomes}
        place = {key: n for n, key in enumerate(finals, start=1)}
        packed = [state.pack() for state in (initial, *finals.values())]
        request = {
            "code": code,
            "tables": [t.model_dump(mode="json") for t in tables],
            "audit_tables": list(audit_tables),
            "states": [[index, len(blob)] for index, blob in packed],
            "outcomes": [[place[id(final)], answer] for final, answer in outcomes],
        }
        count = len(outcomes)
        try:
            reply = self._exchange(request, b"".join(blob for _, blob in packed), count)
        except InfrastructureError as err:
            return [Verdict(passed=False, error=str(err))] * count
        said = reply.get("verdicts")
        if not isinstance(said, list) or len(said) != count:
            return [Verdict(passed=False, error="the verifier broke the protocol")] * count
        return [_verdict(item) for item in said]

    def _exchange(self, request: dict[str, Any], blob: bytes, count: int) -> dict[str, Any]:
        zygote = self._warm()
        limits = self.limits
        deadline = time.monotonic() + limits.wall_s * count
        number, sock = zygote.fork()
        try:
            frames.send(sock, request, blob, deadline=deadline)
            reply, _ = frames.receive(sock, limits.output_bytes * count + frames.HEADROOM, deadline)
            return reply
        except TimeoutError:
            raise InfrastructureError(
                f"the verifier did not end within {limits.wall_s * count:g} s"
            ) from None
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
