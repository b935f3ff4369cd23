"""From raw data to placed themes in one command, resumed, reviewed, and told in a funnel and a portrait."""

import json
import os
import re
import resource
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from arena.cli_themes import themes_app
from synth.classes import Taxonomy
from synth.errors import CallerError
from synth.sources import build as building
from synth.sources import files, portrait
from synth.sources.build import build, text_of_theme
from synth.themes import read_themes

DATA = os.environ.get("AGENT_WORLD_DATA")
SUBJECTS = {
    "flight": "airport airline passenger gate luggage",
    "recipe": "kitchen ingredient meal dinner cooking",
    "patient": "hospital doctor medication surgery clinic",
    "invoice": "customer payment account tax expense",
}


def line(key: str, name: str, description: str, *tools: str, license: str = "MIT") -> str:
    listed = [
        {"name": t, "description": "", "inputSchema": {"type": "object", "properties": {}}} for t in tools
    ]
    return json.dumps(
        {"id": key, "registry": f"x ({license})", "name": name, "description": description, "tools": listed}
    )


@pytest.fixture
def data(tmp_path) -> Path:
    """Twelve themes of four subjects, and one of each kind that must not come through."""
    folder = tmp_path / "data"
    folder.mkdir()
    rows = []
    for subject, words in SUBJECTS.items():
        for word in words.split()[:3]:
            others = " ".join(w for w in words.split() if w != word)
            rows.append(
                line(
                    f"x/{word}-{subject}",
                    f"{word} {subject} desk",
                    f"Manage records of each {word}: {subject} {others}.",
                    f"create_{subject}",
                    f"list_{subject}s",
                )
            )
    again = json.loads(rows[0]) | {"id": "x/again"}
    rows += [
        json.dumps(again),
        line("x/docs", "React docs", "Search the official React documentation for answers.", "search_docs"),
        line("x/gpl", "Harbour", "Manage the berths and vessels of a harbour.", license="GPL-3.0"),
        "{half",
    ]
    (folder / "servers.jsonl").write_text("\n".join(rows), "utf-8")
    (folder / "BFCL_v4.json").write_text(
        json.dumps([{"name": "a", "description": "d", "parameters": {"type": "dict", "properties": {}}}]),
        "utf-8",
    )
    (folder / "unknown.json").write_text('{"$schema": "x"}', "utf-8")
    return folder


def test_the_funnel_accounts_for_every_candidate(data, tmp_path):
    built = build([data], tmp_path / "out", classes=4)
    funnel = built.funnel
    assert funnel["themes"] == 12 == len(built.themes)
    assert funnel["refused"] == {"benchmark": 1, "documentation": 1, "license": 1}
    assert funnel["exact_duplicates"] == 1
    assert sum(n for _, n in portrait.steps(funnel)[:-1]) == funnel["themes"]
    assert sum(funnel["by_first_level"].values()) == 12
    lines = (tmp_path / "out" / "refused.jsonl").read_text("utf-8").splitlines()
    assert {json.loads(x)["key"]: json.loads(x)["reason"] for x in lines} == {
        "bfcl/BFCL_v4": "benchmark", "x/docs": "documentation", "x/gpl": "license"
    }  # fmt: skip
    damage = {Path(n.file).name: (n.damaged, n.remark) for n in built.notes}
    assert damage["servers.jsonl"][0] == 1
    assert damage["unknown.json"] == (0, "no known layout")


def test_themes_are_records_with_license_classes_and_tools(data, tmp_path):
    build([data], tmp_path / "out", classes=4)
    themes = read_themes(tmp_path / "out" / "themes.jsonl")
    assert len({t.id for t in themes}) == 12
    for theme in themes:
        assert re.fullmatch(r"[a-z0-9_]+", theme.id)
        assert theme.license == "MIT"
        assert theme.spec["first_level"]
        assert theme.spec["second_level"]
        assert len(theme.spec["tools"]) == 2
    subjects = {t.spec["first_level"] for t in themes}
    assert {"Travel and Transport", "Health and Medicine"} <= subjects


def test_one_broken_document_is_named_and_stops_nobody(data, tmp_path):
    pytest.importorskip("docx")
    (data / "harbour.docx").write_bytes(b"no document")
    for _ in range(2):  # also when the rest was read before
        built = build([data], tmp_path / "out", classes=4)
        assert len(built.themes) == 12
        (note,) = [n for n in built.notes if n.file.endswith("harbour.docx")]
        assert (note.damaged, "not a docx document" in note.remark) == (1, True)


def test_the_callers_word_makes_up_for_a_missing_license(tmp_path):
    function = {"name": "create_booking", "description": "Create a booking of a guest.", "parameters": {}}
    (tmp_path / "hotel.json").write_text(
        json.dumps([function, function | {"name": "cancel_booking"}] * 2), "utf-8"
    )
    with pytest.raises(CallerError, match="nothing is left of 1 candidates"):
        build([tmp_path / "hotel.json"], tmp_path / "a")
    built = build([tmp_path / "hotel.json"], tmp_path / "b", license="Apache-2.0")
    assert [t.license for t in built.themes] == ["Apache-2.0"]


def test_a_second_build_reads_and_fits_nothing_again(data, tmp_path, monkeypatch):
    first = build([data], tmp_path / "out", classes=4)

    def never(*args, **other):
        raise AssertionError("done already")

    monkeypatch.setattr(files, "read_file", never)
    monkeypatch.setattr(building, "fit", never)
    assert build([data], tmp_path / "out", classes=4).themes == first.themes


def test_a_build_killed_in_any_stage_goes_on_to_the_same_result(data, tmp_path):
    whole = build([data], tmp_path / "whole", classes=4).themes
    calls = 0

    def count(*told):
        nonlocal calls
        calls += 1

    build([data], tmp_path / "counted", classes=4, progress=count)
    for stop in range(1, calls + 1):
        left = [stop]

        def kill(*told, left=left):
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            build([data], tmp_path / "out", classes=4, progress=kill)
    assert build([data], tmp_path / "out", classes=4).themes == whole


def test_changed_data_are_read_and_fitted_anew(data, tmp_path):
    build([data], tmp_path / "out", classes=4)
    path = data / "servers.jsonl"
    path.write_text("\n".join(path.read_text("utf-8").splitlines()[:6]), "utf-8")
    assert len(build([data], tmp_path / "out", classes=4).themes) == 6


def test_reviewed_names_reach_the_themes(data, tmp_path):
    build([data], tmp_path / "out", classes=4)
    path = tmp_path / "out" / "taxonomy" / "mapping.json"
    path.write_text(
        re.sub(r'"first_level": "[^"]*"', '"first_level": "Reviewed"', path.read_text("utf-8")), "utf-8"
    )
    built = build([data], tmp_path / "out", classes=4)
    assert {t.spec["first_level"] for t in built.themes} == {"Reviewed"}
    assert "Reviewed" in (tmp_path / "out" / "portrait.html").read_text("utf-8")


def test_a_built_theme_is_placed_where_it_was_fitted(data, tmp_path):
    built = build([data], tmp_path / "out", classes=4)
    taxonomy = Taxonomy.load(tmp_path / "out" / "taxonomy")
    for theme, place in zip(
        built.themes, taxonomy.place([text_of_theme(t) for t in built.themes]), strict=True
    ):
        assert (place.first_level, place.second_level) == (
            theme.spec["first_level"],
            theme.spec["second_level"],
        )


def test_the_portrait_needs_no_net_and_is_well_formed(data, tmp_path):
    build([data], tmp_path / "out", classes=4)
    page = (tmp_path / "out" / "portrait.html").read_text("utf-8")
    assert "12 themes" in page
    assert not re.findall(r"(?:src|href)=|@import|url\(", page)
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawings) == 2
    for drawing in drawings:
        ElementTree.fromstring(drawing)


def test_the_treemap_covers_its_area_by_size():
    boxes = portrait.squares([50, 30, 15, 5], 0, 0, 100, 40)
    assert [w * h for _, _, w, h in boxes] == pytest.approx([2000, 1200, 600, 200])
    assert portrait.squares([], 0, 0, 1, 1) == []


def test_names_are_escaped_in_the_portrait():
    row = {"first_level": "<b>", "second_level": "a&b", "themes": 3}
    assert "<b>" not in portrait.wheel(portrait.classes([row])) + portrait.treemap(portrait.classes([row]))


# --- the commands


def agent_world(*words) -> tuple[int, str]:
    done = CliRunner().invoke(themes_app, [str(w) for w in words], standalone_mode=False)
    if done.exception:
        raise done.exception
    return done.return_value, done.stdout


def test_build_and_place_speak_json(data, tmp_path):
    code, text = agent_world("build", data, "--out", tmp_path / "out", "--classes", 4, "--json")
    told = json.loads(text.splitlines()[-1])
    assert (code, told["themes"], len(told["files"])) == (0, 12, 2)
    code, text = agent_world("place", tmp_path / "out", tmp_path / "out" / "themes.jsonl", "--json")
    places = json.loads(text.splitlines()[-1])["places"]
    assert code == 0
    assert len(places) == 12


def test_build_shows_the_funnel_in_words(data, tmp_path):
    code, text = agent_world("build", data, "--out", tmp_path / "out", "--classes", 4)
    assert code == 0
    assert "serves documentation only" in text
    assert "portrait.html" in text
    assert "unknown.json: no known layout" in text
    assert "second level" in text, "the portrait: a row a class"
    assert text.count("█") >= 2
    assert "duplicates: 1 same text" in text


def test_a_first_word_that_is_no_command_is_listed(data, tmp_path):
    build([data], tmp_path / "out", classes=4)
    code, text = agent_world(tmp_path / "out" / "themes.jsonl", "--json")
    assert code == 0
    assert len(json.loads(text)["themes"]) == 12
    assert len(json.loads(agent_world("--json")[1])["themes"]) == len(
        json.loads(agent_world("list", "--json")[1])["themes"]
    )


@pytest.mark.skipif(not DATA, reason="AGENT_WORLD_DATA names no data folder")
def test_the_real_data_take_less_than_ten_minutes(tmp_path):
    start = time.monotonic()
    built = build([Path(str(DATA))], tmp_path / "out")
    took = time.monotonic() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{took:.0f} s, {memory:.0f} MiB", json.dumps(built.funnel))
    assert built.funnel["read"] > 11_000
    assert built.funnel["themes_by_source"]["prd"] == 43
    assert 2_000 < built.funnel["themes"] < 6_000
    assert 15 <= built.funnel["first_level_classes"] <= 25
    assert 45 <= built.funnel["second_level_classes"] <= 50
    assert took < 600
    assert memory < 4096
