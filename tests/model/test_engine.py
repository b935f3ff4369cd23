"""Decoding in slots: the trainer's numbers, no influence between neighbours, messages appended."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from model.engine import Engine
from model.sampling import BLOCK, invert, sample
from model.slots import Slots
from model.transformer import TokenBatch, init_params, make_graphdef, token_logprobs

EOS = 9
TOLERANCE = 1e-5  # rule 3: sampler and trainer agree


@pytest.fixture(scope="module")
def sharp(config):
    """Weights with less even distributions than fresh ones, so that seeds and context matter."""
    return jax.tree.map(lambda x: x * 2.0, init_params(config, 0))


@pytest.fixture(scope="module")
def engine(config, sharp):
    return Slots(Engine(config, sharp, slots=8, shard=4, max_len=256, eos_id=EOS))


@pytest.fixture(autouse=True)
def free(engine):
    yield
    for slot in range(engine.engine.slots):
        engine.free_resource(slot)


def ids(n, seed=0):
    return np.random.default_rng(seed).integers(10, 500, n).tolist()


def padded(row, length=256):
    """A row as the trainer sees it, always of one shape."""
    pad = [0] * (length - len(row))
    columns = ([*row, *pad], [*range(len(row)), *pad], [1] * len(row) + pad)
    return TokenBatch(*(jnp.array([column]) for column in columns))


_score = jax.jit(token_logprobs, static_argnums=0)


def trainer_logprobs(config, params, row):
    return np.asarray(_score(make_graphdef(config), params, padded(row))[0][0, : len(row)])


def trainer_logits(config, params, row):
    """Scores over the vocabulary after each token of a row."""
    model = nnx.merge(make_graphdef(config), params)
    return np.asarray(model.logits(model(*padded(row)))[0, : len(row)])


def test_sampler_and_trainer_agree_over_several_turns(config, sharp, engine):
    row, where, sampled = ids(150), [], []
    engine.insert(engine.prefill(row), 2)
    for turn in range(3):
        (out,) = engine.generate([2], [77], max_new=20)
        where += range(len(row) - 1, len(row) - 1 + len(out.tokens))
        sampled += out.logprobs
        row = row + out.tokens
        if turn < 2:
            message = ids(7 + 30 * turn, seed=turn)
            engine.append(2, message)
            row = row + message
        assert engine.length(2) == len(row)
    assert len(sampled) > 5
    np.testing.assert_allclose(sampled, trainer_logprobs(config, sharp, row)[where], atol=TOLERANCE)


def test_neighbours_place_and_order_do_not_matter(engine):
    """The same tokens and the same bits alone, among others, in another slot, in either shard."""
    prompt, message = ids(40), ids(12, seed=5)

    def episode(slot, others):
        for other in others:
            engine.insert(engine.prefill(ids(20 + other, seed=other)), other)
        engine.insert(engine.prefill(prompt), slot)
        turns = []
        for _ in range(2):
            slots = [*others, slot]
            outs = engine.generate(slots, [s + 1000 for s in others] + [42], max_new=16)
            turns.append(outs[-1])
            engine.append_many({s: message if s == slot else ids(40, seed=s) for s in reversed(slots)})
        for used in (*others, slot):
            engine.free_resource(used)
        return turns

    alone = episode(1, [])
    assert episode(1, [0, 2, 3, 6]) == alone
    assert episode(6, [0, 1, 4, 5, 7]) == alone


def test_members_of_a_group_share_a_prefill_and_differ_by_seed(engine):
    prompt = ids(30)
    engine.bulk_insert(engine.prefill(prompt), range(8))
    outs = engine.generate(range(8), [1, 2, 3, 4, 5, 6, 7, 1], max_new=12)
    assert len({tuple(out.tokens) for out in outs}) == 7
    assert outs[0] == outs[7], "same seed, same episode"


def test_greedy_takes_the_most_likely_token(config, sharp, engine):
    row = ids(25)
    engine.insert(engine.prefill(row), 0)
    (out,) = engine.generate([0], [1], temperature=0.0, max_new=6)
    (again,) = engine.generate([0], [2], temperature=0.0, max_new=0)
    assert again.tokens == []
    after = trainer_logits(config, sharp, row + out.tokens)[24:-1]
    assert after.argmax(-1).tolist() == out.tokens
    logp = np.asarray(jax.nn.log_softmax(after))[np.arange(len(out.tokens)), out.tokens]
    np.testing.assert_allclose(out.logprobs, logp, atol=TOLERANCE)


def test_a_turn_ends_at_its_end_its_limit_or_a_full_slot(config, sharp, engine):
    engine.insert(engine.prefill(ids(30)), 0)
    engine.insert(engine.prefill(ids(250)), 1)
    limit, full = engine.generate([0, 1], [13, 14], max_new=[5, 100])
    assert (limit.stopped, full.stopped) == (False, False)
    assert (len(limit.tokens), len(full.tokens)) == (5, 6)
    assert engine.length(1) == 256
    ending = Slots(Engine(config, sharp, slots=1, max_len=256, eos_id=limit.tokens[2]))
    ending.insert(ending.prefill(ids(30)), 0)
    (out,) = ending.generate([0], [13], max_new=50)
    assert out.stopped
    assert out.tokens == limit.tokens[: limit.tokens.index(limit.tokens[2]) + 1]


def test_turns_longer_than_one_device_call(config, sharp, engine):
    row = ids(10)
    engine.insert(engine.prefill(row), 0)
    (out,) = engine.generate([0], [8], max_new=100)
    np.testing.assert_allclose(
        out.logprobs, trainer_logprobs(config, sharp, row + out.tokens)[9:-1], atol=TOLERANCE
    )
    assert len(out.tokens) == 100 or out.stopped


def test_temperature_is_that_of_the_log_probabilities(config, sharp, engine):
    row = ids(30)
    engine.insert(engine.prefill(row), 0)
    (out,) = engine.generate([0], [5], temperature=0.5, max_new=1)
    logp = jax.nn.log_softmax(trainer_logits(config, sharp, row)[-1] / 0.5)
    assert out.logprobs[0] == pytest.approx(float(logp[out.tokens[0]]), abs=TOLERANCE)


def test_a_prompt_of_one_token(config, sharp, engine):
    engine.insert(engine.prefill([17]), 0)
    (out,) = engine.generate([0], [5], max_new=3)
    np.testing.assert_allclose(
        out.logprobs, trainer_logprobs(config, sharp, [17, *out.tokens])[:-1], atol=TOLERANCE
    )


def test_new_weights_only_when_all_slots_are_free(config, engine, sharp):
    engine.insert(engine.prefill(ids(5)), 0)
    with pytest.raises(RuntimeError, match="free all slots"):
        engine.update_weights(init_params(config, 1), version=1)
    engine.free_resource(0)
    other = init_params(config, 1)
    engine.update_weights(other, version=1)
    try:
        engine.insert(engine.prefill(ids(5)), 0)
        (out,) = engine.generate([0], [5], max_new=3)
        expected = trainer_logprobs(config, other, ids(5) + out.tokens)[4:-1]
        np.testing.assert_allclose(out.logprobs, expected, atol=TOLERANCE)
    finally:
        engine.free_resource(0)
        engine.update_weights(sharp, version=0)


def test_misuse_has_a_clear_message(engine):
    with pytest.raises(ValueError, match="holds no sequence"):
        engine.generate([0], [1])
    with pytest.raises(ValueError, match="holds no sequence"):
        engine.append(0, [1])
    with pytest.raises(ValueError, match="1 to 255 tokens"):
        engine.prefill(ids(256))
    engine.insert(engine.prefill(ids(200)), 0)
    with pytest.raises(ValueError, match="in use"):
        engine.insert(engine.prefill(ids(5)), 0)
    with pytest.raises(ValueError, match="don't fit"):
        engine.append(0, ids(56))


def test_draws_follow_the_distribution():
    """200,000 draws over a vocabulary that doesn't fill its last block; zeros are never drawn."""
    n, vocab = 200_000, BLOCK + 7
    p = np.random.default_rng(0).dirichlet(np.full(vocab, 0.3))
    p[[0, 5, vocab - 1]] = 0
    p /= p.sum()
    uniform = jax.random.uniform(jax.random.key(0), (n, 2))
    drawn = np.bincount(invert(jnp.broadcast_to(jnp.float32(p), (n, vocab)), uniform), minlength=vocab)
    assert len(drawn) == vocab
    assert not drawn[p == 0].any()
    likely = p * n > 5
    chi2 = ((drawn - p * n) ** 2 / np.maximum(p * n, 1e-9))[likely].sum()
    assert chi2 < likely.sum() + 5 * np.sqrt(2 * likely.sum())


def test_extreme_random_numbers_stay_inside():
    p = jnp.array([[0.0, 0.25, 0.75, 0.0] + [0.0] * 100])
    top = float(np.nextafter(np.float32(1), np.float32(0)))
    assert invert(p, jnp.array([[0.0, 0.0]])).tolist() == [1]
    assert invert(p, jnp.array([[top, top]])).tolist() == [2]


def test_the_draw_depends_on_seed_and_position_only():
    logits = jnp.zeros((3, 300))
    keys = jax.vmap(lambda s: jax.random.key_data(jax.random.key(s)))(jnp.array([4, 4, 5]))
    tokens, logp = sample(logits, keys, jnp.array([9, 9, 9]), jnp.float32(1))
    assert tokens[0] == tokens[1] != tokens[2]
    assert logp.shape == (3, 300)
    np.testing.assert_allclose(logp, -np.log(300), rtol=1e-6)
    later, _ = sample(logits, keys, jnp.array([10, 9, 9]), jnp.float32(1))
    assert later[0] != tokens[0]
    assert later[1] == tokens[1]
