"""Is the answer said? An answer may stand in an instruction in other clothes than its own.

Comes from: :mod:`synth.leaks`, which asks for each part of a reference answer. Numbers are read in figures
(grouped, rounded, as a percentage, in thousands and millions) and in words; dates in the usual ways; texts
apart from case, accents, punctuation and the order of names. What is too short to say
anything (``yes``, ``7``) counts only where the instruction calls it the answer.
"""

from __future__ import annotations

import datetime
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from synth.verify import canonical, fold, is_number

MIN_TEXT = 4  # characters; shorter answers (yes, no, USA) occur by chance
MIN_DIGITS = 3  # smaller numbers occur by chance
_GROUPED = r"\d{1,3}(?:[,.'’\u00a0\u202f ]\d{3})+(?!\d)(?:\.\d+)?"
FIGURES = re.compile(
    rf"(?<![\w.,])(?<!\d[ '’])[-−]?(?:{_GROUPED}|\d+(?:\.\d+)?)(?:[eE][+-]?\d+)?"
    r"(?P<unit>\s?%|\s?per ?cent\b|\s?(?:k|thousand|million|m|bn|billion)\b)?(?!\w|\.\d|,\d{3})",
    re.IGNORECASE,
)
SCALES = {"k": 1e3, "thousand": 1e3, "million": 1e6, "m": 1e6, "bn": 1e9, "billion": 1e9}
_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety"
)
UNITS, TENS = _WORDS.split()[:20], _WORDS.split()[20:]
WORD_VALUES = {w: i for i, w in enumerate(UNITS)} | {w: 20 + 10 * i for i, w in enumerate(TENS)}
MULTIPLIERS = {"hundred": 100, "thousand": 1_000, "million": 1_000_000}
STROKES = str.maketrans({"ø": "o", "æ": "ae", "œ": "oe", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "ı": "i"})
CALLED = (
    r"\b(?:answer|solution|outcome|(?:right|correct|expected|final) (?:one|value|number|result))\b"
    r"[^.!?\n]{0,24}?(?:\bis|\bbe|\bare|\bequals?|=|:)\s+(?:just |simply |about )?[\"'`“‘(\[]*"
)
_CALLED = re.compile(CALLED, re.IGNORECASE)


def says(instruction: str, value: Any) -> bool:
    """Whether an instruction says one scalar of an answer."""
    if value is None:
        return False
    text = fold(instruction)
    if isinstance(value, str):
        return _says_text(text, value) or _called(text, [fold(value)])
    if not is_number(value):
        return _called(text, ["true", "yes"] if value else ["false", "no"])
    shown = [canonical(value), *([number_words(int(value))] if value == int(value) else [])]
    enough = sum(char.isdigit() for char in canonical(value)) >= MIN_DIGITS
    return (enough and _says_number(text, value)) or _called(text, shown)


def _called(text: str, ways: list[str]) -> bool:
    """Whether the text calls one of these the answer."""
    if not _CALLED.search(text):  # most texts, without a pattern for each value
        return False
    return any(
        way and re.search(CALLED + re.escape(way) + r"(?![\w]|[.,]\d)", text, re.IGNORECASE) for way in ways
    )


# --- numbers ------------------------------------------------------------------------------------


def _says_number(text: str, value: float) -> bool:
    for number, step in (*_figures(text), *((n, 0.0) for n in spoken_numbers(text))):
        near = abs(number - value)
        rounded = step and abs(number) >= 100 * step and near <= step / 2 * 1.0001
        if near <= 1e-9 * abs(value) or (rounded and value != int(value)) or (rounded and step > 1):
            return True
    return False


def _figures(text: str) -> Iterator[tuple[float, float]]:
    """(number, its last digit's worth) of every figure; 0.0 for the worth where nothing was rounded."""
    for match in FIGURES.finditer(text):
        unit = (match["unit"] or "").strip()
        written = match.group()[: len(match.group()) - len(match["unit"] or "")].replace("−", "-")
        scale = SCALES.get(unit, 1.0)
        for plain in {_plain(written, ","), _plain(written, ".")}:
            if plain is None:
                continue
            number = float(plain)
            decimals = len(plain.partition(".")[2]) if "e" not in plain.lower() else 0
            yield number * scale, scale * 10.0**-decimals
            if "%" in unit or "cent" in unit:
                yield number / 100, 0.0


def _plain(written: str, grouping: str) -> str | None:
    """A figure for float(), its groups closed up; None when it isn't grouped this way."""
    closed = re.sub(rf"(?<=\d)[{re.escape(grouping)}'’\u00a0\u202f ](?=\d{{3}}(?!\d))", "", written)
    return closed if re.fullmatch(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", closed) else None


def spoken_numbers(text: str) -> Iterator[int]:
    """Numbers that are written in words, such as "one thousand six hundred and forty-two"."""
    total, part, open_ = 0, 0, False
    for word in [*re.findall(r"[a-z]+", text.lower()), ""]:
        if word in WORD_VALUES:
            value = WORD_VALUES[word]
            joins = part % 100 == 0 or (part % 10 == 0 and part % 100 >= 20 and 0 < value < 10)
            if open_ and not joins:
                yield total + part
                total, part = 0, 0
            part, open_ = part + value, True
        elif word in MULTIPLIERS and (open_ or word == "hundred"):
            part = max(part, 1) * MULTIPLIERS[word]
            if word != "hundred":
                total, part = total + part, 0
            open_ = True
        elif word != "and" or not open_:
            if open_:
                yield total + part
            total, part, open_ = 0, 0, False


def number_words(value: int) -> str:
    """A number of up to 99 in words, with a hyphen; an empty string for others."""
    if not 0 <= value < 100:
        return ""
    if value < 20:
        return UNITS[value]
    return TENS[value // 10 - 2] + (f"-{UNITS[value % 10]}" if value % 10 else "")


# --- texts and dates ----------------------------------------------------------------------------


def _says_text(text: str, value: str) -> bool:
    if len(value.strip()) < MIN_TEXT:
        return False
    if date := re.match(r"(\d{4})-(\d\d)-(\d\d)(?!\d)", value):
        return _says_date(text, *map(int, date.groups()))
    wanted, said = _tokens(value), _tokens(text)
    if not wanted or sum(map(len, wanted)) < MIN_TEXT:
        return re.search(rf"(?<!\w){re.escape(fold(value))}(?!\w)", text) is not None
    size = len(wanted)
    windows = [said[i : i + size] for i in range(len(said) - size + 1)]
    if wanted in windows or (size in (2, 3) and sorted(wanted) in map(sorted, windows)):
        return True
    if any(c.isdigit() for c in value) and any(c.isalpha() for c in value):  # a key: PER-104, PER 104, PER104
        loose = r"[\W_]*".join(map(re.escape, wanted))
        return re.search(rf"(?<![^\W_]){loose}(?![^\W_])", _bare(text)) is not None
    return False


def _bare(text: str) -> str:
    """Folded, without accents."""
    plain = unicodedata.normalize("NFKD", fold(text).translate(STROKES))
    return "".join(c for c in plain if not unicodedata.combining(c))


def _tokens(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", _bare(text))


def _says_date(text: str, year: int, month: int, day: int) -> bool:
    try:
        name = datetime.date(year, month, day).strftime("%B").lower()
    except ValueError:
        return False
    called = rf"(?:{name}|{name[:3]}\.?)"
    ordinal = rf"0?{day}(?:st|nd|rd|th)?"
    figures = [(year, month, day), (day, month, year), (month, day, year)]
    ways = [r"[-/. ]?".join(f"0?{n}" if n < 100 else str(n) for n in order) for order in figures]
    ways += [rf"{ordinal}(?: of)? {called},? {year}", rf"{called} (?:the )?{ordinal},? {year}"]
    return any(re.search(rf"(?<!\d)(?:{way})(?!\d)", text) for way in ways)
