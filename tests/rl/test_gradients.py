"""The same minibatch gives the same gradient on one device and on eight, packed or not, whole or in parts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(1200)  # half a minute of processor time, wherever it has to share

WAYS = [
    f"{algorithm}: {way}"
    for algorithm in ("grpo", "gspo")  # token sums; sums over each sequence
    for way in ("fsdp 4 x tensor 2", "data 2 x sequence 4", "accumulated", "unpacked")
]


@pytest.fixture(scope="module")
def differences() -> dict[str, float]:
    """Made in a process of its own: the number of devices is fixed when JAX starts."""
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    script = Path(__file__).with_name("eight_devices.py")
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("way", WAYS)
def test_the_gradient_is_the_same_within_1e_5(differences, way):
    assert differences[way] < 1e-5


def test_nothing_is_compared_that_is_not_tested(differences):
    assert sorted(differences) == sorted(WAYS)
