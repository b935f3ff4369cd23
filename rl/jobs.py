"""What is to be run: an episode of a task, and the bounds of every episode of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import model_validator

from rl.data import MAX_OBSERVATION
from rl.learner import Config
from synth.types import Task

CUT_OFF = ("top_p", "top_k", "min_p")


def refuse_cut_off(fields: Any) -> Any:
    """The fields of a config, if none asks for a cut-off distribution.

    Raises:
        ValueError: one does. A trainer scores with the whole vocabulary, so what was drawn from a part of it
            would carry a wrong log-probability.
    """
    asked = [name for name in CUT_OFF if isinstance(fields, dict) and name in fields]
    if asked:
        raise ValueError(
            f"{asked[0]}: tokens drawn from a cut-off distribution can't be trained on; leave it out "
            "(training samples from all tokens; serving offers it)"
        )
    return fields


class RolloutLimits(Config):
    """Bounds of an episode. All ours, fitted to tasks of 1 to 6 calls and a context of 1,024 tokens."""

    max_turns: int = 8  # turns of the assistant, the answer among them
    max_new_per_turn: int = 96  # sampled tokens of a turn
    max_len: int = 1024  # tokens of the whole episode
    max_observation: int = MAX_OBSERVATION  # characters of a tool's result
    max_errors: int = 0  # failed calls after which an episode ends with "turns"; 0: as many as turns allow
    long_turn: Literal["truncated", "failed"] = "truncated"
    # What a turn is that reaches max_new_per_turn: "truncated" as at the episode's end (masked, rule 6), or
    # "failed": over-long messages break the protocol, the episode ends with "turns" and is trained on.

    _whole = model_validator(mode="before")(refuse_cut_off)


@dataclass(frozen=True)
class EpisodeJob:
    """One episode to run. The task's own seed goes to the environment, ``seed`` to the sampler."""

    task: Task
    sample: int
    seed: int
