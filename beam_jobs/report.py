"""What a run holds and what it cost, read from a packed run folder: counts, variety, speed, time by stage.

Sizes are honest about variety: environments over the same real tables share rows, so the report says how many
distinct sets of real tables, schemas and sets of real rows there are, and how many environments are
near-copies: most of their real rows are those of an environment counted before.
"""

from __future__ import annotations

import io as bytes_io
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from beam_jobs import catalogue, io
from beam_jobs.pack import open_bundles, read_index
from beam_jobs.store import Store, in_threads, open_store
from synth.env import state as states
from synth.env.bundle import read_bundle

NEAR = 0.8  # Jaccard similarity of real rows from which an environment is a near-copy; ours
STAGES = ("mine", "validate", "synthesize", "pack")


def report(run_dir: str | Path | Store, *, workers: int, seconds: float | None = None) -> dict[str, Any]:
    """The figures of a run.

    Args:
        run_dir: a packed run folder.
        workers: how many worker processes there were, for environments a minute a core.
        seconds: wall time of the whole; the speed by work seconds is given anyway.

    Raises:
        CallerError: the run isn't packed.
    """
    store = open_store(run_dir)
    index = read_index(store)
    environments = _rows(store, "environments", index.shards)
    tools = _rows(store, "tools", index.shards)
    tasks = Counter(row["env_id"] for row in _rows(store, "tasks", index.shards))
    work = {stage: _work_seconds(store, stage) for stage in STAGES}
    total, count = sum(work.values()), len(environments)
    figures: dict[str, Any] = {
        "environments": count,
        "tools": len(tools),
        "tools_with_every_test_passed": sum(tool["pass_rate"] == 1.0 for tool in tools),
        "tasks": sum(tasks.values()),
        "fewest_tasks_of_an_environment": min((tasks[row["env_id"]] for row in environments), default=0),
        "environments_with_5_tasks": sum(tasks[row["env_id"]] >= 5 for row in environments),
        "distinct_sets_of_real_tables": len({row["sources"] for row in environments}),
        "distinct_schemas": len({row["schema_digest"] for row in environments}),
        "distinct_sets_of_real_rows": len({row["rows_digest"] for row in environments}),
        "near_copies": near_copies(store),
        "work_seconds": {stage: round(spent, 1) for stage, spent in work.items()},
        "environments_a_minute_of_work": round(60 * count / total, 2) if total else None,
        "dead": {stage: len(io.read_dead_letters(store, stage)) for stage in STAGES},
    }
    if seconds is not None:
        figures["seconds"] = round(seconds, 1)
        figures["workers"] = workers
        figures["environments_a_minute_a_core"] = round(60 * count / seconds / workers, 2)
    return figures


def near_copies(run_dir: str | Path | Store) -> int:
    """Environments of which at least NEAR of the real rows are those of an earlier one (by name)."""
    store = open_store(run_dir)
    kept: dict[str, list[set[str]]] = defaultdict(list)  # by the real tables they stand on
    copies = 0
    for folder in open_bundles(store, read_index(store)):
        bundle = read_bundle(folder)
        tables = bundle.manifest.tables
        rows = {t.name: states.rows(bundle.state, t.name) for t in tables if t.kind == "mined"}
        real = catalogue.real_rows(tables, rows)
        group = kept[catalogue.sources(bundle.provenance, tables)]
        if any(similar(real, other) >= NEAR for other in group):
            copies += 1
        else:
            group.append(real)
    return copies


def similar(a: set[str], b: set[str]) -> float:
    """Jaccard similarity; two empty sets are equal."""
    return len(a & b) / len(a | b) if a or b else 1.0


def _rows(store: Store, table: str, shards: int) -> list[dict[str, Any]]:
    import pyarrow.parquet

    paths: Iterable[str] = (f"packed/catalogue/{table}/{shard:05d}.parquet" for shard in range(shards))
    parts = in_threads(store.read, paths)
    return [row for part in parts for row in pyarrow.parquet.read_table(bytes_io.BytesIO(part)).to_pylist()]


def _work_seconds(store: Store, stage: str) -> float:
    names = sorted(io.receipt_names(store, stage))
    receipts = in_threads(lambda name: io.read_receipt(store, stage, name), names)
    return sum(receipt.seconds for receipt in receipts if receipt is not None)
