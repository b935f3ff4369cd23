"""The policy: a model, its tokenizer and template, and the version that is stamped on every turn.

In: a policy folder (:mod:`model.hf`), or parameters from a learner. Out: what a rollout needs
(``params``, ``template``, ``version``) and what a learner needs (:meth:`Policy.score`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flax import nnx
from jaxtyping import Array, Float

from model.config import ModelConfig
from model.hf import load_policy, save_policy
from model.templates import template_for
from model.tokens import ChatTemplate, Tokenizer
from model.transformer import init_params, make_graphdef
from rl.batch import Batch
from synth.errors import CallerError


@dataclass(frozen=True)
class Policy:
    """Parameters and everything needed to use them. ``version`` counts optimizer steps in GRPO."""

    config: ModelConfig
    params: Any
    graphdef: Any
    tokenizer: Tokenizer
    template: ChatTemplate
    version: int = 0

    @classmethod
    def make(cls, config: ModelConfig, params: Any, tokenizer: Tokenizer, version: int = 0) -> Policy:
        """A policy around existing parameters."""
        return cls(config, params, make_graphdef(config), tokenizer, template_for(tokenizer), version)

    @classmethod
    def fresh(cls, config: ModelConfig, tokenizer: Tokenizer, seed: int) -> Policy:
        """A policy with random weights."""
        return cls.make(config, init_params(config, seed), tokenizer)

    @classmethod
    def load(cls, folder: str | Path, version: int = 0, **how: Any) -> Policy:
        """Read a policy folder; ``how`` and errors as of :func:`model.hf.load_policy`."""
        config, params, tokenizer = load_policy(folder, **how)
        return cls.make(config, params, tokenizer, version)

    def running(self, **how: Any) -> Policy:
        """The same weights run in another way: fields of ModelConfig that leave them as they are.

        Raises:
            CallerError: they don't go together.
        """
        try:
            config = dataclasses.replace(self.config, **how)
        except ValueError as err:
            raise CallerError(str(err)) from None
        return dataclasses.replace(self, config=config, graphdef=make_graphdef(config))

    def save(self, folder: str | Path, dtype: str = "float32") -> None:
        """Write a policy folder; an existing one is replaced in one step."""
        save_policy(folder, self.config, self.params, self.tokenizer, dtype=dtype)

    def with_params(self, params: Any, version: int) -> Policy:
        return dataclasses.replace(self, params=params, version=version)

    def score(
        self, params: Any, batch: Batch, branches: bool = True
    ) -> tuple[Float[Array, "R T"], Float[Array, "R T"]]:
        """Log-probability of each target and entropy of its distribution; differentiable, jit it.

        It is the forward that the engine decodes with (rule 3), at temperature 1.

        Args:
            branches: whether prompts may be shared in this batch; without, splash attention can be used.
        """
        model = nnx.merge(self.graphdef, params)
        hidden = model(
            batch.tokens,
            batch.positions,
            batch.segment_ids,
            branch_ids_BT=batch.branch_ids if branches else None,
            key_blocks=batch.key_blocks,
        )
        return model.score(hidden, batch.targets)
