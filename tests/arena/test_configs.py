"""The shipped configs are what the code reads."""

from __future__ import annotations

from pathlib import Path

from arena.demo import DemoConfig
from arena.training import read_config

CPU = Path(__file__).parents[2] / "tpu_configs" / "cpu.toml"


def test_the_cpu_config_is_the_demos():
    config = read_config(CPU, None, None)
    demo = DemoConfig().grpo
    assert config == demo.model_copy(update={"seed": config.seed})
