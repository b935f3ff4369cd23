"""The policy network: one forward pass for training, scoring and decoding.

Rows carry tokens, positions (restarting with each segment) and segment ids (0 is padding), so
several episodes share a row without seeing each other. The same call with a cache decodes.
Use it functionally: ``graphdef, params = nnx.split(Transformer(config, nnx.Rngs(0)))``; ``params``
is a pytree for jax.grad and optax, ``graphdef`` is static.

With ``config.scan_layers`` the layers are one block whose arrays have a leading axis of layers;
:func:`stack_layers` and :func:`unstack_layers` turn one kind of parameters into the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from model.attention import Attention, visibility
from model.config import ModelConfig
from model.kvcache import Cache, LayerCache
from model.layers import Linear, RMSNorm, SwiGLU, rope_angles
from model.scoring import logits_of, score_targets
from model.sharding import constrain, constrain_layer, param_shardings

EMBEDDING_STD = 0.02  # Hugging Face's initializer_range of Qwen3

_POLICIES = jax.checkpoint_policies
# What the backward pass finds in memory besides each block's input; the rest is computed again.
# ``none`` keeps everything and computes nothing again.
REMAT: dict[str, Any] = {
    "full": _POLICIES.nothing_saveable,
    "attention": _POLICIES.save_only_these_names("attention"),
    "qkv": _POLICIES.save_only_these_names("attention", "qkv"),
    "dots": _POLICIES.dots_with_no_batch_dims_saveable,  # the outputs of all weight products
}


class Block(nnx.Module):
    """Attention and feed-forward, each behind a norm and beside the residual stream."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        out_scale = (2 * config.n_layers) ** -0.5  # GPT-2's: the residual stream keeps its size with depth
        exact = config.batch_invariant
        self.attention_norm = RMSNorm(config.d_model, config.rms_eps, exact)
        self.attention = Attention(config, rngs, out_scale)
        self.mlp_norm = RMSNorm(config.d_model, config.rms_eps, exact)
        self.mlp = SwiGLU(config.d_model, config.d_ff, rngs, out_scale, exact)

    def __call__(self, x, angles, see, cache=None, at=None):
        out, cache = self.attention(self.attention_norm(x), angles, see, cache, at)
        x = constrain(x + out, "batch", "residual", None)
        x = x + self.mlp(self.mlp_norm(x))
        return constrain(x, "batch", "residual", None), cache


class Transformer(nnx.Module):
    """Decoder of the Qwen3, Qwen2 and Llama families."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        self.config = config
        noise = jax.random.normal(rngs.params(), (config.vocab_size, config.d_model), jnp.float32)
        self.embedding = nnx.Param(noise * EMBEDDING_STD)
        blocks = [Block(config, rngs) for _ in range(config.n_layers)]
        self.layers: Any = _stacked(blocks) if config.scan_layers else nnx.List(blocks)
        self.norm = RMSNorm(config.d_model, config.rms_eps, config.batch_invariant)
        self.head = None if config.tie_embeddings else Linear(config.d_model, config.vocab_size, rngs)

    def __call__(
        self,
        tokens_BT: Int[Array, "B T"],
        positions_BT: Int[Array, "B T"],
        segment_ids_BT: Int[Array, "B T"],
        *,
        branch_ids_BT: Int[Array, "B T"] | None = None,
        key_blocks: Int[Array, "B n m"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Hidden states after the last norm.

        ``branch_ids_BT`` lets continuations share a beginning, see :func:`model.attention.see_segments`;
        ``key_blocks`` leaves out what the mask hides anyway, see :mod:`model.block_attention`.
        """
        see = visibility(self.config, segment_ids_BT, branch_ids_BT, key_blocks)
        x, angles = self._enter(tokens_BT, positions_BT)
        return self.norm(self._through(x, lambda block, x: block(x, angles, see)[0]))

    def _through(self, x: Array, run: Callable[[Block, Array], Array]) -> Array:
        """``run`` each block on what the one before it gave."""

        config = self.config

        def step(graphdef: nnx.GraphDef, state: nnx.State, x: Array) -> Array:
            return run(nnx.merge(graphdef, constrain_layer(state, config.dtype)), x)

        if config.remat != "none":
            step = jax.checkpoint(
                step, policy=REMAT[config.remat], static_argnums=0, prevent_cse=not config.scan_layers
            )
        if not config.scan_layers:
            for block in self.layers:
                x = step(*nnx.split(block), x)
            return x
        graphdef, stack = nnx.split(self.layers)
        return jax.lax.scan(lambda x, state: (step(graphdef, state, x), None), x, stack)[0]

    def prefill(self, tokens_BT: Int[Array, "B T"]) -> Cache:
        """The cache of whole sequences, from position 0: keys and values of the rows' forward."""
        shape = tokens_BT.shape
        see = visibility(self.config, jnp.ones(shape, jnp.int32))
        x, angles = self._enter(tokens_BT, jnp.broadcast_to(jnp.arange(shape[1]), shape))
        layers: list[LayerCache] = []
        for layer in self._blocks():
            x, kept = layer(x, angles, see)
            layers.append(kept)
        return tuple(layers)

    def decode(
        self, tokens_BT: Int[Array, "B T"], at: Int[Array, " B"], cache: Cache
    ) -> tuple[Float[Array, "B T D"], Cache]:
        """The same forward over new tokens of sequences in ``cache``.

        Args:
            tokens_BT: the next T tokens of each slot.
            at: the position of the first of them in each slot.
            cache: what the slots hold already; token p of a slot at index p. A token whose position
                is past the cache's end is lost, and its hidden state means nothing.
        """
        positions = at[:, None] + jnp.arange(tokens_BT.shape[1])
        see = jnp.arange(cache[0].v.shape[2]) <= positions[..., None]
        x, angles = self._enter(tokens_BT, positions)
        layers: list[LayerCache] = []
        for layer, kept in zip(self._blocks(), cache, strict=True):
            x, kept = layer(x, angles, see, kept, at)
            layers.append(kept)
        return self.norm(x), tuple(layers)

    def _blocks(self) -> list[Block]:
        """The layers one by one. Decoding takes them so: each layer's cache is changed in place."""
        if not self.config.scan_layers:
            return list(self.layers)
        graphdef, stack = nnx.split(self.layers)
        return [
            nnx.merge(graphdef, jax.tree.map(lambda x, n=n: x[n], stack)) for n in range(self.config.n_layers)
        ]

    def _enter(self, tokens: Array, positions: Array) -> tuple[Array, tuple[Array, Array]]:
        c = self.config
        x = self.embedding[...][tokens].astype(c.dtype)
        angles = rope_angles(positions, c.head_dim, c.rope_theta, c.rope_scaling, c.batch_invariant)
        return constrain(x, "batch", "residual", None), angles

    @property
    def table(self) -> Float[Array, "V D"]:
        """A row for each token to score: the embeddings when they are tied, else the head."""
        return self.embedding[...] if self.head is None else self.head.kernel[...].T

    def logits(self, hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        """Scores over the vocabulary, float32."""
        return logits_of(hidden, self.table, self.config.batch_invariant)

    def score(
        self, hidden: Float[Array, "B T D"], targets_BT: Int[Array, "B T"]
    ) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
        """Log-probability of each target and entropy of its distribution, see :mod:`model.scoring`."""
        c = self.config
        return score_targets(hidden, self.table, targets_BT, c.vocab_chunks, c.batch_invariant)


def _stacked(blocks: list[Block]) -> Block:
    """One block whose arrays are those of all blocks, along a new first axis."""
    graphdef = nnx.graphdef(blocks[0])
    return nnx.merge(graphdef, jax.tree.map(lambda *x: jnp.stack(x), *map(nnx.state, blocks)))


def stack_layers(params: nnx.State) -> nnx.State:
    """Parameters of ``scan_layers=True`` from those of ``scan_layers=False``."""
    flat = dict(nnx.to_flat_state(params))
    out = []
    for path, leaf in flat.items():
        if path[0] != "layers":
            out.append((path, leaf))
        elif path[1] == 0:
            rows = [flat["layers", n, *path[2:]][...] for n in range(len(params["layers"]))]
            out.append((("layers", *path[2:]), leaf.replace(jnp.stack(rows))))
    return nnx.from_flat_state(out)


def unstack_layers(params: nnx.State) -> nnx.State:
    """Parameters of ``scan_layers=False`` from those of ``scan_layers=True``."""
    out = []
    for path, leaf in nnx.to_flat_state(params):
        if path[0] != "layers":
            out.append((path, leaf))
            continue
        rows = leaf[...]
        out += [(("layers", n, *path[1:]), leaf.replace(rows[n])) for n in range(len(rows))]
    return nnx.from_flat_state(out)


def make_graphdef(config: ModelConfig) -> nnx.GraphDef:
    """The static half of ``nnx.split(Transformer(config, ...))``, without making weights."""
    return nnx.graphdef(nnx.eval_shape(lambda: Transformer(config, nnx.Rngs(0))))


def abstract_params(config: ModelConfig) -> nnx.State:
    """Shapes and dtypes of the other half."""
    return nnx.state(nnx.eval_shape(lambda: Transformer(config, nnx.Rngs(0))))


def init_params(config: ModelConfig, seed: int, mesh: jax.sharding.Mesh | None = None) -> nnx.State:
    """Fresh weights; with a mesh each device makes its own part only."""

    def make() -> nnx.State:
        return nnx.state(Transformer(config, nnx.Rngs(seed)))

    if mesh is None:
        return make()
    return jax.jit(make, out_shardings=param_shardings(mesh, abstract_params(config)))()


class TokenBatch(NamedTuple):
    """The least that scoring needs. Any object with these three attributes will do."""

    tokens: Int[Array, "B T"]
    positions: Int[Array, "B T"]
    segment_ids: Int[Array, "B T"]


class HasTokens(Protocol):
    """See :class:`TokenBatch`."""

    @property
    def tokens(self) -> Array: ...
    @property
    def positions(self) -> Array: ...
    @property
    def segment_ids(self) -> Array: ...


def token_logprobs(
    graphdef: nnx.GraphDef, params: nnx.State, batch: HasTokens
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Log-probability of each next token, and the entropy of its distribution, at temperature 1.

    Entry [b, t] speaks of token t + 1. Where that token is padding, opens another segment or lies
    past the row, both are 0.

    Returns:
        logp_BT and entropy_BT, both in nats.
    """
    model = nnx.merge(graphdef, params)
    hidden = model(batch.tokens, batch.positions, batch.segment_ids)
    logp, entropy = model.score(hidden, jnp.roll(batch.tokens, -1, axis=1))
    real = next_token_mask(batch.segment_ids)
    return jnp.where(real, logp, 0.0), jnp.where(real, entropy, 0.0)


def next_token_mask(segment_ids: Int[Array, "B T"]) -> Array:
    """True where token t + 1 belongs to the same, real segment as token t."""
    following = jnp.roll(segment_ids, -1, axis=1).at[:, -1].set(0)
    return (segment_ids == following) & (segment_ids > 0)
