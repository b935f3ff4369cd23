"""Readers of themes: every layout is known by its content, and damage is named, never guessed."""

# ruff: noqa: E501  (one layout a line reads best)
import gzip
import json
from pathlib import Path

import pytest

from synth.errors import CallerError
from synth.sources import files, licenses
from synth.sources.found import clean, spaced, title

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"name": "book_room", "description": "Book a room.", "inputSchema": SCHEMA}
FUNCTION = {"name": "book_room", "description": "Book a room.", "parameters": SCHEMA}
SERVER = {
    "name": "io.github.acme/hotel-mcp",
    "description": "Rooms and bookings of hotels.",
    "repository": {"url": "https://github.com/acme/hotel-mcp"},
}
LATEST = {"io.modelcontextprotocol.registry/official": {"status": "active", "isLatest": True}}
SMITHERY = {
    "qualifiedName": "@acme/hotel",
    "displayName": "Hotel MCP Server",
    "description": "d",
    "tools": [TOOL],
}
NPM = {"name": "hotel-mcp", "description": "d", "license": "MIT", "keywords": ["mcp", "hotel"], "links": {}}
PYPI = {"info": {"name": "hotel-mcp", "summary": "d", "license_expression": "Apache-2.0"}, "urls": []}
SEAL = {
    "api_name": "bookRoom",
    "api_description": "Book a room.",
    "field": "Hospitality/Hotels",
    "parameters": {"nights": {"type": "int", "description": "n"}},
    "required": ["nights"],
    "responses": {"booking_id": {"type": "str"}},
}
OPENAPI = {
    "openapi": "3.0.0",
    "info": {"title": "Hotel API", "description": "Rooms.", "license": {"name": "MIT"}},
    "paths": {
        "/rooms/{room}": {
            "parameters": [{"name": "room", "in": "path", "required": True, "schema": {"type": "string"}}],
            "post": {
                "operationId": "bookRoom",
                "requestBody": {
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Stay"}}}
                },
                "responses": {
                    "201": {
                        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Stay"}}}
                    }
                },
            },
        }
    },
    "components": {"schemas": {"Stay": {"type": "object", "properties": {"nights": {"type": "integer"}}}}},
}


def read(folder: Path, name: str, content) -> tuple[list, files.Note]:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return files.read_file(path)


@pytest.mark.parametrize(
    ("name", "content", "layout", "key", "title_", "license_", "tools"),
    [
        ("a.json", {"servers": [{"server": SERVER, "_meta": LATEST}], "metadata": {"count": 1}}, "official registry",
         "official/io.github.acme/hotel-mcp", "Hotel", None, 0),
        ("a.json", [SERVER | {"version_detail": {"is_latest": True}, "packages": []}], "official registry",
         "official/io.github.acme/hotel-mcp", "Hotel", "MIT", 0),
        ("a.json", SERVER | {"version": "1.0.0", "packages": [], "remotes": []}, "official registry",
         "official/io.github.acme/hotel-mcp", "Hotel", None, 0),
        ("a.json", {"servers": [SMITHERY], "pagination": {"currentPage": 1, "totalPages": 1}}, "smithery",
         "smithery/@acme/hotel", "Hotel", None, 1),
        ("a.json", SMITHERY, "smithery", "smithery/@acme/hotel", "Hotel", None, 1),
        ("a.json", {"objects": [{"package": NPM}], "total": 1}, "npm", "npm/hotel-mcp", "Hotel", "MIT", 0),
        ("a.json", NPM | {"dist-tags": {}}, "npm", "npm/hotel-mcp", "Hotel", "MIT", 0),
        ("a.json", PYPI, "pypi", "pypi/hotel-mcp", "Hotel", "Apache-2.0", 0),
        ("a.jsonl", {"id": "x/hotel", "registry": "x (via y, MIT)", "name": None, "description": "d", "tools": [TOOL]},
         "dump", "x/hotel", "Hotel", "MIT", 1),
        ("hotel.json", [FUNCTION], "openai functions", "openai/hotel", "Hotel", None, 1),
        ("hotel.jsonl", {"type": "function", "function": FUNCTION}, "openai functions", "openai/hotel", "Hotel", None, 1),
        ("a.jsonl", SEAL, "seal-tools", "seal-tools/Hospitality/Hotels", "Hotels", "Apache-2.0", 1),
        ("a.json", {"count": 1, "entries": [{"API": "Hotel", "Description": "d", "Category": "c"}]}, "toolalpaca",
         "toolalpaca/Hotel", "Hotel", "Apache-2.0", 0),
        ("a.json", [{"Name": "Hotel", "Description": "d", "Function_Description": {"book": "Book.\nParameters: {}"}}],
         "toolalpaca", "toolalpaca/Hotel", "Hotel", "Apache-2.0", 1),
        ("a.json", {"tool_name": "Hotel", "tool_description": "d", "api_list": [
            {"name": "book", "required_parameters": [{"name": "n", "type": "STRING"}], "optional_parameters": []}]},
         "toolbench", "toolbench/Hotel", "Hotel", None, 1),
        ("hotel.json", OPENAPI, "openapi", "openapi/hotel", "Hotel API", "MIT", 1),
        ("a.json", [{"name_for_model": "h", "name_for_human": "Hotel", "description_for_human": "d",
                     "description_for_model": "m"}], "metatool", "metatool/h", "Hotel", "MIT", 0),
    ],
)  # fmt: skip
def test_each_layout_is_known_by_its_content(tmp_path, name, content, layout, key, title_, license_, tools):
    found, note = read(tmp_path, name, content)
    assert (note.layout, note.found, note.damaged) == (layout, 1, 0)
    assert (found[0].key, found[0].name, found[0].license, len(found[0].tools)) == (
        key,
        title_,
        license_,
        tools,
    )
    assert not found[0].refused


def test_dockers_registry_is_a_folder_a_server(tmp_path):
    (tmp_path / "hotel").mkdir()
    (tmp_path / "hotel" / "server.yaml").write_text(
        "name: hotel\ntype: server\nmeta: {category: travel}\nabout: {title: Hotel, description: Rooms.}\n",
        "utf-8",
    )
    (tmp_path / "hotel" / "tools.json").write_text(json.dumps([TOOL]), "utf-8")
    found = [f for path in files.inputs([tmp_path]) for f in files.read_file(path)[0]]
    assert [(f.key, f.label, len(f.tools), f.license) for f in found] == [
        ("docker/hotel", "travel", 1, "MIT")
    ]


def test_benchmarks_are_read_and_marked(tmp_path):
    case = {"id": "simple_0", "question": [[{"role": "user", "content": "q"}]], "function": [FUNCTION]}
    documents = {**FUNCTION, "parameters": SCHEMA | {"type": "dict"}}
    graph = {"nodes": [{"id": "Translate", "desc": "d"}], "links": []}
    for name, content, layout in (
        ("BFCL_v4_simple.jsonl", case, "bfcl"),
        ("gorilla_file_system.json", documents, "bfcl"),
        ("taskbench.json", graph, "taskbench"),
    ):
        found, note = read(tmp_path, name, content)
        assert (note.layout, [f.refused for f in found]) == (layout, ["benchmark"])


def test_old_and_withdrawn_versions(tmp_path):
    def meta(**told):
        return {"io.modelcontextprotocol.registry/official": told}

    page = {
        "servers": [
            {"server": SERVER | {"name": "a/old"}, "_meta": meta(status="active", isLatest=False)},
            {"server": SERVER | {"name": "a/gone"}, "_meta": meta(status="deleted", isLatest=True)},
            {"server": SERVER | {"name": "a/here"}, "_meta": meta(status="active", isLatest=True)},
        ]
    }
    found, _ = read(tmp_path, "a.json", page)
    assert [(f.key, f.refused) for f in found] == [("official/a/gone", "withdrawn"), ("official/a/here", "")]


def test_one_field_of_seal_tools_is_one_theme_with_typed_schemas(tmp_path):
    lines = [SEAL, SEAL | {"api_name": "cancelRoom"}, SEAL | {"field": "Hospitality/Bars"}]
    found, _ = read(tmp_path, "tool.jsonl", "\n".join(map(json.dumps, lines)))
    assert [(f.name, f.label, len(f.tools)) for f in found] == [
        ("Hotels", "Hospitality", 2),
        ("Bars", "Hospitality", 1),
    ]
    tool = found[0].tools[0]
    assert tool.input_schema["properties"]["nights"]["type"] == "integer"
    assert tool.output_schema["properties"]["booking_id"]["type"] == "string"


def test_openapi_operations_carry_path_body_and_answer(tmp_path):
    found, _ = read(tmp_path, "hotel.yaml", json.dumps(OPENAPI))  # JSON is YAML
    tool = found[0].tools[0]
    assert set(tool.input_schema["properties"]) == {"room", "nights"}
    assert tool.input_schema["required"] == ["room"]
    assert tool.output_schema["properties"] == {"nights": {"type": "integer"}}


def test_toolalpacas_schemas_come_from_the_openapi_text_beside_its_words(tmp_path):
    entry = {
        "Name": "Hotel",
        "Description": "d",
        "Category": "Travel",
        "Documentation": json.dumps(OPENAPI),
        "Function_Description": {
            "reserve": "Reserve a room.\nParameters: {}",
            "ping": "Ping.",
            "components": "",
        },
        "Function_Projection": {"reserve": ["/rooms/{room}", "post"], "ping": ["/gone", "get"]},
    }
    found, _ = read(tmp_path, "a.json", [entry])
    reserve, ping = found[0].tools
    assert (reserve.name, reserve.description) == ("reserve", "Reserve a room.")
    assert set(reserve.input_schema["properties"]) == {"room", "nights"}
    assert reserve.output_schema["properties"] == {"nights": {"type": "integer"}}
    assert (ping.name, ping.input_schema) == ("ping", {})
    (broken,), _ = read(tmp_path, "b.json", [entry | {"Documentation": "{half"}])
    assert [tool.name for tool in broken.tools] == ["reserve", "ping"]


def test_a_toolbench_tool_has_the_category_of_its_folder(tmp_path):
    folder = tmp_path / "tools" / "Visual_Recognition"
    folder.mkdir(parents=True)
    document = {"tool_name": "Faces", "tool_description": "d", "api_list": [{"name": "find", "required_parameters": [
        {"name": "photo", "type": "STRING"}, {"no": "name"}], "optional_parameters": None}]}  # fmt: skip
    (found,), note = read(folder, "faces.json", document)
    assert (note.layout, found.key, found.label) == ("toolbench", "toolbench/Faces", "Visual Recognition")
    assert found.tools[0].input_schema["required"] == ["photo"]


def test_apis_of_toolbenchs_queries_are_mapped_back_to_their_tools(tmp_path):
    def api(tool, name):
        parameters = {"required_parameters": [{"name": "id", "type": "NUMBER"}], "optional_parameters": []}
        words = {"category_name": "Eating_Out", "tool_name": tool, "api_name": name, "api_description": "d"}
        return {**words, **parameters}

    rows = [
        {"query": "q", "api_list": [api("Tables", "book"), api("Menus", "read")]},
        {"query": "r", "api_list": [api("Tables", "book"), api("Tables", "cancel")], "relevant APIs": []},
    ]
    found, note = read(tmp_path, "G1_query.json", rows)
    assert (note.layout, note.found) == ("toolbench", 2)
    assert {f.key: [t.name for t in f.tools] for f in found} == {
        "toolbench/Tables": ["book", "cancel"],
        "toolbench/Menus": ["read"],
    }
    assert {f.label for f in found} == {"Eating Out"}


def test_circular_references_of_openapi_end(tmp_path):
    node = {"type": "object", "properties": {"next": {"$ref": "#/components/schemas/Stay"}}}
    found, _ = read(tmp_path, "a.json", OPENAPI | {"components": {"schemas": {"Stay": node}}})
    assert "next" in found[0].tools[0].output_schema["properties"]


def test_gzip_bom_and_damaged_lines(tmp_path):
    line = json.dumps({"id": "x/a", "registry": "x (MIT)", "name": "A", "description": "d", "tools": []})
    path = tmp_path / "d.jsonl.gz"
    path.write_bytes(gzip.compress(("\ufeff" + line + "\n{half\n" + line.replace("x/a", "x/b")).encode()))
    found, note = files.read_file(path)
    assert [f.key for f in found] == ["x/a", "x/b"]
    assert (note.damaged, note.remark[:7]) == (1, "line 2:")
    path.write_bytes(b"no gzip")
    assert files.read_file(path)[1].damaged == 1


@pytest.mark.parametrize("content", ["[]", "{}", "3", '["a"]', '[{"a": 1}]', '{"$schema": "x"}', "[1", ""])
def test_content_without_a_known_layout_is_passed_over(tmp_path, content):
    found, note = read(tmp_path, "a.json", content)
    assert found == []
    assert note.layout == ""
    assert note.remark


def test_inputs_name_what_is_missing(tmp_path):
    with pytest.raises(CallerError, match="gone: no such file or folder"):
        files.inputs([tmp_path / "gone"])
    with pytest.raises(CallerError, match="no JSON, JSONL"):
        files.inputs([tmp_path])


# --- requirement documents


PRD = """# Product Requirements Document (PRD)

## 1. Introduction

This document provides a comprehensive description of the system. It details requirements for stakeholders.

- Development teams

The Harbour Desk is a system that plans berths for vessels and keeps every port call on record.

- Berth planning for pilots and tugs
"""


def test_a_prd_is_named_by_its_file_when_its_title_is_generic_and_told_by_its_product(tmp_path):
    (tmp_path / "provenance.jsonl").write_text(
        json.dumps(
            {"file": "03-harbour-desk.md", "license": "MIT", "industry": "ports", "repo": "a/b", "path": "p"}
        )
    )
    found, note = read(tmp_path, "03-harbour-desk.md", PRD)
    prd = found[0]
    assert (note.layout, prd.name, prd.license, prd.label) == ("prd", "Harbour desk", "MIT", "ports")
    assert prd.description.startswith("The Harbour Desk is a system that plans berths")
    assert "stakeholders" not in prd.description


def test_a_prd_with_a_product_in_its_title_is_named_after_it(tmp_path):
    assert (
        read(tmp_path, "x.md", "# PRD: Library Management System\n\nText.")[0][0].name == "Library Management"
    )


def test_docx_and_pdf_read_like_markdown(tmp_path):
    docx = pytest.importorskip("docx")
    pytest.importorskip("pypdf")
    document = docx.Document()
    document.add_heading("Harbour Desk - Product Requirements Document", 1)
    document.add_paragraph("The Harbour Desk plans berths for vessels and keeps every port call on record.")
    document.save(str(tmp_path / "harbour.docx"))
    (tmp_path / "harbour.pdf").write_bytes(one_page_pdf(["Harbour Desk PRD", "The Harbour Desk plans berths for "
                                                         "vessels and keeps every call on record."]))  # fmt: skip
    for name in ("harbour.docx", "harbour.pdf"):
        found, note = files.read_file(tmp_path / name)
        assert (note.layout, found[0].name) == ("prd", "Harbour Desk")
        assert "plans berths for vessels" in found[0].description


@pytest.mark.parametrize("name", ["a.docx", "a.pdf"])
def test_damaged_documents_are_named(tmp_path, name):
    pytest.importorskip("docx")
    pytest.importorskip("pypdf")
    (tmp_path / name).write_bytes(b"not a document")
    with pytest.raises(CallerError, match=rf"{name}: not a"):
        files.read_file(tmp_path / name)


def test_readme_and_license_are_no_requirement_documents(tmp_path):
    assert read(tmp_path, "README.md", "# About")[0] == []


def test_a_damaged_provenance_is_named_by_line(tmp_path):
    (tmp_path / "provenance.jsonl").write_text('{"no": "file"}\n')
    with pytest.raises(CallerError, match=r"provenance\.jsonl:1: field file"):
        read(tmp_path, "a.md", PRD)


def one_page_pdf(lines: list[str]) -> bytes:
    text = "BT /F1 12 Tf 50 700 Td " + " 0 -20 Td ".join(f"({line}) Tj" for line in lines) + " ET"
    parts = [
        "<</Type/Catalog/Pages 2 0 R>>",
        "<</Type/Pages/Kids[3 0 R]/Count 1>>",
        "<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        f"<</Length {len(text)}>>stream\n{text}\nendstream",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    out, places = "%PDF-1.4\n", []
    for number, part in enumerate(parts, start=1):
        places.append(len(out))
        out += f"{number} 0 obj{part}endobj\n"
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    return (
        f"{out}xref\n0 6\n0000000000 65535 f \n{table}trailer<</Size 6/Root 1 0 R>>\nstartxref\n{len(out)}\n%%EOF"
    ).encode()


# --- words and licenses


def test_words_are_cleaned():
    assert clean("A [link](http://x) &amp; `code` **bold** 🚀\n\x07 <b>x</b>") == "A link & code bold x"
    assert spaced("getUserName") == spaced("get_user-name") == "get user name"
    assert spaced("parseHTTPUrl") == "parse http url"


@pytest.mark.parametrize(
    ("name", "key", "wanted"),
    [
        ("Airtable MCP Server", "a/b", "Airtable"),
        ("Official GitHub Server (archived)", "a/b", "GitHub"),
        (None, "toolsdk/@owner/aws-ses-mcp", "Aws ses"),
        ("io.github.acme/hotel-mcp", "a/b", "Hotel"),
        ("MCP Server", "x/hotel-desk", "Hotel desk"),
        ("Filesystem (Reference)", "a", "Filesystem"),
    ],
)
def test_titles_are_human(name, key, wanted):
    assert title(name, key) == wanted


@pytest.mark.parametrize(
    ("stated", "name", "good"),
    [
        ("MIT License", "MIT", True),
        ("Apache 2.0", "Apache-2.0", True),
        ("apache-2.0", "Apache-2.0", True),
        ("MIT OR GPL-3.0", "MIT OR GPL-3.0", True),
        ("MIT AND GPL-3.0", "MIT AND GPL-3.0", False),
        ("GPL-3.0", "GPL-3.0", False),
        ("UNLICENSED", None, False),
        ("", None, False),
        (None, None, False),
    ],
)
def test_licenses_have_one_spelling(stated, name, good):
    assert licenses.spdx(stated) == name
    assert licenses.permissive(name) is good
