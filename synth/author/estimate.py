"""What a run will come to, before it is started: exchanges, tokens and dollars by prompt.

Exchanges for each theme, tool and task are counted from how the roles work (:data:`SHAPE`); tokens are those
of the store's own exchanges of the same prompt, where there are any, else of the prompt file and its
header. It is an estimate: repairs and redraws depend on the model.
"""

from __future__ import annotations

from dataclasses import dataclass

from synth.author import prompting
from synth.author.endpoint import price_of, usd
from synth.author.settings import Settings
from synth.author.store import Store

# prompt -> (unit, exchanges for each unit, tokens of the inputs that the file does not show); ours, guessed
# from how the roles work: a mining of 12 turns grows by what it reads, every other tool is repaired once
SHAPE = {
    "mine": ("theme", 12.0, 9000),
    "enrich": ("theme", 2.5, 1500),
    "tool_design": ("theme", 1.2, 2000),
    "tool_code": ("tool", 1.5, 2000),
    "word_chain": ("graph", 1.5, 900),
    "write_program": ("program", 2.0, 5000),
    "solve": ("try", 6.0, 4000),
}
TOOLS = 11  # of an environment (synth.author.online.toolsmith.COUNT)
TRIES = 5  # of the filter


@dataclass(frozen=True)
class Estimate:
    """One line: a prompt, or all of them together."""

    prompt: str
    exchanges: int
    tokens_in: int
    tokens_out: int
    usd: float | None  # None: the price is unknown


def estimate(settings: Settings, themes: int, tasks: int) -> list[Estimate]:
    """What ``themes`` environments with ``tasks`` tasks each will come to; the last line is the sum.

    Nothing is sent. Half of the tasks are of each route, and drafts that gates drop are not counted.
    """
    units = {
        "theme": themes,
        "tool": themes * TOOLS,
        "graph": themes * tasks / 2,
        "program": themes * tasks / 2,
    }
    units["try"] = themes * tasks * TRIES
    known = {line.prompt: line for line in Store(settings.folder).ledger() if line.exchanges}
    lines = []
    for name, (unit, each, inputs) in SHAPE.items():
        page, seen = prompting.load(name), known.get(name)
        tokens_in, tokens_out = (len(page.system) + len(page.user)) / 4 + inputs, float(page.output_tokens)
        if seen is not None:
            tokens_in, tokens_out = seen.tokens_in / seen.exchanges, seen.tokens_out / seen.exchanges
        count = units[unit] * each
        price = price_of(settings, (settings.solver_model if name == "solve" else None) or settings.model)
        total_in, total_out = round(count * tokens_in), round(count * tokens_out)
        cost = None if price is None else usd(total_in, total_out, price)
        lines.append(Estimate(name, round(count), total_in, total_out, cost))
    costs = [line.usd for line in lines]
    total = None if None in costs else sum(c for c in costs if c is not None)
    sums = [sum(getattr(line, f) for line in lines) for f in ("exchanges", "tokens_in", "tokens_out")]
    return [*lines, Estimate("all", sums[0], sums[1], sums[2], total)]
