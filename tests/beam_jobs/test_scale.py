"""The scale run in small: variants, what the report counts, and what it calls a copy."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from arena import cli
from beam_jobs import pack, scale
from beam_jobs.report import report, similar
from synth.errors import CallerError
from synth.themes import builtin


def test_variants_differ_in_their_id_only_and_are_the_same_whatever_is_asked_beside_them() -> None:
    base = builtin()
    many = scale.themes(2 * len(base) + 1)
    assert len({theme.id for theme in many}) == len(many)
    assert many[: len(base)] == base
    assert many[len(base)].model_copy(update={"id": base[0].id}) == base[0]
    assert scale.themes(3) == many[:3]


def test_similarity_is_of_sets() -> None:
    assert similar({"a", "b"}, {"b", "c"}) == pytest.approx(1 / 3)
    assert similar(set(), set()) == 1.0


def test_memory_counts_this_process_and_its_children() -> None:
    with scale.Memory() as memory:
        assert scale.tree_mb(os.getpid()) > 10
    assert memory.figures()["peak_mb"] > 10


def test_a_run_that_is_not_packed_has_no_report(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="pack the run first"):
        report(tmp_path, workers=1)


def test_the_report_counts_near_copies_as_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = builtin()[0]
    again = first.model_copy(update={"id": f"{first.id}--001"})
    other = builtin()[2]
    monkeypatch.setattr(scale, "themes", lambda count: [first, again, other][:count])
    words = [
        "synth",
        "scale",
        str(tmp_path / "run"),
        "--environments=3",
        "--workers=1",
        "--tasks=2",
        "--json",
    ]
    assert cli.main(words) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    index = pack.read_index(tmp_path / "run")
    assert figures["environments"] == len(index.environments) == 3
    assert figures["distinct_sets_of_real_tables"] == 2
    assert figures["distinct_sets_of_real_rows"] >= 2
    assert figures["near_copies"] <= 1
    assert figures["whole_run"]
    assert set(figures["work_seconds"]) == {"mine", "validate", "synthesize", "pack"}
    assert figures["tools"] >= 3 * 8
    assert cli.main(words) == 0
    resumed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert not resumed["whole_run"]
    for name in ("tools", "tasks", "near_copies", "work_seconds"):
        assert resumed[name] == figures[name]
