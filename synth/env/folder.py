"""The folder in which a foreign server keeps its state: pack, unpack, copy, and read through the lens.

A folder that a foreign program has written is never trusted: links are not followed, nothing but files,
folders and links is taken, sizes are bounded, and its contents are parsed inside the sandbox only
(:mod:`synth.env.lens`).
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from pathlib import Path

from synth.env.frames import HEADER
from synth.env.program import Program, sandboxed
from synth.env.sandbox import Limits
from synth.env.state import State
from synth.errors import CallerError, InfrastructureError

LENS_S = 60.0  # ours: seconds for reading one folder; 0.1 is usual
MOST_FILES = 20_000  # ours


def pack(folder: Path, limit: int) -> bytes:
    """A folder as a tar archive that depends on names, contents and modes only.

    Args:
        limit: the most bytes of all files together.

    Raises:
        InfrastructureError: it is above the limit, or changes while it is read.
    """
    out = io.BytesIO()
    total = count = 0
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        try:
            for here, folders, names, handle in os.fwalk(folder, follow_symlinks=False):
                folders.sort()
                for name in [*folders, *sorted(names)]:
                    content, info = _member(handle, name, Path(here).relative_to(folder) / name)
                    count += 1
                    total += info.size
                    if total > limit or count > MOST_FILES:
                        raise InfrastructureError(
                            f"the state has more than {limit >> 20} MiB or {MOST_FILES} files"
                        )
                    if info.type is not None:
                        archive.addfile(info, content)
                    if content is not None:
                        content.close()
        except OSError as err:
            raise InfrastructureError(f"the state changes while it is read: {err}") from None
    return out.getvalue()


def _member(handle: int, name: str, path: Path) -> tuple[io.BufferedReader | None, tarfile.TarInfo]:
    """One entry below an open folder; sockets, pipes and devices are left out."""
    info = tarfile.TarInfo(path.as_posix())
    found = os.stat(name, dir_fd=handle, follow_symlinks=False)
    info.mode = 0o755 if found.st_mode & 0o100 else 0o644
    if stat.S_ISLNK(found.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=handle)
        return None, info
    if stat.S_ISDIR(found.st_mode):
        info.type = tarfile.DIRTYPE
        return None, info
    if not stat.S_ISREG(found.st_mode):
        info.type = None  # type: ignore[assignment]
        return None, info
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=handle)
    info.size = os.fstat(file).st_size
    return open(file, "rb"), info


def unpack(archive: bytes, folder: Path) -> None:
    """Inverse of :func:`pack`, into an empty folder.

    Raises:
        CallerError: it is no archive, or one that leads out of the folder.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for member in tar.getmembers():
                if member.issym():  # made as they are: they lead where they lead, and are never followed here
                    (folder / member.name).symlink_to(member.linkname)
                else:
                    tar.extract(member, folder, filter="data")
    except (tarfile.TarError, OSError) as err:
        raise CallerError(f"the seed of the state cannot be unpacked: {err}") from None


def listing(archive: bytes) -> list[str]:
    """Files and folders of a packed folder, git's own left out; folders end in a slash."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = [m for m in tar.getmembers() if ".git" not in m.name.split("/")]
    return [m.name + ("/" if m.isdir() else "") for m in members]


def read_state(program: Program, folder: Path, limits: Limits) -> State:
    """What a folder holds, through the lens, in the sandbox.

    Raises:
        InfrastructureError: it is too large, or the lens failed.
    """
    with tempfile.TemporaryDirectory(prefix="agent-world-lens-") as scratch:
        copy = Path(scratch) / "state"
        copy.mkdir()
        unpack(pack(folder, limits.state_mb << 20), copy)
        lens = Program((program.python, "-I", "-B", "/agent-world/lens.py"), _needs(program))
        command = sandboxed(lens, copy, limits)
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LENS_S, env={}, check=False
            )
        except subprocess.TimeoutExpired:
            raise InfrastructureError(f"reading the state took more than {LENS_S:g} s") from None
    data = done.stdout
    try:
        size, rest = HEADER.unpack(data[: HEADER.size])
        if done.returncode or len(data) != HEADER.size + size + rest:
            raise ValueError("cut short")
        index = json.loads(data[HEADER.size : HEADER.size + size])["index"]
        return State.unpack(index, data[HEADER.size + size :])
    except Exception:
        wrote = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise InfrastructureError(
            f"the state cannot be read: {(wrote or ['no reason given'])[-1][:300]}"
        ) from None


def _needs(program: Program) -> tuple[str, ...]:
    """What the interpreter of the lens needs: that of the server, or our own."""
    from synth.env.sandbox import python_paths

    return (*program.roots, *python_paths())


def remove(folder: Path) -> None:
    """Delete a state's folder; what resists is left to the system's cleaning of temporary files."""
    shutil.rmtree(folder, ignore_errors=True)


def fingerprint(archive: bytes) -> str:
    """SHA-256 (hex) of a packed folder."""
    return hashlib.sha256(archive).hexdigest()
