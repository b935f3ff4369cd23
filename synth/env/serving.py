"""What every environment in use can do, whoever runs it: the seam between environments and their users.

Two kinds of bundle are served: our own (:class:`synth.env.episode.EnvServer`, tools in Python over a state
in memory) and imported ones (:class:`synth.env.mcp_client.McpEnvServer`, a real program whose state lives in
a folder). Rollouts, gates, task stages and ``agent-world mcp`` need the two protocols below and nothing more,
so :func:`open_environment` is all that a caller has to know.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from synth.env.bundle import Bundle, read_bundle
from synth.env.episode import EnvServer, SolutionResult, ToolResult
from synth.env.sandbox import Limits, Provider
from synth.env.zygote import Nest

if TYPE_CHECKING:
    from synth.env.state import State

IMPORTED = "mcp_server"  # the key of ``manifest.generator`` that says: served by a program of its own


class EpisodeLike(Protocol):
    """One run of an environment: used once, by one thread at a time, never reset."""

    @property
    def dead(self) -> str | None:
        """Why it has ended, once it has."""
        ...

    def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Run a tool. Faults of caller and environment are results; a dead sandbox raises."""
        ...

    def snapshot(self) -> State:
        """The state as verifiers see it."""
        ...

    def digest(self) -> str:
        """Canonical digest of :meth:`snapshot`, audit tables left out."""
        ...

    def run_solution(self, code: str, max_calls: int = 100) -> SolutionResult:
        """Run ``def solve(call) -> answer`` in a sandbox, over the tools of this episode."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class ServerLike(Protocol):
    """An environment that gives out fresh episodes."""

    bundle: Bundle
    limits: Limits

    @property
    def alive(self) -> bool: ...

    def open(self, seed: int) -> EpisodeLike: ...

    def check_arguments(self, name: str, arguments: Any) -> ToolResult | None: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def is_imported(bundle: Bundle) -> bool:
    """Whether a bundle is served by a program of its own."""
    return IMPORTED in bundle.manifest.generator


def open_environment(
    path: str | Path, *, provider: Provider | None = None, limits: Limits | None = None
) -> ServerLike:
    """Serve a bundle of either kind.

    Args:
        provider: isolation; an imported bundle takes no :class:`synth.env.zygote.Nest`, its program always
            gets a sandbox of its own.

    Raises:
        CallerError: the bundle is damaged, its program is not installed here, or no sandbox works.
        InfrastructureError: the sandbox does not start.
    """
    bundle = read_bundle(path)
    if is_imported(bundle):
        from synth.env.mcp_client import McpEnvServer  # the SDK takes a second to import

        return McpEnvServer(path, provider=None if isinstance(provider, Nest) else provider, limits=limits)
    return EnvServer(bundle, provider=provider, limits=limits)
