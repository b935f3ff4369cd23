"""A policy trains on an imported server as on any other: rollouts, verdicts, one real update."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from fixtures.rollouts import Puppet
from synth_sandbox import bubblewrap_works

from model.config import ModelConfig
from model.tokens import ChatTemplate, answer_text, call_text, tool_text, train_tokenizer
from rl.groups import BatchConfig, make_minibatches, sampling_metrics, teaches
from rl.learner import Learner, LearnerConfig
from rl.policy import Policy
from rl.pool import EnvPool
from rl.rollout import EpisodeJob, RolloutLimits, run_episodes
from synth.env.bundle import mcp_tool, read_bundle

pytestmark = pytest.mark.skipif(not bubblewrap_works(), reason="imported servers need bubblewrap")
LENGTH = 1536


def test_right_and_wrong_episodes_on_an_imported_server_make_an_update(notes, made, tmp_path):
    bundle = read_bundle(notes)
    texts = [tool_text(mcp_tool(tool)) for tool in bundle.tools] + [task.instruction for task in made.tasks]
    tokenizer = train_tokenizer(texts, 420, tmp_path / "tokenizer")
    config = ModelConfig(
        vocab_size=448, d_model=32, n_layers=1, n_heads=2, n_kv_heads=2, head_dim=16, d_ff=64, max_len=LENGTH
    )
    policy = Policy.fresh(config, tokenizer, seed=0)
    tasks = [
        next(t for t in made.tasks if t.changes_state),
        next(t for t in made.tasks if not t.changes_state),
    ]
    scripts, jobs = [], []
    for task in tasks:
        for sample, answer in enumerate((task.reference_answer, "nonsense")):
            scripts.append([call_text(step) for step in task.chain] + [answer_text(answer)])
            jobs.append(EpisodeJob(task, sample, seed=sample))
    driver = Puppet(policy, slots=4, max_len=LENGTH)
    driver.play(scripts)
    limits = RolloutLimits(max_turns=8, max_new_per_turn=300, max_len=LENGTH)
    with EnvPool({bundle.manifest.env_id: notes}) as pool:
        found = run_episodes(driver, ChatTemplate(tokenizer), jobs, pool, limits)
    assert [t.verdict.passed for t in found] == [True, False, True, False], [t.error for t in found]
    groups = [found[:2], found[2:]]
    assert all(map(teaches, groups))
    assert sampling_metrics(groups)["reward"] == 0.5
    batches = make_minibatches(BatchConfig(row_length=LENGTH, rows=1, minibatches=1), groups, 0)
    learner = Learner(policy.score, LearnerConfig(), 1, tmp_path / "refused", lambda *_: None)
    before = jax.tree.map(np.array, policy.params)  # the update may take the buffers
    state, numbers = learner.update(learner.init(policy.params), batches, policy.params)
    moved = jax.tree.leaves(
        jax.tree.map(lambda a, b: float(abs(np.array(a) - b).max()), state.params, before)
    )
    assert max(moved) > 0
    assert np.isfinite(max(moved))
    assert all(np.isfinite(v) for v in numbers.values() if isinstance(v, float))
