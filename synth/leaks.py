"""What an instruction must not say: names from inside the environment, and the answer.

A task is asked in the words of a person who has never seen the tools. This module reads one
instruction and names everything in it that such a person could not know, or that would make
the task pointless. Used by the task stages while they write and by admission as a gate.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from synth.answer_leaks import says
from synth.types import Table, Task, Tool
from synth.verify import canonical, fold

FILE_NAME = re.compile(
    r"(?<![\w/])[\w./-]*\w\.(?:csv|db|html?|jsonl?|md|parquet|py|sqlite3?|sql|toml|tsv|txt|xml|ya?ml)(?!\w)",
    re.IGNORECASE,
)


ABBREVIATIONS = frozenset(re.findall(r"\w+", "avg max min num qty ref src idx cnt amt iso utc"))


def find_leaks(
    instruction: str,
    tools: Iterable[Tool],
    tables: Iterable[Table],
    reference_answer: Any,
    given: Sequence[Any] = (),
    subjects: Sequence[Any] = (),
) -> list[str]:
    """Everything that leaks, each as one line; an empty list when nothing does.

    Names (of tools, parameters, result fields, tables, columns) that no plain English word
    could be (they hold an underscore, a digit or an inner capital) count wherever they
    stand as a word, in any case, also in another code style (``min-elevation``, ``minElevation``); a tool's
    name also in spaced words. Names that are plain words count only where they are written as code:
    quoted with backticks or quotation marks, dotted or called (``books.status``, ``transfer()``), or followed
    by ``=`` or ``:``.

    Args:
        reference_answer: no part of it may be said, in whatever way (:mod:`synth.answer_leaks`).
        given: values that the user states on purpose (the new status of a booking), which
            the answer may repeat.
        subjects: what the gold calls are about. A file name in it is the user's own word (rename draft.txt),
            and no hint where data lies.
    """
    tools, tables = list(tools), list(tables)
    leaks = [f"tool name {name}" for name in sorted(_tool_names_in(instruction, tools))]
    for name in sorted(_identifiers(tools, tables) - {tool.name for tool in tools}):
        if _mentions(instruction, name):
            leaks.append(f"identifier {name}")
    own = canonical(list(subjects))
    named = [match.group() for match in FILE_NAME.finditer(instruction)]
    leaks += [f"file name {name}" for name in named if name not in own]
    leaks += [f"answer {canonical(value)}" for value in _answers_in(instruction, reference_answer, given)]
    return leaks


def task_leaks(task: Task, tools: Sequence[Tool], tables: Iterable[Table]) -> list[str]:
    """Leaks of a finished task; what its user states on purpose are the values that it wants written."""
    writes = {tool.name for tool in tools if not tool.read_only}
    steps = [step for step in task.chain if task.changes_state and step.tool in writes]
    given = [value for step in steps for value in step.arguments.values()]
    subjects = [step.arguments for step in task.chain]
    return find_leaks(task.instruction, tools, tables, task.reference_answer, given, subjects)


# --- names --------------------------------------------------------------------------------------


def _tool_names_in(instruction: str, tools: Iterable[Tool]) -> set[str]:
    found = set()
    for tool in tools:
        parts = _parts(tool.name)
        if not _may_stand_in(instruction, parts):
            continue
        spoken = len(parts) > 1 and _has(instruction, r"[\s_.\-/]*".join(map(re.escape, parts)))
        if spoken or _mentions(instruction, tool.name):
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
    if not _may_stand_in(instruction, _parts(name)):
        return False
    if _looks_like_code(name):
        parts = _parts(name)
        styles = [re.escape(name)]
        if (
            len(parts) > 1
        ):  # written_so, written.so, writtenSo, WrittenSo; written-so where English has no such word
            styles += [r"[_./]+".join(map(re.escape, parts)), re.escape("".join(parts))]
            styles += [r"-".join(map(re.escape, parts))] if len(parts) > 2 or _odd(parts) else []
        return any(_has(instruction, style) for style in styles)
    word = re.escape(name)
    as_code = rf"`{word}`|'{word}'|\"{word}\"|“{word}”|‘{word}’|(?<!\w){word}(?:\s?[=:]|\(|\.[a-z_]\w*\b)"
    return re.search(as_code, instruction, re.IGNORECASE) is not None


def _may_stand_in(text: str, parts: Sequence[str]) -> bool:
    """False when some part stands nowhere in the text, whatever its case: most names, without a pattern."""
    lower = _lower(text)
    return all(part.lower() in lower for part in parts if part.isascii())


@lru_cache(maxsize=8)
def _lower(text: str) -> str:
    """In small letters as ``re.IGNORECASE`` holds text against ASCII: a long s is an s, a dotless i an i."""
    return "".join(char.lower()[0] for char in text).translate({0x17F: "s", 0x131: "i"})


def _looks_like_code(name: str) -> bool:
    return not name.isalpha() or re.search(r"[a-z][A-Z]", name) is not None


def _parts(name: str) -> list[str]:
    """The words of an identifier: ``min_elevation`` and ``minElevation`` are min, elevation."""
    return re.findall(r"[^\W_]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name))


def _odd(parts: Sequence[str]) -> bool:
    """Whether a pair of words joined by a hyphen would be no English: one of them is an abbreviation."""
    return any(len(part) <= 2 or part in ABBREVIATIONS for part in parts)


def _has(text: str, pattern: str) -> bool:
    return re.search(rf"(?<!\w){pattern}(?!\w)", text, re.IGNORECASE) is not None


# --- answers ------------------------------------------------------------------------------------


def _answers_in(instruction: str, answer: Any, given: Sequence[Any]) -> list[Any]:
    allowed = {_key(value) for value in given}
    return [value for value in _scalars(answer) if _key(value) not in allowed and says(instruction, value)]


def _key(value: Any) -> str:
    return canonical(fold(value) if isinstance(value, str) else value)


def _scalars(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [scalar for item in value for scalar in _scalars(item)]
    if isinstance(value, dict):
        return [scalar for item in value.values() for scalar in _scalars(item)]
    return [value]
