"""From a complexified database to an environment: tools with code and tests, and their graph.

The tools are not yet validated: :func:`synth.admission.validate_environment` runs the tests in the
sandbox and keeps what passes.
"""

from __future__ import annotations

import random

from synth.author.base import Author, provenance_of
from synth.graph import build_graph
from synth.types import Database, Environment, Theme


def make_environment(
    db: Database, theme: Theme, author: Author, seed: int, env_id: str | None = None
) -> Environment:
    """Ask the author for tools and infer their graph. Deterministic for the same arguments."""
    rng = random.Random(f"tools:{seed}:{theme.id}:{db.rounds}")
    tools = author.write_tools(db, theme, rng)
    return Environment(
        env_id=env_id or theme.id,
        theme=theme,
        database=db,
        tools=tuple(tools),
        graph=build_graph(tools, db.tables),
        generator={"author": author.name, "seed": seed, "rounds": db.rounds, **provenance_of(author)},
    )
