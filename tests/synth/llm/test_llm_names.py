"""A model names the classes of a taxonomy and merges them to the first level; people edit the file."""

import json

import pytest
from scripted_llm import settings_for
from typer.testing import CliRunner

from arena.cli_themes import themes_app
from synth.author.llm import LLM
from synth.author.online.namer import LLMNamer

SUBJECTS = {
    "flight": "airport airline passenger",
    "recipe": "kitchen ingredient meal",
    "patient": "hospital doctor medication",
    "invoice": "customer payment expense",
}


@pytest.fixture
def data(tmp_path):
    """Twelve themes of four subjects."""
    rows = []
    for subject, words in SUBJECTS.items():
        for word in words.split():
            others = " ".join(w for w in words.split() if w != word)
            told = f"Manage records of each {word}: {subject} {others}."
            tools = [{"name": f"create_{subject}"}, {"name": f"list_{subject}s"}]
            name = f"{word} {subject} desk"
            rows.append(
                {"id": f"x/{word}", "registry": "x (MIT)", "name": name, "description": told, "tools": tools}
            )
    path = tmp_path / "servers.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def settings(server, tmp_path):
    path = tmp_path / "llm.toml"
    lines = ['model = "scripted-8b"', f'api_base = "{server.url}"', 'key_env = "AGENT_WORLD_TEST_KEY"']
    path.write_text("\n".join([*lines, "backoff_s = 0.01"]) + "\n")
    return path


def build(data, out, settings):
    command = ["build", data, "--out", out, "--classes", 4, "--llm", settings]
    done = CliRunner().invoke(themes_app, [str(w) for w in command], standalone_mode=False)
    assert done.exception is None, done.exception
    return done.stdout


def test_names_and_first_level_come_from_the_model_and_a_bad_reply_is_told_back(
    server, data, settings, tmp_path
):
    text = build(data, tmp_path / "out", settings)
    assert "4 of 4 second-level classes named by llm:scripted-8b" in text
    rows = json.loads((tmp_path / "out/taxonomy/mapping.json").read_text())
    assert {row["first_level"] for row in rows} == {"Games"}
    assert len({row["second_level"] for row in rows}) == 4
    themes = [json.loads(line) for line in (tmp_path / "out/themes.jsonl").read_text().splitlines()]
    assert {t["spec"]["second_level"] for t in themes} == {row["second_level"] for row in rows}
    assert server.prompts["name_classes"] == 2, (
        "the first reply used a name twice and a name that is not there"
    )


def test_edited_names_stay_and_nothing_is_asked_again(server, data, settings, tmp_path):
    build(data, tmp_path / "out", settings)
    asked = server.prompts["name_classes"]
    path = tmp_path / "out/taxonomy/mapping.json"
    path.write_text(path.read_text().replace('"Games"', '"Edited by hand"'))
    build(data, tmp_path / "out", settings)
    assert server.prompts["name_classes"] == asked
    assert '"Edited by hand"' in (tmp_path / "out/themes.jsonl").read_text()


def test_classes_that_the_model_gets_wrong_keep_their_drafts(server, tmp_path):
    llm = LLM(settings_for(tmp_path, server, repairs=0))
    record = {"cluster": 0, "themes": 3, "terms": ["chess", "pawn"], "examples": [], "first_level": "Games"}
    drafted = [{**record, "cluster": n, "second_level": f"Draft {n}"} for n in range(2)]
    assert LLMNamer(llm).names(drafted, ["Games", "Sports"]) == drafted
