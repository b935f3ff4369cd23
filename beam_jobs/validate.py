"""Tool validation as a pipeline: databases -> environments whose tools were tested in the sandbox.

In:  ``<run>/databases/<theme_id>.json`` and the themes.
Out: ``<run>/bundles/<env_id>/`` (layout: :mod:`synth.env.bundle`) and ``<run>/checks/<env_id>.json``,
     what the tests of its tools came to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beam_jobs.models import open_author, spent
from beam_jobs.stage import Element, Output, Progress, Stage, Summary, run_stage
from beam_jobs.store import Store, in_threads, open_store
from synth.errors import CallerError
from synth.types import Database, Theme

if TYPE_CHECKING:
    from synth.env.zygote import Nest


@contextmanager
def tools() -> Iterator[Nest]:
    """A sandbox that stays open for all environments of a worker; each gets a process of its own in it,
    because code of one must never meet another's."""
    from synth.env.sandbox import pick_provider
    from synth.env.zygote import Nest

    with Nest(pick_provider()) as nest:
        yield nest


def work(store: Store, payload: dict[str, Any], nest: Nest) -> Output:
    """Let the author write tools for one database, test them, and write what passed as a bundle."""
    from synth.admission import validate_environment
    from synth.env.bundle import write_bundle
    from synth.tools import make_environment

    theme = Theme.model_validate(payload["theme"])
    source = payload["database"]
    db = Database.from_json(store.read(source), where=f"{store.url}/{source}")
    author = open_author(payload["author"])
    drafted = make_environment(db, theme, author, payload["seed"])
    with store.scratch() as folder:
        env, report = validate_environment(drafted, folder, nest)
    env = env.model_copy(update={"taxonomy": tuple(payload["taxonomy"])})
    bundle, checks = f"bundles/{env.env_id}", f"checks/{env.env_id}.json"
    store.write_folder(bundle, lambda path: write_bundle(env, path))
    store.write(checks, report.to_json() + "\n")
    counters = {
        "environments": 1,
        "tools_kept": len(env.tools),
        "tools_dropped": len(report.dropped),
        "tools_perfect": sum(report.tools[tool.name] == 1.0 for tool in env.tools),
        "cases": sum(len(tool.cases) for tool in env.tools),
    }
    return Output((bundle, checks), counters | spent(author))


STAGE = Stage("validate", version=1, work=work, tools=tools)


def elements(store: Store, themes: Sequence[Theme], *, seed: int, author: str) -> list[Element]:
    """One element a theme that has a database; themes whose mining died are left out.

    What decides the bundle: the bytes of the database, the theme, its place in the taxonomy (which is
    found here, because it depends on all themes together), the seed, the author and its version.
    """
    from synth.taxonomy import place

    author_id = open_author(author).name
    mined = set(store.names("databases"))
    there = [theme for theme in themes if f"{theme.id}.json" in mined]
    paths = [f"databases/{theme.id}.json" for theme in there]
    read = list(in_threads(lambda path: _look(store, path), paths))
    places = place(there, [db for _, db in read if db is not None]) if there else {}
    made = []
    for theme, path, (digest, _) in zip(there, paths, read, strict=True):
        payload = {
            "theme": theme.model_dump(mode="json"),
            "taxonomy": list(places[theme.id]),
            "database": path,
            "seed": seed,
            "author": author,
        }
        key = STAGE.key(payload, digest=digest, author_id=author_id)
        made.append(Element(theme.id, key, path, payload))
    return made


def _look(store: Store, path: str) -> tuple[str, Database | None]:
    """SHA-256 of a database's bytes, and its schema without the rows, of which the taxonomy has no need.

    None when it is damaged: its own element will say so.
    """
    data = store.read(path)
    try:
        schema = Database.from_json(data, where=path).model_copy(update={"rows": {}})
    except CallerError:
        schema = None
    return hashlib.sha256(data).hexdigest(), schema


def run(
    run_dir: str | Path | Store,
    themes: Sequence[Theme],
    *,
    seed: int,
    author: str = "offline",
    options: Sequence[str] = (),
    progress: Progress | None = None,
) -> Summary:
    """Make and validate the environments that are missing. Errors: see :func:`beam_jobs.stage.run_stage`."""
    todo = elements(open_store(run_dir), themes, seed=seed, author=author)
    return run_stage(STAGE, todo, run_dir, options=options, progress=progress)
