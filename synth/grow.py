"""A richer version of an environment that is there: more tables, more tools, a new bundle with its lineage.

Comes from: a bundle that training uses, and what agents should come to practise (guides of a diagnosis, which
hold shapes only). Goes to: a new environment ``<first version>-v<n>``; the old one stays as it is, and so do
its tools, rows and tasks. What is lacking is measured (:func:`synth.complexify.further`); an author closes
it, and half of the tasks over the new version use what it gained (``added_tools`` of its manifest).
Whether an environment may be grown at all is for :mod:`arena.grow` to say: a measured one never is.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from synth.author.base import Author, Grower, provenance_of
from synth.complexify import grow
from synth.env.bundle import Bundle
from synth.env.serving import is_imported
from synth.env.state import rows
from synth.errors import EnvironmentFault
from synth.graph import build_graph
from synth.types import Database, Environment, Manifest


def lineage(manifest: Manifest) -> list[dict[str, str]]:
    """The versions before this one, oldest first: ``{"env_id", "digest"}`` each; [] for a first version."""
    return list(manifest.generator.get("lineage", ()))


def root_of(manifest: Manifest) -> str:
    """Id of the first version; a first version's own."""
    earlier = lineage(manifest)
    return earlier[0]["env_id"] if earlier else manifest.env_id


def next_id(manifest: Manifest) -> str:
    """Id of the version that would follow."""
    return f"{root_of(manifest)}-v{len(lineage(manifest)) + 2}"


def newest(manifests: Sequence[Manifest]) -> list[Manifest]:
    """Without those that a later version follows, in the order given."""
    followed = {lineage(m)[-1]["env_id"] for m in manifests if lineage(m)}
    return [m for m in manifests if m.env_id not in followed]


def database_of(bundle: Bundle) -> Database:
    """The database that a bundle was made from, as far as it is kept: schema, rows, provenance, rounds."""
    manifest = bundle.manifest
    stored = {
        t.name: [[row[c.name] for c in t.columns] for row in rows(bundle.state, t.name)]
        for t in manifest.tables
    }
    return Database(
        theme_id=manifest.theme.id,
        tables=manifest.tables,
        rows=stored,
        provenance=tuple(bundle.provenance),
        rounds=int(manifest.generator.get("rounds", 0)),
        log=tuple(manifest.generator.get("log", ())),
    )


def grow_environment(
    bundle: Bundle, author: Author, seed: int, aims: Sequence[str] = ()
) -> Environment | None:
    """The next version of an environment, its new tools not yet validated; None when nothing is lacking.

    Deterministic for the same bundle, author, seed and aims.

    Args:
        aims: see :func:`synth.complexify.grow`.

    Raises:
        EnvironmentFault: the author's tables close no gap, or it has no tools for them.
        CallerError: the author can't grow environments.
    """
    if is_imported(bundle):
        return None
    manifest, before = bundle.manifest, database_of(bundle)
    richer = grow(before, manifest.theme, author, seed, aims)
    if len(richer.tables) == len(before.tables):
        return None
    assert isinstance(author, Grower)
    rng = random.Random(f"more tools:{seed}:{manifest.theme.id}:{richer.rounds}")
    new = author.more_tools(before, richer, manifest.theme, bundle.tools, rng)
    if not new:
        raise EnvironmentFault(f"{manifest.env_id}: richer tables, but no tool over them holds")
    tools = (*bundle.tools, *new)
    return Environment(
        env_id=next_id(manifest),
        theme=manifest.theme,
        database=richer,
        tools=tools,
        graph=build_graph(tools, richer.tables),
        taxonomy=manifest.taxonomy,
        generator=_generator(manifest, richer, author, seed) | {"added_tools": [t.name for t in new]},
    )


def _generator(manifest: Manifest, db: Database, author: Author, seed: int) -> dict[str, Any]:
    """Who made this version and from what, for its manifest."""
    earlier = [*lineage(manifest), {"env_id": manifest.env_id, "digest": manifest.digest}]
    return {
        "author": author.name,
        "seed": seed,
        "rounds": db.rounds,
        "log": list(db.log),
        "parent_digest": manifest.digest,
        "lineage": earlier,
        **provenance_of(author),
    }
