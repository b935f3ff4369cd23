"""The body of ``agent-world costs``: the ledger of a model's folder, and an estimate before a run.

Comes from: the exchanges that are kept in the folder, and how the roles work (:mod:`synth.author.estimate`).
Goes to: the screen; nothing is sent.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from arena.commands import screen
from synth.author.estimate import Estimate, estimate
from synth.author.settings import Settings
from synth.author.store import Line, Store


def run_costs(llm_file: Path, themes: int, tasks: int, as_json: bool) -> int:
    """Print what was spent and, for ``themes`` > 0, what that many environments would come to.

    Returns:
        1 when the estimate exceeds what is left of a budget.

    Raises:
        CallerError: bad settings.
    """
    settings = Settings.read(llm_file)
    ledger = Store(settings.folder).ledger()
    lines = estimate(settings, themes, tasks) if themes else []
    short = _short(settings, ledger, lines)
    if as_json:
        told = {
            "ledger": [asdict(line) for line in ledger],
            "spent_usd": sum(line.usd for line in ledger),
            "spent_tokens": _tokens(ledger),
            "budget_usd": settings.budget_usd,
            "budget_tokens": settings.budget_tokens,
            "estimate": [asdict(line) for line in lines],
            "met": not short,
        }
        print(json.dumps(told))
        return 1 if short else 0
    _show_ledger(ledger)
    if lines:
        _show_estimate(lines, themes, tasks)
    print(_budget(settings, ledger))
    for line in short:
        print(line)
    return 1 if short else 0


def _tokens(ledger: list[Line]) -> int:
    return sum(line.tokens_in + line.tokens_out for line in ledger)


def _short(settings: Settings, ledger: list[Line], lines: list[Estimate]) -> list[str]:
    """How an estimate exceeds what is left, a line each."""
    if not lines:
        return []
    total, found = lines[-1], []
    if settings.budget_usd is not None and total.usd is not None:
        left = settings.budget_usd - sum(line.usd for line in ledger)
        if total.usd > left:
            found.append(f"the estimate of ${total.usd:,.2f} exceeds the ${left:,.2f} that are left")
    if settings.budget_tokens is not None:
        left = settings.budget_tokens - _tokens(ledger)
        tokens = total.tokens_in + total.tokens_out
        if tokens > left:
            found.append(f"the estimate of {tokens:,} tokens exceeds the {left:,} that are left")
    return found


def _budget(settings: Settings, ledger: list[Line]) -> str:
    spent = f"spent: ${sum(line.usd for line in ledger):,.4f}, {_tokens(ledger):,} tokens"
    limits = [f"${settings.budget_usd:g}"] if settings.budget_usd is not None else []
    limits += [f"{settings.budget_tokens:,} tokens"] if settings.budget_tokens is not None else []
    return f"{spent}; budget: {' and '.join(limits) or 'none'}"


def _show_ledger(ledger: list[Line]) -> None:
    table = Table("stage", "prompt", "exchanges", "tokens in", "tokens out", "US dollars", "unanswered")
    for line in ledger:
        counts = (f"{n:,}" for n in (line.exchanges, line.tokens_in, line.tokens_out))
        table.add_row(line.stage, line.prompt, *counts, f"{line.usd:.4f}", str(line.unanswered))
    screen().print(table)


def _show_estimate(lines: list[Estimate], themes: int, tasks: int) -> None:
    table = Table("prompt", "exchanges", "tokens in", "tokens out", "US dollars")
    for line in lines:
        counts = (f"{n:,}" for n in (line.exchanges, line.tokens_in, line.tokens_out))
        table.add_row(line.prompt, *counts, "unknown" if line.usd is None else f"{line.usd:.2f}")
    screen().print(table)
    print(f"estimate for {themes} environments with {tasks} tasks each; nothing was sent")
