"""The word lists and patterns of ``lexicon.toml``, so that they can be read and reviewed in one place."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("lexicon.toml")


def words_of(section: str, name: str) -> frozenset[str]:
    """One list of words."""
    return frozenset(_read()[section][name].split())


def pattern(section: str, name: str) -> re.Pattern[str]:
    """One list of patterns as a single one: any of them, as whole words, in any case."""
    return re.compile(rf"\b(?:{'|'.join(_read()[section][name])})\b", re.IGNORECASE)


@cache
def _read() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text("utf-8"))
