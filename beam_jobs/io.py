"""What the pipelines leave in a run folder beside their outputs: receipts and dead letters.

    <run>/databases/ bundles/ checks/ tasks/ solutions/   the outputs, one file or folder an element
    <run>/receipts/<stage>/<name>.json                    which key made which outputs; written last
    <run>/dead_letters/<stage>.jsonl                      the elements that failed, one line each
    <run>/dead_letters/<stage>/<name>.json                the same, while the run that met them is going on
    <run>/started/<stage>/<name>.json                     what workers are at

An output appears under its own name only when it is whole (:mod:`beam_jobs.store`). A receipt is written
after all outputs of its element, so a receipt with the right key and unchanged outputs means
"done", and anything less means "do it again". That is all that resuming needs.

A worker that gives an element up writes its letter at once, so no killed run forgets a failure; the driver
folds the letters into the stage's one file when the pipeline is over. A worker that dies can't write a
letter; the mark of its beginning stays, and who comes after it counts: an element that killed as many workers
as it has attempts is given up. A new run begins without marks, because what kills a whole run is rarely
an element.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field

from beam_jobs.store import Store
from synth.errors import CallerError
from synth.types import Record

Fault = Literal["caller", "environment", "infrastructure", "program"]  # program: a bug of ours


class Receipt(Record):
    """Proof that an element is done: its key, its outputs and what was counted on the way."""

    stage: str
    name: str
    key: str
    outputs: dict[str, str]  # path relative to the run folder -> fingerprint
    counters: dict[str, int] = Field(default_factory=dict)
    seconds: float = 0.0


class DeadLetter(Record):
    """An element that failed for good, with enough to find and repeat it."""

    stage: str
    name: str
    key: str
    input: str  # where the element came from: "theme airports", "databases/airports.json"
    payload: dict[str, Any] = Field(default_factory=dict)  # the arguments of the stage's work function
    fault: Fault
    error: str  # type of the exception
    message: str
    where: str = ""  # innermost frame, "file.py:line function"
    attempts: int = 1
    seconds: float = 0.0


def content_key(**parts: Any) -> str:
    """SHA-256 over the canonical JSON of everything that decides an element's output."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


# --- receipts -----------------------------------------------------------------------------------


def write_receipt(store: Store, receipt: Receipt) -> None:
    store.write(f"receipts/{receipt.stage}/{receipt.name}.json", receipt.to_json() + "\n")


def read_receipt(store: Store, stage: str, name: str) -> Receipt | None:
    """The receipt of an element, or None when there is none that this version can read."""
    try:
        return Receipt.from_json(store.read(f"receipts/{stage}/{name}.json"))
    except (FileNotFoundError, CallerError):
        return None


def delete_receipt(store: Store, stage: str, name: str) -> None:
    store.delete(f"receipts/{stage}/{name}.json")


def receipt_names(store: Store, stage: str) -> set[str]:
    """Names of all elements that have a receipt, of whatever key."""
    return {name.removesuffix(".json") for name in store.names(f"receipts/{stage}")}


def finished(store: Store, stage: str, name: str, key: str) -> Receipt | None:
    """The receipt of an element that is done: same key, and every output still as it was written."""
    receipt = read_receipt(store, stage, name)
    if receipt is None or receipt.key != key:
        return None
    try:
        same = all(store.fingerprint(path) == digest for path, digest in receipt.outputs.items())
    except FileNotFoundError:
        return None
    return receipt if same else None


# --- marks of beginning -----------------------------------------------------------------------------


class Started(Record):
    """A worker is at an element, or died there."""

    key: str
    workers: list[str]  # "host pid" of each that began in this run, the last one may still be at work


def begin(store: Store, stage: str, name: str, key: str) -> int:
    """Mark that this process begins; returns how many began before it and never came to an end."""
    path, workers = f"started/{stage}/{name}.json", []

    def change(old: bytes | None) -> bytes:
        before = None if old is None else Started.from_json(old, where=path)
        workers[:] = before.workers if before is not None and before.key == key else []
        return (Started(key=key, workers=[*workers, this_worker()]).to_json() + "\n").encode()

    store.update(path, change)
    return len(workers)


def end(store: Store, stage: str, name: str) -> None:
    store.delete(f"started/{stage}/{name}.json")


def acquit(store: Store, stage: str, guilty: Iterable[str] | None = None) -> bool:
    """Take back the marks of workers that were ended for no fault of theirs; all when ``guilty`` is None.

    Returns:
        Whether marks of guilty workers remain.
    """
    remain = False
    for name in store.names(f"started/{stage}"):
        path = f"started/{stage}/{name}"
        if guilty is not None:
            mark = Started.from_json(store.read(path), where=path)
            if mark.workers[-1] in guilty:
                remain = True
                continue
            if mark.workers[:-1]:
                mark = mark.model_copy(update={"workers": mark.workers[:-1]})
                store.write(path, mark.to_json() + "\n")
                continue
        store.delete(path)
    return remain


def this_worker(pid: int | None = None) -> str:
    return f"{socket.gethostname()} {pid or os.getpid()}"


# --- dead letters -------------------------------------------------------------------------------


def write_dead_letter(store: Store, letter: DeadLetter) -> None:
    """Report one element as dead, at once; :func:`fold_dead_letters` gathers."""
    store.write(f"dead_letters/{letter.stage}/{letter.name}.json", letter.to_json() + "\n")


def read_dead_letters(store: Store, stage: str) -> list[DeadLetter]:
    """All letters of a stage by name, also those that a killed run didn't fold.

    Raises:
        CallerError: the file is damaged.
    """
    letters = {letter.name: letter for letter in _file(store, stage)}
    letters |= {letter.name: letter for letter in _loose(store, stage)}
    return [letters[name] for name in sorted(letters)]


def fold_dead_letters(store: Store, stage: str, alive: Iterable[str] = ()) -> list[DeadLetter]:
    """Fold loose letters into the stage's file, and take away those of elements that passed since.

    Letters of elements that this run didn't ask for stay.

    Returns:
        The letters that remain, by name.
    """
    passed, loose = set(alive), _loose(store, stage)
    merged: dict[str, DeadLetter] = {}

    def change(old: bytes | None) -> bytes | None:
        merged.clear()
        merged.update({letter.name: letter for letter in _lines(stage, old)})
        merged.update({letter.name: letter for letter in loose})
        for name in passed & merged.keys():
            del merged[name]
        return "".join(merged[name].to_json() + "\n" for name in sorted(merged)).encode() or None

    path = f"dead_letters/{stage}.jsonl"
    if loose or _file(store, stage):
        store.update(path, change)
    for letter in loose:
        store.delete(f"dead_letters/{stage}/{letter.name}.json")
    return [merged[name] for name in sorted(merged)]


def loose_names(store: Store, stage: str) -> set[str]:
    """Names of the elements that died in the run that is going on."""
    return {name.removesuffix(".json") for name in store.names(f"dead_letters/{stage}")}


def _loose(store: Store, stage: str) -> list[DeadLetter]:
    found = []
    for name in store.names(f"dead_letters/{stage}"):
        path = f"dead_letters/{stage}/{name}"
        try:
            found.append(DeadLetter.from_json(store.read(path), where=path))
        except FileNotFoundError:
            continue  # another driver folded it just now
    return found


def _file(store: Store, stage: str) -> list[DeadLetter]:
    try:
        return _lines(stage, store.read(f"dead_letters/{stage}.jsonl"))
    except FileNotFoundError:
        return []


def _lines(stage: str, data: bytes | None) -> list[DeadLetter]:
    lines = (data or b"").decode().split("\n")
    where = f"dead_letters/{stage}.jsonl"
    return [DeadLetter.from_json(line, where=f"{where}:{n}") for n, line in enumerate(lines, 1) if line]
