"""The programs that a plan compiles: the project's own, as shapes on a slice's mesh.

In: a :class:`arena.plan_config.PlanConfig` and a mesh. Out: lowered programs, ready for the TPU compiler:

    gradient   rl.learner's accumulation of one micro-batch: policy, reference, GRPO loss with KL, backward
    update     rl.learner's optimizer step (clipped AdamW), state donated
    prefill    model.transformer's prefill of prompts
    decode     model.decoding's loop: up to STEPS tokens for every slot

Nothing is computed: every argument is a shape with its sharding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from arena.plan_config import PlanConfig
from model import decoding
from model.config import ModelConfig
from model.kvcache import AXES as CACHE_AXES
from model.kvcache import init_cache
from model.sharding import on_mesh, param_shardings, place
from model.transformer import abstract_params, make_graphdef
from rl.batch import Batch
from rl.learner import Learner, LearnerConfig
from rl.optimizer import OptimizerConfig, init_state

PROGRAMS = ("gradient", "update", "prefill", "decode")
Shape = jax.ShapeDtypeStruct


class Programs:
    """Lowers the programs of one config; see the module."""

    def __init__(self, config: PlanConfig, mesh: Mesh, rollout_mesh: Mesh):
        self.config, self.mesh, self.rollout_mesh = config, mesh, rollout_mesh
        optimizer = OptimizerConfig(first_moment=config.train.first_moment)
        how = LearnerConfig(optimizer=optimizer)
        self.learner = Learner(_score(config.train_model()), how, donate=True)
        shapes = abstract_params(config.train_model())
        self.params = _placed(shapes, mesh, jnp.float32)
        # the reference and the sampler's weights are only ever rounded to bfloat16 before use
        self.reference = _placed(shapes, mesh, jnp.bfloat16)
        self.state = self._state()

    @cached_property
    def sampler(self) -> Any:
        """The weights as the sampler holds them."""
        return _placed(abstract_params(self.config.rollout_model()), self.rollout_mesh, jnp.bfloat16)

    def mesh_of(self, name: str) -> Mesh:
        return self.rollout_mesh if name in ("prefill", "decode") else self.mesh

    def lower(self, name: str) -> Any:
        """The lowered program of this name; ``.compile()`` it."""
        makers: dict[str, Callable[[], Any]] = {
            "gradient": self._gradient,
            "update": self._update,
            "prefill": self._prefill,
            "decode": self._decode,
        }
        with on_mesh(self.mesh_of(name)):
            return makers[name]()

    def resident(self, name: str) -> float:
        """Bytes a chip of what stays in HBM while this program runs and isn't among its arguments."""
        optimizer = per_chip(self.state) - per_chip(self.params)
        if name == "gradient":
            return optimizer
        if name == "update":
            return per_chip(self.reference)
        training = per_chip(self.state) + per_chip(self.reference)
        return training + (per_chip(self._cache()) if name == "prefill" else 0.0)

    def _gradient(self) -> Any:
        shape = (self.config.train.rows, self.config.train.length)
        row = place(self.mesh, ("batch", "time"), shape)
        ints, floats = Shape(shape, jnp.int32, sharding=row), Shape(shape, jnp.float32, sharding=row)
        batch = Batch(ints, ints, ints, ints, ints, floats, floats, floats)
        return self.learner.accumulate.lower(
            self.params, self.reference, self.params, batch, Shape((), jnp.float32)
        )

    def _update(self) -> Any:
        return self.learner.apply.lower(self.state, self.params, self._replicated(()))

    def _prefill(self) -> Any:
        config = self.config.rollout_model()
        graphdef, rollout = make_graphdef(config), self.config.rollout

        def prefill(params: nnx.State, tokens: Any) -> Any:
            return nnx.merge(graphdef, params).prefill(tokens)

        shape = (rollout.prompts, rollout.prompt)
        tokens = Shape(shape, jnp.int32, sharding=place(self.rollout_mesh, ("batch", None), shape))
        return jax.jit(prefill).lower(self.sampler, tokens)

    def _decode(self) -> Any:
        graphdef = make_graphdef(self.config.rollout_model())
        B = self.config.rollout.slots

        def slots(dtype: Any, *more: int) -> Any:
            axes = ("batch", *(None,) * len(more))
            return Shape((B, *more), dtype, sharding=place(self.rollout_mesh, axes, (B, *more)))

        def decode(params: nnx.State, cache: Any, rows: decoding.Rows) -> Any:
            return decoding.decode(graphdef, params, cache, rows, jnp.int32(decoding.STEPS))

        one = slots(jnp.int32)
        rows = decoding.Rows(
            pending=one,
            length=one,
            left=one,
            keys=slots(jnp.uint32, 2),
            temperature=slots(jnp.float32),
            top_k=one,
            top_p=slots(jnp.float32),
            stops=slots(jnp.int32, 1),
            forced=slots(jnp.int32, decoding.STEPS),
        )
        return jax.jit(decode, donate_argnums=1).lower(self.sampler, self._cache(), rows)

    def _cache(self) -> Any:
        rollout = self.config.rollout
        shapes = jax.eval_shape(
            partial(init_cache, self.config.rollout_model(), rollout.slots, rollout.max_len)
        )
        return jax.tree.map(
            lambda x: Shape(x.shape, x.dtype, sharding=place(self.rollout_mesh, CACHE_AXES, x.shape)),
            shapes,
        )

    def _state(self) -> Any:
        """The train state; moments lie where their parameters do."""
        shapes = jax.eval_shape(lambda params: init_state(params, self.learner.optimizer), self.params)
        places = {leaf.shape: leaf.sharding for leaf in jax.tree.leaves(self.params)}
        return jax.tree.map(
            lambda x: Shape(x.shape, x.dtype, sharding=places.get(x.shape, self._replicated(()).sharding)),
            shapes,
        )

    def _replicated(self, shape: tuple[int, ...]) -> Shape:
        return Shape(shape, jnp.float32, sharding=NamedSharding(self.mesh, PartitionSpec()))


def _score(config: ModelConfig) -> Any:
    """As :meth:`rl.policy.Policy.score` without branches: shared prompts need a mask of T x T."""
    graphdef = make_graphdef(config)

    def score(params: Any, batch: Batch) -> Any:
        model = nnx.merge(graphdef, params)
        hidden = model(batch.tokens, batch.positions, batch.segment_ids)
        return model.score(hidden, batch.targets)

    return score


def _placed(shapes: Any, mesh: Mesh, dtype: Any) -> Any:
    return jax.tree.map(
        lambda x, where: Shape(x.shape, dtype, sharding=where), shapes, param_shardings(mesh, shapes)
    )


def per_chip(tree: Any) -> float:
    """Bytes of a tree of shapes on one device."""
    total = 0.0
    for leaf in jax.tree.leaves(tree):
        part = leaf.sharding.shard_shape(leaf.shape)
        total += leaf.dtype.itemsize * math.prod(part)
    return total
