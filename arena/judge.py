"""The body of ``agent-world judge``: how often a judge errs, and what it says of a run's judged tasks.

Comes from: calibration cases (:mod:`synth.judging`), and the last arena round of a run. Goes to: the screen.
Rates of rounds and rewards of training stay as they were: programs alone decide them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.table import Table

from arena.commands import bar, screen
from arena.folder import RunFolder
from arena.rates import wilson
from beam_jobs.mirror import mirrored
from synth.author.online.judge import LLMJudge
from synth.errors import CallerError
from synth.judging import CASES, Calibration, Judge, calibrate, judged, read_cases
from synth.types import Task, Trajectory
from synth.verify import verdict_with

MOST_ERRORS = 0.1  # upper end of the error rate's interval above which a judge does not count (ours)


def run_judge(run: Path | None, llm_file: Path, cases: Path | None, most: float, as_json: bool) -> int:
    """Calibrate a judge; with a run, let it judge the judged tasks of its last round.

    Returns:
        1 when the upper end of the error rate's 95% interval is above ``most``; then no run is judged.

    Raises:
        CallerError: bad settings or cases, or the run has no finished round.
    """
    from synth.author.llm import LLM
    from synth.author.settings import Settings

    judge = LLMJudge(LLM(Settings.read(llm_file)))
    with bar("known cases") as progress:
        found = calibrate(judge, read_cases(cases or CASES), progress)
    low, high = wilson(found.error_rate, found.cases)
    good = high <= most
    told: dict[str, Any] = {
        "judge": found.judge, "cases": found.cases, "error_rate": found.error_rate, "low": low, "high": high,
        "wrongly_accepted": [found.accepted, found.wrong], "wrongly_refused": [found.refused, found.right],
        "by_kind": found.by_kind, "most": most, "met": good,
    }  # fmt: skip
    if not as_json:
        _show(found, low, high, most)
    if run is not None and good:
        told["run"] = judge_run(run, judge)
        if not as_json:
            _show_run(told["run"], found, high)
    if as_json:
        print(json.dumps(told))
    return 0 if good else 1


def judge_run(run: Path, judge: Judge) -> dict[str, Any]:
    """Judge the last round's episodes of tasks with judged criteria.

    Returns:
        ``round``, ``tasks`` and ``episodes`` with judged criteria, ``by_program``: how many of these episodes
        pass all programs, ``with_judge``: how many pass the judge as well.
    """
    with mirrored(run, ("tasks/*", "arena/*")) as here:
        folder = RunFolder(here.root)
        if not folder.rounds():
            raise CallerError(f"{run}: no arena round has finished; run 'agent-world arena {run}' first")
        last = folder.rounds()[-1]
        tasks = {i: task for i, task in folder.tasks().items() if judged(task.verifier)}
        episodes = [t for t in last.episodes() if t.task_id in tasks and t.verdict and not t.verdict.error]
        name = last.report().round
    return {
        "round": name,
        "tasks": len(tasks),
        "episodes": len(episodes),
        "by_program": sum(bool(t.verdict and t.verdict.passed) for t in episodes),
        "with_judge": sum(_passes(t, tasks[t.task_id], judge) for t in episodes),
    }


def _passes(trajectory: Trajectory, task: Task, judge: Judge) -> bool:
    """Whether an episode that passes the programs passes the judge as well; others are not asked about."""
    if trajectory.verdict is None or not trajectory.verdict.passed:
        return False
    return verdict_with(trajectory.verdict, task, trajectory.answer, judge).passed


def _show(found: Calibration, low: float, high: float, most: float) -> None:
    table = Table("kind of case", "errors", "cases")
    for kind, (errors, count) in found.by_kind.items():
        table.add_row(kind, str(errors), str(count))
    screen().print(table)
    print(
        f"{found.judge}: {100 * found.error_rate:.1f}% errors [{100 * low:.1f}, {100 * high:.1f}] "
        f"on {found.cases} known cases; {found.accepted} of {found.wrong} wrong ones accepted, "
        f"{found.refused} of {found.right} right ones refused"
    )
    if high > most:
        print(f"it errs too often to count: the interval reaches above {100 * most:.0f}%")


def _show_run(told: dict[str, Any], found: Calibration, high: float) -> None:
    print(
        f"{told['round']}: {told['episodes']} episodes of {told['tasks']} tasks with judged criteria; "
        f"{told['by_program']} pass the programs, {told['with_judge']} pass the judge too, who errs in "
        f"{100 * found.error_rate:.1f}% (up to {100 * high:.1f}%)"
    )
