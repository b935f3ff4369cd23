"""The protocol of an author: who writes what the stages cannot mine.

A stage (:mod:`synth.complexify`, :mod:`synth.tools`, :mod:`synth.tasks_graph`,
:mod:`synth.tasks_program`) says what is needed and checks what comes back; an author writes it.
:class:`synth.author.offline.OfflineAuthor` is procedural and needs no network.
:class:`synth.author.online.LLMAuthor` asks a language model behind the same methods, and is a
:class:`Miner` too. :func:`synth.author.make_author` makes either by its name.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from synth.types import Criterion, Database, Guide, Table, Theme, Tool, ToolStep

if TYPE_CHECKING:
    from synth.complexify import Gap


@dataclass(frozen=True)
class Worded:
    """A question written from real returned values."""

    instruction: str
    answer: Any
    criteria: tuple[Criterion, ...]
    pattern: str
    given: tuple[Any, ...] = ()  # values that the instruction hands over on purpose


@dataclass(frozen=True)
class ProgramDraft:
    """A programmatic task before it was run: instruction, solution and verifier source."""

    instruction: str
    solution: str  # def solve(call) -> answer
    verifier: str  # def verify(initial, final, answer) -> [(name, passed, detail)]
    pattern: str
    branch: bool = False
    loop: bool = False
    aggregate: bool = False
    given: tuple[Any, ...] = ()


class Bench(Protocol):
    """Where an author may try a program before handing it in; it runs in the sandbox."""

    def faults(self, draft: ProgramDraft, seed: int) -> list[str]:
        """What is wrong with a draft, in the words of the real run; empty when nothing is."""
        ...


@dataclass
class World:
    """What a task writer sees of an environment: tools, schema and the rows of the pristine state."""

    tools: dict[str, Tool]
    tables: dict[str, Table]
    rows: dict[str, list[dict[str, Any]]]
    env_id: str = ""
    notes: dict[str, Any] = field(default_factory=dict)
    bench: Bench | None = None

    def kinds(self, *kinds: str) -> list[Tool]:
        """Tools of the given kinds, in bundle order."""
        return [t for t in self.tools.values() if t.meta.get("kind") in kinds]


@dataclass(frozen=True)
class Executed:
    """One executed step of a chain: the call, its real result, and where its arguments came from."""

    step: ToolStep
    value: Any
    sources: dict[str, tuple[int, str] | None]  # parameter -> (earlier step, output path), None: sampled


class Author(Protocol):
    """Writes schemas, tools, questions and programs. Deterministic for the same arguments and rng."""

    name: str

    def complexify(self, db: Database, theme: Theme, round_: int, rng: random.Random) -> Database: ...

    def write_tools(self, db: Database, theme: Theme, rng: random.Random) -> list[Tool]: ...

    def word_chain(self, world: World, steps: list[Executed], rng: random.Random) -> Worded | None: ...

    def write_program(self, world: World, guide: Guide | None, rng: random.Random) -> ProgramDraft | None: ...


@runtime_checkable
class Miner(Protocol):
    """An author that mines databases itself, for themes that name no tables of the catalogue."""

    def mine(self, theme: Theme, rng: random.Random) -> Database: ...


@runtime_checkable
class Grower(Protocol):
    """An author that makes a finished environment richer, when the arena asks for it (:mod:`synth.grow`)."""

    def enlarge(
        self, db: Database, theme: Theme, lacking: Sequence[Gap], aims: Sequence[str], rng: random.Random
    ) -> Database:
        """The database with tables that close some of ``lacking``; the same one when the author has none."""
        ...

    def more_tools(
        self,
        before: Database,
        db: Database,
        theme: Theme,
        there: Sequence[Tool],
        rng: random.Random,
    ) -> list[Tool]:
        """Tools over what ``db`` has and ``before`` had not, beside those that are there."""
        ...


def provenance_of(author: Author) -> dict[str, Any]:
    """What an author adds to the generator of an environment's manifest: model, hashes of its prompts."""
    return dict(getattr(author, "provenance", {}))
