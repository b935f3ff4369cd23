"""The server's handle on one sandboxed process (:mod:`synth.env.worker`): start, fork, kill, close.

Each forked child talks over a socket of its own, so any number of threads can hold children of one
zygote; only the short command to fork or kill is behind a lock. When this process dies, however it
dies, the control socket closes and the sandbox ends itself.
"""

from __future__ import annotations

import select
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
        provider: how it is isolated; or a :class:`Nest`, which is isolated already.
        limits: limits of each child.
        role: "episode", "verifier", "probe" or "nest".
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
        with theirs:
            self._process = self._start(theirs)
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

    def _start(self, theirs: socket.socket) -> subprocess.Popen[bytes] | None:
        """The interpreter behind ``theirs``; None when it comes from a nest."""
        if isinstance(self.provider, Nest):
            self.provider.hatch(theirs)
            return None
        try:
            return subprocess.Popen(
                self.provider.command(),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env=environment(),
                cwd="/",
                start_new_session=True,
            )
        except OSError as err:
            raise InfrastructureError(f"the sandbox {self.provider.name} cannot be started: {err}") from None

    def _last_words(self) -> str:
        if isinstance(self.provider, Nest):
            return self.provider.last_words()
        self._errors.seek(0)
        text = self._errors.read(20_000).decode("utf-8", "replace").strip()
        return text.splitlines()[-1] if text else "it wrote nothing"

    @property
    def alive(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        if self._control.fileno() < 0:  # closed
            return False
        waiting = select.poll()
        waiting.register(self._control, select.POLLIN)
        return not waiting.poll(0)  # it sends nothing: what can be read is its end

    def fork(self) -> tuple[int, socket.socket]:
        """A new child: its number and our end of its socket.

        Raises:
            InfrastructureError: the sandbox is gone.
        """
        ours, theirs = blocking_pair()
        frames.wait_at_most(ours, socket.SO_SNDTIMEO, self._wall_s)
        with theirs:
            try:
                return self.fork_behind(theirs), ours
            except InfrastructureError:
                ours.close()
                raise

    def fork_behind(self, theirs: socket.socket) -> int:
        """:meth:`fork` with a socket that is there already."""
        with self._lock:
            self._number += 1
            try:
                socket.send_fds(self._control, [COMMAND.pack(b"F", self._number)], [theirs.fileno()])
            except OSError:
                raise InfrastructureError(f"the sandbox {self.provider.name} is gone") from None
            return self._number

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
        if self._process is None:  # it ends with its socket
            return
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


class Nest:
    """A sandbox that stays open and counts as a provider: its zygotes are forked in it, not started anew.

    For a worker that takes many environments in turn. Each still has a process of its own, with its own
    locks, limits and children, forked from one in which no code of any environment has run; they share the
    outer sandbox (its namespaces, or its Landlock rules) as episodes of one environment always do. Close it,
    or use it as a context manager: with bubblewrap what runs in it ends then; elsewhere with its sockets.

    Raises:
        InfrastructureError: the sandbox doesn't start.
    """

    def __init__(self, provider: Provider) -> None:
        self.name, self.isolated = provider.name, provider.isolated
        self._provider = provider
        self._zygote = Zygote(provider, Limits(), "nest")

    def command(self) -> list[str]:
        """Nothing is started."""
        return []

    def locks(self) -> dict[str, Any]:
        """Of what is forked in it."""
        return self._provider.locks()

    def hatch(self, theirs: socket.socket) -> None:
        """Fork a zygote that is told of its bundle over ``theirs``.

        Raises:
            InfrastructureError: the sandbox is gone.
        """
        self._zygote.fork_behind(theirs)

    def last_words(self) -> str:
        """The last line that anything in it wrote to standard error."""
        return self._zygote._last_words()

    def close(self) -> None:
        self._zygote.close()

    def __enter__(self) -> Nest:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
