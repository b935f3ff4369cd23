"""Metrics survive a kill: nothing doubled, nothing lost."""

from __future__ import annotations

import json

import numpy as np

from rl.metrics import Metrics, read_metrics


def test_a_resumed_run_writes_each_step_once(tmp_path):
    first = Metrics(tmp_path)
    for step in range(4):
        first.write(step, {"loss": 0.5 * step})
    with open(first.path, "a") as file:
        file.write('{"step": 4, "lo')  # the kill
    first.close()

    again = Metrics(tmp_path)
    again.truncate(2)
    for step in (2, 3):
        again.write(step, {"loss": 0.5 * step})
    again.close()
    assert [row["step"] for row in read_metrics(again.path)] == [0, 1, 2, 3]
    assert [row["loss"] for row in read_metrics(again.path)] == [0.0, 0.5, 1.0, 1.5]


def test_tensorboard_holds_the_same_steps_once(tmp_path):
    for _ in range(2):  # the second round stands for a resumed run
        metrics = Metrics(tmp_path, "train")
        metrics.truncate(1)
        for step in range(len(read_metrics(metrics.path)), 3):
            metrics.write(step, {"reward": float(step), "note": "text is kept out of TensorBoard"})
        metrics.close()
    events = list((tmp_path / "tensorboard" / "train").glob("events*"))
    assert len(events) == 1
    assert events[0].read_bytes().count(b"reward") == 3


def test_lines_are_json_with_the_step_first(tmp_path):
    metrics = Metrics(tmp_path, tensorboard=False)
    metrics.write(7, {"x": 1})
    assert json.loads(metrics.path.read_text()) == {"step": 7, "x": 1}
    assert not (tmp_path / "tensorboard").exists()


def test_a_number_that_is_not_finite_is_null_so_that_any_reader_of_json_can_go_on(tmp_path):
    metrics = Metrics(tmp_path)
    metrics.write(
        0, {"loss": float("nan"), "grad_norm": np.float32("inf"), "kept": np.float32(0.5), "note": "x"}
    )
    metrics.close()
    (row,) = read_metrics(metrics.path)
    assert row == {"step": 0, "loss": None, "grad_norm": None, "kept": 0.5, "note": "x"}
