"""What the pipelines leave on disk: outputs, receipts and dead letters of one run folder.

    <run>/databases/ bundles/ checks/ tasks/ solutions/   the outputs, one file or folder an element
    <run>/receipts/<stage>/<name>.json                    which key made which outputs; written last
    <run>/dead_letters/<stage>.jsonl                      the elements that failed, one line each
    <run>/tmp/                                            whatever is still being written

An output appears under its own name only when it is whole: it is written below ``tmp/`` and
renamed. A receipt is written after all outputs of its element, so a receipt with the right key
and unchanged outputs means "done", and anything less means "do it again". That is all that
resuming needs; a killed run leaves at most litter in ``tmp/``, which the next run sweeps.

The run folder must be a path that every worker sees (a local disk or a shared mount).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from synth.errors import CallerError, InfrastructureError
from synth.types import Record

Fault = Literal["caller", "environment", "infrastructure", "program"]  # program: a bug of ours
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


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
    fault: Fault
    error: str  # type of the exception
    message: str
    where: str = ""  # innermost frame, "file.py:line function"
    attempts: int = 1


def content_key(**parts: Any) -> str:
    """SHA-256 over the canonical JSON of everything that decides an element's output."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def open_run(path: str | Path) -> Path:
    """Make the run folder if need be, and sweep what dead writers left in its ``tmp/``.

    Raises:
        CallerError: the path is a URL, or a file stands in its place.
    """
    if "://" in str(path):
        raise CallerError(f"run folder {path}: not a path; name a local or mounted folder")
    run = Path(path).absolute()
    try:
        (run / "tmp").mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise CallerError(f"run folder {run}: a file stands in its place; name another folder") from None
    for litter in (run / "tmp").iterdir():
        if not _writer_lives(litter.name):
            _remove(litter)
    return run


def write_file(run: Path, relative: str, text: str) -> None:
    """Write a whole file under its name, or nothing at all.

    Raises:
        InfrastructureError: the disk refused.
    """
    temporary, final = _temporary(run), run / relative
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, final)
    except OSError as err:
        _remove(temporary)
        raise InfrastructureError(f"cannot write {relative}: {err.strerror or err}") from err


def write_folder(run: Path, relative: str, build: Callable[[Path], object]) -> None:
    """Let ``build`` fill a folder below ``tmp/`` and put it in its place whole.

    ``build`` gets the path of a folder that doesn't exist yet. A folder that already stands
    under the name is moved away first; between the two renames the name is free, never half.
    """
    room, final = _temporary(run), run / relative
    room.mkdir(parents=True)
    try:
        build(room / final.name)
        final.parent.mkdir(parents=True, exist_ok=True)
        if final.exists():
            os.rename(final, room / f"old-{final.name}")
        os.rename(room / final.name, final)
    except OSError as err:
        raise InfrastructureError(f"cannot write {relative}: {err.strerror or err}") from err
    finally:
        _remove(room)


def write_lines(run: Path, relative: str, lines: Iterable[str]) -> None:
    """Write JSONL whole (see :func:`write_file`)."""
    write_file(run, relative, "".join(line + "\n" for line in lines))


@contextmanager
def scratch(run: Path) -> Iterator[Path]:
    """A folder of one's own below ``tmp/``, removed at the end."""
    folder = _temporary(run)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        _remove(folder)


def fingerprint(path: Path) -> str:
    """SHA-256 of a file's bytes, or of the names and bytes of all files below a folder."""
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    files = sorted(p for p in path.rglob("*") if p.is_file())
    if not files:
        raise FileNotFoundError(path)
    total = hashlib.sha256()
    for file in files:
        total.update(f"{file.relative_to(path).as_posix()} {fingerprint(file)}\n".encode())
    return total.hexdigest()


# --- receipts -----------------------------------------------------------------------------------


def write_receipt(run: Path, receipt: Receipt) -> None:
    write_file(run, f"receipts/{receipt.stage}/{receipt.name}.json", receipt.to_json() + "\n")


def read_receipt(run: Path, stage: str, name: str) -> Receipt | None:
    """The receipt of an element, or None when there is none that this version can read."""
    try:
        return Receipt.from_json((run / f"receipts/{stage}/{name}.json").read_bytes())
    except (FileNotFoundError, CallerError):
        return None


def finished(run: Path, stage: str, name: str, key: str) -> Receipt | None:
    """The receipt of an element that is done: same key, and every output still as it was written."""
    receipt = read_receipt(run, stage, name)
    if receipt is None or receipt.key != key:
        return None
    try:
        same = all(fingerprint(run / path) == digest for path, digest in receipt.outputs.items())
    except FileNotFoundError:
        return None
    return receipt if same else None


# --- dead letters -------------------------------------------------------------------------------


def read_dead_letters(run: Path, stage: str) -> list[DeadLetter]:
    path = run / f"dead_letters/{stage}.jsonl"
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [DeadLetter.from_json(line, where=f"{path}:{n}") for n, line in enumerate(lines, 1)]


def update_dead_letters(run: Path, stage: str, tried: Iterable[str], letters: Iterable[DeadLetter]) -> None:
    """Replace the letters of the elements that were tried; those of other runs of the stage stay."""
    names = set(tried)
    kept = [letter for letter in read_dead_letters(run, stage) if letter.name not in names]
    merged = sorted([*kept, *letters], key=lambda letter: letter.name)
    if merged:
        write_lines(run, f"dead_letters/{stage}.jsonl", (letter.to_json() for letter in merged))
    else:
        (run / f"dead_letters/{stage}.jsonl").unlink(missing_ok=True)


# --- temporary names ------------------------------------------------------------------------------


def _temporary(run: Path) -> Path:
    """A fresh name below ``tmp/`` that says which process of which host writes there."""
    pid = os.getpid()
    return run / "tmp" / f"{socket.gethostname()}~{pid}~{_started(pid)}~{uuid.uuid4().hex}"


def _writer_lives(name: str) -> bool:
    """Whether the writer of a temporary name may still be at work (on another host: assume so)."""
    host, pid, started, *_ = [*name.split("~"), "", "", ""]
    return host != socket.gethostname() or (pid.isdecimal() and _started(int(pid)) == started)


def _started(pid: int) -> str:
    """When a process started, in ticks since boot; "" when it has ended (a zombie has)."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else fields[18]  # proc(5): field 22


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
