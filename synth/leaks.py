"""What an instruction must not say: names from inside the environment, and the answer.

A task is asked in the words of a person who has never seen the tools. This module reads one
instruction and names everything in it that such a person could not know, or that would make
the task pointless. Used by the task stages while they write and by admission as a gate.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from synth.types import Table, Tool
from synth.verify import canonical, fold, is_number

FILE_NAME = re.compile(
    r"(?<![\w/])[\w./-]*\w\.(?:csv|db|html?|jsonl?|md|parquet|py|sqlite3?|sql|toml|tsv|txt|xml|ya?ml)(?!\w)",
    re.IGNORECASE,
)
NUMBER = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?!\w|\.\d|,\d{3})")
MIN_TEXT = 4  # characters; shorter answers (yes, no, USA) occur by chance
MIN_DIGITS = 3  # smaller numbers occur by chance


def find_leaks(
    instruction: str,
    tools: Iterable[Tool],
    tables: Iterable[Table],
    reference_answer: Any,
    given: Sequence[Any] = (),
) -> list[str]:
    """Everything that leaks, each as one line; an empty list when nothing does.

    Names (of tools, parameters, result fields, tables, columns) that no plain English word
    could be (they hold an underscore, a digit or an inner capital) count wherever they
    stand as a word, in any case; a tool's name also with spaces for underscores. Names that are
    plain words count only where they are written as code: quoted with backticks or quotation
    marks, or followed by ``=`` or ``:``.

    Args:
        reference_answer: a string of at least 4 characters, a number of at least 3 digits, or
            any such element of a list or object must not occur.
        given: values that the user states on purpose (the new status of a booking), which
            the answer may repeat.
    """
    tools, tables = list(tools), list(tables)
    leaks = [f"tool name {name}" for name in sorted(_tool_names_in(instruction, tools))]
    for name in sorted(_identifiers(tools, tables) - {tool.name for tool in tools}):
        if _mentions(instruction, name):
            leaks.append(f"identifier {name}")
    leaks += [f"file name {match.group()}" for match in FILE_NAME.finditer(instruction)]
    leaks += [f"answer {canonical(value)}" for value in _answers_in(instruction, reference_answer, given)]
    return leaks


# --- names --------------------------------------------------------------------------------------


def _tool_names_in(instruction: str, tools: Iterable[Tool]) -> set[str]:
    found = set()
    for tool in tools:
        spoken = tool.name.replace("_", " ").strip()
        if _mentions(instruction, tool.name) or (" " in spoken and _has_words(instruction, spoken)):
            found.add(tool.name)
    return found


def _identifiers(tools: Iterable[Tool], tables: Iterable[Table]) -> set[str]:
    names = set()
    for tool in tools:
        names |= _properties(tool.input_schema) | _properties(tool.output_schema)
    for table in tables:
        names |= {table.name, *(column.name for column in table.columns)}
    return names


def _properties(schema: Any) -> set[str]:
    """Names of all properties of a JSON schema, however deep."""
    if isinstance(schema, list):
        return set().union(*map(_properties, schema)) if schema else set()
    if not isinstance(schema, dict):
        return set()
    names = set(schema["properties"]) if isinstance(schema.get("properties"), dict) else set()
    return names.union(*map(_properties, schema.values()))


def _mentions(instruction: str, name: str) -> bool:
    if _looks_like_code(name):
        return _has_words(instruction, name)
    word = re.escape(name)
    as_code = rf"`{word}`|'{word}'|\"{word}\"|“{word}”|‘{word}’|(?<!\w){word}\s?[=:]"
    return re.search(as_code, instruction, re.IGNORECASE) is not None


def _looks_like_code(name: str) -> bool:
    return not name.isalpha() or re.search(r"[a-z][A-Z]", name) is not None


def _has_words(text: str, words: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text, re.IGNORECASE) is not None


# --- answers ------------------------------------------------------------------------------------


def _answers_in(instruction: str, answer: Any, given: Sequence[Any]) -> list[Any]:
    allowed = {_key(value) for value in given}
    text = fold(instruction)
    numbers = {_key(_read_number(match.group())) for match in NUMBER.finditer(instruction)}
    found = []
    for value in _scalars(answer):
        if _key(value) in allowed:
            continue
        if isinstance(value, str):
            leaked = len(value.strip()) >= MIN_TEXT and _has_words(text, fold(value))
        else:
            digits = sum(char.isdigit() for char in canonical(value)) if is_number(value) else 0
            leaked = digits >= MIN_DIGITS and _key(value) in numbers
        if leaked:
            found.append(value)
    return found


def _key(value: Any) -> str:
    return canonical(fold(value) if isinstance(value, str) else value)


def _read_number(text: str) -> int | float:
    return json.loads(re.sub(r"^(-?)0+(?=\d)", r"\1", text.replace(",", "")))


def _scalars(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [scalar for item in value for scalar in _scalars(item)]
    if isinstance(value, dict):
        return [scalar for item in value.values() for scalar in _scalars(item)]
    return [value]
