"""A difference of states as lines that a person reads; made by :func:`synth.env.state.diff`.

book B-1: copies 3 -> 2
+ loan LN-9001: book_id "B-1", member_id "M-1"
- member M-2: name "Ada"
+ file notes.md
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from synth.env.state import FILES, canonical

if TYPE_CHECKING:
    from synth.env.state import StateDiff

MOST = 200  # characters of a line


def readable(changes: StateDiff) -> str:
    """One line for each row or file that was changed, added or removed; empty when nothing was."""
    lines = []
    for table, change in changes.items():
        if table == FILES:
            before = {row["path"] for row in change["removed"]}
            lines += [f"+ file {row['path']}" for row in change["added"]]
            lines += [f"- file {path}" for path in sorted(before)]
            lines += [f"file {row['key']}: its content" for row in change["changed"]]
            continue
        lines += [f"{table} {row['key']}: {_pairs(row)}" for row in change["changed"]]
        lines += [f"+ {table} {_row(row)}" for row in change["added"]]
        lines += [f"- {table} {_row(row)}" for row in change["removed"]]
    return "\n".join(line if len(line) <= MOST else line[: MOST - 3] + "..." for line in lines)


def _pairs(row: dict[str, Any]) -> str:
    return ", ".join(
        f"{column} {canonical(value['old'])} -> {canonical(value['new'])}"
        for column, value in row.items()
        if column != "key"
    )


def _row(row: dict[str, Any]) -> str:
    (_, first), *rest = row.items()
    return f"{first}: " + ", ".join(f"{name} {canonical(value)}" for name, value in rest)
