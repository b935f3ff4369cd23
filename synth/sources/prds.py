"""Product and software requirement documents: Markdown, docx and PDF, as text with a title and a summary.

docx and PDF are read by python-docx and pypdf (the extra ``docs``). A ``provenance.jsonl`` beside the
documents (file, license, industry, repo, path) gives license and industry. Requirement documents share
templates ("This document provides a comprehensive description of ..."): a title that only names the
kind of document and sentences about the document itself are passed over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from synth.errors import CallerError
from synth.lexicon import pattern
from synth.sources.found import Found, clean, make

SUFFIXES = (".md", ".markdown", ".docx", ".pdf")
SUMMARY_WORDS = 90  # of the description (ours: as long as a good server description)
TEXT_WORDS = 2000  # of the text that goes with the theme: scope and features come first

_KIND = pattern("prds", "kind")
_ABOUT_ITSELF = pattern("prds", "about_itself")


def read_prd(path: Path) -> Found:
    """One document as a candidate.

    Raises:
        CallerError: the file can't be read, or needs a library that isn't installed.
    """
    lines = [line for line in _lines(path) if line.strip()]
    known = provenance(path.parent).get(path.name, {})
    body = [clean(line) for line in lines]
    text = " ".join(" ".join(t for t in body if not _ABOUT_ITSELF.search(t)).split()[:TEXT_WORDS])
    industry = str(known.get("industry") or "")
    repo = known.get("repo")
    return make(
        f"prd/{path.name}",
        "prd",
        "prds",
        _title(lines) or re.sub(r"^\d+[-_ ]*", "", path.stem).replace("-", " ").replace("_", " "),
        _summary(lines),
        label=industry,
        license=known.get("license"),
        url=f"github:{repo}/{known.get('path', '')}" if repo else "",
        text=text,
    )


def provenance(folder: Path) -> dict[str, dict[str, Any]]:
    """What ``provenance.jsonl`` in the folder says about each file; empty without one.

    Raises:
        CallerError: a line is no JSON object with a field ``file``.
    """
    path = folder / "provenance.jsonl"
    if not path.exists():
        return {}
    found = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        if line.strip():
            try:
                record = json.loads(line)
                found[record["file"]] = record
            except (ValueError, KeyError, TypeError):
                raise CallerError(f"{path}:{number}: field file: missing; one JSON object a line") from None
    return found


def _lines(path: Path) -> Iterator[str]:
    """Lines of text; headings carry "# " in every format that marks them."""
    if path.suffix == ".docx":
        yield from _docx(path)
    elif path.suffix == ".pdf":
        yield from _pdf(path)
    else:
        try:
            yield from path.read_text("utf-8").splitlines()
        except UnicodeDecodeError:
            raise CallerError(f"{path}: not UTF-8 text; convert it") from None


def _docx(path: Path) -> Iterator[str]:
    try:
        import docx
    except ImportError:
        raise CallerError(
            f"{path}: reading docx needs python-docx: pip install 'agent-world[docs]'"
        ) from None
    try:
        document = docx.Document(str(path))
    except Exception as err:  # the library raises KeyError, ValueError, BadZipFile and its own
        raise CallerError(f"{path}: not a docx document ({type(err).__name__}); save it anew") from None
    for paragraph in document.paragraphs:
        style = (paragraph.style.name if paragraph.style else "") or ""
        yield ("# " if style.startswith(("Heading", "Title")) else "") + paragraph.text
    for table in document.tables:
        for row in table.rows:
            yield " | ".join(cell.text for cell in row.cells)


def _pdf(path: Path) -> Iterator[str]:
    try:
        import pypdf
    except ImportError:
        raise CallerError(f"{path}: reading PDF needs pypdf: pip install 'agent-world[docs]'") from None
    try:
        for page in pypdf.PdfReader(str(path)).pages:
            yield from page.extract_text().splitlines()
    except Exception as err:  # damaged files fail in many ways inside the library
        raise CallerError(f"{path}: not a readable PDF ({type(err).__name__}); save it anew") from None


def _title(lines: list[str]) -> str:
    """The first early line that names the product: a heading, or "Product: X"; "" if none does."""
    for line in lines[:3]:
        named = re.match(r"\W*(product|project)( name)?\W*:\W*(.+)", line, re.IGNORECASE)
        if not named and not line.lstrip("\\").startswith("#") and line is not lines[0]:
            continue
        words = clean(named.group(3) if named else line.replace("\\", ""))
        rest = _KIND.sub(" ", re.sub(r"^[\d.\s]+", "", words))
        rest = " ".join(re.sub(r"\.md\b", "", rest).split()).strip(" -–—:,.&()'’")
        if rest.count("(") > rest.count(")"):
            rest = rest[: rest.rindex("(")].strip()
        if len(rest) > 3 and len(words.split()) <= 14 and not re.fullmatch(r"(?:of|and|the|for|\W)*", rest):
            return rest
    return ""


def _summary(lines: list[str]) -> str:
    """The first sentences that say what the product does, up to :data:`SUMMARY_WORDS`."""
    words: list[str] = []
    for line in lines:
        if line.lstrip().startswith(("#", "|", "```", "---")):
            continue
        bullet = bool(re.match(r"\s*([-–•·*]|\d+\.)\s", line))
        text = re.sub(r"^([-–•· ]+|\d+\.\s)", "", clean(line))
        sentences = [s for s in re.split(r"(?<=[.!?])\s+", text) if not _ABOUT_ITSELF.search(s)]
        text = " ".join(sentences)
        label = re.match(r"^[\w ]{2,30}:(\s|$)", text)
        if len(text.split()) < (8 if not words else 3) or (
            not words and (label or (bullet and text[-1] != "."))
        ):
            continue
        words += text.split() if text[-1] in ".!?:" else [*text.split()[:-1], text.split()[-1] + "."]
        if len(words) >= SUMMARY_WORDS:
            break
    return " ".join(words[:SUMMARY_WORDS])
