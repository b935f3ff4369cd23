"""The sections of the HTML report: records in, HTML text out, an empty string where there is nothing to show.

All text that comes from data passes through :func:`arena.charts.esc`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from arena.charts import Gain, Point, dot_chart, esc, gain_text, interval, legend, line_chart, percent
from arena.evaluate import episode_name
from arena.failures import KINDS
from arena.folder import Funnel
from rl.rewards import reward
from synth.types import ArenaReport, Diagnosis, Provenance, Rate, Task, Trajectory, Turn

CURVES = (  # title, key of rl's metrics, whether it is a share of 1
    ("Reward: training episodes that pass", "reward", True),
    ("Groups with a gradient", "groups_kept", False),
    ("Entropy, nats a token", "entropy", False),
    ("KL to the reference, nats a token", "kl", False),
)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """An HTML table; cells are HTML already. ``numbers``: columns to align right."""
    kind = [' class="n"' if i in numbers else "" for i in range(len(head))]
    top = "".join(f"<th{k}>{esc(cell)}</th>" for k, cell in zip(kind, head, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{k}>{cell}</td>" for k, cell in zip(kind, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def class_names(rounds: Sequence[ArenaReport]) -> list[str]:
    return sorted({name for report in rounds for name in report.per_class})


def headline(title: str, rounds: Sequence[ArenaReport], gains: Sequence[Gain] = ()) -> str:
    """Title, one sentence, and a tile a round. ``gains``: of each later round over the first, paired."""
    if not rounds:
        return f"<h1>{esc(title)}</h1><p class='lead'>No arena round has finished yet.</p>"
    first, last = rounds[0].overall, rounds[-1].overall
    lead = (
        f"On environments that training never saw, the policy passes <b>{interval(last)}</b> of "
        f"{last.tasks} tasks ({esc(rounds[-1].round)})."
    )
    if len(rounds) > 1:
        lead += f" It started at <b>{interval(first)}</b>"
        for report, gain in zip(rounds[1:], gains, strict=False):
            clears = "clears" if gain[1] > 0 else "does not clear"
            lead += f"; {esc(report.round)} it is {gain_text(gain)}, paired by task, which {clears} the start"
        lead += "."
    tiles = "".join(
        f'<div class="tile s{i}"><span>{esc(r.round)}</span><b>{percent(r.overall.passed)}</b>'
        f"<span>95% interval {100 * r.overall.low:.0f} to {100 * r.overall.high:.0f}</span></div>"
        for i, r in enumerate(rounds)
    )
    return f'<h1>{esc(title)}</h1><p class="lead">{lead}</p><div class="tiles">{tiles}</div>'


def classes(rounds: Sequence[ArenaReport]) -> str:
    """Per class: chart and table of pass rates, pass@k, and how episodes ended."""
    if not rounds:
        return ""
    names = [report.round for report in rounds]
    rates: dict[str, list[Rate | None]] = {
        name: [report.per_class.get(name) for report in rounds] for name in class_names(rounds)
    }
    rates["all"] = [report.overall for report in rounds]
    rows = [
        [f"<b>{esc(name)}</b>" if name == "all" else esc(name)]
        + [f"{interval(r)}<br/><small>{r.tasks} tasks</small>" if r else "-" for r in cells]
        for name, cells in rates.items()
    ]
    endings = [
        [
            esc(report.round),
            ", ".join(f"{esc(k)} {n}" for k, n in report.finish_reasons.items()),
            ", ".join(f"@{esc(k)} {percent(v)}" for k, v in report.pass_at_k.items()),
            str(report.infrastructure_errors),
        ]
        for report in rounds
    ]
    return (
        "<h2>Pass rate by class</h2><p class='soft'>Held-out environments, fresh tasks. Mean over tasks with "
        "a 95% bootstrap interval over tasks; broken infrastructure is left out and counted.</p>"
        f"{legend(names)}<figure>{dot_chart(rates, names)}</figure>"
        + table(["class", *names], rows, numbers=range(1, len(names) + 1))
        + "<h3>How episodes ended</h3>"
        + table(["round", "finish", "pass@k", "infrastructure errors"], endings, numbers=[3])
    )


def curves(metrics: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Training curves; the steps of a later stage follow those of the earlier ones, as a line of its own."""
    charts = []
    drawn_keys = {key for _, key, _ in CURVES}
    metrics = {label: rows for label, rows in metrics.items() if any(drawn_keys & row.keys() for row in rows)}
    for title, key, share in CURVES:
        series: dict[str, list[Point]] = {}
        done = 0.0  # steps of the stages before
        for label, rows in metrics.items():
            points = [
                (done + float(row["step"]), float(row[key])) for row in rows if row.get(key) is not None
            ]
            if points:
                series[label] = points
            done += max((float(row["step"]) + 1 for row in rows), default=0.0)
        if drawn := line_chart(title, series, share):
            charts.append(f"<figure>{drawn}</figure>")
    if not charts:
        return ""
    return (
        "<h2>Training</h2><p class='soft'>One point a step, not smoothed.</p>"
        + (_line_legend(list(metrics)) if len(metrics) > 1 else "")
        + f'<div class="grid2">{"".join(charts)}</div>'
    )


def _line_legend(labels: Sequence[str]) -> str:
    lines = "".join(
        f'<span><svg width="22" height="10" aria-hidden="true"><line class="line s{i + 1}" x1="1" x2="21" '
        f'y1="5" y2="5"/></svg>{esc(label)}</span>'
        for i, label in enumerate(labels)
    )
    return f'<p class="legend">{lines}</p>'


def funnel(stages: Sequence[Funnel]) -> str:
    """What each stage of synthesis kept and dropped, and why."""
    if not stages:
        return ""
    rows = []
    for stage in stages:
        lost = sum(stage.dropped.values())
        kept = 100 * stage.kept / max(1, stage.kept + lost)
        reasons = "<br/>".join(f"{n} × {esc(reason)}" for reason, n in stage.dropped.items()) or "-"
        rest = f'<div class="meter lost" style="width:{100 - kept:.1f}%"></div>' if lost else ""
        bar = f'<div class="meters"><div class="meter" style="width:{kept:.1f}%"></div>{rest}</div>'
        rows.append([esc(stage.stage), bar, str(stage.kept), str(lost), reasons])
    return "<h2>Synthesis</h2><p class='soft'>Blue is kept, grey is dropped.</p>" + table(
        ["stage", "", "kept", "dropped", "why dropped"], rows, numbers=[2, 3]
    )


def diagnosis(found: Diagnosis) -> str:
    """Weak environments, weakest first, with error kinds, evidence and guides."""
    if not found.weaknesses:
        return f"<h2>Diagnosis: {esc(found.round)}</h2><p>No measured episode failed.</p>"
    blocks = []
    for weak in found.weaknesses:
        chips = "".join(
            f'<span class="chip" title="{esc(KINDS.get(kind, ""))}">{esc(kind.replace("_", " "))} {n}</span>'
            for kind, n in weak.error_kinds.items()
        )
        evidence = "".join(f"<li><code>{esc(line)}</code></li>" for line in weak.evidence)
        guides = "".join(f"<li>{esc(guide.text)}</li>" for guide in weak.guides)
        blocks.append(
            f"<h3>{esc(weak.env_id)} <span class='soft'>{esc(' / '.join(weak.taxonomy))}, "
            f"passes {percent(weak.pass_rate)}</span></h3><p>{chips}</p>"
            f"<details><summary>Evidence ({len(weak.evidence)})</summary><ul>{evidence}</ul></details>"
            f"<p class='soft'>New tasks for training environments of this class should:</p><ul>{guides}</ul>"
        )
    return (
        f"<h2>Diagnosis: {esc(found.round)}</h2><p class='soft'>Weakest first. Kinds are decided by program "
        "from the turns and the gold calls; no model judged them.</p>" + "".join(blocks)
    )


def episodes(examples: Sequence[tuple[str, Task, Trajectory]]) -> str:
    """Whole episodes, passed and failed, as they were sampled."""
    if not examples:
        return ""
    blocks = []
    for number, (round_name, task, trajectory) in enumerate(examples):
        passed = reward(trajectory) == 1.0
        chip = f'<span class="chip {"good" if passed else "bad"}">{"passed" if passed else "failed"}</span>'
        turns = "".join(_turn(turn) for turn in trajectory.turns if turn.role != "prompt")
        checks = "; ".join(
            f"{c.name}: {'ok' if c.passed else c.detail or 'failed'}"
            for c in (trajectory.verdict.checks if trajectory.verdict else ())
        )
        blocks.append(
            f"<details{' open=' + chr(34) + 'open' + chr(34) if number == 0 else ''}><summary>{chip}"
            f"{esc(task.instruction)} <span class='soft'>{esc(round_name)}, {esc(episode_name(trajectory))}"
            f"</span></summary>{turns}<div class='turn'><span>verdict</span><pre>{esc(checks or '-')}</pre>"
            "</div></details>"
        )
    return "<h2>Episodes</h2><p class='soft'>As sampled, of the first and the last round.</p>" + "".join(
        blocks
    )


def _turn(turn: Turn) -> str:
    note = f'<br/><span class="chip bad">{esc(turn.error)}</span>' if turn.error else ""
    who = "agent" if turn.role == "assistant" else turn.role
    return f'<div class="turn {turn.role}"><span>{who}{note}</span><pre>{esc(turn.text.strip())}</pre></div>'


def provenance(sources: Sequence[tuple[str, Provenance]]) -> str:
    """Where the data comes from, one row a source; derived tables are counted, not listed."""
    if not sources:
        return ""
    named: dict[tuple[str, str, str, str], list[str]] = {}
    derived: Counter[str] = Counter()
    for env_id, source in sources:
        if source.package is None and source.origin in ("derived", "simulated"):
            derived[source.origin] += 1
            continue
        key = (source.package or source.origin, source.version or "", source.license, source.retrieved)
        named.setdefault(key, []).append(f"{env_id}: {source.target}")
    rows = [
        [esc(package), esc(version), esc(license_), esc(date), esc(", ".join(sorted(set(targets))))]
        for (package, version, license_, date), targets in sorted(named.items())
    ]
    rest = ", ".join(f"{n} tables are {kind}" for kind, n in sorted(derived.items()))
    return (
        "<h2>Where the data comes from</h2>"
        + table(["package", "version", "license", "retrieved", "used for"], rows)
        + (
            f"<p class='soft'>Besides, {esc(rest)} from these by the author of the environment.</p>"
            if rest
            else ""
        )
    )
