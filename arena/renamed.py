"""More examples for the cold start: verified episodes told with other words.

The states of one MCP server share its tools. From a hundred episodes a small model learns their names by
heart and recites them on the next database (measured; synth/importers/README.md). So every episode of an
environment is told again, several times, with all content words replaced in the question, the calls, the
results and the answer alike (:mod:`rl.renaming`): the call's form stays, the names have to be copied.
Comes from :func:`arena.warmup.solved_episodes`, goes to :mod:`rl.sft`.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from model.tokens import ChatTemplate
from rl.batch import Sample
from rl.corpus import Record
from rl.data import ScriptedEpisode
from rl.pretrain import sample_of
from rl.renaming import WORD, Renamer, common_words


def renamed_examples(
    episodes: Sequence[ScriptedEpisode],
    tools: Mapping[str, list[dict[str, Any]]],
    template: ChatTemplate,
    copies: int,
    seed: int,
) -> list[Sample]:
    """Each episode ``copies`` times, the words of an environment replaced alike within a copy.

    Args:
        tools: environment -> its MCP tool objects, as the prompts list them.

    Returns:
        Samples with loss weight 1 on the assistant's tokens and 0 elsewhere; those of one environment and
        copy are a group whose prompts begin alike. The same for the same arguments.
    """
    piles: dict[str, list[Record]] = {}
    for episode in episodes:
        piles.setdefault(episode.env_id, []).append(record_of(episode, tools[episode.env_id]))
    every = [record for pile in piles.values() for record in pile]
    said = {env_id: [json.dumps(r.calls, ensure_ascii=False) for r in pile] for env_id, pile in piles.items()}
    keep = common_words(said) | _listed_by_all([tools[env_id] for env_id in piles])
    renamer = Renamer(every, verbs=0.0, keep=keep)  # SQL's own words are in calls only
    made: list[Sample] = []
    for copy, env_id in itertools.product(range(copies), piles):
        family = renamer.rename(piles[env_id], random.Random(f"{seed}:{copy}:{env_id}"))
        first, second = (template.prompt(family[0].tools, text) for text in "ab")
        pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
        shared = max(len(list(pairs)), 1)
        for record in family:
            sample = sample_of(record, record.tools, template, other=0.0)
            made.append(dataclasses.replace(sample, prompt_length=shared, group=(env_id, copy)))
    return made


def _listed_by_all(lists: Sequence[list[dict[str, Any]]]) -> set[str]:
    """Words of the tools that every environment has: JSON's frame, and all of a tool that they share."""
    texts = [re.sub(r"\\[nrt]", " ", json.dumps(tools, ensure_ascii=False)) for tools in lists]
    return set.intersection(*({w.lower() for w in WORD.findall(text)} for text in texts))


def record_of(episode: ScriptedEpisode, tools: list[dict[str, Any]]) -> Record:
    """A scripted episode as text: what was asked, called, seen and answered."""
    steps = [turn.call for turn in episode.turns if turn.call is not None]
    return Record(
        env_id=episode.env_id,
        task_id=episode.task_id,
        pattern="",
        tools=tools,
        instruction=episode.turns[0].text,
        calls=[{"tool": step.tool, "arguments": step.arguments} for step in steps],
        observations=[turn.text for turn in episode.turns if turn.role == "tool"],
        answer=episode.answer,
        needed=sorted({step.tool for step in steps}),
    )
