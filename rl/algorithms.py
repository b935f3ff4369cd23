"""Names for combinations of knobs: which fields ``algorithm = "dapo"`` sets in a training config.

In: the fields of a training config as a file gives them. Out: the same fields, with those that the
algorithm decides filled in where the file is silent. Nothing else in rl/ knows these names: the
learner reads knobs (:class:`rl.learner.LearnerConfig`), the groups read theirs (``BatchConfig``).

What a preset leaves alone: the optimizer, packing, dynamic sampling (on for all of them) and the
masking of truncated episodes (DAPO's "overlong filtering"). Its source stands beside each number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The paper's GRPO: clip 0.2/0.28 and a KL to the reference. What it doesn't state is ours: every token
# weighs the same, and the KL's weight (rl/README.md). These are the defaults of the two configs.
GRPO: dict[str, dict[str, Any]] = {
    "learner": {
        "clip_low": 0.2,
        "clip_high": 0.28,
        "kl_weight": 0.03,
        "kl_estimator": "k3",
        "ratio": "token",
        "surrogate": "clip",
        "aggregate": "token",
    },
    "batch": {"normalise": True, "baseline": "mean"},
}


def _but(batch: Mapping[str, Any] | None = None, **learner: Any) -> dict[str, dict[str, Any]]:
    return {"learner": GRPO["learner"] | learner, "batch": GRPO["batch"] | dict(batch or {})}


ALGORITHMS: dict[str, dict[str, dict[str, Any]]] = {
    "grpo": GRPO,
    # Shao et al., DeepSeekMath (arXiv 2402.03300): mean over each answer's tokens, then over answers; one
    # clip range (PPO's 0.2), KL weight 0.04 (section 4.2).
    "deepseekmath": _but(clip_high=0.2, kl_weight=0.04, aggregate="sequence"),
    # Yu et al., DAPO (2503.14476): clip higher, no KL, every token the same. Its soft punishment of length is
    # BatchConfig.overlong_buffer; here cut-off episodes are masked, as in its overlong filtering.
    "dapo": _but(kl_weight=0.0),
    # Liu et al., "Understanding R1-Zero-like training" (2503.20783): no division by length or by the standard
    # deviation, no KL; the clip is PPO's 0.2.
    "dr_grpo": _but({"normalise": False}, clip_high=0.2, kl_weight=0.0, aggregate="constant"),
    # Zheng et al., GSPO (2507.18071), section 5.1: 3e-4 and 4e-4; the objective has no KL term.
    "gspo": _but(clip_low=3e-4, clip_high=4e-4, kl_weight=0.0, ratio="sequence", aggregate="sequence"),
    "gspo_token": _but(
        clip_low=3e-4, clip_high=4e-4, kl_weight=0.0, ratio="sequence_token", aggregate="sequence"
    ),
    # MiniMax-M1 (2506.13585): no lower bound, no KL. It doesn't print the upper one; weights of at most 5 are
    # from "The art of scaling RL compute" (2510.13786) and TRL's documentation.
    "cispo": _but(clip_low=1.0, clip_high=4.0, kl_weight=0.0, surrogate="cispo"),
    # Ahmadian et al., "Back to basics" (2402.14740): a whole answer is one action, the baseline is the mean
    # of the others. The clip is PPO's 0.2, as in TRL's RLOO. They put the KL in the reward; here it is off.
    "rloo": _but(
        {"normalise": False, "baseline": "leave_one_out"},
        clip_high=0.2,
        kl_weight=0.0,
        ratio="trajectory",
        aggregate="sequence",
    ),
}


def with_algorithm(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in what ``fields["algorithm"]`` decides; a knob that is given stays as given.

    Args:
        fields: a training config, sections as mappings or as config objects (of which only the fields
            that were set count as given).

    Returns:
        A copy whose ``learner`` and ``batch`` sections are mappings. ``algorithm`` defaults to "grpo".

    Raises:
        ValueError: no algorithm of that name.
    """
    name = fields.get("algorithm", "grpo")
    if name not in ALGORITHMS:
        raise ValueError(f"algorithm {name!r} is none of {', '.join(ALGORITHMS)}")
    filled = dict(fields)
    for section, knobs in ALGORITHMS[name].items():
        given = fields.get(section) or {}
        if not isinstance(given, Mapping):
            given = {field: getattr(given, field) for field in given.model_fields_set}
        filled[section] = knobs | dict(given)
    return filled
