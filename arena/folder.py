"""What a run keeps on disk, as far as the arena reads and writes it.

    RUN/
      bundles/<env_id>/                 environment bundles, made by beam_jobs
      tasks/<env_id>.<tag>.jsonl        Task records, made by beam_jobs (tags: train, heldout, evolve1, ...)
      receipts/, dead_letters/          of beam_jobs, where the funnel of synthesis is counted from
      arena/<nn>-<name>/report.json     ArenaReport of a round; nn orders the rounds
      arena/<nn>-<name>/episodes.jsonl  Trajectory records of that round
      arena/<nn>-<name>/diagnosis.json  Diagnosis of that round, if it was made
      arena/<nn>-<name>/requests.jsonl  SynthesisRequest records that followed
      train/<name>/train.jsonl          one line a training step, made by rl
      train/<name>/trajectories/        training episodes, a file a step, made by rl
      train/<name>/policy/              the trained policy
      report.html

Goes to: :mod:`arena.report`, :mod:`arena.view` and the commands. A file appears whole or not at all (written
beside, then renamed), so a killed run never shows half a report.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from beam_jobs.mirror import fetched, named
from synth.errors import CallerError
from synth.types import ArenaReport, Diagnosis, Manifest, Provenance, Record, Task, Trajectory

DROPPED = {"dropped_unsolved": "not solved twice in five tries", "dropped_duplicate": "made before"}

# what a report is made of, where a run folder on GCS must be fetched first; see beam_jobs.mirror
REPORT_READS = ("bundles/*", "tasks/*", "receipts/*", "dead_letters/*", "arena/*", "train/*/train.jsonl")

R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Funnel:
    """One stage of synthesis: how many things came out, and how many were dropped for which reason."""

    stage: str  # "databases", "environments", "tools", "tasks (train)", ...
    kept: int
    dropped: dict[str, int] = field(default_factory=dict)  # reason in words -> count


def _nonzero(counts: dict[str, int]) -> dict[str, int]:
    return {reason: count for reason, count in counts.items() if count}


def write_text(path: Path, text: str) -> None:
    """Write a file in one step: readers see the old text or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write records as JSONL, in one step."""
    write_text(path, "".join(record.to_json() + "\n" for record in records))


def read_text(path: Path) -> str:
    """Text of a file, which may lie on GCS.

    Raises:
        CallerError: it can't be read; the message names the file.
    """
    with fetched(path) as local:
        try:
            return local.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise CallerError(f"{local}: is not UTF-8 text; {local.name} should be JSON") from None
        except OSError as err:
            raise CallerError(f"{local}: {err.strerror or err}") from None


def read_records(path: Path, kind: type[R]) -> list[R]:
    """Records of a JSONL file.

    Raises:
        CallerError: the file is missing or a line is no such record; the message names file and line.
    """
    return list(iterate_records(path, kind))


def iterate_records(path: Path, kind: type[R]) -> Iterator[R]:
    """As :func:`read_records`, one at a time."""
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if line.strip():
            yield kind.from_json(line, where=f"{named(path)}:{number}")


@dataclass(frozen=True)
class Round:
    """One arena round on disk."""

    folder: Path

    def report(self) -> ArenaReport:
        path = self.folder / "report.json"
        return ArenaReport.from_json(read_text(path), where=str(path))

    def episodes(self) -> list[Trajectory]:
        return read_records(self.folder / "episodes.jsonl", Trajectory)

    def diagnosis(self) -> Diagnosis | None:
        path = self.folder / "diagnosis.json"
        return Diagnosis.from_json(read_text(path), where=str(path)) if path.exists() else None

    def save(self, report: ArenaReport, episodes: Sequence[Trajectory]) -> None:
        """Write a finished round; the report last, so that a round with a report is complete."""
        write_records(self.folder / "episodes.jsonl", episodes)
        write_text(self.folder / "report.json", report.to_json() + "\n")

    def save_diagnosis(self, diagnosis: Diagnosis) -> None:
        write_text(self.folder / "diagnosis.json", diagnosis.to_json() + "\n")


class RunFolder:
    """The readable parts of a run folder.

    Raises:
        CallerError: ``root`` is no folder.
    """

    def __init__(self, root: Path | str):
        self.root = Path(root)
        if not self.root.is_dir():
            raise CallerError(
                f"{root}: no such run folder; make one with 'agent-world synth complexify {root}'"
            )

    def rounds(self) -> list[Round]:
        """Finished rounds in order."""
        return [Round(path.parent) for path in sorted(self.root.glob("arena/*/report.json"))]

    def round(self, number: int, name: str) -> Round:
        """The folder of round ``number`` (0-based), finished or not."""
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        return Round(self.root / "arena" / f"{number:02d}-{slug}")

    def tasks(self, tag: str | None = None) -> dict[str, Task]:
        """Tasks of the run by id; those of one tag if it is named."""
        paths = sorted(self.root.glob(f"tasks/*.{tag}.jsonl" if tag else "tasks/*.jsonl"))
        return {task.id: task for path in paths for task in iterate_records(path, Task)}

    def manifests(self) -> list[Manifest]:
        """Manifests of all bundles, by env_id."""
        paths = sorted(self.root.glob("bundles/*/manifest.json"))
        return [Manifest.from_json(read_text(path), where=str(path)) for path in paths]

    def tool_kinds(self) -> dict[str, dict[str, str]]:
        """env_id -> tool -> kind (search, get, create, ...), where the bundle's tools.json states it."""
        found: dict[str, dict[str, str]] = {}
        for path in sorted(self.root.glob("bundles/*/tools/tools.json")):
            tools = json.loads(read_text(path))
            found[path.parent.parent.name] = {
                tool["name"]: tool["_meta"]["kind"] for tool in tools if tool.get("_meta", {}).get("kind")
            }
        return found

    def metrics(self) -> dict[str, list[dict[str, Any]]]:
        """Name of each training stage -> its rows, one a step, in order of the names."""
        found = {}
        for path in sorted(self.root.glob("train/*/train.jsonl")):
            lines = read_text(path).split("\n")[:-1]  # a half-written last line is left out
            found[path.parent.name] = [json.loads(line) for line in lines]
        return found

    def funnel(self) -> list[Funnel]:
        """What synthesis kept and dropped, counted from the receipts and dead letters of beam_jobs."""
        themes, tools = self._counters("mine"), self._counters("validate")
        found = [
            Funnel("databases", themes[""].get("databases", 0), self._dead("mine")),
            Funnel("environments", tools[""].get("environments", 0), self._dead("validate")),
            Funnel(
                "tools",
                tools[""].get("tools_kept", 0),
                _nonzero({"half of its tests or more fail": tools[""].get("tools_dropped", 0)}),
            ),
        ]
        for tag, counters in sorted(self._counters("synthesize").items()):
            reasons = {
                DROPPED.get(key, f"fails the gate {key.removeprefix('dropped_')}"): count
                for key, count in counters.items()
                if key.startswith("dropped_")
            }
            if tag:
                found.append(Funnel(f"tasks ({tag})", counters.get("kept", 0), _nonzero(reasons)))
        return [stage for stage in found if stage.kept or stage.dropped]

    def _counters(self, stage: str) -> dict[str, Counter[str]]:
        """Tag (the end of a receipt's name, "" for all) -> summed counters of a stage."""
        sums: dict[str, Counter[str]] = defaultdict(Counter)
        for path in sorted(self.root.glob(f"receipts/{stage}/*.json")):
            counters = json.loads(read_text(path))["counters"]
            sums[""].update(counters)
            _, mark, tag = path.stem.partition(".")
            if mark:
                sums[tag].update(counters)
        return sums

    def _dead(self, stage: str) -> dict[str, int]:
        path = self.root / "dead_letters" / f"{stage}.jsonl"
        letters = [json.loads(line) for line in read_text(path).splitlines()] if path.exists() else []
        return dict(Counter(f"{letter['error']}: {letter['message']}"[:120] for letter in letters))

    def provenance(self) -> list[tuple[str, Provenance]]:
        """(env_id, provenance) of every table of every bundle."""
        return [
            (path.parent.name, record)
            for path in sorted(self.root.glob("bundles/*/provenance.jsonl"))
            for record in iterate_records(path, Provenance)
        ]

    def find_episode(self, name: str) -> Trajectory:
        """The last episode ``TASK#SAMPLE`` of the run: arena rounds first, newest first, then training.

        Raises:
            CallerError: the name has no ``#SAMPLE``, or there is no such episode.
        """
        task_id, mark, sample = name.rpartition("#")
        if not mark or not sample.isdigit():
            raise CallerError(f"episode {name!r}: write it as TASK#SAMPLE, such as some-task#0")
        for path in self.episode_files():
            for trajectory in iterate_records(path, Trajectory):
                if trajectory.task_id == task_id and trajectory.sample == int(sample):
                    return trajectory
        raise CallerError(f"no episode {name} under {self.root}")

    def episode_files(self) -> list[Path]:
        arena = sorted(self.root.glob("arena/*/episodes.jsonl"), reverse=True)
        return arena + sorted(self.root.glob("train/*/trajectories/*.jsonl"), reverse=True)
