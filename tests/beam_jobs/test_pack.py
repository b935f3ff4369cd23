"""Shards, index and catalogue hold what the plain folders hold, and only what changed is packed again."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pyarrow.parquet
import pytest

from beam_jobs import io, mine, pack, synthesize, validate
from beam_jobs.store import LocalStore, fingerprint
from synth.env.bundle import check_hashes
from synth.errors import CallerError
from synth.themes import builtin
from synth.types import Task

THEMES = builtin("demo")[:3]
ENVS = sorted(theme.id for theme in THEMES)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("run")
    mine.run(run, THEMES, seed=0)
    validate.run(run, THEMES, seed=0)
    for tag, env_ids in (("train", ENVS[:2]), ("evolve1", ENVS[:1])):
        synthesize.run(run, [synthesize.Order(e, 3, seed=len(tag)) for e in env_ids], tag=tag)
    return run


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "run")


def lines(run: Path, part: str, env_id: str) -> list[str]:
    files = sorted((run / part).glob(f"{env_id}.*.jsonl"))
    return [line for file in files for line in file.read_text().splitlines()]


def catalogue(run: Path, table: str) -> list[dict]:
    files = sorted((run / f"packed/catalogue/{table}").glob("*.parquet"))
    return [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]


def test_a_bundle_and_its_tasks_come_out_of_the_shards_as_they_went_in(run: Path) -> None:
    summary = pack.run(run, per_shard=2)
    assert (summary.done, summary.counters["environments"]) == (2, 3)
    index = pack.read_index(run)
    assert (index.shards, list(index.environments)) == (2, ENVS)
    assert [index.environments[e].shard for e in ENVS] == [0, 0, 1]
    for env_id in ENVS:
        place = index.environments[env_id]
        with pack.open_bundle(run, env_id, place) as folder:
            assert check_hashes(folder) == []
            assert fingerprint(folder) == fingerprint(run / "bundles" / env_id)
        assert [task.to_json() for task in pack.read_tasks(run, place)] == lines(run, "tasks", env_id)
        span = (run / f"packed/solutions-{place.shard:05d}.jsonl").read_bytes()[slice(*place.solutions)]
        assert span.decode().splitlines() == lines(run, "solutions", env_id)


def test_packing_twice_gives_the_same_bytes_and_only_what_changed_is_packed_again(run: Path) -> None:
    pack.run(run, per_shard=1)
    before = fingerprint(run / "packed")
    assert pack.run(run, per_shard=1).skipped == 3
    shutil.rmtree(run / "packed")
    pack.run(run, per_shard=1)
    assert fingerprint(run / "packed") == before
    synthesize.run(run, [synthesize.Order(ENVS[1], 3, seed=9)], tag="train")
    again = pack.run(run, per_shard=1)
    assert (again.done, again.skipped) == (1, 2)


def test_shards_of_a_larger_run_are_swept(run: Path) -> None:
    pack.run(run, per_shard=1)
    pack.run(run, per_shard=3)
    assert len(list((run / "packed").glob("*.zip"))) == 1
    assert [row["env_id"] for row in catalogue(run, "environments")] == ENVS


def test_a_damaged_bundle_takes_the_index_away_and_is_named(run: Path) -> None:
    pack.run(run, per_shard=1)
    (run / f"bundles/{ENVS[2]}/manifest.json").write_text("{}")
    summary = pack.run(run, per_shard=1)
    assert (summary.skipped, summary.dead) == (2, 1)
    (letter,) = io.read_dead_letters(LocalStore(run), "pack")
    assert ENVS[2] in letter.message
    with pytest.raises(CallerError, match="pack the run first"):
        pack.read_index(run)


def test_the_catalogue_counts_what_is_there(run: Path) -> None:
    pack.run(run, per_shard=2)
    environments = {row["env_id"]: row for row in catalogue(run, "environments")}
    assert list(environments) == ENVS
    tools, tables, tasks = (catalogue(run, table) for table in ("tools", "tables", "tasks"))
    for env_id, row in environments.items():
        listed = json.loads((run / f"bundles/{env_id}/tools/tools.json").read_text())
        assert row["tools"] == len(listed) == sum(tool["env_id"] == env_id for tool in tools)
        assert row["tables"] == sum(table["env_id"] == env_id for table in tables)
        assert row["rows"] == sum(table["rows"] for table in tables if table["env_id"] == env_id)
        assert row["tasks"] == len(lines(run, "tasks", env_id))
        checks = json.loads((run / f"checks/{env_id}.json").read_text())["tools"]
        assert {t["name"]: t["pass_rate"] for t in tools if t["env_id"] == env_id} == checks
    written = [Task.from_json(line) for env_id in ENVS for line in lines(run, "tasks", env_id)]
    assert sorted(task["task_id"] for task in tasks) == sorted(task.id for task in written)
    assert {(task["env_id"], task["tag"]) for task in tasks} == {
        (ENVS[0], "train"), (ENVS[0], "evolve1"), (ENVS[1], "train"),
    }  # fmt: skip
    assert len({row["schema_digest"] for row in environments.values()}) == 3


def test_an_sql_engine_reads_the_catalogue(run: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="pip install '.[catalogue]'")
    pack.run(run, per_shard=1)
    query = f"""
        SELECT env_id, e.tasks, count(*) AS counted
        FROM '{run}/packed/catalogue/environments/*.parquet' e
        JOIN '{run}/packed/catalogue/tasks/*.parquet' t USING (env_id)
        GROUP BY ALL ORDER BY 1
    """
    found = duckdb.sql(query).fetchall()
    assert [(env_id, said) for env_id, said, _ in found] == [
        (e, len(lines(run, "tasks", e))) for e in ENVS[:2]
    ]
    assert all(said == counted for _, said, counted in found)


def test_a_shard_can_be_opened_with_any_zip_tool(run: Path) -> None:
    pack.run(run)
    with zipfile.ZipFile(run / "packed/bundles-00000.zip") as packed:
        assert packed.testzip() is None
        assert {name.split("/")[0] for name in packed.namelist()} == set(ENVS)


def test_a_run_without_bundles_is_the_callers_mistake(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="holds no environment"):
        pack.run(tmp_path)
