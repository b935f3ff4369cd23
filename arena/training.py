"""The body of ``agent-world train``: GRPO over the training tasks of a run folder.

Comes from: ``RUN/bundles``, ``RUN/tasks``, a policy folder and, if given, a config file.
Goes to: ``RUN/train/<name>/`` (see :mod:`rl.train`), from where a killed training goes on.
"""

from __future__ import annotations

import json
import math
import sys
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
from pydantic import ValidationError

from arena.commands import bar
from arena.folder import RunFolder, read_text
from arena.measure import load_policy
from arena.plan_config import PlanConfig
from arena.plan_config import read_config as read_plan
from arena.sample import assert_held_out, split_environments
from beam_jobs.mirror import Mirror, mirrored
from rl.learner import Config
from rl.place import MeshAxes, Place, ProcessLost, join, leave
from rl.pool import EnvPool
from rl.trackers import Tracker
from rl.train import GRPOConfig, train_grpo
from synth.errors import CallerError
from synth.types import Task

C = TypeVar("C", bound=Config)


def config_of(kind: type[C], path: Path | None, over: Mapping[str, Any]) -> C:
    """The config in a TOML file (or the defaults), with what of ``over`` is not None on top.

    Raises:
        CallerError: the file is missing, no TOML, or has a field that ``kind`` doesn't know.
    """
    try:
        fields: dict[str, Any] = tomllib.loads(read_text(path)) if path else {}
    except tomllib.TOMLDecodeError as err:
        raise CallerError(f"{path}: not TOML: {err}") from None
    fields |= {name: value for name, value in over.items() if value is not None}
    try:
        return kind.model_validate(fields)
    except ValidationError as err:
        first = err.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise CallerError(f"{path or 'config'}: field {field}: {first['msg']}") from None


def read_config(path: Path | None, steps: int | None, seed: int | None) -> GRPOConfig:
    """The training config of a TOML file (or the defaults), with ``steps`` and ``seed`` on top.

    Raises:
        CallerError: see :func:`config_of`.
    """
    return config_of(GRPOConfig, path, {"steps": steps, "seed": seed})


def run_train(
    root: Path,
    policy_folder: Path | None = None,
    tag: str = "train",
    name: str = "grpo",
    config_file: Path | None = None,
    steps: int | None = None,
    seed: int | None = None,
    as_json: bool = False,
    mesh: str | None = None,
    processes: str | None = None,
    rollout: str | None = None,
    tracker: Tracker | None = None,
) -> int:
    """Train on the tasks of one tag; start it again to go on after a kill.

    Args:
        policy_folder: None takes the shipped base policy.
        tag: of the tasks; a pattern such as ``evolve*`` takes several.
        name: of the folder below ``RUN/train``.
        mesh: axes (``fsdp=4,tensor=2``), or a plan's config, whose mesh and way to run the model are taken.
        processes: as in :func:`rl.place.join`.
        rollout: axes of the devices of each process that sample (``tensor=4``), see :class:`rl.place.Place`.
        tracker: shows the metrics, too (:mod:`rl.trackers`).

    Raises:
        CallerError: no tasks, a held-out task among them, a bad config, or a folder of another training.
    """
    config = read_config(config_file, steps, seed)
    with mirrored(root, ("bundles/*", "tasks/*"), write=(f"train/{name}/*",)) as here:
        if processes is not None:
            join(processes)
        place, how = read_place(mesh, rollout)
        try:
            return _train(here, config, policy_folder, tag, name, as_json, place, how, tracker)
        except ProcessLost as err:
            print(err, file=sys.stderr)
            leave(err.exit_code)


def read_place(mesh: str | None, rollout: str | None = None) -> tuple[Place, dict[str, Any]]:
    """Where a training's arrays lie, and how its model is run there (fields of ModelConfig, and the mesh)."""
    sampling = None if rollout is None else MeshAxes.parse(rollout)
    if mesh is None:
        place = Place(None, sampling)
        return place, {} if place.mesh is None else {"mesh": place.mesh}
    if not mesh.endswith(".toml"):
        place = Place(MeshAxes.parse(mesh), sampling)
        return place, {"mesh": place.mesh}
    plan = read_plan(Path(mesh))
    if sampling is None and plan.chips == jax.device_count():
        sampling = sampling_in(plan)
    place, model = Place(plan.mesh, sampling), plan.train_model()
    how = {name: getattr(model, name) for name in ("compute_dtype", "scan_layers", "remat", "vocab_chunks")}
    return place, how | {"mesh": place.mesh}


def sampling_in(plan: PlanConfig) -> MeshAxes:
    """The plan's cut of the weights that sample, as far as the devices of one process go: they take turns."""
    devices = jax.local_device_count()
    tensor = math.gcd(plan.rollout.tensor, devices)
    return MeshAxes(data=devices // tensor, tensor=tensor)  # pyright: ignore[reportCallIssue]


def bundles_to_train_on(run: RunFolder, tasks: Collection[Task], seed: int) -> dict[str, Path]:
    """The folders of these tasks' environments.

    Raises:
        CallerError: one of them is measured.
    """
    manifests = run.manifests()
    split = split_environments(manifests, seed)
    assert_held_out(split.train, split.arena, [], tasks)
    used = {task.env_id for task in tasks}
    return {m.env_id: run.root / "bundles" / m.env_id for m in manifests if m.env_id in used}


def _train(
    here: Mirror,
    config: GRPOConfig,
    policy_folder: Path | None,
    tag: str,
    name: str,
    as_json: bool,
    place: Place,
    how: dict[str, Any],
    tracker: Tracker | None,
) -> int:
    """:func:`run_train` in a local folder; on GCS each step is sent there when it is done."""
    root = here.root
    run = RunFolder(root)
    tasks = list(run.tasks(tag).values())
    if not tasks:
        raise CallerError(f"{root}: no tasks tagged {tag}; run 'agent-world tasks {root} --tag {tag}' first")
    bundles = bundles_to_train_on(run, tasks, config.seed)
    policy = load_policy(policy_folder, **how)
    folder = run.root / "train" / name
    rewards: list[float] = []
    with EnvPool(bundles) as pool, bar("steps") as progress:

        def report(step: int, numbers: dict[str, Any]) -> None:
            rewards.append(float(numbers["reward"]))
            if place.first:
                progress(step + 1, config.steps, f"reward {rewards[-1]:.2f}")
                here.push()

        trained = train_grpo(config, policy, tasks, pool, folder, report, place, tracker, settled=here.remote)
    if not place.first:
        return 0
    at = here.shown(folder / "policy")
    result = {"policy": at, "version": trained.version, "rewards": rewards}
    if as_json:
        print(json.dumps(result))
    else:
        if rewards:
            print(f"{len(rewards)} steps, reward {rewards[0]:.2f} at first and {rewards[-1]:.2f} at last")
        else:
            print("all steps were done already")
        print(f"policy: {at}")
    return 0
