"""Layouts of tool-documentation data sets; each definition is mapped back to the theme that it serves.

* OpenAI function schemas (a list, one file a theme; or lines of them);
* Seal-Tools: one API a line, gathered by its ``field`` ("Science/Geology");
* ToolAlpaca: the list of public APIs, and the training layout, whose OpenAPI text gives the schemas;
* ToolBench: one file a RapidAPI tool, with ``api_list``; and its query files, gathered by tool;
* MetaTool: plugins with words for people and for models;
* TaskBench and BFCL: read, and refused: they are benchmarks.

OpenAPI documents: :mod:`synth.sources.openapi`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from synth.sources.found import Found, ToolDoc, clean, make, spaced
from synth.sources.openapi import operations

# what the data sets' repositories state for their files
SEAL, ALPACA, META, TASKBENCH, BFCL = "Apache-2.0", "Apache-2.0", "MIT", "MIT", "Apache-2.0"
TYPES = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
}


def openai_function(entry: Any) -> ToolDoc | None:
    """One function schema, bare or as ``{"type": "function", "function": {...}}``."""
    function = entry.get("function", entry) if isinstance(entry, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return None
    back = function.get("response")
    given = function.get("parameters") or function.get("input_schema") or function.get("inputSchema")
    return ToolDoc(
        name=function["name"],
        description=clean(function.get("description")),
        input_schema=given if isinstance(given, dict) else {},
        output_schema=back if isinstance(back, dict) else {},
    )


def openai_theme(key: str, entries: Iterable[Any], *, benchmark: bool = False) -> Found | None:
    """A file of function schemas is one theme, named after the file and described by its functions."""
    tools = tuple(tool for entry in entries if (tool := openai_function(entry)))
    return from_tools(
        f"{'bfcl' if benchmark else 'openai'}/{key}",
        "bfcl" if benchmark else "openai functions",
        re.sub(r"^bfcl_v\d_", "", key, flags=re.IGNORECASE),
        tools,
        license=BFCL if benchmark else None,
        refused="benchmark" if benchmark else "",
    )


def seal_tools(records: Iterable[dict[str, Any]]) -> list[Found]:
    """One theme a field, from all APIs of the field."""
    fields: dict[str, list[ToolDoc]] = {}
    for record in records:
        properties = {k: _typed(v) for k, v in (record.get("parameters") or {}).items()}
        given = {"type": "object", "properties": properties, "required": record.get("required") or []}
        answers = {k: _typed(v) for k, v in (record.get("responses") or {}).items()}
        tool = ToolDoc(
            name=record["api_name"],
            description=clean(record.get("api_description")),
            input_schema=given,
            output_schema={"type": "object", "properties": answers} if answers else {},
        )
        fields.setdefault(str(record.get("field") or "other"), []).append(tool)
    made = []
    for field, tools in fields.items():
        area, _, name = field.partition("/")
        made.append(
            from_tools(
                f"seal-tools/{field}", "seal-tools", name or area, tuple(tools), label=area, license=SEAL
            )
        )
    return [found for found in made if found]


def toolalpaca_apis(document: dict[str, Any]) -> list[Found]:
    """The list of public APIs (``entries`` with ``API``, ``Description``, ``Category``)."""
    return [
        make(
            f"toolalpaca/{entry['API']}",
            "tool_doc",
            "toolalpaca",
            entry["API"],
            entry.get("Description"),
            label=entry.get("Category") or "",
            url=entry.get("Link") or "",
            license=ALPACA,
        )
        for entry in document.get("entries") or []
        if isinstance(entry, dict) and isinstance(entry.get("API"), str)
    ]


def toolalpaca_tool(entry: dict[str, Any]) -> Found | None:
    """One tool of ToolAlpaca's training layout.

    Words come from ``Function_Description`` {name: text}; schemas from the OpenAPI document that lies in
    ``Documentation`` as text, where ``Function_Projection`` {name: [path, method]} says which is whose.
    """
    documented = operations(_json_text(entry.get("Documentation")))
    places = entry.get("Function_Projection") or {}
    by_name = {tool.name: tool for tool in documented.values()}
    tools = []
    for name, text in (entry.get("Function_Description") or {}).items():
        if name == "components":
            continue
        place = places.get(name)
        at = tuple(place) if isinstance(place, list) and len(place) == 2 else ()
        known = documented.get(at) or by_name.get(name) or ToolDoc(name=name)
        words = clean(str(text).split("\nParameters")[0])
        tools.append(known.model_copy(update={"name": name, "description": words or known.description}))
    return make(
        f"toolalpaca/{entry['Name']}",
        "tool_doc",
        "toolalpaca",
        entry["Name"],
        entry.get("Introduction") or entry.get("Description"),
        label=entry.get("Category") or "",
        tools=tuple(tools),
        license=ALPACA,
    )


def toolbench(document: dict[str, Any], category: str = "") -> Found | None:
    """One ToolBench tool, in the folder of its category; None without a name.

    RapidAPI's documents state no license, so it stays unknown.
    """
    name = document.get("tool_name") or document.get("name")
    if not isinstance(name, str):
        return None
    listed = [api for api in document.get("api_list") or [] if isinstance(api, dict)]
    return make(
        f"toolbench/{name}",
        "tool_doc",
        "toolbench",
        name,
        document.get("tool_description"),
        label=(document.get("category_name") or category).replace("_", " "),
        tools=tuple(_rapid(api, api["name"]) for api in listed if isinstance(api.get("name"), str)),
    )


def toolbench_queries(rows: Iterable[dict[str, Any]]) -> list[Found]:
    """ToolBench's query files: the APIs that the queries may use, each mapped back to its tool."""
    tools: dict[str, dict[str, ToolDoc]] = {}
    labels: dict[str, str] = {}
    for api in (api for row in rows for api in row.get("api_list") or [] if isinstance(api, dict)):
        name, endpoint = api.get("tool_name"), api.get("api_name")
        if isinstance(name, str) and isinstance(endpoint, str):
            tools.setdefault(name, {}).setdefault(endpoint, _rapid(api, endpoint))
            labels.setdefault(name, str(api.get("category_name") or "").replace("_", " "))
    made = [
        from_tools(f"toolbench/{name}", "toolbench", name, tuple(apis.values()), label=labels[name])
        for name, apis in tools.items()
    ]
    return [found for found in made if found]


def metatool(entries: Iterable[dict[str, Any]]) -> list[Found]:
    """Plugins: the words for people, then those for models."""
    made = []
    for entry in entries:
        human, model = clean(entry.get("description_for_human")), clean(entry.get("description_for_model"))
        key, name = f"metatool/{entry['name_for_model']}", entry.get("name_for_human")
        text = human if human and model.startswith(human) else f"{human} {model}".strip()
        made.append(make(key, "tool_doc", "metatool", name, text, license=META))
    return made


def taskbench(document: dict[str, Any], key: str) -> Found | None:
    """A TaskBench tool file; only :mod:`synth.graph_bench` may use it."""
    tools = tuple(ToolDoc(name=n["id"], description=clean(n.get("desc"))) for n in document["nodes"])
    found = from_tools(f"taskbench/{key}", "taskbench", key, tools, license=TASKBENCH, refused="benchmark")
    return found


def from_tools(key: str, origin: str, name: str, tools: tuple[ToolDoc, ...], **other: Any) -> Found | None:
    """A theme that only its tools describe; None without tools."""
    if not tools:
        return None
    description = " ".join(f"{(t.description or spaced(t.name)).rstrip('.')}." for t in tools[:6])
    return make(key, "tool_doc", origin, name, description, tools=tools, **other)


def _rapid(api: dict[str, Any], name: str) -> ToolDoc:
    """One endpoint of a RapidAPI tool."""
    required, optional = (
        [p for p in api.get(kind) or [] if isinstance(p, dict) and isinstance(p.get("name"), str)]
        for kind in ("required_parameters", "optional_parameters")
    )
    properties = {p["name"]: _typed(p) for p in [*required, *optional]}
    given = {"type": "object", "properties": properties, "required": [p["name"] for p in required]}
    return ToolDoc(
        name=name,
        description=clean(api.get("description") or api.get("api_description")),
        input_schema=given,
    )


def _json_text(text: Any) -> dict[str, Any]:
    """A JSON object that lies in a field as text; empty where it is none."""
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _typed(parameter: Any) -> dict[str, str]:
    """A parameter of a loose data set with a JSON type."""
    if not isinstance(parameter, dict):
        return {}
    kind = str(parameter.get("type", "string")).lower()
    return {"type": TYPES.get(kind, kind), "description": clean(parameter.get("description"))}
