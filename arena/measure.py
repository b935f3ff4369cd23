"""The body of ``agent-world arena``: one round of a policy over the held-out tasks of a run folder.

Comes from: ``RUN/bundles``, ``RUN/tasks`` and a policy folder.
Goes to: ``RUN/arena/<nn>-<name>/``, the screen and ``RUN/report.html``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import model
from arena.commands import bar, screen
from arena.evaluate import evaluate
from arena.folder import REPORT_READS, RunFolder
from arena.report import summary_table, write_report
from arena.sample import assert_held_out, choose_tasks, split_environments
from beam_jobs.mirror import Mirror, fetched, mirrored
from model.engine import Engine
from rl.place import local_mesh
from rl.policy import Policy
from rl.pool import EnvPool
from rl.rollout import RolloutLimits
from synth.errors import CallerError

BASE = Path(model.__file__).parent / "base"  # the shipped policy


def load_policy(folder: Path | None, **how: Any) -> Policy:
    """A policy folder, which may lie on GCS, or the shipped base policy; ``how`` as in :meth:`Policy.load`.

    Raises:
        CallerError: the folder holds no whole policy.
    """
    with fetched(folder or BASE) as local:
        try:
            return Policy.load(local, **how)
        except (FileNotFoundError, NotADirectoryError) as err:
            raise CallerError(f"{local}: not a policy folder ({err.filename} is missing)") from None
        except ValueError as err:
            raise CallerError(f"{local}: not a whole policy: {err}") from None


def run_arena(
    root: Path,
    policy_folder: Path | None = None,
    tag: str = "heldout",
    name: str | None = None,
    count: int | None = None,
    samples: int = 4,
    seed: int = 0,
    as_json: bool = False,
    limits: RolloutLimits | None = None,
    mesh: str | None = None,
) -> int:
    """Measure a policy on the tasks of one tag, save the round, and print the table of all rounds.

    Args:
        policy_folder: None takes the shipped base policy.
        name: of the round; by default "round N".
        count: measure this many tasks, spread over environments and patterns; None measures all.
        samples: episodes a task.
        mesh: cut the weights over devices of this machine (``tensor=4``).

    Raises:
        CallerError: no tasks of that tag, or a task is not held out.
    """
    with mirrored(root, REPORT_READS, write=("arena/*", "report.html")) as here:
        return _arena(here, policy_folder, tag, name, count, samples, seed, as_json, limits, mesh)


def _arena(
    here: Mirror,
    policy_folder: Path | None,
    tag: str,
    name: str | None,
    count: int | None,
    samples: int,
    seed: int,
    as_json: bool,
    limits: RolloutLimits | None,
    mesh: str | None,
) -> int:
    """:func:`run_arena` in a local folder."""
    root = here.root
    run, limits = RunFolder(root), limits or RolloutLimits()
    tasks = list(run.tasks(tag).values())
    if not tasks:
        raise CallerError(
            f"{root}: no tasks tagged {tag}; run 'agent-world tasks {root} --tag {tag} --env ENV'"
        )
    manifests = run.manifests()
    split = split_environments(manifests, seed)
    learnt = [*run.tasks("train").values(), *run.tasks("evolve*").values()]
    assert_held_out(split.train, split.arena, tasks, learnt)
    chosen = choose_tasks(tasks, count or len(tasks), seed)
    number = len(run.rounds())
    stage = run.round(number, name or f"round {number}")
    policy = load_policy(policy_folder, mesh=None if mesh is None else local_mesh(mesh))
    engine = Engine(
        policy.config,
        policy.params,
        slots=64 if len(chosen) * samples > 32 else 32,
        max_len=limits.max_len,
        eos_id=policy.tokenizer.eos_id,
        version=policy.version,
    )
    bundles = {m.env_id: run.root / "bundles" / m.env_id for m in manifests if m.env_id in split.arena}
    taxonomy = {m.env_id: m.taxonomy for m in manifests}
    with EnvPool(bundles) as pool, bar("episodes") as progress:
        report, episodes = evaluate(
            policy, engine, chosen, pool, samples, name or f"round {number}", taxonomy, seed, limits, progress
        )
    stage.save(report, episodes)
    page = write_report(run)
    if as_json:
        print(report.to_json())
    else:
        screen().print(summary_table([r.report() for r in run.rounds()]))
        if report.infrastructure_errors:
            print(f"{report.infrastructure_errors} episodes left out: their infrastructure failed")
        print(f"report: {here.shown(page)}")
    return 0
