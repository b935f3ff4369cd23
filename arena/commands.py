"""The bodies of the commands that look at, check and steer a run; :mod:`arena.cli` imports them lazily.

Each returns an exit code: 0 done, 1 what was measured fell short. With ``as_json`` the last line printed is
one JSON object, and nothing else goes to standard output.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from arena.folder import Round, RunFolder, read_records
from beam_jobs.mirror import Mirror, fetched, mirrored, named
from synth.errors import CallerError
from synth.types import Diagnosis, SynthesisRequest, Task, Theme

if TYPE_CHECKING:
    from arena.sample import Split
    from beam_jobs.stage import Summary
    from synth.admission import CheckReport

Report = Callable[[int, int, str], None]  # done, total, name of what finished last


def screen() -> Console:
    """Standard output; 160 columns wide where it is no terminal, so that pipes and logs get whole words."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


@contextmanager
def bar(label: str) -> Iterator[Report]:
    """A progress bar on standard error, shown only on a terminal, so that pipes and logs stay clean."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        line = progress.add_task(label, total=None)

        def report(done: int, total: int, name: str = "") -> None:
            progress.update(line, completed=done, total=total, description=f"{label} {name}".strip()[:40])

        yield report


def load_themes(path: Path | None, split: Literal["demo", "pretrain"] | None = None) -> list[Theme]:
    """Themes of a file, or our own."""
    from synth.themes import builtin, read_themes

    if path is None:
        return builtin(split)
    with fetched(path) as local:
        return [t for t in read_themes(local) if split is None or t.spec.get("split") == split]


def run_themes(path: Path | None, split: Literal["demo", "pretrain"] | None, as_json: bool) -> int:
    """List themes."""
    themes = load_themes(path, split)
    if as_json:
        print(json.dumps({"themes": [json.loads(theme.to_json()) for theme in themes]}))
        return 0
    table = Table()
    table.add_column("id", no_wrap=True)
    for name in ("class", "name", "use", "real tables"):
        table.add_column(name, overflow="fold")
    for theme in themes:
        spec = theme.spec
        use = "held out" if spec.get("arena") else str(spec.get("split", ""))
        tables = Text(", ".join(spec.get("sources", ())))
        table.add_row(theme.id, str(spec.get("first_level", "")), theme.name, use, tables)
    screen().print(table)
    print(f"{len(themes)} themes, {len({t.spec.get('first_level') for t in themes})} classes")
    return 0


def finish_stage(run: Path, summary: Summary, as_json: bool) -> int:
    """Print what a synthesis stage came to; 1 when elements failed for good."""
    if as_json:
        print(json.dumps(summary.__dict__))
    else:
        print(summary.line())
        if summary.dead:
            print(f"what failed, and why: {named(run)}/dead_letters/{summary.stage}.jsonl")
    return 1 if summary.dead else 0


def run_check(bundles: Sequence[Path], tasks_file: Path | None, as_json: bool) -> int:
    """Run every gate over bundles, and over the tasks of a file; 1 when one failed.

    Raises:
        CallerError: a bundle or the file can't be read, or a task is of none of the bundles.
    """
    with ExitStack() as stack:
        local = [stack.enter_context(fetched(path)) for path in bundles]
        return _check(local, tasks_file, as_json)


def _check(bundles: Sequence[Path], tasks_file: Path | None, as_json: bool) -> int:
    """:func:`run_check` over local bundles."""
    from synth.admission import check_bundle
    from synth.env.bundle import read_bundle

    tasks = read_records(tasks_file, Task) if tasks_file else []
    known = {read_bundle(path).manifest.env_id: path for path in bundles}
    for task in tasks:
        if task.env_id not in known:
            raise CallerError(f"{tasks_file}: task {task.id} is of {task.env_id}; name its bundle too")
    reports = []
    for env_id, path in known.items():
        with bar(f"checking {env_id}") as report:
            of_env = [task for task in tasks if task.env_id == env_id]
            reports.append(check_bundle(path, of_env, progress=report))
    if as_json:
        print(json.dumps(check_json(reports)))
    else:
        show_check(screen(), reports)
    return 1 if any(report.failed for report in reports) else 0


def check_json(reports: Sequence[CheckReport]) -> dict[str, Any]:
    """All reports as one object."""
    return {
        "passed": sum(r.passed for r in reports),
        "failed": sum(r.failed for r in reports),
        "faults": [
            {"env_id": r.env_id, "gate": f.gate, "target": f.target, "detail": f.detail}
            for r in reports
            for f in r.faults
        ],
        "tools": {r.env_id: r.tools for r in reports},
    }


def show_check(console: Console, reports: Sequence[CheckReport]) -> None:
    """A row a bundle, then a row a fault."""
    table = Table("environment", "checks passed", "failed", "tools", "tools with all tests passed")
    for r in reports:
        perfect = sum(rate == 1.0 for rate in r.tools.values())
        table.add_row(r.env_id, str(r.passed), str(r.failed), str(len(r.tools)), str(perfect))
    console.print(table)
    if any(r.faults for r in reports):
        faults = Table("environment", "gate", "target", "what is wrong", title="faults", title_justify="left")
        for r in reports:
            for f in r.faults:
                faults.add_row(r.env_id, f.gate, f.target, Text(f.detail))
        console.print(faults)
    tools = [rate for r in reports for rate in r.tools.values()]
    if tools:
        share = sum(rate == 1.0 for rate in tools) / len(tools)
        print(f"{len(tools)} tools, {100 * share:.1f}% with every test passed")


def diagnose_round(
    run: RunFolder, last: Round, split: Split, budget: int, seed: int, author: str = "offline"
) -> tuple[Diagnosis, list[SynthesisRequest]]:
    """Diagnose a finished round, ask for tasks, and write both beside it (requests.jsonl last).

    Args:
        author: who diagnoses, as :func:`synth.author.make_author` takes it.
    """
    from arena.diagnose import diagnose_by
    from arena.evolve import requests, write_requests
    from synth.author import make_author
    from synth.grow import newest

    manifests, report = run.manifests(), last.report()
    measured = [m for m in manifests if m.env_id in report.per_environment]
    tasks, kinds = list(run.tasks().values()), run.tool_kinds()
    found = diagnose_by(make_author(author), report, last.episodes(), tasks, measured, kinds, seed)
    last.save_diagnosis(found)
    train = newest([m for m in manifests if m.env_id in split.train])
    wanted = requests(found, train, {m.env_id: m.taxonomy for m in train}, budget, seed)
    write_requests(last.folder / "requests.jsonl", wanted)
    return found, wanted


def run_evolve(
    root: Path, budget: int, seed: int, as_json: bool, author: str = "offline", grow: bool = True
) -> int:
    """Diagnose the last arena round of a run, write diagnosis and requests, and grow what they want richer.

    Args:
        grow: make the richer environments that requests want (:func:`arena.grow.grow_requested`).

    Returns:
        1 when an environment could not be grown; tasks can be made from its request all the same.

    Raises:
        CallerError: no finished round, or nothing can be asked for (see :func:`arena.evolve.requests`).
    """
    with mirrored(root, ("bundles/*", "tasks/*"), write=("arena/*",)) as here:
        return _evolve(here, root, budget, seed, as_json, author, grow)


def _evolve(here: Mirror, whole: Path, budget: int, seed: int, as_json: bool, author: str, grow: bool) -> int:
    """:func:`run_evolve` in a local folder; ``whole`` is the run, whose bundles may be elsewhere."""
    from arena.evolve import write_requests
    from arena.grow import grow_requested
    from arena.sample import split_environments

    root = here.root
    run = RunFolder(root)
    if not run.rounds():
        raise CallerError(f"{root}: no arena round has finished; run 'agent-world arena {root}' first")
    last = run.rounds()[-1]
    split = split_environments(run.manifests(), seed)
    found, wanted = diagnose_round(run, last, split, budget, seed, author)
    path = here.shown(last.folder / "requests.jsonl")
    with bar("richer environments") as progress:
        asked = wanted if grow else [r.model_copy(update={"complexify": False}) for r in wanted]
        grown = grow_requested(whole, asked, split.arena, seed=seed, author=author, progress=progress)
    if grow:
        wanted = grown.requests
        write_requests(last.folder / "requests.jsonl", wanted)
    code = 1 if grown.summary and grown.summary.dead else 0
    if as_json:
        plain = [json.loads(request.to_json()) for request in wanted]
        told = {"round": found.round, "author": found.author, "requests": plain, "file": path}
        print(json.dumps(told | {"grown": grown.versions}))
        return code
    console = Console()
    table = Table(
        "weak environment", "passes", "top errors", title=f"after {found.round}", title_justify="left"
    )
    for weak in found.weaknesses:
        kinds = ", ".join(f"{kind} {n}" for kind, n in list(weak.error_kinds.items())[:3])
        table.add_row(weak.env_id, f"{100 * weak.pass_rate:.0f}%", kinds)
    console.print(table)
    for weak in (w for w in found.weaknesses if w.why):
        print(f"{weak.env_id}: {weak.why} ({found.author})")
    asks = Table("training environment", "tasks", "grow", "what they should exercise")
    for request in wanted:
        new = "grown" if request.env_id in grown.versions.values() else ""
        grows = "yes" if request.complexify else new
        asks.add_row(request.env_id, str(request.count), grows, request.guide.text)
    console.print(asks)
    if grown.summary:
        finish_stage(whole, grown.summary, False)
    for old, new in grown.versions.items():
        print(f"grown: {old} -> {new}")
    print(f"requests: {path}")
    return code


def task_orders(run: Path, count: int, env_ids: Sequence[str], requests: Path | None, seed: int) -> list[Any]:
    """What to draft: the requests of a file, or ``count`` tasks for each environment.

    Raises:
        CallerError: both a file and environments are named, or an environment is not in the run.
    """
    from arena.evolve import read_requests
    from beam_jobs.synthesize import Order, orders

    if requests is not None and env_ids:
        raise CallerError("give --requests or --env, not both: a request names its environment")
    if requests is not None:
        with fetched(requests) as local:
            return orders(read_requests(local), seed)
    with mirrored(run, ("bundles/*",)) as here:
        known = [manifest.env_id for manifest in RunFolder(here.root).manifests()]
    for env_id in env_ids:
        if env_id not in known:
            raise CallerError(
                f"no environment {env_id} in {named(run)}/bundles (there are: {', '.join(known) or 'none'})"
            )
    if not known:
        name = named(run)
        raise CallerError(f"{name}/bundles holds no environment; run 'agent-world synth tools {name}' first")
    return [Order(env_id, count, seed) for env_id in env_ids or known]
