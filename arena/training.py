"""The body of ``agent-world train``: GRPO over the training tasks of a run folder.

Comes from: ``RUN/bundles``, ``RUN/tasks``, a policy folder and, if given, a config file.
Goes to: ``RUN/train/<name>/`` (see :mod:`rl.train`), from where a killed training goes on.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from arena.commands import bar
from arena.folder import RunFolder, read_text
from arena.measure import load_policy
from arena.sample import assert_held_out, split_environments
from rl.pool import EnvPool
from rl.train import GRPOConfig, train_grpo
from synth.errors import CallerError


def read_config(path: Path | None, steps: int | None, seed: int | None) -> GRPOConfig:
    """The training config of a TOML file (or the defaults), with ``steps`` and ``seed`` on top.

    Raises:
        CallerError: the file is missing, no TOML, or has a field that GRPOConfig doesn't know.
    """
    try:
        fields: dict[str, Any] = tomllib.loads(read_text(path)) if path else {}
    except tomllib.TOMLDecodeError as err:
        raise CallerError(f"{path}: not TOML: {err}") from None
    fields |= {name: value for name, value in (("steps", steps), ("seed", seed)) if value is not None}
    try:
        return GRPOConfig.model_validate(fields)
    except ValidationError as err:
        first = err.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise CallerError(f"{path or 'config'}: field {field}: {first['msg']}") from None


def run_train(
    root: Path,
    policy_folder: Path | None = None,
    tag: str = "train",
    name: str = "grpo",
    config_file: Path | None = None,
    steps: int | None = None,
    seed: int | None = None,
    as_json: bool = False,
) -> int:
    """Train on the tasks of one tag; start it again to go on after a kill.

    Args:
        policy_folder: None takes the shipped base policy.
        tag: of the tasks; a pattern such as ``evolve*`` takes several.
        name: of the folder below ``RUN/train``.

    Raises:
        CallerError: no tasks, a held-out task among them, a bad config, or a folder of another training.
    """
    run = RunFolder(root)
    config = read_config(config_file, steps, seed)
    tasks = list(run.tasks(tag).values())
    if not tasks:
        raise CallerError(f"{root}: no tasks tagged {tag}; run 'agent-world tasks {root} --tag {tag}' first")
    manifests = run.manifests()
    split = split_environments(manifests, config.seed)
    assert_held_out(split.train, split.arena, [], tasks)
    policy = load_policy(policy_folder)
    folder = run.root / "train" / name
    used = {task.env_id for task in tasks}
    bundles = {m.env_id: run.root / "bundles" / m.env_id for m in manifests if m.env_id in used}
    rewards: list[float] = []
    with EnvPool(bundles) as pool, bar("steps") as progress:

        def report(step: int, numbers: dict[str, Any]) -> None:
            rewards.append(float(numbers["reward"]))
            progress(step + 1, config.steps, f"reward {rewards[-1]:.2f}")

        trained = train_grpo(config, policy, tasks, pool, folder, report)
    result = {"policy": str(folder / "policy"), "version": trained.version, "rewards": rewards}
    if as_json:
        print(json.dumps(result))
    else:
        if rewards:
            print(f"{len(rewards)} steps, reward {rewards[0]:.2f} at first and {rewards[-1]:.2f} at last")
        else:
            print("all steps were done already")
        print(f"policy: {folder / 'policy'}")
    return 0
