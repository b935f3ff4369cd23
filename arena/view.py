"""Look at a run: its summary, its tasks, and any episode turn by turn, in the terminal.

Comes from: a run folder (:mod:`arena.folder`). Goes to: standard output, through rich.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from arena.commands import screen
from arena.evaluate import episode_name
from arena.folder import REPORT_READS, RunFolder, iterate_records
from arena.report import summary_table
from beam_jobs.mirror import Mirror, mirrored
from rl.rewards import reward
from synth.errors import CallerError
from synth.types import Task, Trajectory


def run_view(root: Path, task: str | None = None, episode: str | None = None, as_json: bool = False) -> None:
    """Print a run's summary, one task, or one episode.

    Args:
        root: the run folder.
        task: id of a task to show with its episodes.
        episode: ``TASK#SAMPLE`` of an episode to show turn by turn.
        as_json: print one JSON object instead.

    Raises:
        CallerError: the folder, task or episode does not exist, or both were asked for.
    """
    if task and episode:
        raise CallerError("give --task or --episode, not both")
    reads = (*REPORT_READS, "train/*/trajectories/*")
    with mirrored(root, reads if episode or task else REPORT_READS) as here:
        _view(here, task, episode, as_json)


def _view(here: Mirror, task: str | None, episode: str | None, as_json: bool) -> None:
    """:func:`run_view` in a local folder."""
    run, console = RunFolder(here.root), screen()
    if episode:
        trajectory = run.find_episode(episode)
        if as_json:
            print(trajectory.to_json())
        else:
            show_episode(console, trajectory, run.tasks().get(trajectory.task_id))
    elif task:
        found = run.tasks().get(task)
        if found is None:
            raise CallerError(f"no task {task} under {run.root}/tasks")
        if as_json:
            print(found.to_json())
        else:
            show_task(console, found, run)
    elif as_json:
        print(json.dumps(summary(run) | {"run": here.url}))
    else:
        show_run(console, run, here.url)


def summary(run: RunFolder) -> dict[str, Any]:
    """Counts and rates of a run as one JSON-able object."""
    return {
        "run": str(run.root),
        "environments": len(list(run.root.glob("bundles/*/manifest.json"))),
        "tasks": len(run.tasks()),
        "rounds": [json.loads(stage.report().to_json()) for stage in run.rounds()],
        "training_steps": {label: len(rows) for label, rows in run.metrics().items()},
    }


def show_run(console: Console, run: RunFolder, url: str | None = None) -> None:
    """Print what a run folder holds.

    Args:
        url: what the user calls the folder.
    """
    url = url or str(run.root)
    tasks = run.tasks()
    routes = Counter(task.route for task in tasks.values())
    changing = sum(task.changes_state for task in tasks.values())
    console.print(f"[bold]{url}[/]", highlight=False)
    console.print(f"environments: {len(list(run.root.glob('bundles/*/manifest.json')))}")
    console.print(
        f"tasks: {len(tasks)} ("
        + ", ".join(f"{route} {n}" for route, n in sorted(routes.items()))
        + (", " if routes else "")
        + f"{changing} change the state)"
    )
    for label, rows in run.metrics().items():
        console.print(f"training {label}: {len(rows)} steps")
    reports = [stage.report() for stage in run.rounds()]
    if reports:
        console.print(summary_table(reports))
        console.print(f"failed episodes of {reports[-1].round}: {len(reports[-1].failures)}")
        for name in reports[-1].failures[:3]:
            console.print(f"  agent-world view {url} --episode '{name}'", highlight=False)
    else:
        console.print("no arena round has finished yet")


def show_task(console: Console, task: Task, run: RunFolder) -> None:
    """Print a task, its gold calls, and how its episodes went."""
    console.print(Panel(Text(task.instruction), title=task.id, title_align="left"))
    console.print(
        f"{task.route} route, pattern {task.pattern}, "
        f"{'changes' if task.changes_state else 'does not change'} the state",
        highlight=False,
    )
    for number, step in enumerate(task.chain, start=1):
        console.print(
            f"  {number}. {step.tool} {json.dumps(step.arguments, ensure_ascii=False)}", markup=False
        )
    console.print(f"  answer: {json.dumps(task.reference_answer, ensure_ascii=False)}", markup=False)
    table = Table("episodes in", "passed", "failed", "broken")
    for path in run.episode_files():
        rewards = [reward(t) for t in iterate_records(path, Trajectory) if t.task_id == task.id]
        if rewards:
            counts = [str(rewards.count(value)) for value in (1.0, 0.0, None)]
            table.add_row(str(path.relative_to(run.root)), *counts)
    if table.row_count:
        console.print(table)


def show_episode(console: Console, trajectory: Trajectory, task: Task | None) -> None:
    """Print an episode turn by turn, then its verdict."""
    value = reward(trajectory)
    outcome = {1.0: "[green]passed[/]", 0.0: "[red]failed[/]", None: "[yellow]infrastructure error[/]"}[value]
    console.print(
        f"[bold]{episode_name(trajectory)}[/] in {trajectory.env_id}: {outcome}, "
        f"finish {trajectory.finish_reason}, {len(trajectory.token_ids)} tokens",
        highlight=False,
    )
    if task is not None:
        console.print(Panel(Text(task.instruction), title="task", title_align="left"))
    style = {"assistant": "cyan", "tool": "white", "prompt": "bright_black"}
    for turn in trajectory.turns:
        title = "agent" if turn.role == "assistant" else turn.role
        if turn.policy_version is not None:
            title += f" (policy version {turn.policy_version})"
        if turn.error:
            title += f" - {turn.error}"
        text = turn.text.strip()
        if turn.role == "prompt" and len(text) > 1500:
            text = text[:1500] + f"\n... {len(text) - 1500} more characters"
        console.print(Panel(Text(text), title=Text(title), title_align="left", border_style=style[turn.role]))
    if trajectory.verdict is not None:
        table = Table("check", "result", "detail", title="verdict", title_justify="left")
        for check in trajectory.verdict.checks:
            table.add_row(check.name, "ok" if check.passed else "failed", Text(check.detail))
        console.print(table)
    if trajectory.error or (trajectory.verdict and trajectory.verdict.error):
        console.print(
            f"error: {trajectory.error or (trajectory.verdict and trajectory.verdict.error)}", markup=False
        )
