"""The server's handle on one sandboxed process (:mod:`synth.env.worker`): start, fork, kill, close.

Each forked child talks over a socket of its own, so any number of threads can hold children of one
zygote; only the short command to fork or kill is behind a lock. When this process dies, however it
dies, the control socket closes and the sandbox ends itself.
"""

from __future__ import annotations

import socket
import subprocess
import tempfile
import threading
import time
from typing import Any

from synth.env import frames
from synth.env.sandbox import Limits, Provider, environment
from synth.env.worker import COMMAND
from synth.errors import InfrastructureError

START_S = 30.0  # seconds for the interpreter to come up; 0.06 is usual, a busy machine takes longer


def blocking_pair() -> tuple[socket.socket, socket.socket]:
    """Two joined sockets that wait, whatever ``socket.setdefaulttimeout`` says in this process.

    A default timeout (Beam's GCP client sets one) makes new sockets non-blocking for the child too, which
    then takes "nothing yet" for the end.
    """
    ours, theirs = socket.socketpair()
    if socket.getdefaulttimeout() is not None:
        ours.setblocking(True)
        theirs.setblocking(True)
    return ours, theirs


class Zygote:
    """One sandboxed process.

    Args:
        provider: how it is isolated.
        limits: limits of each child.
        role: "episode", "verifier" or "probe".
        config: what the worker needs beside (tools, clock, index of the state).
        blob: bytes of the state.

    Raises:
        InfrastructureError: it does not start; the message holds what it wrote.
    """

    def __init__(
        self,
        provider: Provider,
        limits: Limits,
        role: str,
        config: dict[str, Any] | None = None,
        blob: bytes = b"",
    ) -> None:
        self.provider = provider
        self._wall_s = limits.wall_s
        self._lock = threading.Lock()
        self._number = 0
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in close)
        self._control, theirs = blocking_pair()
        try:
            self._process = subprocess.Popen(
                provider.command(),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env=environment(),
                cwd="/",
                start_new_session=True,
            )
        except OSError as err:
            raise InfrastructureError(f"the sandbox {provider.name} cannot be started: {err}") from None
        finally:
            theirs.close()
        message = {"role": role, "limits": limits.to_json(), "locks": provider.locks(), **(config or {})}
        try:
            frames.send(self._control, message, blob)
            frames.receive(self._control, frames.HEADROOM, time.monotonic() + START_S)
        except (EOFError, OSError, ValueError):
            self._stop()
            wrote = self._last_words()
            self._errors.close()
            raise InfrastructureError(f"the sandbox {provider.name} did not start: {wrote}") from None
        self._control.settimeout(START_S)

    def _last_words(self) -> str:
        self._errors.seek(0)
        text = self._errors.read(20_000).decode("utf-8", "replace").strip()
        return text.splitlines()[-1] if text else "it wrote nothing"

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def fork(self) -> tuple[int, socket.socket]:
        """A new child: its number and our end of its socket.

        Raises:
            InfrastructureError: the sandbox is gone.
        """
        ours, theirs = blocking_pair()
        frames.wait_at_most(ours, socket.SO_SNDTIMEO, self._wall_s)
        with theirs, self._lock:
            self._number += 1
            try:
                socket.send_fds(self._control, [COMMAND.pack(b"F", self._number)], [theirs.fileno()])
            except OSError:
                ours.close()
                raise InfrastructureError(f"the sandbox {self.provider.name} is gone") from None
            return self._number, ours

    def kill(self, number: int) -> None:
        """End a child now, whatever it does."""
        with self._lock:
            try:
                self._control.sendall(COMMAND.pack(b"K", number))
            except OSError:
                return  # the sandbox is gone, and its children with it

    def close(self) -> None:
        """End the sandbox and all its children."""
        self._stop()
        self._errors.close()

    def _stop(self) -> None:
        self._control.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def probe(self) -> None:
        """Let a child of role "probe" try to get out.

        Raises:
            InfrastructureError: it could read a file of ours or make a socket, or it died.
        """
        number, sock = self.fork()
        with sock, tempfile.NamedTemporaryFile() as marker:
            try:
                frames.send(sock, {"path": marker.name})
                answer, _ = frames.receive(sock, frames.HEADROOM, time.monotonic() + START_S)
            except (EOFError, OSError, ValueError):
                raise InfrastructureError(f"{self.provider.name}: the probe died") from None
        self.kill(number)
        if answer.get("leaks") != []:
            raise InfrastructureError(f"{self.provider.name} does not isolate here: {answer}")

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
