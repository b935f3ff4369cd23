"""What ``agent-world plan`` does with its files: kept results, the search, the table of all configs.

In: config files. Out: words or JSON on the screen, ``NAME.plan.json`` and ``NAME.search.json`` beside a
config, and the table between the marks of a README.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from arena.plan import GIB, describe, is_whole, keep_plan, kept_plan, make_plan, mesh_words
from arena.plan_config import MeshAxes, PlanConfig, read_config
from model.chips import parse_topology
from synth.errors import CallerError

START, END = "<!-- plan table: made by `agent-world plan ... --table` -->", "<!-- end of plan table -->"
REMATS = ("full", "attention", "qkv")  # what is kept grows from left to right


def run_plan(files: list[Path], search: bool, again: bool, table: Path | None, as_json: bool) -> int:
    """See :func:`arena.cli_model.plan`."""
    configs = {file: read_config(file) for file in files}  # all of them, before the first long compilation
    if table is not None:
        _marks(table)
    if search:
        results = [result for file, config in configs.items() for result in _search(file, config)]
    else:
        results = [_planned(file, config, again) for file, config in configs.items()]
    if table is not None:
        write_table(table, results)
    if as_json:
        print(json.dumps(results[0] if len(results) == 1 else {"plans": results}))
    else:
        for body in results:
            print(_searched(body) if search else describe(body) + "\n")
    return 0 if all(body["fits"] for body in results) or (search and any(b["fits"] for b in results)) else 1


def _planned(file: Path, config: PlanConfig, again: bool) -> dict:
    body = None if again else kept_plan(file, config)
    if body is None or not is_whole(body):
        body = make_plan(config, file.stem, say=_say, kept=body, keep=partial(keep_plan, file))
    return body


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# --- the search --------------------------------------------------------------------------------------


def neighbours(config: PlanConfig) -> Iterator[PlanConfig]:
    """The config under other remat policies, and under other cuts of the same chips, fully rematerialised.

    A cut has as many rows at a time as batch devices, so that every device has work and no row waits.
    """
    _, shape = parse_topology(config.topology)
    chips = 1
    for n in shape:
        chips *= n
    for remat in REMATS:
        yield config.model_copy(update={"train": config.train.model_copy(update={"remat": remat})})
    for tensor in (4, 8, 16):
        if chips % tensor or tensor == config.mesh.tensor:
            continue
        cut = MeshAxes(data=1, fsdp=chips // tensor, sequence=1, tensor=tensor)
        train = config.train.model_copy(update={"rows": chips // tensor, "remat": "full"})
        yield config.model_copy(update={"mesh": cut, "train": train})


def _search(file: Path, config: PlanConfig) -> list[dict]:
    """Compile the gradient of each neighbour; best bound first, those that fit before the others.

    Each result is kept at once in ``NAME.search.json``, so that a stopped search goes on.
    """
    kept_in = file.with_suffix(".search.json")
    kept = json.loads(kept_in.read_text("utf-8")) if kept_in.exists() else {}
    results = []
    for each in neighbours(config):
        key = each.fingerprint()
        if key not in kept:
            try:
                kept[key] = make_plan(each, file.stem, ("gradient",), say=_say)
            except CallerError as err:
                _say(f"{file.stem}: left out: {err}")
                continue
            kept_in.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
        results.append(kept[key])
    return sorted(results, key=lambda body: (not body["fits"], -body.get("mfu_bound", 0.0)))


def _searched(body: dict) -> str:
    config, gradient = body["config"], body["per_chip"]["programs"]["gradient"]
    how = f"{body['name']}: {mesh_words(body)}, remat {config['train']['remat']:10}"
    head = f"{how} {gradient['total'] / GIB:6.1f} GiB"
    if "mfu_bound" not in body:
        return f"{head}  too big"
    times = gradient["seconds"]
    return (
        f"{head}  {'fits' if body['fits'] else 'too big'}  MFU at most {body['mfu_bound']:.1%}  compute "
        f"{times['compute']:.2f} s, HBM {times['hbm']:.2f} s, links {times['interconnect']:.2f} s"
    )


# --- the table ---------------------------------------------------------------------------------------

HEAD = (
    "| config | chips | mesh | remat | HBM a chip | gradient | update | prefill | decode | fits "
    "| MFU at most | limit | slots | tokens/s at most |\n" + "|---" * 14 + "|"
)


def write_table(file: Path, plans: list[dict]) -> None:
    """Replace what stands between the marks."""
    text, start, end = _marks(file)
    rows = "\n".join(_row(body) for body in plans)
    file.write_text(text[:start] + f"\n{HEAD}\n{rows}\n" + text[end:], "utf-8")


def _marks(file: Path) -> tuple[str, int, int]:
    try:
        text = file.read_text("utf-8")
    except FileNotFoundError:
        raise CallerError(f"{file}: no such file") from None
    start, end = text.find(START), text.find(END)
    if not 0 <= start < end:
        raise CallerError(f"{file}: the marks of the plan table are missing: {START} and {END}")
    return text, start + len(START), end


def _row(body: dict) -> str:
    config, programs = body["config"], body["per_chip"]["programs"]
    sizes = [f"{programs[p]['total'] / GIB:.1f}" if p in programs else "" for p in
             ("gradient", "update", "prefill", "decode")]  # fmt: skip
    mfu = f"{body['mfu_bound']:.0%}" if "mfu_bound" in body else ""
    limit = body.get("roofline", {}).get("limit", "")
    rollout = body.get("rollout", {})
    cells = [
        body["name"], str(body["chips"]), mesh_words(body), config["train"]["remat"],
        f"{body['per_chip']['hbm'] / GIB:.2f}", *sizes, "yes" if body["fits"] else "**no**", mfu, limit,
        str(config["rollout"]["slots"]), f"{rollout['tokens_per_second']:,.0f}" if rollout else "",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"
