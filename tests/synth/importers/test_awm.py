"""AWM's layout: made-up stages in, an environment out, and tasks judged by the published verifiers."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
import sys
from pathlib import Path

import pytest

from synth.env import sandbox
from synth.errors import CallerError
from synth.importers import awm
from synth.importers.base import publish

DDL = """CREATE TABLE plants (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    height REAL,
    created_at DATETIME DEFAULT CURRENT_TIMESTAMP
);"""
INDEX = "CREATE INDEX by_name ON plants(name);"
ROWS = [
    "INSERT INTO plants (id, name, height) VALUES (1, 'Fern', 30.5);",
    "INSERT INTO plants (id, name, height, created_at) VALUES (2, 'Moss', 2.0, datetime('now', '-1 day'));",
    "INSERT INTO plants (id, name) VALUES (2, 'Twice');",
    "ATTACH DATABASE '/tmp/other.db' AS other;",
]
APPLICATION = """
import os
from datetime import datetime
from typing import Optional

from fastapi import Body, FastAPI, HTTPException, Path, Query
from pydantic import BaseModel
from sqlalchemy import Column, DateTime, Float, Integer, String, create_engine, func
from sqlalchemy.orm import declarative_base, sessionmaker

engine = create_engine(os.getenv("DATABASE_PATH", "sqlite:///elsewhere.db"))
Session = sessionmaker(bind=engine)
Base = declarative_base()


class Plant(Base):
    __tablename__ = "plants"
    id = Column(Integer, primary_key=True)
    name = Column(String, nullable=False)
    height = Column(Float)
    created_at = Column(DateTime, server_default=func.now())


Base.metadata.create_all(engine)
app = FastAPI()


class NewPlant(BaseModel):
    name: str
    height: Optional[float] = None


@app.get("/plants", operation_id="list_plants")
def list_plants(name: Optional[str] = Query(None)):
    with Session() as session:
        found = session.query(Plant)
        if name:
            found = found.filter(Plant.name == name)
        return {"plants": [{"id": p.id, "name": p.name, "height": p.height} for p in found]}


@app.get("/plants/{plant_id}", operation_id="get_plant")
async def get_plant(plant_id: int = Path(...)):
    with Session() as session:
        plant = session.get(Plant, plant_id)
        if plant is None:
            raise HTTPException(404, "no such plant")
        return {"id": plant.id, "name": plant.name, "since": plant.created_at.isoformat()}


@app.post("/plants", operation_id="create_plant")
async def create_plant(plant: NewPlant = Body(...)):
    with Session() as session:
        made = Plant(name=plant.name, height=plant.height)
        session.add(made)
        session.commit()
        return {"id": made.id, "at": datetime.utcnow().isoformat(), "since": made.created_at.isoformat()}


@app.post("/broken", operation_id="break_it")
async def break_it():
    raise RuntimeError("always")


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app)
"""
VERIFIER = """
def verify_task_completion(initial_db_path: str, final_db_path: str, final_answer: str | None = None) -> dict:
    import sqlite3

    def count(path):
        db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        return db.execute("SELECT count(*) FROM plants WHERE name = 'Ivy'").fetchone()[0]

    done = count(initial_db_path) == 0 and count(final_db_path) == 1
    return {"result": "complete" if done else "others"}
"""


def endpoint(path, method, operation, **parameters):
    row = {"path": path, "method": method, "operation_id": operation, "summary": operation}
    return {**row, "request_params": parameters}


def parameter(kind, where, required, example):
    row = {"type": kind, "param_type": where, "required": required, "example": example}
    return {**row, "description": "About it."}


ENDPOINTS = [
    endpoint("/plants", "GET", "list_plants", name=parameter("string", "query", False, "Fern")),
    endpoint("/plants/{plant_id}", "GET", "get_plant", plant_id=parameter("integer", "path", True, 1)),
    endpoint(
        "/plants", "POST", "create_plant", name=parameter("string", "body", True, "Ivy"),
        height=parameter("float", "body", False, 12.5),
    ),
    endpoint("/broken", "POST", "break_it"),
    endpoint("/other", "GET", "get_plant"),
]  # fmt: skip


def write_stages(folder: Path) -> Path:
    verification = [
        {"scenario": "plant_shop", "task_idx": n, "verification": {"code": VERIFIER, "raw_response": ""}}
        for n in range(2)
    ] + [{"scenario": "plant_shop", "task_idx": 2, "verification": {"code": "def verify(): return {}"}}]
    schema = {
        "tables": [{"name": "plants", "ddl": DDL, "indexes": ["CREATE INDEX by_name ON plants(name);"]}]
    }
    stages = {
        "gen_scenario": [{"name": "Plant Shop", "description": "Plants and their heights."}],
        "gen_db": [{"scenario": "Plant Shop", "db_schema": schema, "db_path": "x.db"}],
        "gen_sample": [{
            "scenario": "Plant Shop",
            "sample_data": {"tables": [{"table_name": "plants", "insert_statements": ROWS}]},
        }],
        "gen_spec": [{"scenario": "Plant Shop", "api_spec": {"api_groups": [{"endpoints": ENDPOINTS}]}}],
        "gen_envs": [{"scenario": "Plant Shop", "db_path": "x.db", "full_code": APPLICATION}],
        "gen_tasks": [{"scenario": "Plant Shop", "tasks": ["Add Ivy.", "Add Ivy too.", "Look.", "Again."]}],
        "gen_verifier.pure_code": verification,
    }  # fmt: skip
    for name, rows in stages.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_the_stages_become_a_source_and_nothing_of_it_runs(tmp_path):
    (source,) = awm.read(write_stages(tmp_path))
    assert (source.env_id, source.theme.name) == ("plant_shop", "Plant Shop")
    assert [tool["name"] for tool in source.tools] == ["list_plants", "get_plant", "create_plant", "break_it"]
    create = source.tools[2]
    assert create["inputSchema"]["required"] == ["name"]
    assert create["inputSchema"]["properties"]["height"]["type"] == "number"
    assert create["where"] == {"name": "body", "height": "body"}
    assert "there twice" in source.refused["get_plant (/other)"]
    faults = [task.fault for task in source.tasks]
    assert faults == [None, None, "its verifier only gathers evidence for a judge", "no verifier"]


def test_the_database_is_the_same_every_time_and_reaches_no_other_file(tmp_path):
    (source,) = awm.read(write_stages(tmp_path))
    assert awm.read(tmp_path)[0].state == source.state
    db = sqlite3.connect(":memory:")
    db.deserialize(source.state["data.db"])
    assert db.execute("SELECT id, name, created_at FROM plants").fetchall() == [
        (1, "Fern", "2026-01-05 09:00:00"), (2, "Moss", "2026-01-04 09:00:00"),
    ]  # fmt: skip
    assert source.notes["rows of plants"].startswith("2 of 4 statements left out: UNIQUE")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gen_envs", "{", "line 1"),
        ("gen_envs", '{"full_code": ""}', "scenario"),
        (
            "gen_db",
            '{"scenario": "Else", "db_schema": {}}',
            "gen_db.jsonl: no line for the scenario plant",
        ),
        ("gen_spec", '{"scenario": "Plant Shop", "api_spec": []}', "plant_shop"),
    ],
)
def test_a_stage_of_another_shape_is_the_callers_fault(tmp_path, name, text, words):
    (write_stages(tmp_path) / f"{name}.jsonl").write_text(text)
    with pytest.raises(CallerError, match=words):
        awm.read(tmp_path)


def test_an_interpreter_without_the_packages_is_refused(tmp_path):
    bare = Path(sandbox._interpreter())
    with pytest.raises(CallerError, match="cannot be run"):
        awm.interpreter(tmp_path / "nothing")
    if all(importlib.util.find_spec(name) for name in awm.NEEDS) and sys.prefix != sys.base_prefix:
        assert awm.interpreter() == Path(sys.executable)
        with pytest.raises(CallerError, match="pip install fastapi sqlalchemy"):
            awm.interpreter(bare)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    missing = [name for name in awm.NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {' '.join(missing)}: pip install {' '.join(missing)}")
    if why := sandbox._why_not("bwrap"):
        pytest.skip(f"bwrap: {why}")
    folder = write_stages(tmp_path_factory.mktemp("awm"))
    solved = {
        "plant_shop 0": awm.Solution(({"tool": "create_plant", "args": {"name": "Ivy", "height": 3.5}},)),
        "plant_shop 1": awm.Solution(({"tool": "create_plant", "args": {"name": "Oak"}},)),
    }
    (source,) = awm.read(folder, solutions=solved)
    return publish(source, folder / "out", python=Path(sys.executable)).to_json()


def test_endpoints_become_tools_with_their_effects(published):
    tools = published["tools_by_name"]
    kept = {name for name, row in tools.items() if row["kept"]}
    assert kept == {"list_plants", "get_plant", "create_plant"}
    assert tools["create_plant"]["effect"].startswith("write")  # and steady: two clocks were held still
    assert tools["get_plant"]["effect"].startswith("read")
    assert "no call worked" in tools["break_it"]["why"]


def test_a_task_with_calls_is_graded_by_its_own_verifier(published):
    rows = {row["id"]: (row["outcome"], row["why"]) for row in published["task_rows"]}
    assert rows["plant_shop 0"][0] == "changed"  # no answer to give: it asks for "ok"
    assert rows["plant_shop 1"][0] == "refused"  # its calls leave the verifier with "others"
    assert rows["plant_shop 2"] == ("refused", "its verifier only gathers evidence for a judge")
    assert published["tasks_kept"] == 1


def test_solutions_are_read_from_a_file(tmp_path):
    path = tmp_path / "solved.jsonl"
    path.write_text('{"task": "a 0", "calls": [{"tool": "t", "args": {}}], "answer": 3}\n')
    assert awm.read_solutions(path) == {"a 0": awm.Solution(({"tool": "t", "args": {}},), 3)}
    path.write_text('{"task": "a 0"}\n')
    with pytest.raises(CallerError, match=r"solved.jsonl:1: .*'calls'"):
        awm.read_solutions(path)
