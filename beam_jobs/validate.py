"""Tool validation as a pipeline: databases -> environments whose tools were tested in the sandbox.

In:  ``<run>/databases/<theme_id>.json`` and the themes.
Out: ``<run>/bundles/<env_id>/`` (layout: :mod:`synth.env.bundle`) and ``<run>/checks/<env_id>.json``,
     what the tests of its tools came to.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from beam_jobs import io
from beam_jobs.stage import Element, Output, Progress, Stage, Summary, load_author, run_stage
from synth.errors import CallerError
from synth.types import Database, Theme


def work(run: Path, payload: dict[str, Any]) -> Output:
    """Let the author write tools for one database, test them, and write what passed as a bundle."""
    from synth.admission import validate_environment
    from synth.env.bundle import write_bundle
    from synth.tools import make_environment

    theme = Theme.model_validate(payload["theme"])
    source = run / payload["database"]
    db = Database.from_json(source.read_bytes(), where=str(source))
    drafted = make_environment(db, theme, load_author(payload["author"]), payload["seed"])
    with io.scratch(run) as folder:
        env, report = validate_environment(drafted, folder)
    env = env.model_copy(update={"taxonomy": tuple(payload["taxonomy"])})
    bundle, checks = f"bundles/{env.env_id}", f"checks/{env.env_id}.json"
    io.write_folder(run, bundle, lambda path: write_bundle(env, path))
    io.write_file(run, checks, report.to_json() + "\n")
    counters = {
        "environments": 1,
        "tools_kept": len(env.tools),
        "tools_dropped": len(report.dropped),
        "tools_perfect": sum(report.tools[tool.name] == 1.0 for tool in env.tools),
        "cases": sum(len(tool.cases) for tool in env.tools),
    }
    return Output((bundle, checks), counters)


STAGE = Stage("validate", version=1, work=work)


def elements(run: Path, themes: Sequence[Theme], *, seed: int, author: str) -> list[Element]:
    """One element a theme that has a database; themes whose mining died are left out.

    What decides the bundle: the bytes of the database, the theme, its place in the taxonomy (which is
    found here, because it depends on all themes together), the seed, the author and its version.
    """
    from synth.taxonomy import place

    author_id = load_author(author).name
    paths = {theme.id: f"databases/{theme.id}.json" for theme in themes}
    there = [theme for theme in themes if (run / paths[theme.id]).exists()]
    places = place(there, [db for t in there if (db := _readable(run / paths[t.id]))]) if there else {}
    made = []
    for theme in there:
        path = paths[theme.id]
        payload = {
            "theme": theme.model_dump(mode="json"),
            "taxonomy": list(places[theme.id]),
            "database": path,
            "seed": seed,
            "author": author,
        }
        key = STAGE.key(payload, digest=io.fingerprint(run / path), author_id=author_id)
        made.append(Element(theme.id, key, path, payload))
    return made


def _readable(path: Path) -> Database | None:
    """The database, or None when it is damaged: its own element will say so."""
    try:
        return Database.from_json(path.read_bytes(), where=str(path))
    except CallerError:
        return None


def run(
    run_dir: str | Path,
    themes: Sequence[Theme],
    *,
    seed: int,
    author: str = "offline",
    options: Sequence[str] = (),
    progress: Progress | None = None,
) -> Summary:
    """Make and validate the environments that are missing. Errors: see :func:`beam_jobs.stage.run_stage`."""
    todo = elements(Path(run_dir), themes, seed=seed, author=author)
    return run_stage(STAGE, todo, run_dir, options=options, progress=progress)
