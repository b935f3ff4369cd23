"""Complexification: D(n+1) = phi(D(n), theme), N rounds.

Each round asks the author for tables that the database lacks and records in ``Database.log`` what was
added and why. It stops early when a round adds no table, because record growth alone is a bad sign of
progress (paper.md, section 1.3).
"""

from __future__ import annotations

import random

from synth.author.base import Author
from synth.types import Database, Theme

ROUNDS = 2  # the paper does not state N; a third party's reproduction uses 2


def complexify(db: Database, theme: Theme, author: Author, seed: int, rounds: int = ROUNDS) -> Database:
    """Run up to ``rounds`` rounds. Deterministic for (db, theme, author, seed)."""
    for round_ in range(db.rounds, db.rounds + rounds):
        rng = random.Random(f"complexify:{seed}:{theme.id}:{round_}")
        richer = author.complexify(db, theme, round_, rng)
        if len(richer.tables) == len(db.tables):
            return richer
        db = richer
    return db
