"""One GRPO run as a process of its own, for test_faults.py and test_place.py.

``python one_run.py SPEC.json [PROCESSES]``. SPEC names the policy folder, the tasks (JSONL), the bundle, the
run folder, the training config and perhaps a mesh and a rollout slice; PROCESSES as in
:func:`rl.place.join`. Prints "training" when the first step begins, a line a step, and "wrote FILE" for files
of the run folder beside checkpoints.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from model.compile_cache import use_compile_cache
from rl.place import MeshAxes, Place, ProcessLost, join, leave
from rl.policy import Policy
from rl.pool import EnvPool
from rl.train import GRPOConfig, train_grpo
from synth.errors import AgentWorldError
from synth.types import Task


def main() -> int:
    spec = json.loads(Path(sys.argv[1]).read_text())
    if len(sys.argv) > 2:
        join(sys.argv[2])
    use_compile_cache(spec["compiled"])
    mesh, rollout = (MeshAxes.parse(spec[name]) if name in spec else None for name in ("mesh", "rollout"))
    place = Place(mesh, rollout)
    policy = Policy.load(spec["policy"])
    tasks = [Task.from_json(line) for line in Path(spec["tasks"]).read_text().splitlines()]
    config = GRPOConfig.model_validate(spec["config"])
    print("training", flush=True)
    sys.addaudithook(lambda event, args: tell_writes(event, args, spec["run"]))
    with EnvPool({tasks[0].env_id: spec["bundle"]}) as pool:
        report = lambda step, numbers: print("step", step, flush=True)  # noqa: E731
        try:
            train_grpo(config, policy, tasks, pool, spec["run"], report, place)
        except AgentWorldError as err:
            print(type(err).__name__, err, file=sys.stderr, flush=True)
            if isinstance(err, ProcessLost):
                leave(err.exit_code)
            return getattr(err, "exit_code", 1)
    return 0


def tell_writes(event: str, args: tuple, run: str) -> None:
    path = str(args[0]) if args else ""
    writes = event in ("os.rename", "os.mkdir") or (event == "open" and str(args[1])[:1] in "wax")
    if writes and path.startswith(f"{run}/") and not path.startswith(f"{run}/checkpoints"):
        print("wrote", path, flush=True)


if __name__ == "__main__":
    sys.exit(main())
