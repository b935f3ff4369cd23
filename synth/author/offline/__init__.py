"""The procedural author: stands where a language model would, behind the same protocol.

It is honest about what it is: rules and templates over a database's real schema, keys, value
distributions and foreign keys. Its environments share one family of business rules (a stock, a ledger
with a workflow, limits), its questions come from templates with drawn wording, and its variety is that
of the schemas and values it is given. What it writes passes the same gates as anybody's.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from synth.author.base import Executed, ProgramDraft, Worded, World
from synth.author.offline import followup_tools, followups, tables, toolkit
from synth.author.offline.plan import make_plan
from synth.types import Database, Guide, Theme, Tool

if TYPE_CHECKING:
    from synth.complexify import Gap


class OfflineAuthor:
    """See :class:`synth.author.base.Author`."""

    name = "offline-1"

    def complexify(self, db: Database, theme: Theme, round_: int, rng: random.Random) -> Database:
        """Round 0 adds structure, round 1 adds the business; further rounds find nothing to add."""
        if round_ == 0:
            return tables.structure_round(db, theme, rng)
        if round_ == 1:
            return tables.business_round(db, theme, rng)
        return db

    def write_tools(self, db: Database, theme: Theme, rng: random.Random) -> list[Tool]:
        """8 to 12 tools with code and tests."""
        return toolkit.write_tools(make_plan(db, theme, rng), rng)

    def enlarge(
        self, db: Database, theme: Theme, lacking: Sequence[Gap], aims: Sequence[str], rng: random.Random
    ) -> Database:
        """What follows from the ledger's lines, and totals by a second category; the aims are not read."""
        return followups.followup_round(db, [gap.kind for gap in lacking], rng)

    def more_tools(
        self, before: Database, db: Database, theme: Theme, there: Sequence[Tool], rng: random.Random
    ) -> list[Tool]:
        """1 to 6 tools over the new tables."""
        return followup_tools.followup_tools(before, db, there, rng)

    def word_chain(self, world: World, steps: list[Executed], rng: random.Random) -> Worded | None:
        """A question for an executed chain, or None when the chain makes no sensible question."""
        from synth.author.offline.wording import word_chain

        return word_chain(world, steps, rng)

    def write_program(self, world: World, guide: Guide | None, rng: random.Random) -> ProgramDraft | None:
        """A programmatic task, or None when the environment lacks the tools for the drawn pattern."""
        from synth.author.offline.programs import write_program

        return write_program(world, guide, rng)
