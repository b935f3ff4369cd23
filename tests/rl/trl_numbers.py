"""Makes trl_numbers.json: losses and gradients that TRL computes, on inputs written beside them.

TRL is no requirement of this project; the numbers are kept so that CI can compare with them. In an
environment of its own (Python 3.11 or later):

    pip install torch==2.13.0 trl==1.16.0
    python tests/rl/trl_numbers.py > tests/rl/trl_numbers.json

What runs is TRL's own ``_compute_loss``, on a stand-in for the trainer that holds the few settings
it reads, and with the model's log-probabilities replaced by given ones.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from types import SimpleNamespace

import torch
import trl
from trl import GRPOTrainer, RLOOTrainer

B, T, LENGTHS = 4, 7, [7, 3, 5, 1]
CONSTANT = 16  # TRL's max_completion_length

CASES = {
    "grpo": {"loss_type": "dapo", "epsilon_high": 0.28, "beta": 0.03},  # the paper's, every token the same
    "deepseekmath": {"loss_type": "grpo", "epsilon_high": 0.2, "beta": 0.04},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
    "dr_grpo": {"loss_type": "dr_grpo", "epsilon_high": 0.2},
    "gspo": {
        "loss_type": "grpo",
        "importance_sampling_level": "sequence",
        "epsilon_low": 3e-4,
        "epsilon_high": 4e-4,
    },
    "gspo_wide": {  # the same with a clip range that some of these sequences lie within
        "loss_type": "grpo",
        "importance_sampling_level": "sequence",
        "epsilon_low": 0.2,
        "epsilon_high": 0.28,
        "beta": 0.03,
    },
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "cispo_tight": {"loss_type": "cispo", "epsilon_high": 1.2},
    "weighted": {"loss_type": "dapo", "epsilon_high": 0.28, "beta": 0.03, "weighted": True},
    "rloo": {"rloo": True, "epsilon_high": 0.2},
    "rloo_wide": {"rloo": True, "epsilon_low": 0.9, "epsilon_high": 4.0},
}


def make_inputs() -> dict[str, list]:
    """Rounded, so that JSON holds exactly what was computed with."""
    generator = torch.Generator().manual_seed(0)
    noise = lambda scale: scale * torch.randn(B, T, generator=generator)  # noqa: E731
    logp = -torch.rand(B, T, generator=generator) * 3 - 0.05
    arrays = {
        "logp": logp,
        "old": logp + noise(0.3),
        "reference": logp + noise(0.5),
        "importance_weights": torch.exp(noise(0.5)).clamp(max=2.0),
    }
    made = {name: [[round(x, 4) for x in row] for row in value.tolist()] for name, value in arrays.items()}
    return made | {"advantages": [1.5, -0.7, 0.4, -1.2], "lengths": LENGTHS}


def trainer(case: dict, logp: torch.Tensor) -> SimpleNamespace:
    """What TRL's ``_compute_loss`` reads of its trainer."""
    return SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *args, **kwargs: (logp, torch.zeros(B, T), None),
        loss_type=case.get("loss_type"),
        importance_sampling_level=case.get("importance_sampling_level", "token"),
        epsilon_low=case.get("epsilon_low", 0.2),
        epsilon_high=case["epsilon_high"],
        beta=case.get("beta", 0.0),
        use_vllm="weighted" in case,
        vllm_importance_sampling_correction="weighted" in case,
        max_completion_length=CONSTANT,
        current_gradient_accumulation_steps=1,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        accelerator=SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x, sync_gradients=True
        ),
        model=SimpleNamespace(training=True),
        _metrics={"train": defaultdict(list)},
    )


def run(case: dict, inputs: dict[str, list]) -> dict:
    """Loss, its gradient by the log-probabilities, and the share of clipped tokens."""
    logp = torch.tensor(inputs["logp"], dtype=torch.float64, requires_grad=True)
    tensor = lambda name: torch.tensor(inputs[name], dtype=torch.float64)  # noqa: E731
    mask = (torch.arange(T)[None] < torch.tensor(LENGTHS)[:, None]).long()
    batch = {
        "prompt_ids": torch.zeros(B, 1, dtype=torch.long),
        "prompt_mask": torch.ones(B, 1, dtype=torch.long),
        "completion_ids": torch.zeros(B, T, dtype=torch.long),
        "completion_mask": mask,
        "advantages": tensor("advantages"),
        "old_per_token_logps": tensor("old"),
        "old_logps": (tensor("old") * mask).sum(1),
        "ref_per_token_logps": tensor("reference"),
        "importance_sampling_ratio": tensor("importance_weights"),
        "num_items_in_batch": mask.sum(),
    }
    stand_in = trainer(case, logp)
    kind = RLOOTrainer if "rloo" in case else GRPOTrainer
    loss = kind._compute_loss(stand_in, None, batch)  # pyright: ignore[reportArgumentType]
    loss.backward()
    return {"loss": loss.item(), "gradient": logp.grad.tolist()}


if __name__ == "__main__":
    inputs = make_inputs()
    results = {name: run(case, inputs) for name, case in CASES.items()}
    made_by = f"python {sys.argv[0]}, trl {trl.__version__}, torch {torch.__version__}"
    print(json.dumps({"made_by": made_by, "constant": CONSTANT, "inputs": inputs, "cases": results}))
