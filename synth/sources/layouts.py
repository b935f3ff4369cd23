"""Layouts of MCP registries, as pure functions: parsed JSON or YAML in, candidates out.

* the official registry's ``server.json``: its API (``{"servers": [{"server", "_meta"}], "metadata"}``), bare
  documents, and the seed of May 2025 with ``version_detail``;
* Smithery's API: pages of servers, and the detail of one with its tools;
* Docker's registry: ``servers/<name>/server.yaml`` and ``tools.json``;
* npm (search results and package documents) and PyPI (``/pypi/<name>/json``);
* local dumps: one flat record a line (id, registry, name, description, label, tools).

Where they are fetched from is :mod:`synth.sources.registries`; which file has which layout is
:mod:`synth.sources.files`.
"""

from __future__ import annotations

import re
from typing import Any

from synth.sources.found import Found, make, mcp_tools

OFFICIAL_META = "io.modelcontextprotocol.registry/official"
STATES_MIT = "MIT"  # seed and dumps lie in repositories under MIT


def official(entry: dict[str, Any]) -> Found | None:
    """One server of the official registry; None for a version that is not the latest.

    The seed of 2025 is part of a repository under MIT. The API's entries state no license for their
    metadata, so theirs stays unknown.
    """
    server = entry.get("server") if isinstance(entry.get("server"), dict) else entry
    assert isinstance(server, dict)
    meta = (entry.get("_meta") or server.get("_meta") or {}).get(OFFICIAL_META) or {}
    detail = server.get("version_detail") or {}
    if meta.get("isLatest", meta.get("is_latest", detail.get("is_latest", True))) is False:
        return None
    if not isinstance(server.get("name"), str):
        return None
    repository = server.get("repository") or {}
    status = meta.get("status") or server.get("status") or "active"
    return make(
        f"official/{server['name']}",
        "mcp",
        "official registry",
        server.get("title") or re.split(r"[/]", server["name"])[-1],
        server.get("description"),
        license=STATES_MIT if detail else None,
        url=repository.get("url") or server.get("websiteUrl") or "",
        refused="" if status == "active" else "withdrawn",
    )


def smithery(entry: dict[str, Any]) -> Found | None:
    """One server of Smithery's API, from a page (no tools) or from its detail (with tools)."""
    name = entry.get("qualifiedName")
    if not isinstance(name, str):
        return None
    return make(
        f"smithery/{name}",
        "mcp",
        "smithery",
        entry.get("displayName"),
        entry.get("description"),
        tools=mcp_tools(entry.get("tools")),
        url=entry.get("homepage") or "",
    )


def docker(server: dict[str, Any], tools: Any = None) -> Found | None:
    """One ``server.yaml`` of Docker's registry, with the content of its ``tools.json`` if there is one."""
    if not isinstance(server.get("name"), str):
        return None
    about, meta = server.get("about") or {}, server.get("meta") or {}
    return make(
        f"docker/{server['name']}",
        "mcp",
        "docker",
        about.get("title") or server["name"],
        about.get("description"),
        label=meta.get("category") or "",
        tools=mcp_tools(tools),
        url=(server.get("source") or {}).get("project") or "",
        license=STATES_MIT,
    )


def npm(entry: dict[str, Any]) -> Found | None:
    """One npm package: an object of a search result, or a package document."""
    package = entry.get("package") if isinstance(entry.get("package"), dict) else entry
    assert isinstance(package, dict)
    if not isinstance(package.get("name"), str):
        return None
    links, stated = package.get("links") or {}, package.get("license")
    repository = package.get("repository")
    return make(
        f"npm/{package['name']}",
        "mcp",
        "npm",
        package["name"],
        package.get("description"),
        label=_topic(package.get("keywords")),
        license=stated.get("type") if isinstance(stated, dict) else stated,
        url=links.get("repository") or (repository or {}).get("url", "")
        if isinstance(repository, dict | None)
        else str(repository),
    )


def pypi(document: dict[str, Any]) -> Found | None:
    """One project of PyPI's JSON API. The license is the expression, else the classifier, else the field."""
    info = document.get("info") or {}
    if not isinstance(info.get("name"), str):
        return None
    classifiers = [c for c in info.get("classifiers") or [] if c.startswith("License ::")]
    stated = info.get("license_expression") or (
        classifiers[-1].split("::")[-1].strip() if classifiers else ""
    )
    keywords = info.get("keywords")
    return make(
        f"pypi/{info['name']}",
        "mcp",
        "pypi",
        info["name"],
        info.get("summary"),
        label=_topic(re.split(r"[,\s]+", keywords) if isinstance(keywords, str) else keywords),
        license=stated or (info.get("license") or "").split("\n")[0][:60] or None,
        url=(info.get("project_urls") or {}).get("Repository") or info.get("home_page") or "",
    )


def dump(record: dict[str, Any]) -> Found | None:
    """One line of a local dump; "smithery (via X, MIT)" in ``registry`` names origin and license."""
    if not isinstance(record.get("id"), str):
        return None
    registry = str(record.get("registry") or "")
    stated = re.search(r"\(([^()]*)\)\s*$", registry)
    return make(
        record["id"],
        "mcp",
        record["id"].split("/")[0],
        record.get("name"),
        record.get("description"),
        label=record.get("label") or "",
        tools=mcp_tools(record.get("tools")),
        license=record.get("license") or (stated.group(1).split(",")[-1].strip() if stated else None),
    )


def _topic(keywords: Any) -> str:
    """The keywords that say something."""
    dull = {
        "mcp",
        "mcp-server",
        "modelcontextprotocol",
        "model-context-protocol",
        "ai",
        "llm",
        "claude",
        "server",
    }
    return ", ".join(k for k in keywords or [] if isinstance(k, str) and k and k.lower() not in dull)[:80]
