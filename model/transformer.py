"""The policy network: one forward pass for training, scoring and decoding.

Rows carry tokens, positions (restarting with each segment) and segment ids (0 is padding), so
several episodes share a row without seeing each other. The same call with a cache decodes.
Use it functionally: ``graphdef, params = nnx.split(Transformer(config, nnx.Rngs(0)))``; ``params``
is a pytree for jax.grad and optax, ``graphdef`` is static.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from model.attention import Attention, see_segments
from model.config import ModelConfig
from model.kvcache import Cache
from model.layers import Linear, RMSNorm, SwiGLU, rope_angles

EMBEDDING_STD = 0.02  # Hugging Face's initializer_range of Qwen3


class Block(nnx.Module):
    """Attention and feed-forward, each behind a norm and beside the residual stream."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        out_scale = (2 * config.n_layers) ** -0.5  # GPT-2's: the residual stream keeps its size with depth
        self.attention_norm = RMSNorm(config.d_model, config.rms_eps)
        self.attention = Attention(config, rngs, out_scale)
        self.mlp_norm = RMSNorm(config.d_model, config.rms_eps)
        self.mlp = SwiGLU(config.d_model, config.d_ff, rngs, out_scale)

    def __call__(self, x, angles, see, cache=None, at=None):
        out, cache = self.attention(self.attention_norm(x), angles, see, cache, at)
        x = x + out
        return x + self.mlp(self.mlp_norm(x)), cache


class Transformer(nnx.Module):
    """Qwen3-shaped decoder."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        self.config = config
        noise = jax.random.normal(rngs.params(), (config.vocab_size, config.d_model), jnp.float32)
        self.embedding = nnx.Param(noise * EMBEDDING_STD)
        self.layers = nnx.List([Block(config, rngs) for _ in range(config.n_layers)])
        self.norm = RMSNorm(config.d_model, config.rms_eps)
        self.head = None if config.tie_embeddings else Linear(config.d_model, config.vocab_size, rngs)

    def __call__(
        self,
        tokens_BT: Int[Array, "B T"],
        positions_BT: Int[Array, "B T"],
        segment_ids_BT: Int[Array, "B T"],
        *,
        branch_ids_BT: Int[Array, "B T"] | None = None,
        remat: bool = False,
    ) -> Float[Array, "B T D"]:
        """Hidden states after the last norm.

        ``branch_ids_BT`` lets continuations share a beginning, see :func:`model.attention.see_segments`.
        ``remat`` recomputes each block in the backward pass: less memory, about a third more time.
        """
        see = see_segments(segment_ids_BT, branch_ids_BT)
        block = nnx.remat(Block.__call__) if remat else Block.__call__
        x, angles = self._enter(tokens_BT, positions_BT)
        for layer in self.layers:
            x, _ = block(layer, x, angles, see)
        return self.norm(x)

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
        layers = []
        for layer, kept in zip(self.layers, cache, strict=True):
            x, kept = layer(x, angles, see, kept, at)
            layers.append(kept)
        return self.norm(x), tuple(layers)

    def _enter(self, tokens: Array, positions: Array) -> tuple[Array, tuple[Array, Array]]:
        angles = rope_angles(positions, self.config.head_dim, self.config.rope_theta)
        return self.embedding[...][tokens], angles

    def logits(self, hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        """Scores over the vocabulary."""
        return hidden @ self.embedding[...].T if self.head is None else self.head(hidden)


def make_graphdef(config: ModelConfig) -> nnx.GraphDef:
    """The static half of ``nnx.split(Transformer(config, ...))``, without making weights."""
    return nnx.graphdef(nnx.eval_shape(lambda: Transformer(config, nnx.Rngs(0))))


def abstract_params(config: ModelConfig) -> nnx.State:
    """Shapes and dtypes of the other half."""
    return nnx.state(nnx.eval_shape(lambda: Transformer(config, nnx.Rngs(0))))


def init_params(config: ModelConfig, seed: int) -> nnx.State:
    """Fresh weights."""
    return nnx.state(Transformer(config, nnx.Rngs(seed)))


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
    graphdef: nnx.GraphDef, params: nnx.State, batch: HasTokens, *, remat: bool = False
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Log-probability of each next token, and the entropy of its distribution, at temperature 1.

    Entry [b, t] speaks of token t + 1. Where that token is padding, opens another segment or lies
    past the row, both are 0.

    Returns:
        logp_BT and entropy_BT, both in nats.
    """
    model = nnx.merge(graphdef, params)
    hidden = model(batch.tokens, batch.positions, batch.segment_ids, remat=remat)
    logits = model.logits(hidden)
    logp = jax.nn.log_softmax(logits, axis=-1)
    following = jnp.roll(batch.tokens, -1, axis=1)
    chosen = jnp.take_along_axis(logp, following[..., None], axis=-1)[..., 0]
    entropy = -jnp.sum(jnp.exp(logp) * logp, axis=-1)
    real = next_token_mask(batch.segment_ids)
    return jnp.where(real, chosen, 0.0), jnp.where(real, entropy, 0.0)


def next_token_mask(segment_ids: Int[Array, "B T"]) -> Array:
    """True where token t + 1 belongs to the same, real segment as token t."""
    following = jnp.roll(segment_ids, -1, axis=1).at[:, -1].set(0)
    return (segment_ids == following) & (segment_ids > 0)
