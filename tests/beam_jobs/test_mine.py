"""Mining over real themes: real rows with provenance, the same on any runner, seeded."""

from __future__ import annotations

from pathlib import Path

import pytest

from beam_jobs import io, mine
from beam_jobs.store import LocalStore
from synth.errors import CallerError
from synth.themes import builtin
from synth.types import Database, Theme

THEMES = builtin("demo")[:2]


def databases(run: Path) -> dict[str, Database]:
    return {p.stem: Database.from_json(p.read_bytes()) for p in (run / "databases").iterdir()}


def test_each_theme_becomes_a_complexified_database(tmp_path: Path) -> None:
    summary = mine.run(tmp_path, THEMES, seed=0)
    assert (summary.done, summary.dead) == (2, 0)
    found = databases(tmp_path)
    assert set(found) == {theme.id for theme in THEMES}
    for db in found.values():
        kinds = {table.kind for table in db.tables}
        assert "mined" in kinds
        assert len(kinds) > 1, "complexification adds other kinds of tables"
        assert {p.target for p in db.provenance} >= {table.name for table in db.tables}
    tables = sum(len(db.tables) for db in found.values())
    assert summary.counters["tables_mined"] + summary.counters["tables_added"] == tables


def test_seed_rounds_and_theme_are_in_the_key(tmp_path: Path) -> None:
    base = mine.elements(THEMES[:1], seed=0, rounds=2, author="offline")[0].key
    renamed = THEMES[0].model_copy(update={"description": "another one"})
    others = [
        mine.elements(THEMES[:1], seed=1, rounds=2, author="offline"),
        mine.elements(THEMES[:1], seed=0, rounds=1, author="offline"),
        mine.elements([renamed], seed=0, rounds=2, author="offline"),
    ]
    assert len({base, *(other[0].key for other in others)}) == 4


def test_a_theme_without_sources_is_a_dead_letter(tmp_path: Path) -> None:
    empty = Theme(
        id="empty", source="prd", name="Empty", description="names no sources", license="Apache-2.0"
    )
    summary = mine.run(tmp_path, [empty, *THEMES[:1]], seed=0)
    assert (summary.done, summary.dead) == (1, 1)
    (letter,) = io.read_dead_letters(LocalStore(tmp_path), "mine")
    assert (letter.name, letter.fault) == ("empty", "caller")


def test_an_unknown_author_is_the_callers_mistake(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="no author 'nobody'"):
        mine.run(tmp_path, THEMES, seed=0, author="nobody")
