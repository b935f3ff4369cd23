"""The story of a run as one HTML file, and its headline as a plain table for the terminal.

Comes from: a run folder (:mod:`arena.folder`). Goes to: ``RUN/report.html``, self-contained: inline CSS and
SVG, no scripts, no fonts or pictures from elsewhere, light and dark theme.
The sections are in :mod:`arena.sections`; this file gathers what they show and puts them in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from arena import sections
from arena.charts import Gain, esc, interval
from arena.folder import Funnel, Round, RunFolder, write_text
from arena.portrait import portrait
from arena.rates import rise
from rl.rewards import reward
from synth.types import ArenaReport, Diagnosis, Provenance, Task, Trajectory


@dataclass(frozen=True)
class Story:
    """All that a report shows. Parts that a run doesn't have yet stay empty and are left out."""

    title: str
    rounds: Sequence[ArenaReport] = ()
    gains: Sequence[tuple[str, Gain]] = ()  # (round, rise since the first round); see :func:`rises`
    metrics: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # stage -> rows, one a step
    funnel: Sequence[Funnel] = ()
    taxonomy: Sequence[tuple[str, str]] = ()  # (first level, second level) of each environment
    diagnoses: Sequence[Diagnosis] = ()
    examples: Sequence[tuple[str, Task, Trajectory]] = ()  # (round, task, episode)
    provenance: Sequence[tuple[str, Provenance]] = ()  # (env_id, source)
    facts: dict[str, str] = field(default_factory=dict)  # "seed" -> "0", shown in the footer


def gather(run: RunFolder, facts: dict[str, str] | None = None, examples: int = 2) -> Story:
    """Read a run folder into a story.

    Args:
        facts: for the footer, such as seed, version and time taken.
        examples: passed and failed episodes to show of the first and of the last round, each.
    """
    tasks, rounds = run.tasks(), run.rounds()
    shown: list[tuple[str, Task, Trajectory]] = []
    for stage in dict.fromkeys([*rounds[:1], *rounds[-1:]]):
        name = stage.report().round
        for value in (1.0, 0.0):
            picked: dict[str, Trajectory] = {}  # one an environment, so that examples differ
            for trajectory in stage.episodes():
                if reward(trajectory) == value and trajectory.task_id in tasks:
                    picked.setdefault(trajectory.env_id, trajectory)
            shown += [(name, tasks[t.task_id], t) for t in list(picked.values())[:examples]]
    return Story(
        title="Agent World: one turn of the loop",
        rounds=[stage.report() for stage in rounds],
        gains=rises(rounds),
        metrics=run.metrics(),
        funnel=run.funnel(),
        taxonomy=[(m.taxonomy[0], m.taxonomy[1]) for m in run.manifests() if len(m.taxonomy) == 2],
        diagnoses=[d for stage in rounds if (d := stage.diagnosis()) is not None],
        examples=shown,
        provenance=run.provenance(),
        facts=facts or {},
    )


def render(story: Story) -> str:
    """The HTML text; well-formed XML after the doctype."""
    parts = [
        sections.headline(story.title, story.rounds, [gain for _, gain in story.gains]),
        sections.classes(story.rounds),
        sections.curves(story.metrics),
        sections.funnel(story.funnel),
        portrait(story.taxonomy),
        *(sections.diagnosis(d) for d in story.diagnoses),
        sections.episodes(story.examples),
        sections.provenance(story.provenance),
    ]
    css = resources.files("arena").joinpath("report.css").read_text(encoding="utf-8")
    facts = " · ".join(f"{esc(key)}: {esc(value)}" for key, value in story.facts.items())
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        '<meta name="color-scheme" content="light dark"/>'
        f"<title>{esc(story.title)}</title>\n<style>{css}</style></head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + f"\n<footer>{facts}</footer>\n</body></html>\n"
    )


def rises(rounds: Sequence[Round]) -> list[tuple[str, Gain]]:
    """Each later round's rise since the first, over the tasks that both measured, with its interval."""
    rewards: list[dict[str, list[float]]] = []
    for stage in rounds:
        by_task: dict[str, list[float]] = {}
        for episode in stage.episodes():
            if (value := reward(episode)) is not None:
                by_task.setdefault(episode.task_id, []).append(value)
        rewards.append(by_task)
    names = [stage.report().round for stage in rounds]
    return [(name, rise(rewards[0], later, 0)) for name, later in zip(names[1:], rewards[1:], strict=True)]


def write_report(run: RunFolder, facts: dict[str, str] | None = None) -> Path:
    """Write ``RUN/report.html`` from what the run folder holds, and return its path."""
    path = run.root / "report.html"
    write_text(path, render(gather(run, facts)))
    return path


def summary_table(rounds: Sequence[ArenaReport], title: str = "Held-out environments"):
    """Per class: pass rate with its 95% interval in each round, as a ``rich.table.Table``."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", caption="pass rate [95% interval over tasks]")
    table.add_column("class")
    for report in rounds:
        table.add_column(report.round, justify="right")
    for name in sections.class_names(rounds):
        cells = [interval(r.per_class[name]) if name in r.per_class else "-" for r in rounds]
        table.add_row(name, *cells)
    table.add_section()
    table.add_row("all", *(interval(report.overall) for report in rounds), style="bold")
    return table
