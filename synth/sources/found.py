"""What a reader finds: one candidate for a theme, before anybody has judged it.

Every reader of this package yields :class:`Found`; licenses, filter, duplicates and taxonomy only see
this. The words of a candidate are cleaned here, once, so that all of them compare the same text.
"""

from __future__ import annotations

import html
import re
import unicodedata
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Source = Literal["mcp", "tool_doc", "prd"]

TOOLS_IN_TEXT = 24  # tools of a candidate whose words count (ours: the largest servers have over 100)
TOOL_WORDS = 30  # words of one tool's description that count


class ToolDoc(BaseModel):
    """One documented tool; schemas as the source states them, empty where it states none."""

    model_config = ConfigDict(frozen=True)

    name: str
    description: str = ""
    input_schema: dict[str, Any] = Field(default_factory=dict)
    output_schema: dict[str, Any] = Field(default_factory=dict)


class Found(BaseModel):
    """One candidate for a theme, in clean text."""

    model_config = ConfigDict(frozen=True)

    key: str  # id inside its origin: "smithery/@owner/server", "seal-tools/Science/Geology"
    source: Source
    origin: str  # registry or data set, as named in funnel and provenance
    name: str  # human words, without "MCP server"
    description: str
    license: str | None = None  # SPDX, or the words of the source; None: not stated
    tools: tuple[ToolDoc, ...] = ()
    label: str = ""  # the source's own category or industry
    url: str = ""
    text: str = ""  # a whole document, where there is one (PRD)
    refused: str = ""  # set by a reader that knows a reason: "benchmark", "withdrawn"

    def words(self) -> str:
        """All text that says what the candidate is about, for embedding and comparison.

        Of a requirement document the industry counts three times and the body not at all: such documents
        are mostly about software, and share templates.
        """
        labels = [self.label.replace("-", " ")] * (3 if self.source == "prd" else 1)
        parts = [self.name, self.name, self.description, *labels]
        for tool in self.tools[:TOOLS_IN_TEXT]:
            parts.append(spaced(tool.name))
            parts.append(" ".join(tool.description.split()[:TOOL_WORDS]))
        return "\n".join(part for part in parts if part)


def clean(text: Any) -> str:
    """One line of plain text: no Markdown links, HTML, emoji, control characters or runs of space."""
    if not isinstance(text, str):
        return ""
    text = html.unescape(unicodedata.normalize("NFKC", text))
    text = re.sub(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])", r"\1", text)  # [words](link), [words][ref]
    text = re.sub(r"<[^<>]{1,200}>|https?://\S+|[`*#|\\]+|[\x00-\x1f]+", " ", text)
    if not text.isascii():
        text = "".join(c if c.isascii() or unicodedata.category(c)[0] not in "CS" else " " for c in text)
    return " ".join(text.split())


def spaced(name: str) -> str:
    """The words of an identifier: get_userName -> "get user name"."""
    name = re.sub(r"([a-z0-9])([A-Z])|([A-Z]+)([A-Z][a-z])", r"\1\3 \2\4", name)
    return " ".join(re.split(r"[\W_]+", name)).strip().lower()


_GENERIC = re.compile(
    r"(?<!\w)(\(?m\.?c\.?p\.?\)?|model context protocol|servers?|integration|official|unofficial"
    r"|\(archived\)|\(community\))(?!\w)",
    re.IGNORECASE,
)


_REVERSED = re.compile(
    r"^(io-github|ai-smithery|com|io|ai|dev|co|net|org|app)-(?=\w)"
)  # a reversed host name


def title(name: Any, key: str) -> str:
    """A human name: the source's, else the last part of the key; "MCP" and "Server" are cut off."""
    stated = clean(name)
    if re.fullmatch(r"[\w./@-]*[/_.-][\w./@-]*", stated):  # an identifier: owner/server-name
        stated = spaced(stated.rstrip("/").split("/")[-1])
    last = spaced(_REVERSED.sub("", re.split(r"[/@]", key.rstrip("/"))[-1]))
    for words in (stated, last):
        short = " ".join(_GENERIC.sub(" ", words).split()).strip(" -–—:,./()&'’")
        short = re.sub(r"^(for|by|the|of|a|an)\s|\s(for|by|of|with|and)$", "", short, flags=re.IGNORECASE)
        if short.count("(") > short.count(")"):
            short = short[: short.rindex("(")].strip()
        if short:
            return short[:1].upper() + short[1:]
    return stated or last


def make(key: str, source: Source, origin: str, name: Any, description: Any, **other: Any) -> Found:
    """A candidate with its words cleaned."""
    label = clean(other.pop("label", ""))
    return Found(
        key=key,
        source=source,
        origin=origin,
        name=title(name, key)[:80] or key,
        description=clean(description),
        label="" if label.lower() in ("other", "others", "uncategorized", "none") else label,
        **other,
    )


def mcp_tools(tools: Any) -> tuple[ToolDoc, ...]:
    """Tools in MCP's shape (name, description, inputSchema), or a bare list of names; the rest is dropped."""
    made = []
    for tool in tools if isinstance(tools, list) else []:
        if isinstance(tool, str):
            tool = {"name": tool}
        if isinstance(tool, dict) and isinstance(tool.get("name"), str) and tool["name"].strip():
            given = tool.get("inputSchema") or tool.get("input_schema")
            back = tool.get("outputSchema") or tool.get("output_schema")
            made.append(
                ToolDoc(
                    name=tool["name"].strip(),
                    description=clean(tool.get("description")),
                    input_schema=given if isinstance(given, dict) else {},
                    output_schema=back if isinstance(back, dict) else {},
                )
            )
    return tuple(made)
