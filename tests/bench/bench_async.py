"""Training whose tools are slow: on policy, one step ahead and in flight. Prints one JSON object.

    python tests/bench/bench_async.py [--steps 12] [--only on_policy,one_ahead,in_flight]

Whole training runs (:func:`rl.train.train_grpo`) of the toy policy in the library bundle's real sandbox,
where each tool call first waits 50 to 500 ms (even odds over that range). An episode makes three calls and
answers; a step wants 4 groups of 8 on 32 slots, and all else is equal. The clock counts from the end of the
second step, when all is compiled, to the end of the last. ``episodes_per_second`` counts the episodes that
were trained on, or dropped for want of a gradient, in those steps; the ratio is of these, as the number of
refilled groups differs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))  # in front of it: tests has a folder "synth" too

from fixtures.make import write_library
from fixtures.rollouts import make_task
from fixtures.toy import teach_half, toy_policy, toy_tokenizer

from rl.metrics import read_metrics
from rl.policy import Policy
from rl.pool import EnvPool
from rl.train import GRPOConfig, train_grpo
from synth.env.bundle import read_bundle
from synth.env.serving import EpisodeLike
from synth.types import Task

SLOW, CALLS, WARM = (0.05, 0.5), 3, 2
WAYS = {"on_policy": 0, "one_ahead": 1, "in_flight": 2}  # with the staleness that each may have
GOALS = {"in_flight/on_policy": 1.5}


class SlowPool(EnvPool):
    """Environments whose tools take their time."""

    def open(self, task: Task) -> EpisodeLike:
        episode = super().open(task)
        call, rng = episode.call, random.Random(f"{task.id}/{time.monotonic_ns()}")

        def slowly(name: str, arguments: dict[str, Any]):
            time.sleep(rng.uniform(*SLOW))
            return call(name, arguments)

        episode.call = slowly  # pyright: ignore[reportAttributeAccessIssue]
        return episode


def config(way: str, steps: int) -> GRPOConfig:
    return GRPOConfig.model_validate({
        "steps": steps,
        "groups_per_step": 4,
        "slots": 32,
        "sampling": way,
        "limits": {"max_turns": CALLS + 2, "max_new_per_turn": 40, "max_len": 640},
        "batch": {"row_length": 640, "rows": 1, "max_staleness": WAYS[way]},
        "learner": {"optimizer": {"learning_rate": 2e-4}},  # so low that the task stays as hard as it is
    })  # fmt: skip


def measure(
    way: str, steps: int, policy: Policy, tasks: Sequence[Task], pool: EnvPool, folder: Path
) -> dict[str, Any]:
    """One run; its rates after the warm steps."""
    ends: list[float] = []
    train_grpo(config(way, steps), policy, tasks, pool, folder, lambda *_: ends.append(time.monotonic()))
    rows = read_metrics(folder / "train.jsonl")[WARM:]
    seconds, episodes = ends[-1] - ends[WARM - 1], 8 * sum(row["groups"] for row in rows)
    mean = lambda name: round(sum(row[name] for row in rows) / len(rows), 3)  # noqa: E731
    return {
        "episodes_per_second": round(episodes / seconds, 2),
        "seconds_per_step": round(seconds / len(rows), 3),
        "seconds_waiting_for_samples": mean("seconds_sampling"),
        "seconds_learning": mean("seconds_learning"),
        "groups_per_step": mean("groups"),
        "staleness": mean("staleness"),
        "staleness_max": max(row["staleness_max"] for row in rows),
        "reward": mean("reward"),
    }


def main(words: Sequence[str] | None = None) -> int:
    """Exit code 1 when a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=12, help=f"of a run, the first {WARM} not counted")
    parser.add_argument("--only", default=",".join(WAYS), help="ways to run, with commas between")
    asked = parser.parse_args(words)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bundle = read_bundle(write_library(folder))
        tasks = [make_task(bundle, book) for book in (2, 5)]
        with EnvPool({bundle.manifest.env_id: bundle.path}) as pool:
            fresh = toy_policy(toy_tokenizer(bundle, folder / "tokenizer"))
            policy = teach_half(fresh, pool, tasks, folder / "taught", right=4, calls=CALLS)
        with SlowPool({bundle.manifest.env_id: bundle.path}) as pool:
            for way in asked.only.split(","):
                figures[way] = measure(way, asked.steps, policy, tasks, pool, folder / way)
    rate = {way: figure["episodes_per_second"] for way, figure in figures.items()}
    ratios = {
        f"{way}/on_policy": round(rate[way] / rate["on_policy"], 2)
        for way in rate
        if way != "on_policy" and "on_policy" in rate
    }
    met = all(ratios.get(name, 0.0) >= goal for name, goal in GOALS.items())
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(
        json.dumps({
            "name": "async",
            "machine": machine,
            "figures": figures,
            "ratios": ratios,
            "goals": GOALS,
            "met": met,
            "missing": {},
        })
    )  # fmt: skip
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
