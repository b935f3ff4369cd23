"""One GRPO run as a process of its own, for test_faults.py: ``python one_run.py SPEC.json``.

SPEC names the policy folder, the tasks (JSONL), the bundle, the run folder and the training config. Prints
"training" when the first step begins, and a line a step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from model.compile_cache import use_compile_cache
from rl.policy import Policy
from rl.pool import EnvPool
from rl.train import GRPOConfig, train_grpo
from synth.errors import AgentWorldError
from synth.types import Task


def main() -> int:
    spec = json.loads(Path(sys.argv[1]).read_text())
    use_compile_cache(spec["compiled"])
    policy = Policy.load(spec["policy"])
    tasks = [Task.from_json(line) for line in Path(spec["tasks"]).read_text().splitlines()]
    config = GRPOConfig.model_validate(spec["config"])
    print("training", flush=True)
    with EnvPool({tasks[0].env_id: spec["bundle"]}) as pool:
        report = lambda step, numbers: print("step", step, flush=True)  # noqa: E731
        try:
            train_grpo(config, policy, tasks, pool, spec["run"], report)
        except AgentWorldError as err:
            print(type(err).__name__, err, file=sys.stderr)
            return getattr(err, "exit_code", 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
