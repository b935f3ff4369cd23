"""A run folder on GCS, at hand as a local folder for as long as a command works there.

Training and the arena read and write plain files: sandboxes open bundles, Orbax renames folders, the
report globs. :func:`mirrored` fetches the parts that a command names into a folder of its own, and sends back
what it changed below the parts that it may write; :func:`fetched` fetches one file or folder, such as a
policy. A local path is used as it is, so a command says the same for both.

What holds on the way back, whatever dies:

- An object is replaced only if it is still the one that this mirror knows (its generation). When another
  command has written there, :class:`~synth.errors.CallerError` says so and its work stays.
- What makes others valid goes last (LAST): a checkpoint's mark after its arrays, a round's report after its
  episodes. A step without its mark is ignored and cleaned away by :mod:`model.checkpoint`.
- What the command removed (old checkpoints) is deleted after all uploads, its mark first.

So a killed training goes on, on any machine, from the last step that was pushed.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase as fnmatch
from glob import escape
from pathlib import Path

from beam_jobs.gcs import FOLDER, GcsStore, Seen, unzip_folder
from beam_jobs.store import GCS, in_threads, open_store
from synth.errors import AgentWorldError, CallerError

# the later in this list, the later it is uploaded; all other files go first
LAST = ("*/commit_success.txt", "*/_CHECKPOINT_METADATA", "*/policy/*", "arena/*/report.json", "report.html")
UNFINISHED = ("*.tmp", "*.orbax-checkpoint-tmp*")  # written beside, not yet renamed
SMALL = 8_000_000  # bytes; smaller files are read whole, so that one that grows meanwhile does no harm


class Mirror:
    """A run folder at hand.

    Attributes:
        root: the local folder.
        url: what the user called it.
        failed: whether pushing broke off, so that trying again would only fail again.
    """

    def __init__(self, root: Path, url: str, store: GcsStore | None = None, write: Sequence[str] = ()):
        self.root, self.url, self.failed = root, url, False
        self._store, self._write = store, tuple(write)
        self._there: dict[str, Seen] = {}  # what the service holds below the written parts
        self._sent: dict[str, tuple[int, int]] = {}  # path -> (size, mtime in ns) of what it holds

    @property
    def remote(self) -> bool:
        """Whether :meth:`push` has anything to do."""
        return self._store is not None

    def shown(self, path: Path | str) -> str:
        """A path below the folder, as the user would write it."""
        return self.words(str(path))

    def words(self, text: str) -> str:
        """A text in which the local folder is named by its URL."""
        return text if self._store is None else text.replace(str(self.root), self.url)

    def push(self) -> None:
        """Send back what has changed below the written parts; nothing to do for a local folder.

        Raises:
            CallerError: another command has written there.
            InfrastructureError: the service failed; what was sent is whole.
        """
        if self._store is None:
            return
        self.failed = True
        here = {path: stamp for path, stamp in self._files() if _any(path, self._write)}
        changed = [path for path, stamp in here.items() if self._sent.get(path) != stamp]
        for ours in _by_turn(changed):
            for path, seen in zip(ours, in_threads(self._send, ours), strict=True):
                self._there[path], self._sent[path] = seen, here[path]
        for gone in reversed(_by_turn(self._there.keys() - here.keys())):
            list(in_threads(self._delete, gone))
        self.failed = False

    def fetch(self, read: Sequence[str]) -> bool:
        """Download every object that a pattern names, and remember those that may be written.

        Returns:
            Whether there was any.
        """
        assert self._store is not None
        wanted = (*read, *self._write)
        found: dict[str, Seen] = {}
        for start in {re.split(r"[*?[]", pattern)[0] for pattern in wanted}:
            listed = self._store.below(start)
            found |= {p: seen for p, seen in listed.items() if _any(p, wanted) and not p.endswith("/")}
        list(in_threads(self._get, found))
        self._there = {path: seen for path, seen in found.items() if _any(path, self._write)}
        self._sent = {path: stamp for path, stamp in self._files() if path in self._there}
        return bool(found)

    def _get(self, path: str) -> None:
        assert self._store is not None
        if ".." in path.split("/"):
            raise CallerError(f"{self.url}/{path}: its name leads out of the folder; rename the object")
        to = self.root / path
        to.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith(FOLDER):
            unzip_folder(self._store.read(path), self.root / path.removesuffix(FOLDER))
        else:
            self._store.download(path, to)

    def _send(self, path: str) -> Seen:
        assert self._store is not None
        file, known = self.root / path, self._there.get(path)
        data = file.read_bytes() if file.stat().st_size < SMALL else file
        seen = self._store.replace(path, data, known.generation if known else 0)
        if seen is None:
            raise CallerError(
                f"{self.url}/{path}: another command has changed it since this one began; "
                "its work was kept, this one's was not: start again when it is over"
            )
        return seen

    def _delete(self, path: str) -> None:
        assert self._store is not None
        self._store.delete(path, self._there.pop(path).generation)
        self._sent.pop(path, None)

    def _files(self) -> Iterator[tuple[str, tuple[int, int]]]:
        for folder, _, names in os.walk(self.root):
            for name in names:
                file = Path(folder, name)
                path = file.relative_to(self.root).as_posix()
                if not any(fnmatch(part, beside) for part in path.split("/") for beside in UNFINISHED):
                    status = file.stat()
                    yield path, (status.st_size, status.st_mtime_ns)


@contextmanager
def mirrored(run: str | Path, read: Sequence[str] = (), write: Sequence[str] = ()) -> Iterator[Mirror]:
    """A run folder at hand, and its changes sent back at the end, also when the work was cut short.

    Args:
        run: a local folder, which is used where it is, or ``gs://BUCKET/PREFIX``.
        read: patterns of the paths that are needed (``*`` goes over slashes), such as ``bundles/*``.
        write: patterns of those that may change; they are fetched too.

    Raises:
        CallerError: no such run folder; or see :meth:`Mirror.push`. Errors of the work inside name the URL.
        InfrastructureError: the service failed.
    """
    store = open_store(run)
    if not isinstance(store, GcsStore):
        yield Mirror(Path(run), str(run))
        return
    with tempfile.TemporaryDirectory(prefix="agent-world-run-") as room:
        mirror = Mirror(Path(room).resolve(), store.url, store, write)
        if not mirror.fetch(read):
            raise CallerError(
                f"{store.url}: no such run folder; make one with 'agent-world synth complexify {store.url}'"
            )
        try:
            yield mirror
        except AgentWorldError as err:
            err.args = tuple(mirror.words(str(arg)) for arg in err.args)
            raise
        finally:
            if not mirror.failed:
                mirror.push()


def named(path: str | Path) -> str:
    """A path as the user wrote it: pathlib makes ``gs:/`` of ``gs://``."""
    found = GCS.fullmatch(str(path))
    return f"gs://{found[1]}" if found else str(path)


def on_disk(path: str | Path) -> Path:
    """A path where a command writes for itself.

    Raises:
        CallerError: it lies on GCS.
    """
    if GCS.fullmatch(str(path)):
        raise CallerError(
            f"{named(path)}: this command writes to a local folder only; copy it there afterwards"
        )
    return Path(path)


@contextmanager
def fetched(path: str | Path) -> Iterator[Path]:
    """A file or folder for reading: a local one as it is, one on GCS as a copy of its own.

    Raises:
        CallerError: a ``gs://`` path that names nothing. Errors of the work inside name the URL.
    """
    found = GCS.fullmatch(str(path))
    if found is None:
        yield Path(path)
        return
    parent, _, name = found[1].rstrip("/").rpartition("/")
    with tempfile.TemporaryDirectory(prefix="agent-world-get-") as room:
        mirror = Mirror(Path(room), f"gs://{parent}", GcsStore(f"gs://{parent}"))
        plain = escape(name)
        if not (parent and mirror.fetch((plain, f"{plain}{FOLDER}", f"{plain}/*"))):
            raise CallerError(f"gs://{found[1]}: there is no such file or folder")
        try:
            yield Path(room, name)
        except AgentWorldError as err:
            err.args = tuple(mirror.words(str(arg)) for arg in err.args)
            raise


def _any(path: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(path, pattern) for pattern in patterns)


def _by_turn(paths: Iterable[str]) -> list[list[str]]:
    """Paths in the order in which they may appear: all of a list at once, one list after the other."""
    turns: list[list[str]] = [[] for _ in range(len(LAST) + 1)]
    for path in sorted(paths):
        turns[max((n for n, pattern in enumerate(LAST, 1) if fnmatch(path, pattern)), default=0)].append(path)
    return turns
