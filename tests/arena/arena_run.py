"""A small run folder on disk, written with the arena's own writers, for tests of what reads one."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

from arena_samples import BOOK, FIND, call, episode, gold, manifest, said, task

from arena.diagnose import diagnose
from arena.evaluate import score
from arena.folder import RunFolder, write_records, write_text
from synth.types import Check, Provenance

CLASSES = {
    "airports": ("Travel & transport", "Air"),
    "songs": ("Culture", "Music"),
    "elements": ("Science", "Chemistry"),
    "baseball": ("Sport", "Statistics"),
    "countries": ("Geography", "Countries"),
}
ROUNDS = (("before training", 0.12), ("after GRPO", 0.45), ("after evolution", 0.62))


def make_run(root: Path, tasks_each: int = 12, samples: int = 4) -> RunFolder:
    """Three rounds of invented results over five classes, with training metrics and provenance."""
    root.mkdir(parents=True, exist_ok=True)
    run = RunFolder(root)
    tasks = [task(f"{env}-{i:02d}", env) for env in CLASSES for i in range(tasks_each)]
    write_records(root / "tasks" / "all.heldout.jsonl", tasks)
    for number, (name, skill) in enumerate(ROUNDS):
        rng = random.Random(number)
        trajectories = []
        for t in tasks:
            chance = min(1.0, max(0.0, skill + rng.gauss(0, 0.3)))
            for s in range(samples):
                trajectories.append(invented(t.id, t.env_id, s, rng.random() < chance, rng))
        report = score(trajectories, tasks, samples, name, CLASSES)
        stage = run.round(number, name)
        stage.save(report, trajectories)
        if number == 1:
            manifests = [manifest(env, *path) for env, path in CLASSES.items()]
            stage.save_diagnosis(diagnose(report, trajectories, tasks, manifests))
    for label, start in (("1-grpo", 0.1), ("2-evolution", 0.5)):
        rows = [metrics(step, start) for step in range(40)]
        write_text(root / "train" / label / "train.jsonl", "".join(json.dumps(r) + "\n" for r in rows))
    for env in CLASSES:
        receipt(root, "mine", env, databases=1)
        receipt(root, "validate", env, environments=1, tools_kept=11, tools_dropped=1)
        receipt(root, "synthesize", f"{env}.heldout", kept=12, dropped_unsolved=3)
        receipt(root, "synthesize", f"{env}.train", kept=40, dropped_unsolved=9, **{"dropped_no-leak": 2})
    letter = {"error": "CallerError", "message": "source <gone> is not installed"}
    write_text(root / "dead_letters" / "mine.jsonl", json.dumps(letter) + "\n")
    for env in CLASSES:
        shared = {"sha256": "0" * 64, "retrieved": "2026-11-01"}
        mined = {"origin": "airportsdata:airports.csv", "package": "airportsdata", "version": "20260315"}
        sources = [
            Provenance(target="airports", license="MIT", **mined, **shared),
            Provenance(target="slots", license="Apache-2.0", origin="derived", **shared),
        ]
        write_records(root / "bundles" / env / "provenance.jsonl", sources)
    return run


def receipt(root, stage, name, **counters):
    """A receipt as beam_jobs.io writes it, as far as the funnel reads it."""
    write_text(root / "receipts" / stage / f"{name}.json", json.dumps({"counters": counters}))


def invented(task_id, env_id, sample, passed, rng):
    moves = [gold(FIND), gold(BOOK)] if passed or rng.random() < 0.3 else [gold(FIND)]
    if not passed and rng.random() < 0.5:
        moves = [call("book_slot", airport="DPS", hours=3)]
    check = Check(name="answer text", passed=passed, detail="" if passed else 'got "<DPS & co>"')
    text = '{"answer": "LOP"}' if passed else '{"answer": "<DPS & co>"}'
    return episode(
        *moves, said(text), task_id=task_id, env_id=env_id, sample=sample, passed=passed, checks=(check,)
    )


def metrics(step, start):
    rng = random.Random(step)
    return {
        "step": step,
        "reward": min(1, start + 0.3 * (1 - math.exp(-step / 15)) + rng.gauss(0, 0.04)),
        "entropy": 0.9 * math.exp(-step / 40) + rng.gauss(0, 0.02),
        "kl": 0.02 * step / 40 + abs(rng.gauss(0, 0.001)),
        "groups_kept": rng.randint(4, 8),
    }
