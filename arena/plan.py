"""The body of ``agent-world plan``: compile a config for its slice with the TPU compiler, and judge it.

In: a file of ``tpu_configs/``. Out: a result in JSON values, shown in words or as it is, and kept beside the
config as ``NAME.plan.json`` with the versions that made it: the table of all configs needs no compiling.

Memory comes from the compiler. FLOPs, bytes and collectives are counted in the compiled program
(:mod:`model.hlo`). Times are bounds by roofline. Nothing was measured on a TPU.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import math
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from arena.plan_config import PlanConfig
from arena.plan_programs import PROGRAMS, Programs
from model import decoding
from model.chips import Slice, TopologyError, load_slice, parse_topology, use_cpu
from model.hlo import Work, work_of
from model.roofline import forward_flops, roofline, train_flops
from synth.errors import CallerError

SCHEMA = 1
GIB = 2.0**30
Say = Callable[[str], None]


def make_plan(
    config: PlanConfig,
    name: str,
    programs: Sequence[str] = PROGRAMS,
    say: Say = print,
    kept: dict | None = None,
    keep: Callable[[dict], None] = lambda body: None,
) -> dict:
    """Compile and judge; JSON values.

    Args:
        programs: which of :data:`arena.plan_programs.PROGRAMS`; a search needs the gradient only.
        kept: an earlier, unfinished result of this config: its programs are not compiled again.
        keep: called with the result so far after every program.

    Raises:
        CallerError: the mesh isn't the slice, a shape can't be cut so, or there is no TPU compiler.
    """
    use_cpu()
    try:
        slice_ = load_slice(config.topology)
        maker = Programs(config, slice_.mesh(config.mesh.axes()), slice_.mesh(config.rollout_axes()))
    except (TopologyError, ValueError) as err:
        raise CallerError(f"{name}: {err}") from None
    done = dict(kept["per_chip"]["programs"]) if kept else {}
    for program in programs:
        if program in done:
            continue
        started = time.monotonic()
        done[program] = _judge(maker, program, slice_, name)
        say(f"{name}: {program} compiled in {time.monotonic() - started:.0f} s: {_line(done[program])}")
        keep(_together(config, name, slice_, done))
    return _together(config, name, slice_, done)


def _judge(maker: Programs, program: str, slice_: Slice, name: str) -> dict:
    resident = maker.resident(program)
    try:
        lowered = maker.lower(program)
    except ValueError as err:  # a shape that the mesh can't cut
        raise CallerError(f"{name}: {program}: {' '.join(str(err).split())}") from None
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as err:
        return {"fits": False, "resident": resident} | read_out_of_memory(str(err))
    memory = compiled.memory_analysis()
    arguments, temporaries = memory.argument_size_in_bytes, memory.temp_size_in_bytes
    fresh = memory.output_size_in_bytes - memory.alias_size_in_bytes
    total = resident + arguments + temporaries + fresh + memory.generated_code_size_in_bytes
    work = work_of(compiled.as_text())
    times = roofline(work, slice_, maker.mesh_of(program))
    return {
        "fits": total <= slice_.chip.hbm,
        "resident": resident,
        "arguments": arguments,
        "temporaries": temporaries,
        "outputs": fresh,
        "code": memory.generated_code_size_in_bytes,
        "total": total,
        "flops": work.flops,
        "attention_flops": work.kernel_flops,
        "bytes": work.bytes,
        "collectives": _by_kind(work),
        "unknown_loops": work.unknown_loops,
        "seconds": dataclasses.asdict(times) | {"bound": times.bound, "serial": times.serial},
        "limit": times.limit,
    }


def _by_kind(work: Work) -> dict[str, dict[str, float]]:
    kinds: dict[str, dict[str, float]] = {}
    for each in work.collectives.values():
        kind = kinds.setdefault(each.kind, {"runs": 0.0, "bytes": 0.0})
        kind["runs"] += each.runs
        kind["bytes"] += each.sent
    return kinds


def read_out_of_memory(text: str) -> dict:
    """What the compiler says when a program is too big: its need, the limit and the largest buffer.

    Raises:
        CallerError: the compiler failed for another reason; its first line.
    """
    used = re.search(r"Used ([\d.]+)([KMGT]) of ([\d.]+)([KMGT]) hbm", text)
    if used is None:
        raise CallerError(f"the TPU compiler failed: {' '.join(text.split())[:400]}")
    scale = {"K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40}
    largest = re.search(r"1\. Size: ([\d.]+[KMGT]).*?Shape: (\S+)", text, re.S)
    operator = re.search(r'1\. Size:.*?op_name="([^"]+)"', text, re.S)
    buffer = f"{largest[1]} {largest[2]}" if largest else "not named"
    if operator and largest and operator.start() == largest.start():
        buffer += f" ({operator[1]})"
    return {
        "total": float(used[1]) * scale[used[2]],
        "hbm": float(used[3]) * scale[used[4]],
        "too_big": buffer,
    }


def _together(config: PlanConfig, name: str, slice_: Slice, done: dict[str, dict]) -> dict:
    chip, chips = slice_.chip, len(slice_.devices)
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "name": name,
        "config": config.model_dump(mode="json"),
        "fingerprint": config.fingerprint(),
        "made_by": {p: importlib.metadata.version(p) for p in ("jax", "libtpu")},
        "chips": chips,
        "fits": all(each["fits"] and each["total"] <= chip.hbm for each in done.values()),
        "per_chip": {"hbm": chip.hbm, "programs": done},
    }
    gradient = done.get("gradient", {})
    if gradient.get("flops"):
        body |= _train(config, slice_, done)
    if done.get("decode", {}).get("flops") is not None:
        body["rollout"] = _rollout(config, done)
    return body


def _train(config: PlanConfig, slice_: Slice, done: dict[str, dict]) -> dict:
    """One GRPO step at the longest: every trajectory fills a row. Seconds by resource and the bound."""
    gradient, update = done["gradient"], done.get("update", {})
    micro = math.ceil(config.trajectories / config.train.rows)
    per_row = (config.train_model(), config.train.rows, config.train.length)
    useful = train_flops(*per_row) / len(slice_.devices)
    bound, serial = gradient["seconds"]["bound"], gradient["seconds"]["serial"]
    peak = slice_.chip.flops
    return {
        "roofline": {
            "micro_batches": micro,
            "gradient_seconds": bound,
            "update_seconds": update.get("seconds", {}).get("bound"),
            "step_seconds": micro * bound + update.get("seconds", {}).get("bound", 0.0),
            "step_seconds_serial": micro * serial + update.get("seconds", {}).get("serial", 0.0),
            "limit": gradient["limit"],
            "model_flops": useful,
            "extra_flops": gradient["flops"] - useful,  # remat, and what devices compute more than once
            "forward_flops": forward_flops(*per_row) / len(slice_.devices),
        },
        "mfu_bound": useful / peak / bound,
        "mfu_serial": useful / peak / serial,  # if compute, HBM and links never overlapped
        "mfu_policy_only": 0.75 * useful / peak / bound,  # the reference's forward not counted as useful
    }


def _rollout(config: PlanConfig, done: dict[str, dict]) -> dict:
    decode, rollout = done["decode"], config.rollout
    step = decode["seconds"]["bound"] / decoding.STEPS
    return {
        "slots": rollout.slots,
        "waves": math.ceil(config.trajectories / rollout.slots),
        "token_seconds": step,
        "tokens_per_second": rollout.slots / step,
        "limit": decode["limit"],
        "prefill_seconds": done.get("prefill", {}).get("seconds", {}).get("bound"),
    }


# --- what is kept and shown --------------------------------------------------------------------------


def plan_file(config_file: Path) -> Path:
    """Where a config's result is kept."""
    return config_file.with_suffix(".plan.json")


def kept_plan(file: Path, config: PlanConfig) -> dict | None:
    """The kept result, if it was made of this very config; unfinished if a plan was stopped."""
    try:
        body = json.loads(plan_file(file).read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    same = body.get("schema") == SCHEMA and body.get("fingerprint") == config.fingerprint()
    return body if same else None


def is_whole(body: dict) -> bool:
    """Whether all programs were compiled."""
    return all(program in body["per_chip"]["programs"] for program in PROGRAMS)


def keep_plan(file: Path, body: dict) -> None:
    scratch = plan_file(file).with_suffix(".new")
    scratch.write_text(json.dumps(body, indent=1) + "\n", "utf-8")
    scratch.replace(plan_file(file))


def _line(program: dict) -> str:
    if "flops" not in program:
        return f"too big: {program['total'] / GIB:.1f} GiB, largest buffer {program['too_big']}"
    return (
        f"{program['total'] / GIB:.1f} GiB, {program['flops'] / 1e12:.1f} TFLOP, bound by {program['limit']}"
    )


def mesh_words(body: dict) -> str:
    """The axes of a result's mesh that cut something: "fsdp 8 x tensor 8"."""
    return " x ".join(f"{name} {n}" for name, n in body["config"]["mesh"].items() if n > 1)


def describe(body: dict) -> str:
    """A result in words, per chip."""
    config, hbm = body["config"], body["per_chip"]["hbm"]
    chip, _ = parse_topology(config["topology"])
    lines = [
        f"{body['name']}: {config['model']} on {config['topology']}, {body['chips']} chips, "
        f"mesh {mesh_words(body)}, remat {config['train']['remat']}, "
        f"rows of {config['train']['length']:,} tokens",
        f"per chip, HBM {hbm / GIB:.2f} GiB; compiled by libtpu {body['made_by']['libtpu']}, run nowhere",
        f"{'program':10}{'arguments':>11}{'temp':>8}{'resident':>10}{'total':>8}  {'':5}"
        f"{'TFLOP':>9}{'HBM GB':>9}{'sent GB':>9}{'compute':>9}{'HBM':>8}{'links':>8}  limit",
    ]
    for name, each in body["per_chip"]["programs"].items():
        if "flops" not in each:
            lines.append(f"{name:10} too big: needs {each['total'] / GIB:.1f} GiB; {each['too_big']}")
            continue
        sizes = [each[key] / GIB for key in ("arguments", "temporaries", "resident", "total")]
        sent = sum(kind["bytes"] for kind in each["collectives"].values()) / 1e9
        times = [each["seconds"][key] for key in ("compute", "hbm", "interconnect")]
        lines.append(
            f"{name:10}{sizes[0]:11.2f}{sizes[1]:8.2f}{sizes[2]:10.2f}{sizes[3]:8.2f}  "
            f"{'fits' if each['fits'] else 'NO':5}{each['flops'] / 1e12:9.1f}{each['bytes'] / 1e9:9.1f}"
            f"{sent:9.2f}" + "".join(f"{t:{w}.3f}" for t, w in zip(times, (9, 8, 8), strict=True))
            + f"  {each['limit']}"
        )  # fmt: skip
    for name, each in body["per_chip"]["programs"].items():
        kinds = ", ".join(
            f"{kind} {v['runs']:.0f} runs {v['bytes'] / 1e9:.2f} GB"
            for kind, v in sorted(each.get("collectives", {}).items(), key=lambda item: -item[1]["bytes"])
        )
        lines.append(f"{name} sends {kinds}") if kinds else None
    lines += _summary(body, chip.flops)
    lines.append("fits" if body["fits"] else f"does not fit: {_what_is_too_big(body)}")
    return "\n".join(lines)


def _summary(body: dict, peak: float) -> list[str]:
    lines = []
    if "roofline" in body:
        r = body["roofline"]
        lines.append(
            f"train: model FLOPs {r['model_flops'] / 1e12:.0f} TFLOP a chip and micro-batch (forward, "
            f"backward, reference), {r['extra_flops'] / 1e12:+.0f} of remat and repeats; MFU at most "
            f"{body['mfu_bound']:.0%} ({body['mfu_policy_only']:.0%} without the reference's forward; "
            f"{body['mfu_serial']:.0%} if nothing overlapped), limited by {r['limit']}"
        )
        lines.append(f"a step of {r['micro_batches']} micro-batches takes at least {r['step_seconds']:.0f} s")
    if "rollout" in body:
        r = body["rollout"]
        lines.append(
            f"rollout: {r['slots']} slots of full length, {r['waves']} waves; at most "
            f"{r['tokens_per_second']:,.0f} tokens/s with full caches, limited by {r['limit']}"
        )
    return lines


def _what_is_too_big(body: dict) -> str:
    parts = []
    for name, each in body["per_chip"]["programs"].items():
        if "flops" not in each:
            parts.append(f"{name}: {each['too_big']}")
        elif not each["fits"]:
            parts.append(f"{name}: {each['total'] / GIB:.1f} GiB with what else stays in HBM")
    return "; ".join(parts)
