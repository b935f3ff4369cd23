"""Seconds a GRPO step and tokens a second: this project, TRL and Tunix on one toy. Prints one JSON object.

    python tests/bench/bench_grpo.py [--steps 5] [--only ours,trl]

The toy is the same for all: a Qwen3 shape of 3.3M parameters in float32, 4 prompts of 32 tokens, groups
of 8, exactly 64 new tokens each (the end token is disabled, so that the work is equal), clip 0.2/0.28, a
KL to a reference, AdamW, one optimizer step. A step is sampling, scoring (what a trainer computes anew
before the update: old or reference log-probabilities; ours has the old ones from the sampler and the
reference's inside the update), and the update. Rewards are the parity of the sampled tokens' sum, so that
groups teach something and cost nothing. ``bound`` is the least time that the FLOPs of our step can take at
the rate of a matrix product timed in the same run, and the share of the step's time that this is.

Ours takes huge pages for malloc, as ``agent-world train`` does (:mod:`model.huge_pages`). A peer is measured
as it comes and, in ``huge_pages``, once more with the same setting of malloc, which makes it faster too; the
goals are of what a user of each gets, the first.

A peer runs in a process of its own, with the Python named by AGENT_WORLD_TRL_PYTHON or
AGENT_WORLD_TUNIX_PYTHON, or with this one where the package is installed; one that isn't found, or fails,
is listed in "missing" with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import jax
import numpy as np
from peers import run_peer

from model.config import ModelConfig
from model.engine import Engine
from model.huge_pages import TUNABLE, wanted, with_huge_pages
from model.slots import Generation, Slots
from model.transformer import init_params, make_graphdef
from rl.advantages import group_advantages
from rl.batch import Sample, micro_batches, pack
from rl.costs import forward_flops, machine_peak, update_flops
from rl.learner import Learner, LearnerConfig, OptimizerConfig
from rl.policy import Policy

SPEC: dict[str, Any] = {
    "vocab_size": 2048,
    "d_model": 256,
    "n_layers": 4,
    "n_heads": 4,
    "n_kv_heads": 2,
    "head_dim": 64,
    "d_ff": 640,
    "prompts": 4,
    "group": 8,
    "prompt_tokens": 32,
    "new_tokens": 64,
    "clip_low": 0.2,
    "clip_high": 0.28,
    "kl_weight": 0.03,
    "learning_rate": 1e-5,
    "warm": 2,  # steps before the clock counts: they compile
}
PEERS = {"trl": "trl", "tunix": "tunix"}  # name -> the package to look for
GOALS = {"ours/trl": 2.0, "ours/tunix": 2.0}  # the whole step, times faster
LIMIT_S = 1800.0  # of a peer; one that takes longer is missing
Step = dict[str, float]


class Ours:
    """Engine, packing and learner as ``rl.train`` uses them, without environments."""

    def __init__(self, spec: dict[str, Any]):
        self.spec, self.rng = spec, np.random.default_rng(0)
        shape = ("vocab_size", "d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim", "d_ff")
        self.length = spec["prompt_tokens"] + spec["new_tokens"]
        self.slots = spec["prompts"] * spec["group"]
        self.config = config = ModelConfig(**{name: spec[name] for name in shape}, max_len=self.length)
        params, self.reference = init_params(config, 0), init_params(config, 0)
        policy = Policy(config, params, make_graphdef(config), None, None)  # pyright: ignore[reportArgumentType]
        optimizer = OptimizerConfig(learning_rate=spec["learning_rate"])
        knobs = {name: spec[name] for name in ("clip_low", "clip_high", "kl_weight")}
        self.learner = Learner(policy.score, LearnerConfig(optimizer=optimizer, **knobs))
        self.state = self.learner.init(params)
        # no token is -1, so none ends a turn
        self.engine = Slots(Engine(config, params, slots=self.slots, max_len=self.length, eos_id=-1))

    def sample(self, step: int) -> list[tuple[list[int], Generation]]:
        """Each prompt with what was sampled after it."""
        spec = self.spec
        prompts = self.rng.integers(3, spec["vocab_size"], (spec["prompts"], spec["prompt_tokens"])).tolist()
        self.engine.update_weights(self.state.params, step)
        for i, prompt in enumerate(prompts):
            members = range(i * spec["group"], (i + 1) * spec["group"])
            self.engine.bulk_insert(self.engine.prefill(prompt), members)
        seeds = [step * self.slots + slot for slot in range(self.slots)]
        sampled = self.engine.generate(range(self.slots), seeds, max_new=spec["new_tokens"])
        for slot in range(self.slots):
            self.engine.free_resource(slot)
        return list(zip([p for p in prompts for _ in range(spec["group"])], sampled, strict=True))

    def update(self, sampled: list[tuple[list[int], Generation]]) -> None:
        """Advantages, packing with shared prompts, one optimizer step."""
        spec = self.spec
        rewards = np.array([sum(g.tokens) % 2 for _, g in sampled], float).reshape(spec["prompts"], -1)
        advantages = np.concatenate([group_advantages(group) for group in rewards])
        nothing = [0.0] * spec["prompt_tokens"]
        samples = [
            Sample(
                ids=np.array([*prompt, *g.tokens], np.int32),
                weights=np.array([*nothing, *[1.0] * len(g.tokens)], np.float32),
                logprobs=np.array([*nothing, *g.logprobs], np.float32),
                advantages=np.full(self.length, advantage, np.float32),
                prompt_length=spec["prompt_tokens"],
                group=n // spec["group"],
            )
            for n, ((prompt, g), advantage) in enumerate(zip(sampled, advantages, strict=True))
        ]
        batch = pack(samples, spec["prompt_tokens"] + spec["group"] * spec["new_tokens"], share_prompts=True)
        minibatch = micro_batches(batch, batch.rows)
        # the reference's forward, ours, backward; each sampled token once more through the sampler
        self.flops = update_flops(self.config, [minibatch], 1)
        self.flops += forward_flops(self.config, self.slots * spec["new_tokens"], 0)
        self.state, numbers = self.learner.update(self.state, [minibatch], self.reference)
        jax.block_until_ready(self.state.params)
        assert numbers["tokens"] == self.slots * spec["new_tokens"]


def run_ours(spec: dict[str, Any]) -> dict[str, Any]:
    """The same form as a peer's result."""
    ours, steps = Ours(spec), []
    for step in range(spec["warm"] + spec["steps"]):
        start = time.perf_counter()
        sampled = ours.sample(step)
        between = time.perf_counter()
        ours.update(sampled)
        end = time.perf_counter()
        phases = {"sampling": between - start, "scoring": 0.0, "update": end - between}
        steps.append(phases | {"step": end - start})
    return {"version": "this checkout", "steps": steps, "bound": bound(ours.flops, steps[spec["warm"] :])}


def bound(flops: float, steps: list[Step]) -> dict[str, Any]:
    """The least seconds for the FLOPs of a step, and how much of the time of a step they are."""
    peak = machine_peak()
    seconds = flops / peak.flops
    share = seconds / median(step["step"] for step in steps)
    return {"seconds": round(seconds, 4), "share_of_bound": round(share, 3), "rate": peak.name}


def summary(spec: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """Medians over the steps after the warm ones."""
    steps: list[Step] = result["steps"][spec["warm"] :]
    seconds = {f"{phase}_seconds": round(median(s[phase] for s in steps), 4) for phase in steps[0]}
    tokens = spec["prompts"] * spec["group"] * spec["new_tokens"]
    first = round(result["steps"][0]["step"], 2)
    rate = round(tokens / seconds["step_seconds"], 1)
    return {"version": result["version"], **seconds, "tokens_per_second": rate, "first_step_seconds": first}


def peer(name: str, spec: dict[str, Any], **environment: str) -> dict[str, Any] | str:
    """A peer's result, or why it is missing."""
    return run_peer(f"grpo_{name}.py", name, PEERS[name], spec, LIMIT_S, environment)


def ratios_of(ours: dict[str, Any] | None, peers: dict[str, dict[str, Any]]) -> dict[str, float]:
    """How many times faster our whole step is than each peer's."""
    if ours is None:
        return {}
    return {
        f"ours/{name}": round(figures["step_seconds"] / ours["step_seconds"], 2)
        for name, figures in peers.items()
        if name in PEERS
    }


def main(words: Sequence[str] | None = None) -> int:
    """Exit code 1 when a goal was missed; a missing peer misses none, but ``met`` stays false without any."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=5, help="timed steps a system")
    parser.add_argument("--only", default="ours,trl,tunix", help="systems to run, with commas between")
    arguments = parser.parse_args(words)
    spec = SPEC | {"steps": arguments.steps}
    figures, huge, missing, least = {}, {}, {}, None
    for name in arguments.only.split(","):
        result = run_ours(spec) if name == "ours" else peer(name, spec)
        if isinstance(result, str):
            missing[name] = result
            continue
        figures[name] = summary(spec, result)
        least = result.get("bound", least)
        if name in PEERS and wanted(os.environ):
            again = peer(name, spec, GLIBC_TUNABLES=f"{TUNABLE}=1")
            if not isinstance(again, str):
                huge[name] = summary(spec, again)
    ratios = ratios_of(figures.get("ours"), figures)
    print(
        json.dumps({
            "name": "grpo",
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
            "spec": spec,
            "figures": figures,
            "ratios": ratios,  # how many times faster the whole step is than the peer's
            "huge_pages": {"figures": huge, "ratios": ratios_of(figures.get("ours"), huge)},
            "bound": least,
            "goals": GOALS,
            "met": bool(ratios) and all(ratio >= GOALS[name] for name, ratio in ratios.items()),
            "missing": missing,
        })
    )  # fmt: skip
    return 0 if all(ratio >= GOALS[name] for name, ratio in ratios.items()) else 1


if __name__ == "__main__":
    with_huge_pages()
    sys.exit(main())
