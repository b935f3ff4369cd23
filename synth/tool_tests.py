"""A tool's unit tests, run in the sandbox, and the promises that only running shows.

Each case of a bundle's ``cases/<name>.jsonl`` runs twice, each time from a fresh start: the result or
error code and the effect on the state must be the expected ones, and both runs equal. The first runs of a
tool have a process of their own and are what counts; the second runs go backwards, in a process that other
tools use too (:mod:`synth.env.series`), so what remembers something where no reset reaches differs. What
comes out is the tool's real pass rate, the failed cases, and gates in the ledger of :mod:`synth.admission`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator

from synth.env import state as states
from synth.env.series import in_series, own_series
from synth.errors import InfrastructureError
from synth.gates import Fault, Ledger, Progress
from synth.types import Tool, ToolCase
from synth.verify import canonical, is_number

if TYPE_CHECKING:
    from synth.env.bundle import Bundle
    from synth.env.serving import ServerLike

KEEP_ABOVE = 0.5  # the paper's bar: a tool is kept when more than half of its tests pass
CASE_SEED = 0  # seed of the episodes in which tool tests run


@dataclass(frozen=True)
class _Outcome:
    """What one case did: result or error, and the effect on the state."""

    error: str | None
    value: Any
    message: str
    digest: str | None
    changes: dict[str, int]
    changed: bool = False  # whether the state's digest moved, audit tables left out

    def same_as(self, other: _Outcome) -> bool:
        return (self.error, canonical(self.value), self.digest) == (
            other.error,
            canonical(other.value),
            other.digest,
        )


def _run_case(server: ServerLike, bundle: Bundle, tool: Tool, case: ToolCase, last: bool = False) -> _Outcome:
    """One case from a fresh start. A tool under which its process dies twice has failed, not the machine."""
    try:
        return _run_once(server, bundle, tool, case)
    except InfrastructureError as err:
        if not server.alive:
            raise
        if last:
            return _Outcome("died", None, str(err), None, {})
        return _run_case(server, bundle, tool, case, last=True)


def _run_once(server: ServerLike, bundle: Bundle, tool: Tool, case: ToolCase) -> _Outcome:
    audit = bundle.manifest.audit_tables
    with server.open(CASE_SEED) as episode:
        for step in case.before:
            episode.call(step.tool, step.arguments)
        start = episode.snapshot() if case.before else bundle.state
        result = episode.call(tool.name, case.arguments)
        final = None if episode.dead else episode.snapshot()
    message = result.error_message or ""
    if final is None:
        return _Outcome(result.error_code, result.value, message, None, {})
    was = states.digest(start, audit) if case.before else bundle.manifest.state_digest
    if final == start:
        return _Outcome(result.error_code, result.value, message, was, {})
    changes = _row_counts(states.diff(start, final), audit)
    digest = states.digest(final, audit)
    return _Outcome(result.error_code, result.value, message, digest, changes, digest != was)


def _row_counts(diff: dict[str, Any], audit_tables: Sequence[str]) -> dict[str, int]:
    counts = {table: sum(map(len, parts.values())) for table, parts in diff.items()}
    return {table: n for table, n in counts.items() if n and table not in audit_tables}


def _case_problem(case: ToolCase, got: _Outcome, audit_tables: Sequence[str]) -> str:
    """How a case's outcome differs from what it expects, or an empty string."""
    if got.error != case.error:
        return f"expected {case.error or 'a result'}, got {got.error or 'a result'} {got.message}".rstrip()
    if case.error is None and not _close(got.value, case.expect):
        return f"expected {canonical(case.expect)[:160]}, got {canonical(got.value)[:160]}"
    expected = {table: n for table, n in case.changes.items() if n and table not in audit_tables}
    if got.changes != expected:
        return f"expected changes {canonical(expected)}, got {canonical(got.changes)}"
    return ""


def _test_tool(server: ServerLike, bundle: Bundle, tool: Tool, ledger: Ledger) -> tuple[float, list[Fault]]:
    """Run each case of a tool twice, from a fresh start each time.

    Returns:
        The share of cases that passed, and what failed. Determinism, the promise of
        read-only or write and the result's schema go into the ledger as gates of the tool.
    """
    failed, unequal, misshapen, disturbed, wrote = [], [], [], [], False
    validator = Draft202012Validator(tool.output_schema)
    with own_series(server) as own:
        first_runs = [_run_case(own, bundle, tool, case) for case in tool.cases]
    second_runs = [_run_case(in_series(server), bundle, tool, case) for case in reversed(tool.cases)]
    runs = zip(tool.cases, first_runs, reversed(second_runs), strict=True)
    for number, (case, got, again) in enumerate(runs, start=1):
        name = f"{tool.name}#{number}"
        if not got.same_as(again):
            unequal.append(name)
        if problem := _case_problem(case, got, bundle.manifest.audit_tables):
            failed.append(Fault(gate="case", target=name, detail=problem))
        error = None if got.error else next(validator.iter_errors(got.value), None)
        if error is not None:
            misshapen.append(f"{name}: {error.message[:160]}")
        if got.changed:
            wrote = True
            disturbed.append(name)
    rate = 1 - len(failed) / len(tool.cases) if tool.cases else 0.0
    check = ledger.check
    first = f"; {failed[0].target}: {failed[0].detail}" if failed else ""
    check(rate > KEEP_ABOVE, "tests", tool.name, f"{rate:.2f} of its tests pass, more than 0.5 must{first}")
    check(not unequal, "determinism", tool.name, f"two runs of the same call differ: {', '.join(unequal)}")
    check(not misshapen, "output-schema", tool.name, "; ".join(misshapen))
    if tool.read_only:
        check(
            not disturbed,
            "read-only",
            tool.name,
            f"changes the state though read-only: {', '.join(disturbed)}",
        )
    else:
        check(wrote, "write", tool.name, "is a write tool, but no test of it changes the state")
    return rate, failed


def run_tests(
    bundle: Bundle,
    tools: Sequence[Tool],
    server: ServerLike,
    ledger: Ledger,
    progress: Progress | None = None,
) -> tuple[dict[str, float], list[Fault]]:
    rates: dict[str, float] = {}
    failed: list[Fault] = []
    for done, tool in enumerate(tools):
        rates[tool.name], failures = _test_tool(server, bundle, tool, ledger)
        failed += failures
        if progress:
            progress(done + 1, len(tools), tool.name)
    return rates, failed


def _close(actual: Any, expected: Any) -> bool:
    """Equal as JSON, apart from the last digits of a real (they differ from one SQLite to the next)."""
    if isinstance(actual, dict) and isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(_close(actual[k], expected[k]) for k in actual)
    if isinstance(actual, list) and isinstance(expected, list | tuple):
        return len(actual) == len(expected) and all(map(_close, actual, expected))
    if is_number(actual) and is_number(expected):
        return math.isclose(actual, expected, rel_tol=1e-9)
    return canonical(actual) == canonical(expected)
