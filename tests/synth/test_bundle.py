"""An environment at rest: written whole, read back equal, and damage is named."""

from __future__ import annotations

import json
import shutil

import pytest
from fixtures.make import extra_tool, library, parking, with_tools, write_library, write_parking

from synth.env.bundle import check_hashes, read_bundle, write_bundle
from synth.env.state import rows
from synth.errors import CallerError, EnvironmentFault


def contents(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_bundle_reads_back_as_it_was_written(tmp_path):
    env = library()
    path = write_library(tmp_path)
    bundle = read_bundle(path)
    assert tuple(bundle.tools) == env.tools
    assert bundle.graph == env.graph
    assert tuple(bundle.provenance) == env.database.provenance
    assert bundle.manifest.tables == env.database.tables
    assert bundle.manifest.theme == env.theme
    assert bundle.manifest.audit_tables == ("lookup",)
    for table in ("book", "member", "loan", "lookup"):
        assert rows(bundle.state, table) == env.database.records(table)


def test_the_layout_is_the_documented_one(tmp_path):
    names = set(contents(write_parking(tmp_path)))
    tools = [t.name for t in parking().tools]
    assert names == {
        "manifest.json",
        "README.md",
        "provenance.jsonl",
        "graph.json",
        "state/data.sqlite",
        "tools/tools.json",
        *(f"tools/{name}.py" for name in tools),
        *(f"cases/{name}.jsonl" for name in tools),
    }
    listed = json.loads((tmp_path / "parking/tools/tools.json").read_text())
    assert {"name", "description", "inputSchema", "outputSchema", "annotations", "_meta"} == set(listed[0])
    assert [t["annotations"]["readOnlyHint"] for t in listed] == [True, True, False, False]


def test_the_card_names_collections_tools_and_rules(tmp_path):
    card = (write_library(tmp_path) / "README.md").read_text()
    for words in ("books (`book`, mined, 5 rows)", "`lend_book` (write)", "`lend_book`: not_available"):
        assert words in card


def test_writing_twice_gives_the_same_bytes(tmp_path):
    assert contents(write_library(tmp_path / "a")) == contents(write_library(tmp_path / "b"))


def test_writing_replaces_an_older_bundle_whole_and_leaves_no_scratch(tmp_path):
    path = write_library(tmp_path)
    env = with_tools(library(), extra_tool("extra", "def extra(ctx): return 1"))
    write_bundle(env, path)
    write_library(tmp_path)
    assert not (path / "tools/extra.py").exists()
    assert check_hashes(path) == []
    assert [p.name for p in tmp_path.iterdir()] == ["library"]


def test_a_failed_write_leaves_the_older_bundle(tmp_path):
    path = write_library(tmp_path)
    before = contents(path)
    env = library()
    bad = {**env.database.rows, "loan": [["LN-1", "B-404", "M-1", "2026-01-01", "open"]]}
    env = env.model_copy(update={"database": env.database.model_copy(update={"rows": bad})})
    with pytest.raises(EnvironmentFault, match=r"table loan.*B-404.*book"):
        write_bundle(env, path)
    assert contents(path) == before


def test_a_folder_that_is_no_bundle_is_never_replaced(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    with pytest.raises(CallerError, match="no bundle"):
        write_bundle(library(), tmp_path / "mine")
    assert (tmp_path / "mine/thesis.txt").exists()


def test_the_digest_follows_state_code_cases_and_schema_but_not_prose(tmp_path):
    env = library()
    base = write_bundle(env, tmp_path / "base").digest
    tool = env.tools[0]

    def digest_with(**changes):
        changed = env.model_copy(update=changes)
        return write_bundle(changed, tmp_path / "changed").digest

    def tool_with(**changes):
        return digest_with(tools=(tool.model_copy(update=changes), *env.tools[1:]))

    assert tool_with(code=tool.code + "# more\n") != base
    assert tool_with(cases=tool.cases[:1]) != base
    assert tool_with(input_schema={"type": "object"}) != base
    rows = {**env.database.rows, "member": env.database.rows["member"][:2]}
    assert digest_with(database=env.database.model_copy(update={"rows": rows})) != base
    assert digest_with(taxonomy=("Elsewhere",), generator={"author": "other"}) == base


def test_other_files_are_part_of_the_state(tmp_path):
    path = tmp_path / "library"
    plain = write_bundle(library(), path)
    manifest = write_bundle(library(), path, files={"notes/opening.md": b"9 to 5"})
    assert read_bundle(path).state.files == {"notes/opening.md": b"9 to 5"}
    assert manifest.state_digest != plain.state_digest
    assert check_hashes(path) == []


@pytest.mark.parametrize("name", ["../out.md", "/etc/x", "data.sqlite"])
def test_file_names_cannot_lead_out(tmp_path, name):
    with pytest.raises(CallerError, match="relative path"):
        write_bundle(library(), tmp_path / "library", files={name: b""})


@pytest.mark.parametrize("name", ["../evil", "Get", "a b", "get_book"])
def test_tool_names_are_plain_and_unique(tmp_path, name):
    with pytest.raises(CallerError, match="tool"):
        write_bundle(with_tools(library(), extra_tool(name, "")), tmp_path / "library")


def test_hashes_name_what_was_altered(tmp_path):
    path = write_library(tmp_path)
    (path / "tools/get_book.py").write_text("def get_book(ctx, *, book_id): return {}")
    (path / "README.md").unlink()
    (path / "extra.txt").write_text("?")
    faults = "\n".join(check_hashes(path))
    assert "README.md: missing" in faults
    assert "extra.txt: not in the manifest" in faults
    assert "tools/get_book.py: sha256" in faults
    assert "field digest" in faults


def test_an_altered_state_is_noticed(tmp_path):
    path, other = write_library(tmp_path), write_parking(tmp_path)
    shutil.copy(other / "state/data.sqlite", path / "state/data.sqlite")
    assert any("state_digest" in fault for fault in check_hashes(path))


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("manifest.json", None, "manifest.json: cannot be read"),
        ("manifest.json", "{", "manifest.json: not a valid Manifest"),
        ("manifest.json", '{"env_id": 1}', "field env_id"),
        ("tools/tools.json", "[{]", "tools.json: not JSON"),
        ("tools/tools.json", "{}", "must be a list"),
        ("tools/tools.json", '[{"name": "../x"}]', "field name"),
        ("tools/tools.json", '[{"name": "get_book"}]', "field description is missing"),
        ("tools/get_book.py", None, "get_book.py: cannot be read"),
        (
            "cases/get_book.jsonl",
            '{"arguments": 3}\n',
            r"get_book\.jsonl:1: not a valid ToolCase: field arguments",
        ),
        ("graph.json", '{"nodes": []}', "graph.json: not a valid ToolGraph: field edges"),
    ],
)
def test_damage_is_named_with_file_field_and_mend(tmp_path, file, text, message):
    path = write_library(tmp_path)
    (path / file).unlink()
    if text is not None:
        (path / file).write_text(text)
    with pytest.raises(CallerError, match=message) as caught:
        read_bundle(path)
    assert "regenerate" in str(caught.value)


def test_a_damaged_database_is_named(tmp_path):
    path = write_library(tmp_path)
    (path / "state/data.sqlite").write_bytes(b"no database")
    with pytest.raises(CallerError, match=r"data\.sqlite: not a SQLite database"):
        _ = read_bundle(path).state
    with pytest.raises(CallerError, match="no such bundle"):
        read_bundle(tmp_path / "nowhere")
