"""Mining as a pipeline: themes -> databases, mined and complexified.

In:  :class:`synth.types.Theme` records.
Out: ``<run>/databases/<theme_id>.json``, one :class:`synth.types.Database` a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from beam_jobs.models import open_author, spent
from beam_jobs.stage import Element, Output, Progress, Stage, Summary, run_stage
from beam_jobs.store import Store
from synth.types import Theme

ROUNDS = 2  # of complexification; source: synth.complexify.ROUNDS


def work(store: Store, payload: dict[str, Any], tools: Any) -> Output:
    """Mine one theme's database and complexify it."""
    from synth.complexify import complexify
    from synth.mining import mine

    theme = Theme.model_validate(payload["theme"])
    author = open_author(payload["author"])
    mined = mine(theme, payload["seed"], author)
    db = complexify(mined, theme, author, payload["seed"], rounds=payload["rounds"])
    path = f"databases/{theme.id}.json"
    store.write(path, db.to_json() + "\n")
    counters = {
        "databases": 1,
        "tables_mined": len(mined.tables),
        "tables_added": len(db.tables) - len(mined.tables),
        "rows": sum(len(rows) for rows in db.rows.values()),
    }
    return Output((path,), counters | spent(author))


STAGE = Stage("mine", version=1, work=work)


def elements(themes: Sequence[Theme], *, seed: int, rounds: int, author: str) -> list[Element]:
    """One element a theme. What decides the database: theme, seed, rounds, the author and its version."""
    made, author_id = [], open_author(author).name
    for theme in themes:
        payload = {"theme": theme.model_dump(mode="json"), "seed": seed, "rounds": rounds, "author": author}
        key = STAGE.key(payload, author_id=author_id)
        made.append(Element(theme.id, key, f"theme {theme.id}", payload))
    return made


def run(
    run_dir: str | Path | Store,
    themes: Sequence[Theme],
    *,
    seed: int,
    rounds: int = ROUNDS,
    author: str = "offline",
    options: Sequence[str] = (),
    progress: Progress | None = None,
) -> Summary:
    """Mine what is missing. Errors: see :func:`beam_jobs.stage.run_stage`."""
    todo = elements(themes, seed=seed, rounds=rounds, author=author)
    return run_stage(STAGE, todo, run_dir, options=options, progress=progress)
