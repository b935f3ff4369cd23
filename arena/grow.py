"""Richer environments where the policy is weak: acting on ``SynthesisRequest.complexify``.

Comes from: the requests of a diagnosis and the bundles of a run. Goes to: ``RUN/bundles/<env>-v<n>`` and
``RUN/checks/<env>-v<n>.json``, and the same requests again, now naming the new versions, from which
``agent-world tasks --requests`` makes tasks. A version keeps its theme, and so its class and its side of the
split (:func:`arena.sample.split_environments`); a measured environment, or a version of one, is refused here.

One element an environment, done as all stages of :mod:`beam_jobs` are: receipts, dead letters, any runner.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arena.evolve import read_requests, write_requests
from arena.sample import split_environments
from beam_jobs import validate
from beam_jobs.models import open_author, spent
from beam_jobs.stage import Element, Output, Progress, Stage, Summary, run_stage
from beam_jobs.store import Store, open_store
from synth.errors import CallerError
from synth.grow import grow_environment, next_id, root_of
from synth.types import Manifest, SynthesisRequest


@dataclass(frozen=True)
class Grown:
    """What became of requests: ``versions`` maps the environments that grew to their new versions."""

    requests: list[SynthesisRequest]
    versions: dict[str, str]
    summary: Summary | None  # None: no request asked for it


def work(store: Store, payload: dict[str, Any], provider: Any) -> Output:
    """Grow one environment, test all its tools, and write what passed as a new bundle."""
    from synth.admission import validate_environment
    from synth.env.bundle import read_bundle, write_bundle

    author = open_author(payload["author"])
    with store.local(f"bundles/{payload['env_id']}") as path, store.scratch() as folder:
        bundle = read_bundle(path)
        drafted = grow_environment(bundle, author, payload["seed"], payload["aims"])
        if drafted is None:
            return Output((), {"nothing_lacking": 1} | spent(author))
        env, report = validate_environment(drafted, folder, provider)
        files = dict(bundle.state.files)
    place, checks = f"bundles/{env.env_id}", f"checks/{env.env_id}.json"
    store.write_folder(place, lambda path: write_bundle(env, path, files=files))
    store.write(checks, report.to_json() + "\n")
    counters = {
        "environments_grown": 1,
        "tables_added": len(env.database.tables) - len(bundle.manifest.tables),
        "tools_added": len(env.tools) - len(bundle.tools),
        "tools_dropped": len(report.dropped),
    }
    return Output((place, checks), counters | spent(author))


STAGE = Stage("grow", version=1, work=work, tools=validate.tools)


def grow_requested(
    run_dir: str | Path | Store,
    asked: Sequence[SynthesisRequest],
    measured: Collection[str],
    *,
    seed: int,
    author: str = "offline",
    options: Sequence[str] = (),
    progress: Progress | None = None,
) -> Grown:
    """Grow the environments that requests want richer, once each, and hand the requests on to what came out.

    A request whose environment grew names the new version; one whose environment lacks nothing stays with
    it; both no longer ask to grow. A request whose environment could not be grown (see the dead letters of
    the stage ``grow``) stays as it is: tasks can be made of it all the same.

    Args:
        measured: ids of held-out environments.
        seed: of the new rows and tools.

    Raises:
        CallerError: a request wants a measured environment, or a version of one, or one without a bundle.
        InfrastructureError: the runner or the storage failed.
    """
    store = open_store(run_dir)
    aims: dict[str, list[str]] = {}
    for request in asked:
        if request.complexify:
            texts = aims.setdefault(request.env_id, [])
            texts += [request.guide.text] if request.guide.text not in texts else []
    if not aims:
        return Grown(list(asked), {}, None)
    elements, ids = [], {}
    for env_id, texts in aims.items():
        manifest = _manifest(store, env_id)
        if {env_id, root_of(manifest)} & set(measured):
            raise CallerError(f"{env_id} is measured, or a version of what is; only training ones may grow")
        ids[env_id] = next_id(manifest)
        payload = {"env_id": env_id, "aims": texts, "seed": seed, "author": author}
        key = STAGE.key(payload, digest=manifest.digest, author_id=open_author(author).name)
        elements.append(Element(env_id, key, f"bundles/{env_id}", payload))
    summary = run_stage(STAGE, elements, store, options=options, progress=progress)
    made = set(summary.outputs)
    versions = {old: new for old, new in ids.items() if f"bundles/{new}" in made}
    dead = _dead(store, summary, ids, versions)
    return Grown([_handed_on(request, versions, dead) for request in asked], versions, summary)


def grow_file(run_dir: str | Path, file: Path, *, seed: int, **how: Any) -> Grown:
    """Act on a request file, and write it again with the requests as they are handed on.

    Args:
        seed: of rows and tools, and of the split into training and measured environments.
        how: see :func:`grow_requested`.

    Raises:
        CallerError: the file can't be read; or see :func:`grow_requested`.
    """
    store = open_store(run_dir)
    manifests = [_manifest(store, env_id) for env_id in store.names("bundles")]
    split = split_environments(manifests, seed)
    grown = grow_requested(store, read_requests(file), split.arena, seed=seed, **how)
    if grown.summary is not None:
        write_requests(file, grown.requests)
    return grown


def _handed_on(
    request: SynthesisRequest, versions: dict[str, str], dead: Collection[str]
) -> SynthesisRequest:
    if not request.complexify or request.env_id in dead:
        return request
    env_id = versions.get(request.env_id, request.env_id)
    return request.model_copy(update={"env_id": env_id, "complexify": False})


def _dead(store: Store, summary: Summary, ids: dict[str, str], versions: dict[str, str]) -> set[str]:
    """Environments that were to grow and did not end well."""
    if not summary.dead:
        return set()
    from beam_jobs.io import fold_dead_letters

    return {letter.name for letter in fold_dead_letters(store, STAGE.name)} & (set(ids) - set(versions))


def _manifest(store: Store, env_id: str) -> Manifest:
    try:
        with store.local(f"bundles/{env_id}") as path:
            file = path / "manifest.json"
            return Manifest.from_json(file.read_bytes(), where=str(file))
    except FileNotFoundError:
        raise CallerError(
            f"no bundle of environment {env_id} in {store.url}/bundles; make it first"
        ) from None
