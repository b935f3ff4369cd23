"""What a compiled program does, read from its text: loops as often as they run, bytes, exchanges."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from model.hlo import device_groups, parse, size, trip_count, work_of


def text_of(f, *shapes):
    return jax.jit(f).lower(*(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes)).compile().as_text()


def test_a_loops_body_counts_as_often_as_it_runs():
    def f(x, w):
        return jax.lax.scan(lambda x, _: (x @ w, None), x, None, length=7)[0]

    text = text_of(f, (8, 16), (16, 16))
    computations, entry = parse(text)
    loops = [each for each in computations[entry] if each.op == "while"]
    if loops:  # unless the backend unrolled it
        assert trip_count(computations, loops[0].called("condition")) == 7
    assert work_of(text).flops == pytest.approx(7 * 2 * 8 * 16 * 16)


HLO = """HloModule m

%body (p: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %p = (s32[], f32[4,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[4,8]{1,0} get-tuple-element(%p), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %sum = f32[4,8]{1,0} all-reduce(%x), replica_groups=[2,4]<=[8], to_apply=%add
  ROOT %t = (s32[], f32[4,8]{1,0}) tuple(%next, %sum)
}

%cond (q: (s32[], f32[4,8])) -> pred[] {
  %q = (s32[], f32[4,8]{1,0}) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %n = s32[] constant(5)
  ROOT %lt = pred[] compare(%j, %n), direction=LT
}

ENTRY %main (a: f32[4,8], k: f32[3,16,8]) -> f32[4,8] {
  %a = f32[4,8]{1,0} parameter(0)
  %k = f32[3,16,8]{2,1,0} parameter(1)
  %zero = s32[] constant(0)
  %row = f32[1,16,8]{2,1,0} dynamic-slice(%k, %zero, %zero, %zero), dynamic_slice_sizes={1,16,8}
  %w = f32[16,8]{1,0:T(8,128)S(1)} bitcast(%row)
  %y = f32[4,16]{1,0} convolution(%a, %w), dim_labels=bf_oi->bf
  %kernel = f32[4,16]{1,0} custom-call(%y), custom_call_target="tpu_custom_call", metadata={a={
    "many": 1
}}
  %start = (s32[], f32[4,8]{1,0}) tuple(%zero, %a)
  %loop = (s32[], f32[4,8]{1,0}) while(%start), condition=%cond, body=%body
  ROOT %out = f32[4,8]{1,0} get-tuple-element(%loop), index=1
}
"""


def test_collectives_in_a_loop_are_counted_by_what_a_device_sends():
    work = work_of(HLO)
    (reduce,) = work.collectives.values()
    assert reduce.kind == "all-reduce"
    assert reduce.runs == 5
    assert reduce.sent == 5 * 2 * (4 * 8 * 4) * 3 / 4  # twice (n - 1)/n of the array, n = 4
    assert work.unknown_loops == []


def test_products_and_bytes_follow_their_rules():
    """A slice reads the slice; what lies in on-chip memory, S(1), costs nothing."""
    work = work_of(HLO)
    assert work.flops == 2 * 4 * 16 * 8
    slice_, conv, kernel, add, reduce = 2 * 16 * 8 * 4, (32 + 64) * 4, (64 + 64) * 4, 12, 2 * 32 * 4
    assert work.bytes == slice_ + conv + kernel + 5 * (add + reduce)


def test_a_batch_axis_written_as_a_window_is_not_counted_as_many_taps():
    """The TPU compiler writes [T, D] x [40, 128, D] as a convolution whose taps mostly meet padding."""
    text = """HloModule m

ENTRY %main (a: bf16[16,64,1], k: bf16[40,128,64]) -> bf16[16,40,128] {
  %a = bf16[16,64,1]{1,0,2} parameter(0)
  %k = bf16[40,128,64]{2,1,0} parameter(1)
  ROOT %c = bf16[16,40,128]{2,1,0} convolution(%a, %k), window={size=40 pad=39_39 rhs_reversal=1}, LABELS
}
"""
    text = text.replace("LABELS", "dim_labels=bf0_0oi->b0f")
    assert work_of(text).flops == 2 * 16 * 40 * 128 * 64


def test_attention_counts_below_the_diagonal_and_the_last_part_of_cut_queries():
    """Forward: two products of 5 heads; with half of the queries on a device the last half sees 3/4."""
    text = """HloModule m

ENTRY %main (m: s8[1,160,160], q: bf16[5,TT,128], k: bf16[1,256,128]) -> bf16[5,TT,128] {
  %m = s8[1,160,160]{2,1,0} parameter(0)
  %q = bf16[5,TT,128]{2,1,0} parameter(1)
  %k = bf16[1,256,128]{2,1,0} parameter(2)
  ROOT %splash_mha_fwd.1 = bf16[5,TT,128]{2,1,0} custom-call(%m, %q, %k, %k), TARGET
}
"""
    text = text.replace("TARGET", 'custom_call_target="tpu_custom_call"')
    square = 2 * 2 * 5 * 256 * 256 * 128
    assert work_of(text.replace("TT", "256")).kernel_flops == square / 2
    assert work_of(text.replace("TT", "128")).kernel_flops == square / 2 * 3 / 4


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,1},{2,3}}", [[0, 1], [2, 3]]),
        ("[2,2]<=[4]", [[0, 1], [2, 3]]),
        ("[2,2]<=[2,2]T(1,0)", [[0, 2], [1, 3]]),
        ("mesh['a'=2,'b'=2] {'b'}", [[0, 1], [2, 3]]),
        ("mesh['a'=2,'b'=2] {'a'}", [[0, 2], [1, 3]]),
        ("something new", []),
    ],
)
def test_groups_are_read_in_all_their_forms(text, groups):
    assert device_groups(text) == groups


def test_a_size_is_that_of_all_parts_or_of_those_in_hbm():
    both = "(bf16[2,3]{1,0:T(8,128)}, f32[4]{0:T(128)S(1)}, pred[])"
    assert size(both) == 12 + 16 + 1
    assert size(both, hbm_only=True) == 12 + 1


def test_what_is_no_program_is_refused():
    with pytest.raises(ValueError, match="no ENTRY"):
        parse("hello")
