"""Whether the sandbox for foreign programs works on this machine."""

from __future__ import annotations

from synth.env.sandbox import BWRAP, pick_provider
from synth.errors import CallerError


def bubblewrap_works() -> bool:
    try:
        return pick_provider().name == BWRAP
    except CallerError:
        return False
