"""Splash attention: JAX's Pallas kernel for TPU, over packed rows and over a mesh.

The kernel never makes an array of T x T, skips blocks above the diagonal and masks by segment ids
inside. On a mesh (:func:`model.sharding.on_mesh`) each device runs it on its own rows, heads and part
of the queries: batch over ``data`` and ``fsdp``, heads over ``tensor``, queries over ``sequence``
(context parallelism; every device holds all keys and values of its heads, gathered by the compiler,
which for grouped queries are the small part).

``interpret=True`` runs the kernel's program on any machine, for tests.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from model.attention import LANES
from model.sharding import current_mesh, fitting

BLOCK = 512  # queries and keys at a time at most; MaxText's default


def splash(
    q: Float[Array, "B T H h"],
    k: Float[Array, "B T K h"],
    v: Float[Array, "B T K h"],
    segment_ids: Int[Array, "B T"],
    *,
    interpret: bool = False,
) -> Float[Array, "B T H h"]:
    """Causal attention within segments.

    Raises:
        ValueError: T (on a mesh: T over the ``sequence`` axis) is no multiple of 128.
    """
    T, H, h = q.shape[1:]
    q = (q.astype(jnp.float32) * h**-0.5).astype(q.dtype)
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    mesh = current_mesh()
    if mesh is None:
        kernel = _kernel(T, H, 1, 1, interpret)
        out = _rows(kernel, q, k, v, segment_ids, segment_ids)
    else:
        out = _on_mesh(mesh, q, k, v, segment_ids, interpret)
    return out.transpose(0, 2, 1, 3)


def _on_mesh(mesh: Any, q: Array, k: Array, v: Array, segment_ids: Array, interpret: bool) -> Array:
    B, H, T, _ = q.shape
    batch, heads, time = fitting(mesh, "batch", B), fitting(mesh, "heads", H), fitting(mesh, "time", T)
    cut = math.prod(mesh.shape[axis] for axis in heads)
    if k.shape[1] % cut:  # fewer key/value heads than devices: each device gets a copy of its own
        k, v = (jnp.repeat(x, cut // math.gcd(cut, x.shape[1]), axis=1) for x in (k, v))
    kernel = _kernel(T, H, cut, math.prod(mesh.shape[axis] for axis in time), interpret)
    kernel_spec = kernel.manual_sharding_spec(NamedSharding(mesh, PartitionSpec(heads or None, time or None)))
    queries = PartitionSpec(batch or None, heads or None, time or None, None)
    keys = PartitionSpec(batch or None, heads or None, None, None)
    ids = PartitionSpec(batch or None, time or None), PartitionSpec(batch or None, None)
    run = jax.shard_map(
        _rows,
        mesh=mesh,
        in_specs=(kernel_spec, queries, keys, keys, *ids),
        out_specs=queries,
        check_vma=False,
    )
    return run(kernel, q, k, v, segment_ids, segment_ids)


def _rows(kernel: Any, q: Array, k: Array, v: Array, q_ids: Array, kv_ids: Array) -> Array:
    def row(q: Array, k: Array, v: Array, q_ids: Array, kv_ids: Array) -> Array:
        return kernel(q, k, v, kernels.SegmentIds(q=q_ids, kv=kv_ids))

    return jax.vmap(row)(q, k, v, q_ids, kv_ids)


def _kernel(T: int, H: int, head_shards: int, time_shards: int, interpret: bool) -> Any:
    part = T // time_shards
    if part % LANES:
        raise ValueError(f"splash attention: {part} tokens of a row on a device are no multiple of {LANES}")
    q, kv = math.gcd(part, BLOCK), math.gcd(T, BLOCK)
    sizes = kernels.BlockSizes(
        block_q=q, block_kv=kv, block_kv_compute=kv, block_q_dkv=q, block_kv_dkv=kv,
        block_kv_dkv_compute=kv, block_q_dq=q, block_kv_dq=kv,
    )  # fmt: skip
    return kernels.make_splash_mha(
        masks.MultiHeadMask([masks.CausalMask((T, T)) for _ in range(H)]),
        block_sizes=sizes,
        head_shards=head_shards,
        q_seq_shards=time_shards,
        residual_checkpoint_name="attention",  # remat that keeps attention keeps what its gradient needs
        interpret=interpret,
    )
