"""Files that a person writes, one JSON value a line: read with one wording for what is wrong with them.

Records of our own (:class:`synth.types.Record`) name their fields themselves and are read with ``from_json``;
this is for the looser lines: calls worth trying, tasks written by hand, answers that people judged.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from synth.errors import CallerError

T = TypeVar("T")


def read_jsonl(path: Path, parse: Callable[[int, str], T], form: str, option: str = "") -> list[T]:
    """Every line that is not blank, parsed.

    Args:
        parse: gets line number and text; what it can't read raises ValueError, KeyError or TypeError.
        form: what a line should look like, for the message.
        option: the command-line option that names the file, for the message.

    Raises:
        CallerError: the file can't be read, or a line has another form; names file and line.
    """
    where = f"{option} {path}".strip()
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as err:
        raise CallerError(f"{where}: cannot be read: {err}") from None
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(parse(number, line))
        except (ValueError, KeyError, TypeError) as err:
            why = f"{type(err).__name__}: {' '.join(str(err).split())[:160]}"
            raise CallerError(f"{where}:{number}: write {form} on every line ({why})") from None
    return found
