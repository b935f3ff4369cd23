"""Themes: what environments are about, ours or read from a file.

``themes.jsonl`` holds our own themes, written in our own words (Apache-2.0), one
:class:`synth.types.Theme` a line. Their ``spec`` says which real tables they stand on
(``sources``, ids of :mod:`synth.author.corpus`), where they belong (``first_level``,
``second_level``: a reviewed mapping), which split they are for (``demo`` or ``pretrain``;
``arena`` marks the held-out theme of a class), and the words of the business on top (``operations``).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from synth.errors import CallerError
from synth.types import Theme

BUILTIN = Path(__file__).with_name("themes.jsonl")


def builtin(split: Literal["demo", "pretrain"] | None = None) -> list[Theme]:
    """Our own themes in file order; those of one split if it is named."""
    themes = read_themes(BUILTIN)
    return [t for t in themes if split is None or t.spec.get("split") == split]


def read_themes(path: str | Path) -> list[Theme]:
    """Read themes from JSONL (one record a line) or from a JSON list.

    Raises:
        CallerError: no such file, no JSON, or a record is damaged; names file, line and field.
    """
    path = Path(path)
    try:
        text = path.read_text("utf-8")
    except OSError as err:
        raise CallerError(f"{path}: cannot be read ({err.strerror}); name a file of themes") from None
    except UnicodeDecodeError:
        raise CallerError(f"{path}: not UTF-8 text; name a JSONL file of themes") from None
    themes: dict[str, Theme] = {}
    for number, record in _records(path, text):
        theme = Theme.from_json(record, where=f"{path}:{number}")
        if theme.id in themes:
            raise CallerError(f"{path}:{number}: field id: {theme.id} occurs twice; rename one")
        themes[theme.id] = theme
    if not themes:
        raise CallerError(f"{path}: holds no themes; write one JSON record a line")
    return list(themes.values())


def _records(path: Path, text: str) -> list[tuple[int, str]]:
    """(line or item number, JSON text) of every record."""
    if not text.lstrip().startswith("["):
        return [(n, line) for n, line in enumerate(text.splitlines(), start=1) if line.strip()]
    try:
        items = json.loads(text)
    except json.JSONDecodeError as err:
        raise CallerError(f"{path}:{err.lineno}: not JSON ({err.msg}); mend the list") from None
    return [(n, json.dumps(item)) for n, item in enumerate(items, start=1)]
