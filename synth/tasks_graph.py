"""Graph tasks: a walk over the tool graph, run step by step, then worded from the real results.

The walk starts at a tool that no strong edge leads to; the next tool is drawn in proportion to the edge
weight (paper.md, section 1.6). Arguments come from earlier output where an edge links them, else from
the database. The executed chain goes to the author for its wording; what he cannot word is drawn again.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import networkx as nx

from synth.author.base import Author, Executed, World
from synth.env.bundle import Bundle
from synth.env.series import in_series
from synth.env.serving import EpisodeLike, ServerLike
from synth.env.state import rows
from synth.graph import build_graph, opaque_refs, to_networkx
from synth.leaks import find_leaks
from synth.told import untold
from synth.types import Criterion, Difficulty, Guide, Rubric, Task, ToolStep
from synth.verify import canonical, state_change

MAX_STEPS = 4  # ours: the shipped policy is small; the released script of the paper draws 3 to 8
STATE_CHANGING = 0.5  # share of the tasks that must change the state (ours)
KNOWN_LINE = 0.4  # chance that the user states a ledger number himself (ours)
ADDED = 0.5  # share of the tasks over a grown environment that must use a tool that it gained (ours)
JOINT = 0.35  # chance to keep a task that asks for two unrelated things (ours)
ATTEMPTS = 60  # walks a wanted task before giving up (ours)
WRITE_KINDS = ("create", "update", "confirm", "cancel", "transfer", "charge", "settle", "waive")


class WalkFailed(Exception):
    """This walk cannot be completed; draw another."""


def world_of(bundle: Bundle) -> World:
    """What the author sees of a bundle: tools, schema and pristine rows."""
    manifest = bundle.manifest
    added = manifest.generator.get("added_tools", ())  # of a grown environment (synth.grow)
    return World(
        tools={t.name: t for t in bundle.tools},
        tables={t.name: t for t in manifest.tables},
        rows={t.name: rows(bundle.state, t.name) for t in manifest.tables},
        env_id=manifest.env_id,
        notes={"added_tools": [name for name in added if name in {t.name for t in bundle.tools}]},
    )


def extract(value: Any, path: str, index: int = 0) -> Any:
    """Value at an output path such as ``$.items[].name`` (item ``index`` of a list)."""
    for part in path.removeprefix("$.").split("."):
        value = value[part.removesuffix("[]")]
        if part.endswith("[]"):
            value = value[index]
    return value


@dataclass
class Walk:
    """Draws, fills and runs one chain."""

    world: World
    graph: nx.DiGraph
    opaque: set[str]
    rng: random.Random

    def tools(self, length: int) -> list[str]:
        """Tool names of a weighted walk without repeats."""
        free = [
            n for n in self.graph.nodes
            if not any(d["kind"] == "strong" for _, _, d in self.graph.in_edges(n, data=True))
        ]  # fmt: skip
        chain = [self.rng.choice(free or list(self.graph.nodes))]
        while len(chain) < length:
            options = [
                (t, d["weight"]) for _, t, d in self.graph.out_edges(chain[-1], data=True) if t not in chain
            ]
            if not options:
                break
            chain.append(self.rng.choices([t for t, _ in options], [w for _, w in options])[0])
        return chain

    def run(self, chain: list[str], episode: EpisodeLike) -> list[Executed]:
        """Execute a chain.

        Raises:
            WalkFailed: an argument cannot be filled, or a tool refused the call.
        """
        done: list[Executed] = []
        for name in chain:
            arguments, sources = self.arguments(name, done)
            result = episode.call(name, arguments)
            if result.error_code is not None:
                raise WalkFailed(f"{name}: {result.error_code}")
            done.append(Executed(ToolStep(tool=name, arguments=arguments), result.value, sources))
        return done

    def arguments(
        self, name: str, done: list[Executed]
    ) -> tuple[dict[str, Any], dict[str, tuple[int, str] | None]]:
        tool = self.world.tools[name]
        required = tool.input_schema.get("required", [])
        arguments: dict[str, Any] = {}
        sources: dict[str, tuple[int, str] | None] = {}
        row = None
        for p, ref in tool.meta["inputs"].items():
            op = tool.meta["ops"][p]
            if p not in required and self.rng.random() < 0.4:
                continue
            source = self.source(p, ref, op, done, sources)
            if source is not None:
                (j, path), value = source
                arguments[p], sources[p] = value, (j, path)
                continue
            if ref in self.opaque and not (op == "line" and self.rng.random() < KNOWN_LINE):
                raise WalkFailed(f"{name}.{p} needs another tool's output")
            row = row or (self.rng.choice(self.world.rows[ref.split(".")[0]]) if ref else None)
            value = self.sample(p, ref, op, row, tool.input_schema["properties"][p])
            if value is None:
                if p in required:
                    raise WalkFailed(f"{name}.{p} has no value to sample")
                continue
            arguments[p], sources[p] = value, None
        return arguments, sources

    def source(
        self, p: str, ref: str, op: str, done: list[Executed], sources: dict[str, Any]
    ) -> tuple[tuple[int, str], Any] | None:
        """An earlier output that fills the parameter, the latest first; 7 in 10 weak links are taken."""
        if op in ("amount", "order", "ge", "le") or not ref:
            return None
        if ref not in self.opaque and self.rng.random() > 0.7:
            return None
        taken = {s for s in sources.values() if s is not None}
        for j in range(len(done) - 1, -1, -1):
            for path, given in self.world.tools[done[j].step.tool].meta["outputs"].items():
                if given != ref or (j, path) in taken:
                    continue
                try:
                    if "[]" in path:
                        items = extract(done[j].value, path.split("[]")[0])
                        kind = self.world.tools[done[j].step.tool].meta["kind"]
                        index = 0 if kind == "search" else self.rng.randrange(len(items))
                        return (j, path), extract(done[j].value, path, index)
                    return (j, path), extract(done[j].value, path)
                except (IndexError, ValueError, KeyError):
                    continue
        return None

    def sample(self, p: str, ref: str, op: str, row: dict[str, Any] | None, schema: dict[str, Any]) -> Any:
        """A value from the database, or from the schema's enum."""
        if "enum" in schema or "examples" in schema:
            return self.rng.choice(schema.get("enum") or schema["examples"])
        if op == "amount":
            return self.rng.randint(1, 5)
        if not ref:
            return None
        table, column = ref.split(".")
        if op in ("from", "to", "entity", "name", "line"):
            row = self.rng.choice(self.world.rows[table])  # every entity is drawn by itself
        return None if row is None else row.get(column)


def obeys(guide: Guide | None, task_kinds: list[str], steps: int, changes: bool, pattern: str) -> bool:
    """Whether a chain is what a guide asks for."""
    if guide is None:
        return True
    if guide.tool_kinds and not set(guide.tool_kinds) & set(task_kinds):
        return False
    if not guide.min_steps <= steps <= guide.max_steps:
        return False
    return guide.changes_state is None or guide.changes_state == changes


def task_id(env_id: str, route: str, instruction: str, env_digest: str) -> str:
    """Stable id from content."""
    digest = hashlib.sha256(f"{env_digest}\n{instruction}".encode()).hexdigest()[:10]
    return f"{env_id}.{route[0]}.{digest}"


def make_tasks(
    bundle: Bundle,
    server: ServerLike,
    author: Author,
    seed: int,
    count: int,
    guide: Guide | None = None,
    max_steps: int = MAX_STEPS,
    reject: Callable[[str], None] | None = None,
) -> list[Task]:
    """Up to ``count`` graph tasks, deterministic for the same bundle, author, seed and guide.

    Args:
        reject: called with the reason of every discarded draw (for the funnel).
    """
    world, server = world_of(bundle), in_series(server)  # the gates prove what comes of a walk
    tables = bundle.manifest.tables
    graph = to_networkx(bundle.graph or build_graph(bundle.tools, tables))
    opaque = opaque_refs(tables)
    tasks: dict[str, Task] = {}
    intents: set[str] = set()
    gained = set(world.notes["added_tools"])
    note = reject or (lambda reason: None)
    low, high = (guide.min_steps, min(guide.max_steps, max_steps + 1)) if guide else (1, max_steps)
    for attempt in range(count * ATTEMPTS):
        if len(tasks) == count:
            break
        rng = random.Random(f"graph:{seed}:{bundle.manifest.digest}:{guide.id if guide else ''}:{attempt}")
        walk = Walk(world, graph, opaque, rng)
        if guide is not None and guide.changes_state is not None:
            wanted = guide.changes_state
        else:  # half of what is kept, not half of what is tried: writes fail more often
            wanted = sum(t.changes_state for t in tasks.values()) < STATE_CHANGING * (len(tasks) + 1)
        chain = walk.tools(rng.randint(low, max(low, high)))
        kinds = [world.tools[name].meta["kind"] for name in chain]
        changes = any(k in WRITE_KINDS for k in kinds)
        if changes != wanted or not obeys(guide, kinds, len(chain), changes, ""):
            continue
        short = sum(_uses(t, gained) for t in tasks.values()) < ADDED * (len(tasks) + 1)
        if gained and short and not gained & set(chain) and attempt < count * ATTEMPTS // 2:
            continue
        task = _one(bundle, server, author, walk, chain, kinds, rng, guide, note)
        if task is not None and task.instruction not in tasks:
            if intent(task) in intents:
                note("duplicate intent")
                continue
            intents.add(intent(task))
            tasks[task.instruction] = task
    return list(tasks.values())


def _uses(task: Task, tools: set[str]) -> bool:
    return any(step.tool in tools for step in task.chain)


def intent(task: Task) -> str:
    """What a task asks, apart from its words: the calls that do it and the answer."""
    return canonical([[step.model_dump() for step in task.chain], task.reference_answer])


def _one(
    bundle: Bundle, server: ServerLike, author: Author, walk: Walk, chain: list[str], kinds: list[str],
    rng: random.Random, guide: Guide | None, note: Callable[[str], None],
) -> Task | None:  # fmt: skip
    manifest = bundle.manifest
    task_seed = rng.randrange(1_000_000)
    with server.open(task_seed) as episode:
        try:
            steps = walk.run(chain, episode)
        except WalkFailed as err:
            note(f"walk: {str(err).split(':')[-1].strip()}")
            return None
        final = episode.snapshot()
    worded = author.word_chain(walk.world, steps, rng)
    if worded is None or worded.answer is None:
        note("no sensible wording")
        return None
    if "+" in worded.pattern and guide is None and rng.random() > JOINT:
        note("two intents, thinned")
        return None
    leaks = find_leaks(worded.instruction, bundle.tools, manifest.tables, worded.answer, given=worded.given)
    if leaks:
        note("leak")
        return None
    results = [step.value for step in steps]
    if untold(worded.instruction, [s.step for s in steps], results, walk.world.tools):
        note("an argument that nothing says")
        return None
    changed = state_change(bundle.state, final, manifest.tables, manifest.audit_tables)
    writes = sum(k in WRITE_KINDS for k in kinds)
    if writes and not changed:
        note("write without effect")
        return None
    return Task(
        id=task_id(manifest.env_id, "graph", worded.instruction, manifest.digest),
        env_id=manifest.env_id,
        env_digest=manifest.digest,
        route="graph",
        instruction=worded.instruction,
        reference_answer=worded.answer,
        verifier=Rubric(
            criteria=(*worded.criteria, Criterion(field="state", check="diff", expected=changed))
        ),
        chain=tuple(s.step for s in steps),
        difficulty=Difficulty(steps=len(steps), tools=len(set(chain)), writes=writes),
        changes_state=bool(changed),
        pattern=worded.pattern,
        seed=task_seed,
        guide_id=guide.id if guide else None,
    )
