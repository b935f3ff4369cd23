"""Looking only at blocks that hold something to see gives what looking at everything gives."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from model.attention import attend_rows, see_segments, visibility
from model.block_attention import BLOCK, Blocks, attend_blocks, key_blocks, see_blocks
from model.transformer import make_graphdef

T = 9 * BLOCK + 11  # not a whole number of blocks


def row(pieces: list[tuple[int, list[int]]], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Segment and branch ids of one row: (length of the beginning, lengths of its branches) a segment."""
    segments, branches = np.zeros(length, np.int32), np.zeros(length, np.int32)
    column = 0
    for number, (beginning, lengths) in enumerate(pieces, start=1):
        for branch, size in enumerate([beginning, *lengths]):
            end = min(column + size, length)
            segments[column:end], branches[column:end] = number, branch
            column = end
    return segments, branches


layouts = st.lists(
    st.lists(st.tuples(st.integers(1, 90), st.lists(st.integers(1, 90), max_size=4)), max_size=5),
    min_size=1,
    max_size=3,
)


def arrays(layout) -> tuple[np.ndarray, np.ndarray]:
    rows = [row(pieces, T) for pieces in layout]
    return np.stack([s for s, _ in rows]), np.stack([b for _, b in rows])


def qkv(rows: int, heads: int = 4, kv_heads: int = 2, width: int = 8, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(3), 3)
    shapes = ((rows, T, n, width) for n in (heads, kv_heads, kv_heads))
    return [jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True)]


@given(layout=layouts)
@settings(deadline=None)
def test_the_list_holds_every_block_with_something_to_see_and_no_other(layout):
    segments, branches = arrays(layout)
    found = key_blocks(segments, branches)
    see = np.asarray(see_segments(jnp.asarray(segments), jnp.asarray(branches))) & (segments > 0)[:, :, None]
    whole = -T % BLOCK
    see = np.pad(see, ((0, 0), (0, whole), (0, whole)))
    n = see.shape[1] // BLOCK
    visible = see.reshape(len(see), n, BLOCK, n, BLOCK).any((2, 4))
    if found is None:
        assert 3 * visible.sum(-1).max() > n * 3 // 4  # the count is rounded up by at most a third
        return
    listed = np.zeros_like(visible)
    for b, i in np.ndindex(visible.shape[:2]):
        mine = found[b, i][found[b, i] >= 0]
        assert len(set(mine)) == len(mine)
        listed[b, i, mine] = True
    np.testing.assert_array_equal(listed, visible)


@given(layout=layouts)
@settings(deadline=None, max_examples=15)
def test_the_mask_of_gathered_keys_is_the_mask_of_all_keys(layout):
    segments, branches = arrays(layout)
    found = key_blocks(segments, branches)
    if found is None:
        return
    blocks = see_blocks(jnp.asarray(segments), jnp.asarray(branches), jnp.asarray(found))
    see = np.asarray(see_segments(jnp.asarray(segments), jnp.asarray(branches))) & (segments > 0)[:, :, None]
    again = np.zeros((*segments.shape[:1], *(found.shape[1] * BLOCK,) * 2), bool)
    shown = np.array(blocks.see)
    for b, i, j in np.argwhere(found >= 0):
        part = shown[b, i, :, j * BLOCK : (j + 1) * BLOCK]
        at = found[b, i, j] * BLOCK
        again[b, i * BLOCK : (i + 1) * BLOCK, at : at + BLOCK] |= part
        shown[b, i, :, j * BLOCK : (j + 1) * BLOCK] = False
    assert not shown[found.repeat(BLOCK, -1)[:, :, None].repeat(BLOCK, 2) < 0].any()
    again = again[:, :T, :T] & (segments > 0)[:, :, None]
    np.testing.assert_array_equal(again, see)


@pytest.mark.parametrize("layout", [
    [[(30, [64] * 8)], [(5, []), (100, [7, 60])]],
    [[(70, []), (70, []), (70, []), (70, [])], []],
])  # fmt: skip
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_values_and_gradients_are_those_of_the_whole_row(layout, kv_heads):
    segments, branches = (jnp.asarray(ids) for ids in arrays(layout))
    found = key_blocks(np.asarray(segments), np.asarray(branches))
    assert found is not None
    real = (segments > 0)[..., None, None]

    def sums(see):
        def run(q, k, v):
            out = jnp.where(real, attend_rows(q, k, v, see, "chunked"), 0.0)
            return jnp.sum(out * jnp.cos(jnp.arange(out.size).reshape(out.shape))), out

        return jax.jit(jax.value_and_grad(run, (0, 1, 2), has_aux=True))

    arguments = qkv(len(segments), kv_heads=kv_heads)
    (_, a), of_all = sums(see_segments(segments, branches))(*arguments)
    (_, b), of_blocks = sums(see_blocks(segments, branches, jnp.asarray(found)))(*arguments)
    np.testing.assert_allclose(a, b, atol=1e-5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5), of_all, of_blocks)


def test_bfloat16_in_bfloat16_out():
    segments, branches = arrays([[(30, [64] * 8)]])
    blocks = see_blocks(
        jnp.asarray(segments), jnp.asarray(branches), jnp.asarray(key_blocks(segments, branches))
    )
    out = attend_blocks(*qkv(1, dtype=jnp.bfloat16), blocks)
    like = attend_rows(
        *qkv(1, dtype=jnp.bfloat16), see_segments(jnp.asarray(segments), jnp.asarray(branches)), "chunked"
    )
    assert out.dtype == jnp.bfloat16
    real = segments > 0
    np.testing.assert_allclose(
        np.asarray(out, np.float32)[real], np.asarray(like, np.float32)[real], atol=0.02
    )


def test_the_model_takes_them_on_a_cpu_only_and_not_where_sums_are_exact(config):
    ids = jnp.ones((1, T), jnp.int32)
    found = jnp.zeros((1, -(-T // BLOCK), 1), jnp.int32)
    assert isinstance(visibility(dataclasses.replace(config, attention="chunked"), ids, None, found), Blocks)
    for other in ({"attention": "dot_product"}, {"batch_invariant": True}):
        assert isinstance(visibility(dataclasses.replace(config, **other), ids, None, found), jax.Array)


def test_hidden_states_are_the_same_with_and_without(config, params):
    segments, branches = arrays([[(30, [50] * 8)], [(60, []), (60, [])]])
    found = key_blocks(segments, branches)
    assert found is not None
    tokens = jax.random.randint(jax.random.key(0), segments.shape, 0, config.vocab_size)
    positions = jnp.broadcast_to(jnp.arange(T), segments.shape)
    hidden = []
    for blocks in (None, jnp.asarray(found)):
        model = nnx.merge(make_graphdef(config), params)
        ids = (jnp.asarray(segments), jnp.asarray(branches))
        hidden.append(model(tokens, positions, ids[0], branch_ids_BT=ids[1], key_blocks=blocks))
    real = segments > 0
    np.testing.assert_allclose(np.asarray(hidden[0])[real], np.asarray(hidden[1])[real], atol=1e-4)


@pytest.mark.parametrize(("length", "blocks"), [(60, 2), (100, 3), (190, 4), (300, 6)])
def test_the_count_is_rounded_up_to_few_sizes(length, blocks):
    segments, branches = row([(length, [])] * 20, 20 * BLOCK)
    found = key_blocks(segments[None], branches[None])
    assert found is not None
    assert found.shape[-1] == blocks


def test_rows_that_are_mostly_seen_have_no_list():
    segments, branches = row([(T, [])], T)
    assert key_blocks(segments[None], branches[None]) is None


def test_a_row_of_padding_has_one_that_shows_nothing():
    nothing = np.zeros((1, T), np.int32)
    found = key_blocks(nothing, nothing)
    assert found is not None
    assert (found == -1).all()
    assert not np.asarray(
        see_blocks(jnp.asarray(nothing), jnp.asarray(nothing), jnp.asarray(found)).see
    ).any()
