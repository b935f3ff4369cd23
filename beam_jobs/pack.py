"""Packing as a pipeline: bundles and task files of a run -> few large shards, an index and a catalogue.

In:  ``<run>/bundles/``, ``checks/``, ``tasks/`` and ``solutions/``.
Out: below ``<run>/packed/``

    bundles-00000.zip                     the bundles of one shard, each below ``<env_id>/``
    tasks-00000.jsonl solutions-00000.jsonl   all lines of their environments, tag by tag
    catalogue/<table>/00000.parquet       see :mod:`beam_jobs.catalogue`
    shards/00000.json                     where each environment lies in that shard
    index.json                            all of them together; written last, so it names whole shards only

The plain folders stay as they are: a local run works with them, and the shards are what one ships. An
element is one shard of environments in alphabetical order; only shards of which something changed are
made again.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from beam_jobs import catalogue
from beam_jobs.gcs import add_file
from beam_jobs.stage import Element, Output, Progress, Stage, Summary, run_stage
from beam_jobs.store import Store, in_threads, open_store, tree, write_lines
from synth.errors import CallerError
from synth.types import Record, Task

PER_SHARD = 100  # environments; ours: 10 MB a shard with the offline author's databases
PARTS = ("tasks", "solutions")


class Place(Record):
    """Where one environment lies: its shard, and the bytes [start, end) of its lines in the JSONL shards."""

    shard: int
    digest: str
    tasks: tuple[int, int]
    solutions: tuple[int, int]


class Index(Record):
    """index.json (all shards) and shards/NNNNN.json (one)."""

    kind: Literal["agent-world-packed"] = "agent-world-packed"
    shards: int
    environments: dict[str, Place]


def work(store: Store, payload: dict[str, Any], tools: Any) -> Output:
    """Pack one shard."""
    from synth.admission import CheckReport
    from synth.env.bundle import read_bundle

    shard, name = payload["shard"], f"{payload['shard']:05d}"
    lines: dict[str, list[bytes]] = {part: [] for part in PARTS}
    ends = dict.fromkeys(PARTS, 0)
    places: dict[str, Place] = {}
    rows: dict[str, list[catalogue.Row]] = {table: [] for table in catalogue.SCHEMAS}
    with store.scratch() as room:
        with zipfile.ZipFile(room / "shard.zip", "w") as packed:
            for env_id, tags in payload["environments"].items():
                starts = dict(ends)
                for part in PARTS:
                    for tag in tags:
                        lines[part].append(store.read(f"{part}/{env_id}.{tag}.jsonl"))
                        ends[part] += len(lines[part][-1])
                with store.local(f"bundles/{env_id}") as folder:
                    for file in tree(folder):
                        path = f"{env_id}/{file.relative_to(folder).as_posix()}"
                        add_file(packed, path, file.read_bytes())
                    bundle = read_bundle(folder)
                    checks = CheckReport.from_json(store.read(f"checks/{env_id}.json"))
                    tasks = list(_tasks(store, env_id, tags))
                    for table, made in catalogue.describe(bundle, checks, tasks, shard).items():
                        rows[table] += made
                places[env_id] = Place(
                    shard=shard,
                    digest=bundle.manifest.digest,
                    tasks=(starts["tasks"], ends["tasks"]),
                    solutions=(starts["solutions"], ends["solutions"]),
                )
        store.write(f"packed/bundles-{name}.zip", (room / "shard.zip").read_bytes())
    paths = [f"packed/bundles-{name}.zip"]
    for part in PARTS:
        store.write(f"packed/{part}-{name}.jsonl", b"".join(lines[part]))
        paths.append(f"packed/{part}-{name}.jsonl")
    for table, made in rows.items():
        paths.append(f"packed/catalogue/{table}/{name}.parquet")
        store.write(paths[-1], catalogue.to_parquet(table, made))
    paths.append(f"packed/shards/{name}.json")
    write_lines(store, paths[-1], [Index(shards=1, environments=places).to_json()])
    return Output(tuple(paths), {table: len(made) for table, made in rows.items()})


def _tasks(store: Store, env_id: str, tags: Sequence[str]) -> Iterator[tuple[str, Task]]:
    for tag in tags:
        path = f"tasks/{env_id}.{tag}.jsonl"
        for number, line in enumerate(store.read(path).split(b"\n"), 1):
            if line:
                yield tag, Task.from_json(line, where=f"{path}:{number}")


STAGE = Stage("pack", version=1, work=work)


def elements(store: Store, per_shard: int) -> list[Element]:
    """One element a shard. What decides it: the bundles, checks and task files of its environments.

    Raises:
        CallerError: the run has no bundles.
    """
    env_ids = store.names("bundles")
    if not env_ids:
        raise CallerError(f"{store.url}/bundles holds no environment; run 'agent-world synth tools' first")
    tags: dict[str, list[str]] = {env_id: [] for env_id in env_ids}
    for name in store.names("tasks"):
        env_id, _, tag = name.removesuffix(".jsonl").rpartition(".")
        if env_id in tags:
            tags[env_id].append(tag)
    paths = {env_id: _paths(env_id, tags[env_id]) for env_id in env_ids}
    every = [path for env_id in env_ids for path in paths[env_id]]
    prints = dict(zip(every, in_threads(store.fingerprint, every), strict=True))
    made = []
    for shard, start in enumerate(range(0, len(env_ids), per_shard)):
        group = env_ids[start : start + per_shard]
        payload = {"shard": shard, "environments": {env_id: tags[env_id] for env_id in group}}
        of_group = {path: prints[path] for env_id in group for path in paths[env_id]}
        key = STAGE.key(payload, inputs=json.dumps(of_group, sort_keys=True))
        made.append(Element(f"{shard:05d}", key, f"{group[0]} ... {group[-1]}", payload))
    return made


def _paths(env_id: str, tags: Sequence[str]) -> list[str]:
    files = [f"{part}/{env_id}.{tag}.jsonl" for part in PARTS for tag in tags]
    return [f"bundles/{env_id}", f"checks/{env_id}.json", *files]


def run(
    run_dir: str | Path | Store,
    *,
    per_shard: int = PER_SHARD,
    options: Sequence[str] = (),
    progress: Progress | None = None,
) -> Summary:
    """Pack what changed, and write the index. Errors: see :func:`beam_jobs.stage.run_stage`.

    When a shard died there is no index: what is packed would not be the run.
    """
    store = open_store(run_dir)
    todo = elements(store, per_shard)
    summary = run_stage(STAGE, todo, store, options=options, progress=progress)
    if summary.dead:
        store.delete("packed/index.json")
        return summary
    _sweep(store, {element.name for element in todo})
    paths = [f"packed/shards/{element.name}.json" for element in todo]
    places: dict[str, Place] = {}
    for path, part in zip(paths, in_threads(store.read, paths), strict=True):
        places |= Index.from_json(part, where=path).environments
    store.write("packed/index.json", Index(shards=len(todo), environments=places).to_json() + "\n")
    return summary


def _sweep(store: Store, shards: set[str]) -> None:
    """Remove the shards of a run that was larger, so that no query over ``*.parquet`` counts them."""
    folders = ["packed", "packed/shards", *(f"packed/catalogue/{table}" for table in catalogue.SCHEMAS)]
    for folder in folders:
        for name in store.names(folder):
            number = name.partition(".")[0].rpartition("-")[2]
            if number.isdecimal() and number not in shards:
                store.delete(f"{folder}/{name}")


# --- reading what is packed -------------------------------------------------------------------------


def read_index(run_dir: str | Path | Store) -> Index:
    """The index of a packed run.

    Raises:
        CallerError: the run isn't packed.
    """
    store = open_store(run_dir)
    try:
        return Index.from_json(store.read("packed/index.json"), where=f"{store.url}/packed/index.json")
    except FileNotFoundError:
        raise CallerError(f"{store.url}/packed holds no index.json; pack the run first") from None


def read_tasks(run_dir: str | Path | Store, place: Place) -> list[Task]:
    """The tasks of one environment, of all tags."""
    store = open_store(run_dir)
    data = store.read(f"packed/tasks-{place.shard:05d}.jsonl")[slice(*place.tasks)]
    return [Task.from_json(line) for line in data.split(b"\n") if line]


@contextmanager
def open_bundle(run_dir: str | Path | Store, env_id: str, place: Place) -> Iterator[Path]:
    """The bundle of one environment as a folder, until the end of the ``with``."""
    store = open_store(run_dir)
    with store.scratch() as room:
        (room / "shard.zip").write_bytes(store.read(f"packed/bundles-{place.shard:05d}.zip"))
        with zipfile.ZipFile(room / "shard.zip") as packed:
            members = [name for name in packed.namelist() if name.startswith(f"{env_id}/")]
            packed.extractall(room, members)
        yield room / env_id


def open_bundles(run_dir: str | Path | Store, index: Index) -> Iterator[Path]:
    """Every bundle in turn, shard by shard; each folder is there until the next one is asked for."""
    store = open_store(run_dir)
    for shard in range(index.shards):
        with store.scratch() as room:
            (room / "shard.zip").write_bytes(store.read(f"packed/bundles-{shard:05d}.zip"))
            with zipfile.ZipFile(room / "shard.zip") as packed:
                packed.extractall(room / "all")
            yield from sorted((room / "all").iterdir())
