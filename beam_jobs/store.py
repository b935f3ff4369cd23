"""Where a run folder lies: a local (or mounted) folder, or ``gs://bucket/prefix``.

Everything that the pipelines read and write goes through a :class:`Store`, under paths relative to the run
folder. A store promises three things, whatever kills a writer: a file or folder appears under its own
name whole or not at all; writing the same again changes nothing; a fingerprint tells whether an
output is still what it was. :class:`LocalStore` keeps that by writing below ``tmp/`` and renaming,
:class:`beam_jobs.gcs.GcsStore` by one object a write and preconditions.

A store is plain data (its URL), so Beam can carry it to any worker.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from synth.errors import CallerError, InfrastructureError

A = TypeVar("A")
B = TypeVar("B")
READERS = 16
Change = Callable[[bytes | None], bytes | None]  # old content (None: no file) -> new (None: no file)
GCS = re.compile(r"gs:/+([^/].*)")  # pathlib turns gs://bucket into gs:/bucket


class Store(Protocol):
    """A run folder. Every method but ``read`` and ``fingerprint`` of a missing name raises
    :class:`~synth.errors.InfrastructureError` when the disk or the service fails."""

    @property
    def url(self) -> str:
        """What :func:`open_store` opens again."""
        ...

    def read(self, path: str) -> bytes:
        """Bytes of a file; FileNotFoundError when there is none."""
        ...

    def write(self, path: str, content: str | bytes) -> None:
        """Write a whole file under its name, or nothing at all."""
        ...

    def write_folder(self, path: str, build: Callable[[Path], object]) -> None:
        """Let ``build`` make a folder at the path that it is given, and put it in its place whole."""
        ...

    def update(self, path: str, change: Change) -> None:
        """Read, change, write; two drivers that do it at once don't undo each other."""
        ...

    def local(self, path: str) -> AbstractContextManager[Path]:
        """A folder as a local folder, for reading; FileNotFoundError when there is none."""
        ...

    def fingerprint(self, path: str) -> str:
        """Changes when the content of a file or folder does; FileNotFoundError when there is none."""
        ...

    def names(self, folder: str) -> list[str]:
        """Names of the files and folders directly below a folder, sorted; [] when there is none."""
        ...

    def delete(self, path: str) -> None:
        """Remove a file; a missing one is no error."""
        ...

    def scratch(self) -> AbstractContextManager[Path]:
        """A local folder of one's own, removed at the end."""
        ...


def open_store(url: str | Path | Store) -> Store:
    """The store at a path or ``gs://`` URL; nothing is made or asked yet.

    Raises:
        CallerError: a URL of another kind.
    """
    if not isinstance(url, str | Path):
        return url
    text = str(url)
    found = GCS.fullmatch(text)
    if found:
        from beam_jobs.gcs import GcsStore

        url = f"gs://{found[1].rstrip('/')}"
        if url.count("/") == 2:
            raise CallerError(f"run folder {url}: name a folder in the bucket, such as {url}/run1")
        return GcsStore(url)
    if "://" in text:
        raise CallerError(f"run folder {text}: name a local or mounted folder, or gs://BUCKET/PREFIX")
    return LocalStore(Path(text).absolute())


def in_threads(ask: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
    """``map`` with READERS requests on the way at a time: on GCS each costs a round trip."""
    with ThreadPoolExecutor(READERS) as pool:
        yield from pool.map(ask, items)


def write_lines(store: Store, path: str, lines: Iterable[str]) -> None:
    """Write JSONL whole."""
    store.write(path, "".join(line + "\n" for line in lines))


@dataclass(frozen=True)
class LocalStore:
    """A run folder on a disk or mount that every worker sees under the same path."""

    root: Path

    @property
    def url(self) -> str:
        return str(self.root)

    def prepare(self) -> None:
        """Make the folder if need be, and sweep what dead writers left in its ``tmp/``.

        Raises:
            CallerError: a file stands in its place.
        """
        try:
            (self.root / "tmp").mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise CallerError(
                f"run folder {self.root}: a file stands in its place; name another folder"
            ) from None
        for litter in (self.root / "tmp").iterdir():
            if not _writer_lives(litter.name):
                _remove(litter)

    def read(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def write(self, path: str, content: str | bytes) -> None:
        data = content.encode() if isinstance(content, str) else content
        temporary, final = self._temporary(), self.root / path
        try:
            temporary.parent.mkdir(parents=True, exist_ok=True)
            final.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "wb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
            os.replace(temporary, final)
        except OSError as err:
            _remove(temporary)
            raise InfrastructureError(f"cannot write {path}: {err.strerror or err}") from err

    def write_folder(self, path: str, build: Callable[[Path], object]) -> None:
        """See :class:`Store`. A folder that already stands under the name is moved away first;
        between the two renames the name is free, never half."""
        room, final = self._temporary(), self.root / path
        room.mkdir(parents=True)
        try:
            build(room / final.name)
            final.parent.mkdir(parents=True, exist_ok=True)
            if final.exists():
                os.rename(final, room / f"old-{final.name}")
            os.rename(room / final.name, final)
        except OSError as err:
            raise InfrastructureError(f"cannot write {path}: {err.strerror or err}") from err
        finally:
            _remove(room)

    def update(self, path: str, change: Change) -> None:
        try:
            old = self.read(path)
        except FileNotFoundError:
            old = None
        new = change(old)
        if new is None:
            self.delete(path)
        elif new != old:
            self.write(path, new)

    @contextmanager
    def local(self, path: str) -> Iterator[Path]:
        if not (self.root / path).is_dir():
            raise FileNotFoundError(self.root / path)
        yield self.root / path

    def fingerprint(self, path: str) -> str:
        """SHA-256 of a file's bytes, or of the names and bytes of all files below a folder."""
        return fingerprint(self.root / path)

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root / folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def delete(self, path: str) -> None:
        try:
            (self.root / path).unlink(missing_ok=True)
        except OSError as err:
            raise InfrastructureError(f"cannot delete {path}: {err.strerror or err}") from err

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        folder = self._temporary()
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            _remove(folder)

    def _temporary(self) -> Path:
        """A fresh name below ``tmp/`` that says which process of which host writes there."""
        pid = os.getpid()
        return self.root / "tmp" / f"{socket.gethostname()}~{pid}~{process_start(pid)}~{uuid.uuid4().hex}"


def fingerprint(path: Path) -> str:
    """SHA-256 of a local file's bytes, or of the names and bytes of all files below a folder."""
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    files = sorted(p for p in path.rglob("*") if p.is_file())
    if not files:
        raise FileNotFoundError(path)
    total = hashlib.sha256()
    for file in files:
        total.update(f"{file.relative_to(path).as_posix()} {fingerprint(file)}\n".encode())
    return total.hexdigest()


def tree(path: Path) -> Sequence[Path]:
    """All files below a folder, in an order that doesn't depend on the disk."""
    return sorted((p for p in path.rglob("*") if p.is_file()), key=lambda p: p.relative_to(path).as_posix())


# --- temporary names ------------------------------------------------------------------------------


def _writer_lives(name: str) -> bool:
    """Whether the writer of a temporary name may still be at work (on another host: assume so)."""
    host, pid, started, *_ = [*name.split("~"), "", "", ""]
    return host != socket.gethostname() or (pid.isdecimal() and process_start(int(pid)) == started)


def process_start(pid: int) -> str:
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
