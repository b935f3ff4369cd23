"""A small demo for tests: ``python demo_run.py RUN_FOLDER SEED``. The whole loop, few of everything."""

import sys
from pathlib import Path

from arena.demo import DemoConfig, run_demo
from rl.learner import LearnerConfig, OptimizerConfig
from rl.rollout import RolloutLimits
from rl.sft import SFTConfig
from rl.train import GRPOConfig


def tiny(seed: int) -> DemoConfig:
    return DemoConfig(
        seed=seed,
        themes=2,
        train_tasks=4,
        arena_tasks=3,
        samples=1,
        evolve_tasks=6,
        sft=SFTConfig(epochs=1, rows=2, row_length=1024, checkpoint_every=2),
        grpo=GRPOConfig(
            groups_per_step=2,
            group_size=4,
            max_rounds=1,
            slots=8,
            limits=RolloutLimits(max_turns=4, max_new_per_turn=48, max_len=1024),
            learner=LearnerConfig(optimizer=OptimizerConfig(learning_rate=1e-4)),
            steps=2,
        ),
        evolve_steps=1,
        workers=1,
    )


if __name__ == "__main__":
    sys.exit(run_demo(Path(sys.argv[1]), tiny(int(sys.argv[2]))))
