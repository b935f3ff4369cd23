"""The metrics in Trackio and W&B: every step once, offline, also after a kill.

In processes of their own, as both read their settings when they are imported.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rl import trackers
from rl.metrics import Metrics
from synth.errors import CallerError

ROOT = Path(__file__).parents[2]


def needs(package: str) -> pytest.MarkDecorator:
    absent = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(absent, reason=f"needs the extra '{package}'")


def write(folder: Path, tracker: trackers.Tracker) -> None:
    """Three steps; then a run that goes on after a kill and does the last one again."""
    for first in (0, 2):
        metrics = Metrics(folder, "train", tensorboard=False, tracker=tracker)
        metrics.truncate(first)
        for step in range(first, 3):
            metrics.write(step, {"reward": 0.5 * step, "peak": "text is kept out", "loss": float("nan")})
        metrics.close()


def run(code: str, **environment: str) -> str:
    """The last line that a program in a process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT / 'tests' / 'rl')!r})\n{code}"],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()[-1]


@needs("trackio")
@pytest.mark.timeout(300)
def test_trackio_gets_each_step_once_in_each_run(tmp_path):
    rows = json.loads(run(
        "import json, pathlib, test_trackers as t\n"
        f"t.write(pathlib.Path({str(tmp_path / 'grpo')!r}), 'trackio')\n"
        "from trackio.sqlite_storage import SQLiteStorage as s\n"
        "runs = s.get_run_records(t.trackers.PROJECT)\n"
        "logs = [s.get_logs(t.trackers.PROJECT, r['name'], run_id=r.get('id')) for r in runs]\n"
        "print(json.dumps([[(row['step'], row['reward'], 'peak' in row) for row in one] for one in logs]))",
        TRACKIO_DIR=str(tmp_path / "tracked"),
    ))  # fmt: skip
    assert rows == [[[0, 0.0, False], [1, 0.5, False], [2, 1.0, False]]] * 2


@needs("wandb")
@pytest.mark.timeout(300)
def test_wandb_writes_offline_runs_into_the_run_folder(tmp_path):
    code = f"import pathlib, test_trackers as t\nt.write(pathlib.Path({str(tmp_path)!r}), 'wandb')\nprint()"
    run(code + "\nprint('done')", WANDB_MODE="offline", WANDB_SILENT="true")
    written = sorted((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(written) == 2
    assert all(b"reward" in file.read_bytes() for file in written)


def test_an_absent_tracker_is_refused_before_any_work(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CallerError, match=r"pip install 'agent-world\[trackio\]'"):
        trackers.check("trackio")
    trackers.check(None)
