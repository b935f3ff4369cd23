"""A mesh of eight (virtual) devices gives the numbers of one: loss, gradient, weights, attention.

Each part runs in a process of its own, as the number of devices is fixed when JAX starts.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

START = """
import dataclasses, sys
import jax, jax.numpy as jnp, numpy as np
from flax import nnx
from model.config import ModelConfig
from model.sharding import *
from model.transformer import *

base = ModelConfig(vocab_size=96, d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=8, d_ff=64)

def same(left, right, atol):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol), left, right)

def make_batch(T):
    tokens = jax.random.randint(jax.random.key(1), (4, T), 0, 96)
    segments = jnp.broadcast_to((jnp.arange(T) >= T // 3) + 1, (4, T)).at[:, -5:].set(0)
    positions = jnp.broadcast_to(jnp.arange(T) - (jnp.arange(T) >= T // 3) * (T // 3), (4, T))
    return TokenBatch(tokens, positions, segments)

def value_and_grad(config):
    graphdef = make_graphdef(config)
    def loss(params, batch):
        logp, entropy = token_logprobs(graphdef, params, batch)
        return -(logp.sum() + 0.1 * entropy.sum()) / logp.size
    return jax.jit(jax.value_and_grad(loss))
"""

TRAINING = """
params, batch = init_params(base, 0), make_batch(32)
loss, grads = value_and_grad(base)(params, batch)
ways = [
    (dict(data=2, fsdp=2, tensor=2), {}, False),
    (dict(data=2, fsdp=2, tensor=2), dict(scan_layers=True, remat="full", vocab_chunks=4), True),
    (dict(fsdp=2, sequence=2, tensor=2), dict(scan_layers=True, remat="attention", vocab_chunks=5), True),
]
for axes, how, said in ways:
    config, mesh = dataclasses.replace(base, **how), make_mesh(**axes)
    here = stack_layers(params) if config.scan_layers else params
    run, args = value_and_grad(config), (shard_params(mesh, here), shard_batch(mesh, batch))
    if said:
        with on_mesh(mesh):
            cut_loss, cut_grads = run(*args)
    else:
        cut_loss, cut_grads = run(*args)
    assert len(jax.tree.leaves(cut_grads)[0].sharding.device_set) == 8
    np.testing.assert_allclose(cut_loss, loss, atol=1e-5)
    cut_grads = jax.device_get(cut_grads)
    if config.scan_layers:
        cut_grads = unstack_layers(cut_grads)
    same(cut_grads, jax.device_get(grads), 1e-5)
"""

EXACT = """
params, batch = init_params(base, 0), make_batch(32)
exact = dataclasses.replace(base, batch_invariant=True)
score = lambda config: jax.jit(lambda params, batch: token_logprobs(make_graphdef(config), params, batch))
logp, entropy = score(exact)(params, batch)
loss, grads = value_and_grad(base)(params, batch)
for axes, how in (
    (dict(data=2, fsdp=2, tensor=2), {}),
    (dict(fsdp=2, sequence=2, tensor=2), dict(scan_layers=True, remat="attention", vocab_chunks=4)),
):
    config, mesh = dataclasses.replace(exact, **how), make_mesh(**axes)
    here = shard_params(mesh, stack_layers(params) if config.scan_layers else params)
    with on_mesh(mesh):
        cut_logp, cut_entropy = score(config)(here, shard_batch(mesh, batch))
        cut_loss, cut_grads = value_and_grad(config)(here, shard_batch(mesh, batch))
    gap = np.abs(cut_logp - logp)
    assert gap.max() <= 1e-5 and (gap == 0).mean() > 0.99, gap
    same(cut_entropy, entropy, 1e-5)
    np.testing.assert_allclose(cut_loss, loss, atol=1e-5)
    cut_grads = jax.device_get(cut_grads)
    same(unstack_layers(cut_grads) if config.scan_layers else cut_grads, jax.device_get(grads), 1e-5)
"""

WEIGHTS = """
from pathlib import Path
from model import hf, weights

folder = Path(sys.argv[1])
mesh = make_mesh(data=2, fsdp=2, tensor=2)
read = []
plain = weights.SafetensorsFolder.read
def counted(self, name, index):
    read.append(plain(self, name, index))
    return read[-1]
weights.SafetensorsFolder.read = counted
for scan in (False, True):
    config, whole = hf.load_model(folder, scan_layers=scan)
    read.clear()
    config, cut = hf.load_model(folder, scan_layers=scan, mesh=mesh)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(cut), jax.device_get(whole))
    kernel = nnx.to_pure_dict(cut)["layers"]
    kernel = (kernel if scan else kernel[1])["mlp"]["up"]["kernel"]
    assert kernel.addressable_shards[0].data.shape[-2:] == (16, 32), kernel.sharding
    largest = max(array.size for array in read)
    assert largest <= config.vocab_size * config.d_model // 4, "a device's part is read, not the tensor"
    fresh = init_params(config, 3, mesh)
    alike = jax.tree.map(lambda a, b: a.sharding.is_equivalent_to(b.sharding, a.ndim), fresh, cut)
    assert all(jax.tree.leaves(alike))
    same(jax.device_get(fresh), jax.device_get(init_params(config, 3)), 1e-6)
"""

SAMPLING = """
from model.engine import Engine

mesh = make_mesh(data=4, tensor=2)
params = init_params(base, 0)
engine = Engine(base, shard_params(mesh, params), slots=8, max_len=64, eos_id=-1, steps=8)
assert engine.shard == 8, "one thread starts programs that span devices"

def cut(state):
    parts = [x.addressable_shards[0].data.shape for x in state.shards[0].cache[0]]
    assert parts == [(2, 1, 8, 64), (2, 1, 64, 8)], parts  # of (8, 2, 8, 64) and (8, 2, 64, 8)

def greedy(engine):
    state = engine.init_decode_state()
    prefix = engine.prefill(params=engine.params, padded_tokens=np.arange(5, 25), true_length=20)
    state = engine.bulk_insert(prefix, state, range(8))
    return engine.generate(engine.params, state)

cut(engine.init_decode_state())
state, result = greedy(engine)
cut(state)
tokens = np.asarray(result.data)
engine.recycle(state)
engine.release()
del state
assert sum(x.nbytes for x in jax.live_arrays() if len(x.sharding.device_set) == 8) == 0, "released"
engine.update_weights(shard_params(mesh, params), 1)
engine._rng = np.random.default_rng(0)
np.testing.assert_array_equal(np.asarray(greedy(engine)[1].data), tokens)
"""

SPLASH = """
config = dataclasses.replace(base, attention="splash_interpret", n_layers=1)
plain = dataclasses.replace(config, attention="chunked")
params, batch = init_params(plain, 0), make_batch(256)
loss, grads = value_and_grad(plain)(params, batch)
for axes in (dict(data=2, sequence=2, tensor=2), dict(data=2, tensor=4)):
    mesh = make_mesh(**axes)
    with on_mesh(mesh):
        cut_loss, cut_grads = value_and_grad(config)(shard_params(mesh, params), shard_batch(mesh, batch))
    np.testing.assert_allclose(cut_loss, loss, atol=1e-5)
    same(jax.device_get(cut_grads), jax.device_get(grads), 1e-5)
"""


def on_eight_devices(part: str, *args: str) -> None:
    env = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", START + part, *args]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_loss_and_gradient_are_those_of_one_device():
    """Weights and batch cut in three ways, with the layers under scan, remat and a loss in parts."""
    on_eight_devices(TRAINING)


@pytest.mark.slow
def test_batch_invariant_sums_are_those_of_one_device_to_the_bit():
    """Sums over cut axes are joined in float64 too; the gradient stays float32."""
    on_eight_devices(EXACT)


def test_weights_are_read_onto_the_mesh_part_by_part(config, params, tokenizer, tmp_path):
    from model import hf

    hf.save_policy(tmp_path / "policy", config, params, tokenizer, file_bytes=50_000)
    on_eight_devices(WEIGHTS, str(tmp_path / "policy"))


def test_an_engine_cuts_its_caches_as_its_weights_and_gives_the_memory_back():
    on_eight_devices(SAMPLING)


@pytest.mark.slow
def test_splash_attention_on_a_mesh_is_plain_attention():
    """Heads, batch and queries cut; more devices than key/value heads too. The kernel is interpreted."""
    on_eight_devices(SPLASH)
