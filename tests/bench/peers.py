"""Runs a peer of a benchmark in a process of its own, with the Python that has it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def interpreter(name: str, package: str) -> str | None:
    """The Python named by AGENT_WORLD_<NAME>_PYTHON, or this one where the package is installed."""
    named = os.environ.get(f"AGENT_WORLD_{name.upper()}_PYTHON")
    if named:
        return named
    return sys.executable if importlib.util.find_spec(package) else None


def run_peer(
    script: str,
    name: str,
    package: str,
    spec: dict[str, Any],
    limit_s: float,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any] | str:
    """What ``script SPEC`` prints as its last line, or why there is nothing.

    Args:
        script: a file beside this one.
        limit_s: seconds after which the peer is stopped and called missing.
        environment: variables over those of this process.
    """
    python = interpreter(name, package)
    if python is None:
        return f"not installed; name a Python that has it in AGENT_WORLD_{name.upper()}_PYTHON"
    command = [python, str(Path(__file__).with_name(script)), json.dumps(spec)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=limit_s,
            env={**os.environ, **(environment or {})},
        )
    except OSError as err:
        return f"{python}: {err.strerror}"
    except subprocess.TimeoutExpired:
        return f"not done after {limit_s:g} s"
    if done.returncode:
        return f"failed: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else done.returncode}"
    return json.loads(done.stdout.strip().splitlines()[-1])
