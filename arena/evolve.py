"""From a diagnosis to requests for new training material: where the loop closes.

Comes from: a Diagnosis of measured environments. Goes to: ``requests.jsonl``, which the task stages (and the
complexify stage) read. A request never names a measured environment: the guide of a weak one goes to the
training environments of the same class, so that the arena stays unseen.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from synth.errors import CallerError
from synth.types import Diagnosis, Guide, Manifest, SynthesisRequest, Weakness


def requests(
    diagnosis: Diagnosis,
    train_manifests: Sequence[Manifest],
    taxonomy: Mapping[str, Sequence[str]],
    budget: int,
    seed: int,
) -> list[SynthesisRequest]:
    """Share ``budget`` new tasks out over training environments.

    Each weak environment weighs by its failure rate, each of its guides by the failures of that kind; the
    share goes evenly to the training environments of its class (a seeded order decides who gets the
    remainder). Weak environments of a class without a training environment get nothing. The environments
    of the weakest class that can be helped are also asked to grow (``complexify``).

    Args:
        diagnosis: weakest environment first.
        train_manifests: environments that training may use.
        taxonomy: env_id -> taxonomy path, of training environments at least.
        budget: tasks in all; the counts add up to it exactly.
        seed: of the order among equals.

    Raises:
        CallerError: the budget is below 1, a measured environment is among the training ones,
            or no weak environment has a training environment of its class.
    """
    if budget < 1:
        raise CallerError(f"budget is {budget}; ask for at least 1 new task")
    train_ids = sorted(m.env_id for m in train_manifests)
    for weakness in diagnosis.weaknesses:
        if weakness.env_id in train_ids:
            raise CallerError(f"{weakness.env_id} is measured; take it out of the training environments")
    rng = random.Random(f"evolve:{seed}")
    shares: list[tuple[float, Weakness, Guide, str]] = []
    for weakness in diagnosis.weaknesses:
        targets = [e for e in train_ids if _class(taxonomy.get(e, ())) == _class(weakness.taxonomy)]
        rng.shuffle(targets)
        failures = [weakness.error_kinds.get(_kind(guide), 1) for guide in weakness.guides]
        for guide, count in zip(weakness.guides, failures, strict=True):
            weight = (1 - weakness.pass_rate) * count / sum(failures) / max(1, len(targets))
            shares += [(weight, weakness, guide, env_id) for env_id in targets]
    if not shares:
        raise CallerError(
            "no weak environment has a training environment of its class; add training environments to "
            + (", ".join(sorted({_class(w.taxonomy) for w in diagnosis.weaknesses})) or "the arena's classes")
        )
    weakest = _class(shares[0][1].taxonomy)
    return [
        SynthesisRequest(
            env_id=env_id,
            because_of=weakness.env_id,
            guide=guide,
            count=count,
            complexify=_class(weakness.taxonomy) == weakest,
        )
        for (_, weakness, guide, env_id), count in zip(
            shares, apportion([share[0] for share in shares], budget), strict=True
        )
        if count
    ]


def _class(path: Sequence[str]) -> str:
    return path[0] if path else "unclassified"


def _kind(guide: Guide) -> str:
    return guide.id.rpartition(".")[2]


def apportion(weights: Sequence[float], total: int) -> list[int]:
    """Whole shares of ``total`` in proportion to ``weights``: largest remainder, ties to the first."""
    whole = sum(weights)
    exact = [total * (w / whole if whole > 0 else 1 / len(weights)) for w in weights]
    counts = [math.floor(x) for x in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def write_requests(path: Path, wanted: Sequence[SynthesisRequest]) -> None:
    """Write the request file (JSONL) in one step: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text("".join(request.to_json() + "\n" for request in wanted), encoding="utf-8")
    os.replace(temporary, path)


def read_requests(path: Path) -> list[SynthesisRequest]:
    """Read the request file.

    Raises:
        CallerError: the file is missing, or a line is no SynthesisRequest (the message names the line).
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as err:
        raise CallerError(f"{path}: {err.strerror}; write it with 'agent-world evolve'") from None
    return [
        SynthesisRequest.from_json(line, where=f"{path}:{number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
