"""A run folder on Google Cloud Storage, through google-cloud-storage.

An object on GCS appears whole or not at all, but forty of them don't appear at once. So a folder (a
bundle) is one object, ``<path>.folder.zip``, packed the same way every time (sorted names, no dates).

Nothing lost: each request is repeated while the service says that it is ill (429, 5xx, broken or silent
connections), and the MD5 that the service reports after an upload must be ours. Nothing doubled: each
upload carries the generation that it expects. When that fails (412), either our own first try arrived
and only its reply was lost (same MD5: done), or another writer came between (see :meth:`GcsStore.write`).

Works against any server that speaks the API: ``STORAGE_EMULATOR_HOST=http://127.0.0.1:PORT``.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beam_jobs.store import Change, tree
from synth.errors import CallerError, InfrastructureError

FOLDER = ".folder.zip"
PATIENCE = "AGENT_WORLD_GCS_PATIENCE"  # seconds for one operation with all its repetitions
DEFAULT_PATIENCE = 120.0  # ours: an hour of GCS trouble is a dead letter's business, two minutes aren't
SILENCE = 30.0  # seconds without a byte until a request counts as broken
ROUNDS = 5  # of reading and writing again when another writer came between
_client = threading.local()  # a client a thread: its HTTP session is not made for sharing


@dataclass(frozen=True)
class Seen:
    """An object as the service listed or took it."""

    generation: int  # changes with every write
    md5: str | None  # None: uploaded in parts by another tool


class GcsStore:
    """See :class:`beam_jobs.store.Store`. Made by :func:`beam_jobs.store.open_store`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._bucket_name, _, self._prefix = url.removeprefix("gs://").partition("/")

    def read(self, path: str) -> bytes:
        blob = self._bucket().blob(self._name(path))

        def download(retry: Any, **how: Any) -> bytes:  # the client doesn't repeat a body that breaks off
            return retry(blob.download_as_bytes)(checksum="crc32c", retry=retry, **how)

        found = self._try(f"read {path}", download)
        if found is None:
            raise FileNotFoundError(f"{self.url}/{path}")
        return found

    def write(self, path: str, content: str | bytes) -> None:
        """See :class:`~beam_jobs.store.Store`. An object with other content is replaced, unless it
        changes in that very moment: then the element is tried again."""
        data = content.encode() if isinstance(content, str) else content
        done, there = self._settle(path, data, 0)
        if not done:
            done, _ = self._settle(path, data, there.generation if there else 0)
        if not done:
            raise InfrastructureError(f"cannot write {path}: another writer changed it just now")

    def write_folder(self, path: str, build: Callable[[Path], object]) -> None:
        with self.scratch() as room:
            folder = room / Path(path).name
            build(folder)
            self.write(path + FOLDER, zip_folder(folder))

    def update(self, path: str, change: Change) -> None:
        for _ in range(ROUNDS):
            there = self._look(path)
            try:
                old = None if there is None else self.read(path)
            except FileNotFoundError:
                continue
            new = change(old)
            if new is None:
                return self.delete(path)
            if new == old or self._put(path, new, 0 if there is None else there.generation):
                return None
        raise InfrastructureError(f"cannot write {path}: other writers changed it {ROUNDS} times")

    @contextmanager
    def local(self, path: str) -> Iterator[Path]:
        data = self.read(path + FOLDER)
        with self.scratch() as room:
            folder = room / Path(path).name
            unzip_folder(data, folder)
            yield folder

    def fingerprint(self, path: str) -> str:
        """The service's own MD5 of the object: no download."""
        there = self._look(path) or self._look(path + FOLDER)
        if there is None:
            raise FileNotFoundError(f"{self.url}/{path}")
        return f"md5:{there.md5_hash}"

    def names(self, folder: str) -> list[str]:
        def ask(**how: Any) -> list[str]:
            prefix = self._name(folder) + "/"
            listed = self._bucket().list_blobs(prefix=prefix, delimiter="/", **how)
            files = [blob.name for blob in listed]  # reading the pages fills listed.prefixes
            return [name.removeprefix(prefix).rstrip("/") for name in [*files, *listed.prefixes]]

        found = self._try(f"list {folder}", ask, needs_bucket=True)
        return sorted({name.removesuffix(FOLDER) for name in found if name})

    def delete(self, path: str, generation: int | None = None) -> None:
        """See :class:`~beam_jobs.store.Store`; with a generation, only what is still of that one."""
        from google.api_core.exceptions import PreconditionFailed

        with suppress(PreconditionFailed):  # another writer's by now
            blob = self._bucket().blob(self._name(path))
            self._try(f"delete {path}", blob.delete, if_generation_match=generation)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="agent-world-") as folder:
            yield Path(folder)

    # --- for mirrors (beam_jobs.mirror) ---------------------------------------------------------------

    def below(self, prefix: str) -> dict[str, Seen]:
        """Every object whose path begins with ``prefix``, at any depth; {} when there is none.

        Raises:
            CallerError: there is no such bucket, or no permission.
        """

        def ask(**how: Any) -> dict[str, Seen]:
            listed = self._bucket().list_blobs(prefix=self._name(prefix), **how)
            start = len(self._name(""))
            return {blob.name[start:]: Seen(blob.generation, blob.md5_hash) for blob in listed}

        return self._try(f"list {prefix}*", ask, needs_bucket=True)

    def download(self, path: str, to: Path) -> None:
        """One object into a file, which need not fit in memory; FileNotFoundError when there is none."""
        blob = self._bucket().blob(self._name(path))

        def fetch(retry: Any, **how: Any) -> bool:
            retry(blob.download_to_filename)(str(to), checksum="crc32c", retry=retry, **how)
            return True

        if self._try(f"read {path}", fetch) is None:
            raise FileNotFoundError(f"{self.url}/{path}")

    def replace(self, path: str, data: bytes | Path, generation: int) -> Seen | None:
        """Upload over that very generation (0: over nothing); None when something else is there.

        Args:
            data: bytes, or a file that stays as it is meanwhile and need not fit in memory.
        """
        done, there = self._settle(path, data, generation)
        return there if done else None

    # --- requests ---------------------------------------------------------------------------------

    def _settle(self, path: str, data: bytes | Path, generation: int) -> tuple[bool, Seen | None]:
        """Upload over that generation (0: nothing): whether the object is now ours, and what is there."""
        lost: InfrastructureError | None = None
        try:
            made = self._put(path, data, generation)
            if made:
                return True, Seen(made, _md5(data))
        except InfrastructureError as err:  # the last answer of a large upload can't be asked for again
            lost = err
        blob = self._look(path)
        there = None if blob is None else Seen(blob.generation, blob.md5_hash)
        done = there is not None and there.md5 == _md5(data)
        if lost is not None and not done:
            raise lost
        return done, there

    def _put(self, path: str, data: bytes | Path, generation: int) -> int:
        """Upload over that generation (0: nothing); the new one, or 0 when something else is there."""
        from google.api_core.exceptions import PreconditionFailed

        blob = self._bucket().blob(self._name(path))
        send = blob.upload_from_string if isinstance(data, bytes) else blob.upload_from_filename
        kind = "application/json" if path.endswith(".json") else "application/octet-stream"
        try:
            self._try(
                f"write {path}",
                send,
                data if isinstance(data, bytes) else str(data),
                content_type=kind,
                if_generation_match=generation,
                checksum="md5",
                needs_bucket=True,
            )
        except PreconditionFailed:
            return 0
        if blob.md5_hash != _md5(data):
            raise InfrastructureError(f"cannot write {path}: what arrived is not what was sent")
        return int(blob.generation)

    def _look(self, path: str) -> Any:
        """What the service knows of an object, or None."""
        return self._try(f"look at {path}", self._bucket().get_blob, self._name(path))

    def _try(
        self, what: str, call: Callable[..., Any], *args: Any, needs_bucket: bool = False, **how: Any
    ) -> Any:
        """One operation with its repetitions; None when there is no such object."""
        from google.api_core import exceptions as api
        from google.auth.exceptions import GoogleAuthError
        from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
        from google.cloud.storage.retry import DEFAULT_RETRY
        from requests.exceptions import RequestException

        patience = float(os.environ.get(PATIENCE, DEFAULT_PATIENCE))
        retry = DEFAULT_RETRY.with_timeout(patience).with_delay(initial=0.25, maximum=16.0)
        try:
            return call(*args, **how, retry=retry, timeout=(min(10.0, patience), min(SILENCE, patience)))
        except api.NotFound:
            if needs_bucket:
                raise CallerError(f"{self.url}: there is no bucket {self._bucket_name}") from None
            return None
        except api.PreconditionFailed:
            raise
        except (api.Forbidden, api.Unauthorized, GoogleAuthError) as err:
            raise CallerError(f"{self.url}: cannot {what}: {_first(err)}") from None
        except (api.GoogleAPIError, RequestException, InvalidResponse, DataCorruption, OSError) as err:
            raise InfrastructureError(f"cannot {what} of {self.url}: {_first(err)}") from err

    def _bucket(self) -> Any:
        of = (os.getpid(), os.environ.get("STORAGE_EMULATOR_HOST"))
        if getattr(_client, "of", None) != of:
            from google.cloud import storage

            project = os.environ.get("GOOGLE_CLOUD_PROJECT") or None
            _client.storage, _client.of = storage.Client(project=project), of
        return _client.storage.bucket(self._bucket_name)

    def _name(self, path: str) -> str:
        return f"{self._prefix}/{path}" if self._prefix else path

    def __repr__(self) -> str:
        return f"GcsStore({self.url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GcsStore) and other.url == self.url

    def __hash__(self) -> int:
        return hash(self.url)


def zip_folder(folder: Path) -> bytes:
    """A folder as a ZIP file: the same bytes for the same names and contents."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in tree(folder):
            add_file(packed, file.relative_to(folder).as_posix(), file.read_bytes())
    return out.getvalue()


def unzip_folder(data: bytes, folder: Path) -> None:
    """What :func:`zip_folder` packed."""
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        packed.extractall(folder)


def add_file(packed: zipfile.ZipFile, name: str, data: bytes) -> None:
    """Add a member without date, owner or mode."""
    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    info.compress_type = zipfile.ZIP_DEFLATED
    packed.writestr(info, data)


def _md5(data: bytes | Path) -> str:
    """MD5 as the service words it."""
    if isinstance(data, bytes):
        return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
    with data.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False))
    return base64.b64encode(digest.digest()).decode()


def _first(err: Exception) -> str:
    text = str(err).strip() or type(err).__name__
    return text.splitlines()[0][:300]
