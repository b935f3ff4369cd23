"""The pretraining corpus: scripted episodes of many synthesized environments, as text records.

For each theme of the ``pretrain`` split and each seed an environment is mined, complexified and given
tools as in the main job; its tasks are made and their gold calls are replayed in the sandbox, some after
mistakes on purpose, so every observation is a real result or a real error. The themes of the ``demo``
split never come near it: what is measured on is never trained on. One record is one episode, written
as a line of JSONL without any tokenizer.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rl.mistakes import AGAIN, IDLE, SHARE, Blunderer, broken_error
from synth.author.offline import OfflineAuthor
from synth.complexify import complexify
from synth.env.bundle import read_bundle, write_bundle
from synth.env.episode import EnvServer, VerifierServer
from synth.mining import mine
from synth.tasks_graph import make_tasks as graph_tasks
from synth.tasks_program import make_tasks as program_tasks
from synth.tools import make_environment
from synth.types import Task, Theme


@dataclass(frozen=True)
class Record:
    """One scripted episode in text form."""

    env_id: str
    task_id: str
    pattern: str
    tools: list[dict[str, Any]]  # MCP tool objects
    instruction: str
    calls: list[dict[str, Any]]  # {"tool", "arguments"}; mistakes have "wrong", unreadable ones "raw" too
    observations: list[str]
    answer: Any
    needed: list[str] = field(default_factory=list)  # names of the tools that are called


def replay(
    server: EnvServer, task: Task, tools: list[dict[str, Any]], blunderer: Blunderer, read_only: set[str]
) -> Record:
    """Replay a task's gold calls in the sandbox, some of them after mistakes (:mod:`rl.mistakes`)."""
    rng = random.Random(f"mistakes:{task.id}")
    calls: list[dict[str, Any]] = []
    observations: list[str] = []

    with server.open(task.seed) as episode:

        def blunder(gold: dict[str, Any]) -> None:
            wrong = blunderer.draw(gold, rng)
            if "raw" in wrong:
                error = broken_error(wrong["raw"])
                if error is None:
                    return
                calls.append(wrong)
                observations.append(error)
                return
            before = None if wrong["tool"] in read_only else episode.digest()
            result = episode.call(wrong["tool"], wrong["arguments"])
            if before is not None and episode.digest() != before:
                raise Spoiled
            calls.append(wrong)
            observations.append(result.to_json())

        for step in task.chain:
            gold = {"tool": step.tool, "arguments": step.arguments}
            if rng.random() < SHARE:
                blunder(gold)
                while rng.random() < AGAIN:
                    blunder(gold)
            calls.append(gold)
            observations.append(episode.call(step.tool, step.arguments).to_json())
        if rng.random() < IDLE:
            reads = [c for c in blunderer.calls if c["tool"] in read_only]
            if reads:
                idle = rng.choice(reads)
                calls.append({**idle, "wrong": True})
                observations.append(episode.call(idle["tool"], idle["arguments"]).to_json())
    needed = {c["tool"] for c in calls} & {t["name"] for t in tools}
    return Record(
        task.env_id, task.id, task.pattern, tools, task.instruction, calls, observations,
        task.reference_answer, sorted(needed),
    )  # fmt: skip


class Spoiled(Exception):
    """A mistake changed the state: the task can't be solved after it."""


def environment_records(theme: Theme, seed: int, graph_count: int, program_count: int) -> list[Record]:
    """Episodes of one freshly synthesized environment."""
    author = OfflineAuthor()
    db = complexify(mine(theme, seed), theme, author, seed)
    env = make_environment(db, theme, author, seed, env_id=f"{theme.id}-{seed}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / env.env_id
        write_bundle(env, path)
        bundle = read_bundle(path)
        with EnvServer(path) as server, VerifierServer() as verifiers:
            tasks = graph_tasks(bundle, server, author, seed, graph_count)
            tasks += program_tasks(bundle, server, author, seed, program_count, verifier_server=verifiers)
            shown = [
                {"name": t.name, "description": t.description, "inputSchema": t.input_schema}
                for t in bundle.tools
            ]
            calls = [{"tool": s.tool, "arguments": s.arguments} for t in tasks for s in t.chain]
            blunderer = Blunderer(shown, calls)
            read_only = {t.name for t in bundle.tools if t.read_only}
            records = []
            for task in tasks:
                try:
                    records.append(replay(server, task, shown, blunderer, read_only))
                except Spoiled:
                    continue
            return records


def _job(argument: tuple[Theme, int, int, int]) -> tuple[str, list[Record] | str]:
    theme, seed, graph_count, program_count = argument
    try:
        return f"{theme.id}-{seed}", environment_records(theme, seed, graph_count, program_count)
    except Exception as err:
        return f"{theme.id}-{seed}", f"{type(err).__name__}: {err}"


def build_corpus(
    themes: list[Theme], seeds: Iterable[int], out: Path, *, graph_count: int = 60, program_count: int = 20,
    workers: int = 2,
) -> Iterator[str]:  # fmt: skip
    """Write ``out/<env>.jsonl`` for every (seed, theme) that is missing; yields a line of progress each.

    An environment that fails is reported in its line and left out.
    """
    out.mkdir(parents=True, exist_ok=True)
    jobs = [
        (t, s, graph_count, program_count)
        for s in seeds
        for t in themes
        if not (out / f"{t.id}-{s}.jsonl").exists()
    ]
    with ProcessPoolExecutor(workers) as pool:
        for name, records in pool.map(_job, jobs):
            if isinstance(records, str):
                yield f"{name}: failed: {records}"
                continue
            part = out / f"{name}.jsonl.part"
            part.write_text("".join(json.dumps(asdict(r), ensure_ascii=False) + "\n" for r in records))
            part.rename(out / f"{name}.jsonl")
            yield f"{name}: {len(records)} episodes"


def read_corpus(folder: Path) -> list[Record]:
    """All records of a corpus folder, files in name order."""
    records = []
    for path in sorted(folder.glob("*.jsonl")):
        records += [Record(**json.loads(line)) for line in path.read_text().splitlines()]
    return records


def thin_tools(
    tools: Sequence[dict[str, Any]], needed: Sequence[str], most: int, rng: random.Random
) -> list[dict[str, Any]]:
    """The needed tools and others up to ``most`` in all, in random order (the curriculum's knob)."""
    chosen = [t for t in tools if t["name"] in needed]
    others = [t for t in tools if t["name"] not in needed]
    chosen += rng.sample(others, min(max(0, most - len(chosen)), len(others)))
    rng.shuffle(chosen)
    return chosen
