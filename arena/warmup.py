"""Examples for the cold start: verified scripted episodes as tokens.

Comes from ``RUN/solutions/<env>.<tag>.jsonl`` (the attempts that passed the 2-of-5 filter; made by
beam_jobs). Each is replayed in the sandbox, so that what the policy learns to read are real results.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from model.tokens import ChatTemplate
from rl.batch import Sample, text_sample
from rl.data import MAX_OBSERVATION, ScriptedEpisode, scripted_episode
from rl.pool import EnvPool
from synth.types import Task, ToolStep


def solved_episodes(
    root: Path,
    tag: str,
    tasks: Mapping[str, Task],
    pool: EnvPool,
    template: ChatTemplate,
    progress: Callable[[int, int, str], None] | None = None,
    max_observation: int = MAX_OBSERVATION,
) -> list[ScriptedEpisode]:
    """One episode a task: the first attempt on file, which makes the gold calls; in order of task ids.

    ``max_observation`` characters of a tool's result are shown. :func:`grouped` makes examples of them.
    """
    first: dict[str, dict] = {}
    for path in sorted(root.glob(f"solutions/*.{tag}.jsonl")):
        for line in path.read_text().splitlines():
            attempt = json.loads(line)
            first.setdefault(attempt["task_id"], attempt)
    chosen = [first[task_id] for task_id in sorted(first) if task_id in tasks]
    episodes = []
    for number, attempt in enumerate(chosen, start=1):
        task = tasks[attempt["task_id"]]
        calls = [ToolStep(**call) for call in attempt["calls"]]
        server, answer = pool.server(task.env_id), attempt["answer"]
        episodes.append(
            scripted_episode(server, template, task, calls, answer, max_observation=max_observation)
        )
        if progress:
            progress(number, len(chosen), task.env_id)
    return episodes


def grouped(episodes: Sequence[ScriptedEpisode]) -> list[Sample]:
    """Episodes as samples, which say how far the prompts of their environment are equal.

    Returns:
        Samples with loss weight 1 on the assistant's tokens and 0 elsewhere, in the order of the episodes.
        Those of an environment are a group whose prompts begin alike.
    """
    shared: dict[str, tuple[int, ...]] = {}
    for episode in episodes:
        prompt = episode.ids[: episode.prompt_length]
        known = shared.get(episode.env_id, prompt)
        equal = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(known, prompt, strict=False))
        shared[episode.env_id] = tuple(token for token, _ in equal)
    return [
        dataclasses.replace(
            text_sample(episode.ids, episode.weights(0.0)),
            prompt_length=max(len(shared[episode.env_id]), 1),
            group=episode.env_id,
        )
        for episode in episodes
    ]
