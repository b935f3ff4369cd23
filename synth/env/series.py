"""Episodes of an environment one after another in one process, each from a fresh start.

    again = in_series(server)
    with again.open(seed) as episode: ...      # as server.open(seed), in a process that served others before

A fork for each episode is what synthesis spent most of its time on: opening, one call and the state at its
end take 1.7 ms of processor, 0.23 ms in a series (ours, measured: beam_jobs/README.md). Between two episodes
of a series rows, files, connection, clock, ids, randomness and the globals of all tools are made anew; what
is *not* is the interpreter around them: a module that a tool altered stays altered. So a series is for

* what is done twice anyway and compared: tests of a tool in a series of its own, then backwards in the one
  that all tools share; gold calls in a process of their own, then in the shared one. A tool that remembers
  something behind everyone's back gives something else the second time, and is found here;
* drafts and tries that such a proof follows or has preceded.

Rollouts and arena never use it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from synth.errors import InfrastructureError

if TYPE_CHECKING:
    from synth.env.bundle import Bundle
    from synth.env.episode import EnvServer, Episode, SolutionResult, ToolResult
    from synth.env.sandbox import Limits
    from synth.env.serving import ServerLike
    from synth.env.state import State

MOST = 64  # episodes of one process (ours): its limits of memory and processor time hold for all of them


def in_series(server: ServerLike) -> ServerLike:
    """The server's series, or the server itself where there is none (imported programs)."""
    from synth.env.episode import EnvServer

    return server.series if isinstance(server, EnvServer) else server


@contextmanager
def own_series(server: ServerLike) -> Iterator[ServerLike]:
    """A series that begins with a process of its own, for a while; where there is none, the server itself."""
    from synth.env.episode import EnvServer

    if not isinstance(server, EnvServer):
        yield server
        return
    with Series(server) as series:
        yield series


class Series:
    """A server whose episodes share a process. Made by :class:`synth.env.episode.EnvServer`, which closes it.

    While one of its episodes is open, another one gets a process of its own.
    """

    def __init__(self, server: EnvServer) -> None:
        self.bundle: Bundle = server.bundle
        self.limits: Limits = server.limits
        self._server = server
        self._lock = threading.Lock()
        self._idle: Turn | None = None  # the last turn of the process that waits

    @property
    def alive(self) -> bool:
        return self._server.alive

    def open(self, seed: int) -> Turn:
        """A fresh start. Errors: see :meth:`synth.env.episode.EnvServer.open`."""
        with self._lock:
            last, self._idle = self._idle, None
        if last is not None:
            try:
                last.episode.reset(seed)
                return Turn(self, last.episode, last.number + 1)
            except InfrastructureError:  # what came before it broke it
                if not self.alive:
                    raise
        return Turn(self, self._server.open(seed), 1)

    def take_back(self, turn: Turn) -> None:
        """Keep its process for the next one, unless it is dead or has served long enough."""
        with self._lock:
            if turn.episode.dead is None and self._idle is None and turn.number < MOST:
                self._idle = turn
                return
        turn.episode.close()

    def check_arguments(self, name: str, arguments: Any) -> ToolResult | None:
        return self._server.check_arguments(name, arguments)

    def close(self) -> None:
        """End the process that is kept; the server stays."""
        with self._lock:
            last, self._idle = self._idle, None
        if last is not None:
            last.episode.close()

    def __enter__(self) -> Series:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Turn:
    """One episode of a series; closing it gives its process back."""

    def __init__(self, series: Series, episode: Episode, number: int) -> None:
        self.episode, self.number = episode, number  # it is the how manieth of its process
        self._series = series
        self._closed: str | None = None

    @property
    def dead(self) -> str | None:
        return self._closed or self.episode.dead

    def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        return self._open().call(name, arguments)

    def snapshot(self) -> State:
        return self._open().snapshot()

    def digest(self) -> str:
        return self._open().digest()

    def run_solution(self, code: str, max_calls: int = 100) -> SolutionResult:
        return self._open().run_solution(code, max_calls)

    def _open(self) -> Episode:
        if self._closed is not None:
            raise InfrastructureError(f"the episode has ended: {self._closed}")
        return self.episode

    def close(self) -> None:
        if self._closed is None:
            self._closed = self.episode.dead or "the episode is closed"
            self._series.take_back(self)

    def __enter__(self) -> Turn:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:  # nobody knows what state it is in
            self.episode.close()
        self.close()
