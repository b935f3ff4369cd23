"""The body of ``agent-world sft``: the cold start, next-token training on verified episodes of a run folder.

Comes from: ``RUN/tasks``, ``RUN/solutions`` (calls that solved them, replayed here in the sandbox),
``RUN/bundles`` and a policy folder. Goes to: ``RUN/train/<name>/`` (see :mod:`rl.sft`), whose ``policy`` is
where ``agent-world train`` then starts. Nothing of a measured environment is learnt from.
"""

from __future__ import annotations

import json
from pathlib import Path

from arena.commands import bar
from arena.folder import RunFolder
from arena.measure import load_policy
from arena.renamed import renamed_examples
from arena.training import bundles_to_train_on, config_of
from arena.warmup import grouped, solved_episodes
from beam_jobs.mirror import Mirror, mirrored
from rl.pool import EnvPool
from rl.sft import SFTConfig, train_sft
from rl.trackers import Tracker
from synth.env.bundle import mcp_tool
from synth.errors import CallerError

KEPT_OUT = 24  # ours: examples that only the loss is measured on; at most one in eight


def run_sft(
    root: Path,
    policy_folder: Path | None = None,
    tag: str = "train",
    name: str = "sft",
    config_file: Path | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    as_json: bool = False,
    tracker: Tracker | None = None,
) -> int:
    """Learn from the solutions of one tag's tasks; start it again to go on after a kill.

    Args:
        policy_folder: None takes the shipped base policy.
        config_file: TOML with fields of :class:`rl.sft.SFTConfig`; ``epochs`` and ``seed`` go over it.
        name: of the folder below ``RUN/train``.
        tracker: shows the metrics, too (:mod:`rl.trackers`).

    Raises:
        CallerError: no tasks or solutions, a held-out task among them, or a bad config.
    """
    config = config_of(SFTConfig, config_file, {"epochs": epochs, "seed": seed})
    with mirrored(root, ("bundles/*", "tasks/*", "solutions/*"), write=(f"train/{name}/*",)) as here:
        return _sft(here, config, policy_folder, tag, name, as_json, tracker)


def _sft(
    here: Mirror,
    config: SFTConfig,
    policy_folder: Path | None,
    tag: str,
    name: str,
    as_json: bool,
    tracker: Tracker | None,
) -> int:
    """:func:`run_sft` in a local folder."""
    run = RunFolder(here.root)
    tasks = run.tasks(tag)
    bundles = bundles_to_train_on(run, tasks.values(), config.seed)
    policy = load_policy(policy_folder)
    with EnvPool(bundles) as pool, bar("replaying") as progress:
        found = solved_episodes(run.root, tag, tasks, pool, policy.template, progress, config.max_observation)
        tools = {e.env_id: [mcp_tool(t) for t in pool.server(e.env_id).bundle.tools] for e in found}
    if not found:
        raise CallerError(f"{here.shown(run.root)}: no solutions of tasks tagged {tag} in its solutions/")
    fit = [e for e in found if len(e.ids) <= config.row_length]
    if not fit:
        shortest = min(len(e.ids) for e in found)
        raise CallerError(f"row_length {config.row_length}: the shortest example has {shortest} tokens")
    apart = set(range(0, len(fit), max(8, len(fit) // KEPT_OUT))) if len(fit) > 1 else set()
    examples = grouped(fit)
    heldout = [e for n, e in enumerate(examples) if n in apart]
    learn = [e for n, e in enumerate(examples) if n not in apart]
    if config.renamed:
        others = [e for n, e in enumerate(fit) if n not in apart]
        copies = renamed_examples(others, tools, policy.template, config.renamed, config.seed)
        learn += [e for e in copies if len(e.ids) <= config.row_length]
    losses: list[dict[str, float]] = []
    with bar("steps") as progress:

        def report(step: int, total: int, numbers: dict[str, float]) -> None:
            losses.append(numbers)
            progress(step, total, f"loss {numbers['target_loss']:.2f}")

        folder = run.root / "train" / name
        train_sft(config, policy, learn, folder, heldout=heldout, progress=report, tracker=tracker)
    kept = [row["heldout_target_loss"] for row in losses if "heldout_target_loss" in row]
    before = [row["before_heldout_target_loss"] for row in losses if "before_heldout_target_loss" in row]
    result = {
        "policy": here.shown(folder / "policy"), "examples": len(learn), "kept_out": len(heldout),
        "too_long": len(found) - len(fit), "steps": len(losses), "kept_out_loss": [*before, *kept],
    }  # fmt: skip
    if as_json:
        print(json.dumps(result))
        return 0
    print(f"{len(learn)} examples, {result['too_long']} too long for row_length {config.row_length}")
    if kept:
        shown = ", ".join(f"{value:.3f}" for value in result["kept_out_loss"])
        print(f"loss of what the policy is to say, on {len(heldout)} kept out, epoch by epoch: {shown}")
    print(f"policy: {result['policy']}")
    return 0
