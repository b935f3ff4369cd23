"""JetStream's Engine API: the contract by itself, and against google-jetstream where it is installed."""

from __future__ import annotations

import importlib.util
import inspect

import jax
import numpy as np
import pytest

from model.engine import Engine
from model.rows import PREFILL_BUCKETS
from model.slots import Slots
from model.transformer import init_params

EOS = 9


@pytest.fixture(scope="module")
def sharp(config):
    return jax.tree.map(lambda x: x * 2.0, init_params(config, 0))


@pytest.fixture
def engine(config, sharp):
    return Engine(config, sharp, slots=8, shard=4, max_len=256, eos_id=EOS, steps=4)


def ids(n, seed=0):
    return np.random.default_rng(seed).integers(10, 500, n).tolist()


def padded(row, size=128):
    return np.array([*row, *[0] * (size - len(row))])


def decode(engine, state, slots, calls):
    """Tokens and log-probabilities of slots over some calls."""
    out = {slot: ([], []) for slot in slots}
    for _ in range(calls):
        state, result = engine.generate(engine.params, state)
        result.copy_to_host_async()
        result = result.convert_to_numpy()
        for slot in slots:
            data = result.get_result_at_slot(slot)
            real = data.valid[0].astype(bool)
            out[slot][0].extend(data.tokens[0][real].tolist())
            out[slot][1].extend(data.log_prob[0][real].tolist())
    return state, out


def test_prefill_insert_generate_are_what_the_slots_by_hand_do(config, sharp, engine):
    prefix = engine.prefill(params=sharp, padded_tokens=padded(ids(40)), true_length=40)
    state = engine.insert(prefix, engine.init_decode_state(), slot=5)
    key = state.shards[1].rows.keys[1]
    _, out = decode(engine, state, [5], 4)
    slots = Slots(Engine(config, sharp, slots=8, shard=4, max_len=256, eos_id=EOS))
    slots.insert(slots.prefill(ids(40)), 0)
    (expected,) = slots.generate([0], [int(key[0]) << 32 | int(key[1])], max_new=16)
    assert out[5] == (expected.tokens, expected.logprobs)


def test_an_existing_prefix_is_honoured(config, sharp, engine):
    """The same distribution as the whole prompt at once, and the prefix stays usable."""
    whole = engine.prefill(params=sharp, padded_tokens=padded(ids(100)), true_length=100)
    first = engine.prefill(params=sharp, padded_tokens=padded(ids(100)[:60]), true_length=60)
    for _ in range(2):
        both = engine.prefill(
            params=sharp, existing_prefix=first, padded_tokens=padded(ids(100)[60:]), true_length=40
        )
        assert both.ids.tolist() == ids(100)
        for ours, theirs in zip(jax.tree.leaves(both.cache), jax.tree.leaves(whole.cache), strict=True):
            axis = 3 if ours.shape[3] == 256 else 2
            np.testing.assert_allclose(*(np.take(x, range(99), axis) for x in (ours, theirs)), atol=1e-4)


def test_a_long_prompt_goes_in_chunks(config, sharp):
    size = PREFILL_BUCKETS[-1] + 300
    engine = Engine(config, sharp, slots=1, max_len=2048, eos_id=EOS)
    assert engine.use_chunked_prefill
    long = engine.prefill(params=sharp, padded_tokens=padded(ids(size), 2048), true_length=size)
    state = engine.insert(long, engine.init_decode_state(), 0)
    _, out = decode(engine, state, [0], 1)
    whole = Engine(config, sharp, slots=1, max_len=2048, eos_id=EOS)
    cache = whole._run.prefill(sharp, np.array([ids(size)[:-1]], np.int32))
    state2 = whole.insert(long._replace(cache=cache), whole.init_decode_state(), 0)
    _, out2 = decode(whole, state2, [0], 1)
    np.testing.assert_allclose(out[0][1], out2[0][1], atol=1e-5)
    assert out[0][0] == out2[0][0]


def test_multisampling_draws_first_tokens_from_one_prefill(sharp, engine):
    prefix, first = engine.prefill_multisampling(
        params=sharp, padded_tokens=padded(ids(30)), true_length=30, num_samples=4, rng=jax.random.key(3)
    )
    tokens = [int(first.get_result_at_slot(n).tokens[0, 0]) for n in range(4)]
    assert prefix.first.tolist() == tokens
    assert len(set(tokens)) > 1
    assert np.exp(first.log_prob).sum() > 0
    state = engine.bulk_insert(prefix, engine.init_decode_state(), [0, 2, 4, 6])
    lengths = np.concatenate([shard.rows.length for shard in state.shards])
    pending = np.concatenate([shard.rows.pending for shard in state.shards])
    assert lengths.tolist() == [31, 0] * 4
    assert pending[::2].tolist() == tokens
    _, out = decode(engine, state, [0, 2, 4, 6], 2)
    assert len({tuple(tokens) for tokens, _ in out.values()}) == 4


def test_a_freed_slot_decodes_no_further(sharp, engine):
    prefix = engine.prefill(params=sharp, padded_tokens=padded(ids(20)), true_length=20)
    state = engine.bulk_insert(prefix, engine.init_decode_state(), [0, 1])
    engine.free_resource(0)
    _, out = decode(engine, state, [0, 1], 1)
    assert out[0] == ([], [])
    assert out[1][0]


def test_what_jetstream_asks_of_an_engine(engine):
    assert (engine.max_concurrent_decodes, engine.samples_per_slot, engine.max_prefill_length) == (8, 1, 256)
    assert engine.load_params() is engine.params
    assert engine.colocated_cpus is None
    assert engine.get_prefix_destination_sharding().mesh == engine.mesh


needs_jetstream = pytest.mark.skipif(
    importlib.util.find_spec("jetstream") is None, reason="google-jetstream (extra jetstream) is absent"
)


@needs_jetstream
def test_nothing_of_the_abstract_class_is_missing(config, sharp):
    """Python itself refuses to make an object when an abstract method has no body."""
    from model.jetstream import register

    api = register()

    class Both(Engine, api.Engine):
        pass

    both = Both(config, sharp, slots=2, max_len=64, eos_id=EOS)
    assert isinstance(both, api.Engine)
    assert isinstance(Engine(config, sharp, slots=2, max_len=64, eos_id=EOS), api.Engine)
    for name in api.Engine.__abstractmethods__:
        theirs, ours = getattr(api.Engine, name), getattr(Engine, name)
        if callable(theirs) and name != "init_decode_state":  # theirs takes anything
            assert set(inspect.signature(theirs).parameters) <= set(inspect.signature(ours).parameters), name


@needs_jetstream
def test_its_own_orchestrator_drives_the_engine(config, sharp, tokenizer):
    """Token ids in, the same greedy tokens out as by hand."""
    from jetstream.core import orchestrator

    from model.jetstream import register
    from model.sampling import Sampling

    register()
    engine = Engine(
        config, sharp, slots=2, max_len=256, eos_id=EOS, tokenizer=tokenizer, sampling=Sampling(0.0)
    )
    driver = orchestrator.Driver(
        prefill_engines=[engine], generate_engines=[engine], prefill_params=[sharp], generate_params=[sharp],
        interleaved_mode=True,
    )  # fmt: skip
    import asyncio

    from jetstream.core.proto import jetstream_pb2

    async def ask():
        service = orchestrator.LLMOrchestrator(driver=driver)
        request = jetstream_pb2.DecodeRequest(
            token_content=jetstream_pb2.DecodeRequest.TokenContent(token_ids=ids(30)), max_tokens=10
        )
        return [
            token async for r in service.Decode(request) for token in r.stream_content.samples[0].token_ids
        ]

    got = asyncio.run(asyncio.wait_for(ask(), 200))
    driver.stop()
    slots = Slots(Engine(config, sharp, slots=2, max_len=256, eos_id=EOS))
    slots.insert(slots.prefill(ids(30)), 0)
    (expected,) = slots.generate([0], [1], temperature=0.0, max_new=len(got))
    assert len(got) > 3
    assert got == expected.tokens[: len(got)]
