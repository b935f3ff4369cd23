"""The parts that all verifiers of program tasks share, as source text."""

from __future__ import annotations

VERIFY_HEAD = """\
def number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def verify(initial, final, answer):
    checks = []
"""
VERIFY_STATE = """\
    diff = initial.diff(final)
    allowed = {allowed}
    checks.append(("nothing else changed", set(diff) <= allowed, "changed: " + ", ".join(sorted(diff))))
    return checks
"""
VERIFY_ANSWER = """\
    checks.append(("answer is a number", number(answer), repr(answer)))
    checks.append(("answer value", number(answer) and abs(answer - expected) < 0.011, f"{answer!r}, expected {expected!r}"))
"""


def names(*tables: str) -> str:
    """Source of a set of table names, in a fixed order."""
    return "{" + ", ".join(repr(t) for t in sorted(tables)) + "}"
