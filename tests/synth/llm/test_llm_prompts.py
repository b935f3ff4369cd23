"""The prompts folder reads well: each has its header, and each renders with its inputs and no others."""

import json
import re

import pytest
from jsonschema import Draft202012Validator

from synth.author import prompting
from synth.errors import CallerError


def test_every_role_has_its_prompt():
    assert set(prompting.names()) == {
        *("mine", "enrich", "tool_design", "tool_code", "word_chain", "write_program", "solve", "mend"),
        *("diagnose", "judge", "link_tools", "name_classes"),
    }


@pytest.mark.parametrize("name", prompting.names())
def test_each_prompt_has_a_header_and_renders(name):
    prompt = prompting.load(name)
    assert prompt.role.endswith(".")
    assert len(prompt.why.split()) >= 20, "says why it is so"
    assert all(len(text.split()) >= 3 for text in prompt.inputs.values())
    inputs = {key: f"<{key} goes here>" for key in prompt.inputs}
    system, user = prompt.render(**inputs)
    both = system["content"] + user["content"]
    assert system["content"].startswith(f"[{name} v{prompt.version}] ")
    for text in inputs.values():
        assert text in both, "every input is used"
    assert not re.search(r"\{\{|\}\}$", both.replace(json.dumps(prompt.schema), "")), (
        "nothing is left to fill"
    )
    if prompt.schema is not None:
        Draft202012Validator.check_schema(prompt.schema)
        assert json.dumps(prompt.schema) in both, "the model sees the schema that its reply is held against"


def test_a_missing_or_unknown_input_is_named():
    with pytest.raises(CallerError, match="instruction"):
        prompting.load("solve").render()
    with pytest.raises(CallerError, match="extra"):
        prompting.load("solve").render(instruction="x", extra="y")


def test_a_damaged_file_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(prompting, "FOLDER", tmp_path)
    (tmp_path / "half.md").write_text('+++\nrole = "x"\n+++\n## system\n## user\n')
    with pytest.raises(CallerError, match=r"half\.md: field version"):
        prompting.load("half")
    with pytest.raises(CallerError, match=r"none\.md"):
        prompting.load("none")


def test_text_in_an_input_is_no_template():
    messages = prompting.load("solve").render(instruction="say {{theme}} \\1")
    assert messages[1]["content"] == "say {{theme}} \\1"


def test_hashes_change_with_the_file(tmp_path, monkeypatch):
    before = prompting.load("solve").digest
    text = (prompting.FOLDER / "solve.md").read_text()
    monkeypatch.setattr(prompting, "FOLDER", tmp_path)
    (tmp_path / "solve.md").write_text(text + "\n")
    prompting.load.cache_clear()
    try:
        assert prompting.load("solve").digest != before
    finally:
        prompting.load.cache_clear()
