"""Training state: whole or absent, the newest two kept, the same bits back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from model.checkpoint import Checkpoints
from model.transformer import init_params


@pytest.fixture(scope="module")
def state(config, params):
    optimizer = optax.adamw(1e-3)
    opt_state = optimizer.init(params)
    grads = jax.tree.map(lambda x: x + 1, params)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return {"params": optax.apply_updates(params, updates), "opt_state": opt_state}


def test_the_newest_step_comes_back_bit_for_bit(config, state, tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.restore_latest(state) is None
        for step in (1, 2, 5):
            checkpoints.save(step, state, {"step": step, "next_task": [3, "a"]})
    abstract = jax.eval_shape(lambda: state)
    with Checkpoints(tmp_path) as checkpoints:
        restored = checkpoints.restore_latest(abstract)
    assert restored.step == 5
    assert restored.meta == {"step": 5, "next_task": [3, "a"]}
    assert jax.tree.structure(restored.state) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, restored.state, state)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["2", "5"], "the newest two stay"


def test_a_step_holds_what_the_arrays_were_when_it_was_saved(tmp_path):
    """Orbax writes beside the trainer, which gives its arrays away to the next update."""
    update = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    state = {f"x{n}": jnp.zeros((256, 1024)) for n in range(8)}
    with Checkpoints(tmp_path, keep=9) as checkpoints:
        for step in range(1, 4):
            state = update(state)
            checkpoints.save(step, state)
            assert checkpoints.latest_step() in (None, step - 1, step), "only whole steps are named"
        state = update(state)
        checkpoints.wait()
        assert checkpoints.latest_step() == 3
        saved = checkpoints.restore_latest(state).state
    assert {float(x.min()) for x in saved.values()} == {float(x.max()) for x in saved.values()} == {3.0}


def test_half_written_steps_are_ignored(state, tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state)
    (tmp_path / "2.orbax-checkpoint-tmp").mkdir()
    (tmp_path / "3" / "state").mkdir(parents=True)
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.restore_latest(state).step == 1
        checkpoints.save(2, state)
        checkpoints.wait()
        assert checkpoints.latest_step() == 2


KILLED = """
import sys, jax.numpy as jnp
from model.checkpoint import Checkpoints
checkpoints = Checkpoints(sys.argv[1])
for step in range(1, 10_000):
    checkpoints.save(step, {"x": jnp.full(1000, step)}, {"step": step})
    print(step, flush=True)
"""


def test_a_killed_writer_leaves_a_whole_step(tmp_path):
    writer = subprocess.Popen([sys.executable, "-c", KILLED, tmp_path], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    for line in writer.stdout:
        if int(line) == 3:
            break
    os.kill(writer.pid, signal.SIGKILL)
    rest = writer.stdout.read().split()
    writer.wait()
    with Checkpoints(tmp_path) as checkpoints:
        restored = checkpoints.restore_latest({"x": np.zeros(1000, np.int32)})
    done = int(rest[-1]) if rest else 3
    assert restored.step in (done - 1, done, done + 1), "at most the step that was being written is lost"
    assert restored.meta == {"step": restored.step}
    assert set(restored.state["x"].tolist()) == {restored.step}


def test_a_step_that_does_not_come_after_the_last_is_refused(state, tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(2, state)
        with pytest.raises(ValueError, match="after the last saved step, 2"):
            checkpoints.save(2, state)


def test_another_shape_is_refused(config, state, tmp_path):
    import dataclasses

    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"params": state["params"]})
        other = init_params(dataclasses.replace(config, d_ff=32), 0)
        with pytest.raises(ValueError, match="shape"):
            checkpoints.restore_latest({"params": other})
