"""GRPO over a LoRA adapter: it alone moves, a run goes on where it stopped, both forms are written."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from model.hf import load_model
from rl.adapters import LoraConfig
from rl.metrics import read_metrics
from rl.policy import Policy
from rl.train import GRPOConfig, train_grpo

CONFIG = GRPOConfig.model_validate(
    {
        "steps": 2,
        "groups_per_step": 2,
        "group_size": 8,
        "slots": 16,
        "limits": {"max_turns": 3, "max_new_per_turn": 40, "max_len": 640},
        "batch": {"row_length": 640, "rows": 1, "minibatches": 2},
        "learner": {"optimizer": {"learning_rate": 3e-2}},
        "lora": {"rank": 4, "alpha": 8},
    }
)

pytestmark = pytest.mark.timeout(1200)  # whole runs, wherever they have to share


def leaves(params):
    return [np.asarray(x) for x in jax.tree.leaves(params)]


@pytest.fixture(scope="module")
def run(half_trained, pool, twins, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lora") / "run"
    half_trained.save(folder.parent / "base")
    return train_grpo(CONFIG, half_trained, twins, pool, folder), folder


def test_the_adapter_on_the_base_is_the_policy(run, half_trained):
    trained, folder = run
    _, merged = load_model(folder.parent / "base", adapter=folder / "adapter")
    on_disk = Policy.load(folder / "policy").params
    moved = 0
    for a, b, c, base in zip(
        *map(leaves, (merged, on_disk, trained.params, half_trained.params)), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=1e-6)
        np.testing.assert_array_equal(b, c)
        moved += not np.array_equal(b, base)
    assert moved == 2 * 7, "every linear map of both layers, and neither norms nor embeddings"


def test_sampler_and_trainer_agree(run):
    """Rule 3 with merged weights on both sides."""
    rows = read_metrics(run[1] / "train.jsonl")
    assert len(rows) == CONFIG.steps
    gaps = [row["sampler_trainer_gap"] for row in rows if "sampler_trainer_gap" in row]  # steps that taught
    assert gaps
    assert max(gaps) <= 1e-5


def test_a_checkpoint_holds_the_adapter_only_and_a_run_goes_on(run, half_trained, pool, twins):
    """Asked again, a finished run reads its last checkpoint and gives the same policy."""
    again = train_grpo(CONFIG, half_trained, twins, pool, run[1])
    for a, b in zip(leaves(again.params), leaves(run[0].params), strict=True):
        np.testing.assert_array_equal(a, b)
    state = next(path for path in (run[1] / "checkpoints").glob("*/state"))
    names = {path.name for path in state.iterdir()} | {state.joinpath("_METADATA").read_text()}
    assert "layers.0.attention.q.a" in " ".join(names)
    assert "embedding" not in " ".join(names)


@pytest.mark.parametrize("sampling", ["one_ahead", "in_flight"])
def test_sampling_while_training_takes_merged_weights(sampling, half_trained, pool, twins, tmp_path):
    """And a run that is asked for again finds, beside the adapter, the weights it sampled with."""
    batch = CONFIG.batch.model_copy(update={"max_staleness": 1})
    config = CONFIG.model_copy(update={"sampling": sampling, "batch": batch})
    trained = train_grpo(config, half_trained, twins, pool, tmp_path / "run")
    half_trained.save(tmp_path / "base")
    _, merged = load_model(tmp_path / "base", adapter=tmp_path / "run" / "adapter")
    for a, b in zip(leaves(merged), leaves(trained.params), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    again = train_grpo(config, half_trained, twins, pool, tmp_path / "run")
    for a, b in zip(leaves(again.params), leaves(trained.params), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_target_that_is_no_linear_map_is_named():
    with pytest.raises(ValueError, match="targets"):
        LoraConfig.model_validate({"targets": ["embedding"]})
