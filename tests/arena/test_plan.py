"""Plans: configs that are read strictly, shapes that fit the chips, kept results, the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arena.plan import is_whole, keep_plan, kept_plan, read_out_of_memory
from arena.plan_command import END, HEAD, START, neighbours, run_plan
from arena.plan_config import read_config
from arena.plan_programs import PROGRAMS
from arena.training import read_place
from model.chips import CHIPS, Slice, TopologyError, group_bandwidth, parse_topology
from model.roofline import forward_flops, train_flops
from model.shapes import SHAPES
from synth.errors import CallerError

CONFIGS = sorted(Path("tpu_configs").glob("qwen3-*.toml"))


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_a_shipped_config_uses_every_chip_and_divides_its_shapes(file):
    config = read_config(file)
    _, shape = parse_topology(config.topology)
    chips = 1
    for n in shape:
        chips *= n
    assert config.chips == chips
    mesh = config.mesh
    assert config.train.rows % (mesh.data * mesh.fsdp) == 0
    assert config.rollout.slots % (chips // config.rollout.tensor) == 0
    model = SHAPES[config.model]
    assert model.n_heads % mesh.tensor == model.n_kv_heads % mesh.tensor == 0
    # else every device would score the whole vocabulary (model/scoring.py)
    assert model.vocab_size % (config.train.vocab_chunks * mesh.tensor) == 0
    assert config.train.length % (mesh.sequence * 128) == 0
    assert config.trajectories == 256


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("steps = 3", "topology missing"),
        ('topology = "v5p:4x4x4"\nmodel = "gpt"', "mesh"),
        ("not toml", "no TOML"),
    ],
)
def test_a_wrong_config_is_named(tmp_path, text, line):
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(CallerError, match=line):
        read_config(tmp_path / "a.toml")
    with pytest.raises(CallerError, match="no such file"):
        read_config(tmp_path / "gone.toml")


def test_a_result_is_kept_for_this_very_config_only(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text(CONFIGS[0].read_text())
    config = read_config(file)
    keep_plan(file, {"schema": 1, "fingerprint": config.fingerprint(), "fits": True})
    assert kept_plan(file, config) is not None
    assert kept_plan(file, config.model_copy(update={"tasks": 1})) is None


def test_a_stopped_plan_goes_on_with_the_programs_that_lack(tmp_path, monkeypatch):
    file = tmp_path / "a.toml"
    file.write_text(CONFIGS[0].read_text())
    config = read_config(file)
    half = {"schema": 1, "fingerprint": config.fingerprint(), "per_chip": {"programs": {"gradient": {}}}}
    keep_plan(file, half)
    assert not is_whole(half)
    given = []

    def stands_in(config, name, say, kept, keep):
        given.append(kept)
        keep(kept | {"per_chip": {"programs": {name: {} for name in PROGRAMS}}})
        return kept | {"fits": True}

    monkeypatch.setattr("arena.plan_command.make_plan", stands_in)
    monkeypatch.setattr("arena.plan_command.describe", str)
    assert run_plan([file], False, False, None, False) == 0
    assert given == [half]
    kept = kept_plan(file, config)
    assert kept is not None
    assert is_whole(kept)


def test_the_compilers_refusal_names_need_limit_and_largest_buffer():
    text = (
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
        "Used 20.50G of 15.75G hbm. Exceeded hbm capacity by 4.75G.\n"
        "  Largest program allocations in hbm:\n\n"
        '  1. Size: 1.56G\n     Operator: op_name="jit(f)/dot"\n     Shape: f32[81920,5120]{1,0}\n'
    )
    read = read_out_of_memory(text)
    assert read["total"] == 20.5 * 2**30
    assert read["hbm"] == 15.75 * 2**30
    assert "1.56G f32[81920,5120]" in read["too_big"]
    with pytest.raises(CallerError, match="the TPU compiler failed"):
        read_out_of_memory("INTERNAL: something else")


def test_a_ring_has_two_links_and_a_line_one():
    v5p = Slice("v5p:4x4x4", CHIPS["v5p"], (4, 4, 4), ())
    ring = [(x, 0, 0) for x in range(4)]
    plane = [(x, y, 0) for x in range(4) for y in range(2)]
    assert group_bandwidth(ring, v5p) == 2 * 9e10
    assert group_bandwidth(plane, v5p) == 3 * 9e10
    v5e = Slice("v5e:8x8", CHIPS["v5e"], (8, 8), ())  # only axes of 16 close
    assert group_bandwidth([(x, 0) for x in range(8)], v5e) == 4.5e10
    with pytest.raises(TopologyError, match="write CHIP:AxB"):
        parse_topology("v9:2x2")


def test_flops_by_formula_are_six_a_parameter_and_token_and_attention():
    config = SHAPES["qwen3-14b"]
    short = train_flops(config, 1, 128, reference=False)
    products = config.parameters - config.vocab_size * config.d_model  # without the look-up
    assert short == pytest.approx(6 * products * 128, rel=0.01)
    # in long rows attention takes nearly as much
    assert forward_flops(config, 1, 81_920) > 1.7 * 2 * products * 81_920


def test_a_search_tries_remat_and_meshes_of_the_same_chips():
    config = read_config(Path("tpu_configs/qwen3-14b.v5p-128.toml"))
    tried = list(neighbours(config))
    assert {each.train.remat for each in tried} >= {"full", "attention", "qkv"}
    assert {each.chips for each in tried} == {64}
    assert len({each.fingerprint() for each in tried}) == len(tried)


def test_the_table_stands_between_its_marks(tmp_path, capsys):
    file, readme = tmp_path / "a.toml", tmp_path / "README.md"
    file.write_text(CONFIGS[0].read_text())
    config = read_config(file)
    program = {"fits": True, "total": 2**30, "flops": 1.0, "arguments": 0, "temporaries": 0, "resident": 0,
               "bytes": 0, "collectives": {}, "limit": "compute",
               "seconds": {"compute": 1, "hbm": 1, "interconnect": 1}}  # fmt: skip
    body = {"schema": 1, "fingerprint": config.fingerprint(), "name": "a", "fits": True, "chips": 64}
    body |= {"config": config.model_dump(mode="json"), "made_by": {"libtpu": "0"}}
    keep_plan(file, body | {"per_chip": {"hbm": 2**34, "programs": dict.fromkeys(PROGRAMS, program)}})
    readme.write_text(f"before\n{START}\nold\n{END}\nafter\n")
    assert run_plan([file], False, False, readme, True) == 0
    assert json.loads(capsys.readouterr().out)["fits"]
    text = readme.read_text()
    assert text.startswith(f"before\n{START}\n{HEAD}\n| a | 64 |")
    assert text.endswith(f"{END}\nafter\n")
    with pytest.raises(CallerError, match="marks"):
        run_plan([file], False, False, file, False)


def test_train_takes_the_mesh_of_a_plan_or_of_words(capsys):
    """``--mesh``: the same axes mean the same thing in ``plan`` and in ``train``."""
    place, how = read_place("fsdp=1")
    assert place.mesh is not None
    assert dict(place.mesh.shape) == {"fsdp": 1}
    assert how == {"mesh": place.mesh}
    with pytest.raises(CallerError, match="mesh fsdp 8 x tensor 8 is 64 devices, this run has"):
        read_place("tpu_configs/qwen3-14b.v5p-128.toml")


def test_how_a_plan_runs_its_model_is_how_train_does(tmp_path):
    file = tmp_path / "one.toml"
    text = Path("tpu_configs/qwen3-8b.v5p-64.toml").read_text()
    file.write_text(text.replace("fsdp = 4\ntensor = 8", "fsdp = 1"))
    _, how = read_place(str(file))
    model = read_config(file).train_model()
    assert how["remat"] == model.remat == "attention"
    assert how["scan_layers"]
    assert (how["compute_dtype"], how["vocab_chunks"]) == (model.compute_dtype, model.vocab_chunks)
