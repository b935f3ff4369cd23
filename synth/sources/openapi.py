"""OpenAPI 3 and Swagger 2, JSON or YAML: a document is a candidate, each of its operations a tool."""

from __future__ import annotations

from typing import Any

from synth.sources.found import Found, ToolDoc, clean, make

HTTP = ("get", "post", "put", "patch", "delete")


def openapi(document: dict[str, Any], key: str) -> Found | None:
    """An OpenAPI or Swagger document; its license is ``info.license``."""
    info = document.get("info") or {}
    stated = info.get("license") or {}
    return make(
        f"openapi/{key}",
        "tool_doc",
        "openapi",
        info.get("title") or key,
        info.get("description") or info.get("summary"),
        label=", ".join(t["name"] for t in document.get("tags") or [] if isinstance(t, dict) and "name" in t)[
            :80
        ],
        tools=tuple(operations(document).values()),
        license=stated.get("identifier") or stated.get("name"),
    )


def operations(document: dict[str, Any]) -> dict[tuple[str, ...], ToolDoc]:
    """Every operation of an OpenAPI document as a tool, by (path, method)."""
    paths = document.get("paths")
    return {
        (path, method): _operation(document, path, method, item, item[method])
        for path, item in (paths.items() if isinstance(paths, dict) else ())
        for method in HTTP
        if isinstance(item, dict) and isinstance(item.get(method), dict)
    }


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
