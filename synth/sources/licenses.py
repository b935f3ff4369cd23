"""Which licenses a theme may stand on: permissive ones, by their SPDX names.

Sources state licenses in many spellings ("MIT License", "Apache 2.0"); :func:`spdx` brings them to one.
A source that states none is refused, not guessed; the caller may vouch for it (``--license``).
"""

from __future__ import annotations

import re

from synth.lexicon import words_of

PERMISSIVE = words_of("licenses", "permissive")
_SPELLINGS = (
    (r"the unlicense|unlicense", "Unlicense"),
    (r"mit no attribution", "MIT-0"),
    (r"(the )?mit( license)?", "MIT"),
    (r"apache( software)?( license)?,?( version)?[ -]?v?(2(\.0)?)?( license)?", "Apache-2.0"),
    (r"(the )?(new|modified|3-clause) bsd( license)?|bsd[ -]?3[ -]clause( license)?", "BSD-3-Clause"),
    (r"(simplified|2-clause) bsd( license)?|bsd[ -]?2[ -]clause( license)?", "BSD-2-Clause"),
    (r"isc( license)?( \(iscl\))?", "ISC"),
    (r"cc0|cc0 1\.0( universal)?|public domain", "CC0-1.0"),
    (r"cc[ -]by[ -]4\.0|creative commons attribution 4\.0", "CC-BY-4.0"),
)


def spdx(stated: str | None) -> str | None:
    """The SPDX name of a stated license; the words themselves where none is known, None for no statement."""
    words = " ".join((stated or "").split())
    if not words or words.lower() in ("none", "unknown", "unlicensed", "see license", "other", "noassertion"):
        return None
    for known in PERMISSIVE:
        if words.lower() == known.lower():
            return known
    for pattern, name in _SPELLINGS:
        if re.fullmatch(pattern, words, re.IGNORECASE):
            return name
    return words


def permissive(name: str | None) -> bool:
    """True if every part of "A AND B", or one part of "A OR B", is permissive."""
    if not name:
        return False
    either = re.split(r"\s+OR\s+", name.strip("() "))
    return any(
        all(spdx(part) in PERMISSIVE for part in re.split(r"\s+AND\s+", way.strip("() "))) for way in either
    )
