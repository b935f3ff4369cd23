"""Layouts of tool-documentation data sets; each definition is mapped back to the theme that it serves.

* OpenAI function schemas (a list, one file a theme; or lines of them);
* Seal-Tools: one API a line, gathered by its ``field`` ("Science/Geology");
* ToolAlpaca: the list of public APIs, and the training layout with ``Functions``;
* ToolBench: one file a RapidAPI tool, with ``api_list``;
* OpenAPI 3 and Swagger 2, JSON or YAML: an operation is a tool;
* MetaTool: plugins with words for people and for models;
* TaskBench and BFCL: read, and refused: they are benchmarks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from synth.sources.found import Found, ToolDoc, clean, make, spaced

# what the data sets' repositories state for their files
SEAL, ALPACA, META, TASKBENCH, BFCL = "Apache-2.0", "Apache-2.0", "MIT", "MIT", "Apache-2.0"
HTTP = ("get", "post", "put", "patch", "delete")
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
    """One tool of ToolAlpaca's training layout: words, and ``Function_Description`` {name: text}."""
    functions = entry.get("Function_Description") or {}
    tools = tuple(
        ToolDoc(name=name, description=clean(str(text).split("\nParameters")[0]))
        for name, text in functions.items()
        if name != "components"
    )
    return make(
        f"toolalpaca/{entry['Name']}",
        "tool_doc",
        "toolalpaca",
        entry["Name"],
        entry.get("Introduction") or entry.get("Description"),
        label=entry.get("Category") or "",
        tools=tools,
        license=ALPACA,
    )


def toolbench(document: dict[str, Any]) -> Found | None:
    """One ToolBench tool. RapidAPI's documents state no license, so it stays unknown."""
    tools = []
    for api in document.get("api_list") or []:
        if not isinstance(api, dict) or not isinstance(api.get("name"), str):
            continue
        required, optional = api.get("required_parameters") or [], api.get("optional_parameters") or []
        properties = {
            p["name"]: _typed(p) for p in [*required, *optional] if isinstance(p, dict) and "name" in p
        }
        given = {"type": "object", "properties": properties, "required": [p["name"] for p in required]}
        tools.append(ToolDoc(name=api["name"], description=clean(api.get("description")), input_schema=given))
    name = document.get("tool_name") or document.get("name")
    return make(
        f"toolbench/{name}",
        "tool_doc",
        "toolbench",
        name,
        document.get("tool_description"),
        label=document.get("category_name") or "",
        tools=tuple(tools),
    )


def openapi(document: dict[str, Any], key: str) -> Found | None:
    """An OpenAPI or Swagger document; its license is ``info.license``."""
    info = document.get("info") or {}
    stated = info.get("license") or {}
    tools = []
    for path, item in (document.get("paths") or {}).items():
        for method in HTTP:
            operation = item.get(method) if isinstance(item, dict) else None
            if isinstance(operation, dict):
                tools.append(_operation(document, path, method, item, operation))
    return make(
        f"openapi/{key}",
        "tool_doc",
        "openapi",
        info.get("title") or key,
        info.get("description") or info.get("summary"),
        label=", ".join(t["name"] for t in document.get("tags") or [] if isinstance(t, dict) and "name" in t)[
            :80
        ],
        tools=tuple(tools),
        license=stated.get("identifier") or stated.get("name"),
    )


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


def _operation(document: dict, path: str, method: str, item: dict, operation: dict) -> ToolDoc:
    """An operation as a tool: parameters and JSON body in one schema, the schema of success as output."""
    properties, required = {}, []
    for parameter in [*(item.get("parameters") or []), *(operation.get("parameters") or [])]:
        parameter = _resolve(document, parameter)
        if parameter.get("in") == "body":  # Swagger 2
            body = _resolve(document, parameter.get("schema") or {})
            properties |= body.get("properties") or {}
            required += body.get("required") or []
        elif isinstance(parameter.get("name"), str):
            schema = _resolve(document, parameter.get("schema") or {}) or {
                "type": parameter.get("type", "string")
            }
            properties[parameter["name"]] = {**schema, "description": clean(parameter.get("description"))}
            required += [parameter["name"]] if parameter.get("required") else []
    body = _json_schema(document, _resolve(document, operation.get("requestBody") or {}))
    properties |= body.get("properties") or {}
    required += body.get("required") or []
    good = [v for k, v in (operation.get("responses") or {}).items() if str(k).startswith("2")]
    return ToolDoc(
        name=operation.get("operationId") or f"{method} {path}",
        description=clean(operation.get("summary") or operation.get("description")),
        input_schema={"type": "object", "properties": properties, "required": sorted(set(required))},
        output_schema=_json_schema(document, _resolve(document, good[0])) if good else {},
    )


def _json_schema(document: dict, carrier: dict) -> dict:
    """The schema of a body or response, of OpenAPI 3 (``content``) or Swagger 2 (``schema``)."""
    for kind, media in (carrier.get("content") or {}).items():
        if "json" in kind and isinstance(media, dict):
            return _resolve(document, media.get("schema") or {})
    return _resolve(document, carrier.get("schema") or {})


def _resolve(document: dict, node: Any, depth: int = 4) -> dict:
    """A node with its local ``$ref`` followed, also below ``items``; outside and circular ones are empty."""
    if not isinstance(node, dict) or depth == 0:
        return {}
    ref = node.get("$ref")
    if isinstance(ref, str):
        found: Any = document if ref.startswith("#/") else None
        for part in ref[2:].split("/") if found is not None else ():
            part = part.replace("~1", "/").replace("~0", "~")
            found = found.get(part) if isinstance(found, dict) else None
        return _resolve(document, found, depth - 1)
    if isinstance(node.get("items"), dict):
        return {**node, "items": _resolve(document, node["items"], depth - 1)}
    if isinstance(node.get("properties"), dict):
        return {
            **node,
            "properties": {k: _resolve(document, v, depth - 1) for k, v in node["properties"].items()},
        }
    return node


def _typed(parameter: Any) -> dict[str, str]:
    """A parameter of a loose data set with a JSON type."""
    if not isinstance(parameter, dict):
        return {}
    kind = str(parameter.get("type", "string")).lower()
    return {"type": TYPES.get(kind, kind), "description": clean(parameter.get("description"))}
