"""Levels of difficulty by name: what ``agent-world tasks --difficulty`` fills into the knobs of both routes.

A level says how many calls a gold solution takes, which share of the tasks are programs, and whether
programs may branch. It is handed on as a :class:`synth.types.Guide`, which both task stages obey.
"""

from __future__ import annotations

from dataclasses import dataclass

from synth.errors import CallerError
from synth.types import Guide


@dataclass(frozen=True)
class Level:
    """One level.

    Attributes:
        steps: fewest and most calls of a graph task.
        calls: fewest and most calls that a program's solution makes.
        program_share: share of the tasks that are programs, 0 to 1.
        branch: whether programs must (True) or mustn't (False) branch; None: either.
    """

    steps: tuple[int, int]
    calls: tuple[int, int]
    program_share: float
    branch: bool | None = None


LEVELS = {  # ours: the paper names no levels; synth.tasks_program.MAX_CALLS bounds the hard one
    "easy": Level(steps=(1, 2), calls=(1, 3), program_share=0.25, branch=False),
    "medium": Level(steps=(2, 3), calls=(2, 5), program_share=0.5),
    "hard": Level(steps=(3, 5), calls=(4, 8), program_share=0.75),
}


def level_of(name: str) -> Level:
    """The level of a name.

    Raises:
        CallerError: there is no such level.
    """
    if name not in LEVELS:
        raise CallerError(f"--difficulty: no level {name!r}; take one of {', '.join(LEVELS)}")
    return LEVELS[name]


def guide_of(name: str) -> Guide:
    """The level as a guide, which a model that writes tasks reads and the graph route obeys."""
    level = level_of(name)
    low, high = level.steps
    return Guide(
        id=f"difficulty-{name}", text=f"{name} tasks", min_steps=low, max_steps=high, branch=level.branch
    )
