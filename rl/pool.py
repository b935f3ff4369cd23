"""A pool of live environments: one warm sandbox server a bundle, and one for verifiers.

In: where the bundles lie. Out: open episodes for :mod:`rl.rollout`. Servers start when first needed
and are started anew when they die or hang; they end with the pool.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path

from synth.env.bundle import Bundle, read_bundle
from synth.env.episode import VerifierServer
from synth.env.sandbox import Limits, Provider, pick_provider
from synth.env.serving import EpisodeLike, ServerLike, open_environment
from synth.errors import CallerError, InfrastructureError
from synth.types import Task

HUNG_S = 15.0  # ours: an opening that fails later than this failed by waiting (it takes milliseconds)


class EnvPool:
    """Environments by id; a context manager, and safe to use from several threads.

    Args:
        bundles: env_id -> folder of the bundle.
        provider: isolation; by default the strongest that works here.
        limits: limits of every episode.
    """

    def __init__(
        self,
        bundles: Mapping[str, str | Path],
        provider: Provider | None = None,
        limits: Limits | None = None,
    ):
        self._paths = {env_id: Path(path) for env_id, path in bundles.items()}
        self._provider = provider or pick_provider()
        self._limits = limits
        self._bundles: dict[str, Bundle] = {}
        self._servers: dict[str, ServerLike] = {}
        self._lock = threading.Lock()
        self.verifier = VerifierServer(self._provider)

    def server(self, env_id: str) -> ServerLike:
        """The live server of an environment.

        Raises:
            CallerError: the pool has no such environment, or its bundle is damaged.
            InfrastructureError: its sandbox doesn't start.
        """
        with self._lock:
            server = self._servers.get(env_id)
            if server is not None and server.alive:
                return server
            if server is not None:
                server.close()
            path = self._path(env_id)
            self._servers[env_id] = open_environment(path, provider=self._provider, limits=self._limits)
            return self._servers[env_id]

    def bundle(self, env_id: str) -> Bundle:
        """An environment at rest; raises CallerError as :meth:`server` does."""
        with self._lock:
            if env_id not in self._bundles:
                self._bundles[env_id] = read_bundle(self._path(env_id))
            return self._bundles[env_id]

    def _path(self, env_id: str) -> Path:
        if env_id not in self._paths:
            raise CallerError(f"environment {env_id}: no bundle of that name; add it to the pool")
        return self._paths[env_id]

    def open(self, task: Task) -> EpisodeLike:
        """A fresh episode of a task: its environment's state and clock, the task's seed (rule 8).

        Raises:
            CallerError: the task was made for another version of the environment.
            InfrastructureError: the sandbox failed twice.
        """
        digest = self.bundle(task.env_id).manifest.digest
        if digest != task.env_digest:
            raise CallerError(
                f"task {task.id}: made for environment {task.env_digest[:12]}, "
                f"the bundle {task.env_id} is {digest[:12]}; make the tasks again"
            )
        server, started = self.server(task.env_id), time.monotonic()
        try:
            return server.open(task.seed)
        except InfrastructureError:
            if server.alive and time.monotonic() - started < HUNG_S:
                raise
            self._retire(task.env_id, server)
            return self.server(task.env_id).open(task.seed)

    def _retire(self, env_id: str, server: ServerLike) -> None:
        """End a dead or hung server, with the episodes it still has; the next call starts another."""
        with self._lock:
            if self._servers.get(env_id) is server:  # else somebody has replaced it already
                del self._servers[env_id]
        server.close()

    def close(self) -> None:
        """End all sandboxes."""
        with self._lock:
            for server in self._servers.values():
                server.close()
            self._servers.clear()
        self.verifier.close()

    def __enter__(self) -> EnvPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
