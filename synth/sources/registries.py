"""Crawls of registries: pages in a folder, and one JSONL of raw entries that ``themes build`` reads.

Each registry is its first address, how a page leads to the next one, where its entries are, and, where
tool lists come separately, the address of an entry's detail. The entries are kept as they came:
:mod:`synth.sources.layouts` reads them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from synth.errors import CallerError
from synth.sources.http import Client, Next, write_whole

Report = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Registry:
    """How one registry's API is walked."""

    first: str  # path and query of the first page
    entries: str  # field of a page
    following: Next
    base: str | None = None  # public address; without one the caller names it
    key: str | None = None  # environment variable with a bearer token
    detail: Callable[[dict[str, Any]], str | None] = lambda entry: None  # path of an entry's detail


def crawl(
    name: str,
    out: Path,
    *,
    base: str | None = None,
    names: Sequence[str] = (),
    most: int | None = None,
    client: Client | None = None,
    progress: Report = lambda done, total, what: None,
) -> int:
    """Fetch a registry into ``out`` (JSONL); pages lie in ``out.pages`` and are not asked for again.

    Args:
        name: a key of :data:`REGISTRIES`, or "pypi".
        base: address of the API, over the public one.
        names: projects to fetch, for "pypi", which has no list to walk.
        most: entries at most.
        client: rate and headers; by default :class:`Client` with the registry's key.

    Returns:
        The number of entries written.

    Raises:
        CallerError: an unknown registry, no address, no names, or a refusal.
        InfrastructureError: the server stays out of reach; the same command goes on later.
    """
    if name == "pypi":
        registry = Registry("", "", lambda page, address: None)
    elif name in REGISTRIES:
        registry = REGISTRIES[name]
    else:
        raise CallerError(f"{name}: no such registry; choose from {', '.join([*REGISTRIES, 'pypi'])}")
    root = (base or registry.base or "").rstrip("/")
    if not root:
        raise CallerError(f"{name}: name the address of its API with --url")
    client = client or Client(headers=headers_of(registry))
    folder = out.with_name(out.name + ".pages")
    if name == "pypi":
        found = _projects(root, names, folder, client)
    else:
        found = _entries(root, registry, folder, client)
    rows = []
    for entry in found:
        rows.append(json.dumps(entry, ensure_ascii=False))
        progress(len(rows), most or 0, name)
        if most and len(rows) >= most:
            break
    write_whole(out, "\n".join(rows) + "\n" if rows else "")
    return len(rows)


def _entries(root: str, registry: Registry, folder: Path, client: Client) -> Iterator[dict[str, Any]]:
    """The entries of all pages, each replaced by its detail where the registry has one."""
    for page in client.pages(root + registry.first, registry.following, folder):
        listed = page.get(registry.entries) if isinstance(page, dict) else None
        if not isinstance(listed, list):
            raise CallerError(
                f"{root}{registry.first}: field {registry.entries}: no list; is it this registry's API?"
            )
        for entry in listed:
            path = registry.detail(entry)
            if path is None:
                yield entry
                continue
            beside = folder / "details" / quote(path, safe="")[-120:]
            for detail in client.pages(root + path, lambda page, address: None, beside):
                yield {**entry, **detail}


def _projects(root: str, names: Sequence[str], folder: Path, client: Client) -> Iterator[dict[str, Any]]:
    if not names:
        raise CallerError("pypi: has no list to walk; name the projects with --name")
    for name in names:
        path = f"{root}/pypi/{quote(name, safe='')}/json"
        yield from client.pages(path, lambda page, address: None, folder / quote(name, safe=""))


def headers_of(registry: Registry | None) -> dict[str, str]:
    """The bearer token of a registry, from its environment variable."""
    if registry is None:
        return {}
    token = os.environ.get(registry.key, "") if registry.key else ""
    return {"Authorization": f"Bearer {token}"} if token else {}


def _with(address: str, **query: str) -> str:
    """The address with query fields set."""
    parts = urlsplit(address)
    held = {k: v[-1] for k, v in parse_qs(parts.query).items()} | query
    return parts._replace(query=urlencode(held)).geturl()


def _cursor(page: Any, address: str) -> str | None:
    """Official registry: ``metadata.nextCursor`` (``next_cursor`` in older versions)."""
    meta = page.get("metadata") or {}
    cursor = meta.get("nextCursor") or meta.get("next_cursor")
    return _with(address, cursor=cursor) if cursor and page.get("servers") else None


def _page_number(page: Any, address: str) -> str | None:
    """Smithery: ``pagination.currentPage`` of ``totalPages``."""
    told = page.get("pagination") or {}
    now, last = int(told.get("currentPage", 1)), int(told.get("totalPages", 1))
    return _with(address, page=str(now + 1)) if now < last else None


def _offset(page: Any, address: str) -> str | None:
    """npm's search: ``from`` grows until ``total``."""
    start = int(parse_qs(urlsplit(address).query).get("from", ["0"])[-1]) + len(page.get("objects") or [])
    return (
        _with(address, **{"from": str(start)})
        if page.get("objects") and start < page.get("total", 0)
        else None
    )


def _smithery_detail(entry: dict[str, Any]) -> str | None:
    name = entry.get("qualifiedName")
    return f"/servers/{quote(name, safe='@/')}" if isinstance(name, str) else None


REGISTRIES = {
    "official": Registry(
        "/v0.1/servers?limit=100&version=latest",
        "servers",
        _cursor,
        base="https://registry.modelcontextprotocol.io",
    ),
    "smithery": Registry(
        "/servers?pageSize=100&page=1",
        "servers",
        _page_number,
        base="https://registry.smithery.ai",
        key="SMITHERY_API_KEY",
        detail=_smithery_detail,
    ),
    "npm": Registry("/-/v1/search?text=keywords:mcp-server&size=250&from=0", "objects", _offset),
}
