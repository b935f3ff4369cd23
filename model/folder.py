"""Folders that appear whole: written beside their place, then put there in one step.

Nobody ever reads half of a folder, and a folder that holds somebody's other files is never touched.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced(target: Path, ours: Callable[[str], bool]) -> Iterator[Path]:
    """A folder to write into, which becomes ``target`` in one step when the block ends well.

    After a crash at any point ``target`` is the old folder or the new one, whole; a left-over
    ``.NAME.part*`` beside it may be removed.

    Args:
        target: what is there already must be a folder of files that this program writes.
        ours: true for such a file's name.

    Raises:
        FileExistsError: something else is there; it stays as it is.
    """
    check_target(target, ours)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{target.name}.part", dir=target.parent))
    try:
        part.chmod(0o755)
        yield part
        for file in part.iterdir():
            file.chmod(0o644)
            with open(file, "rb") as handle:
                os.fsync(handle.fileno())
        check_target(target, ours)
        if target.exists():
            _exchange(part, target)
        else:
            os.rename(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def check_target(target: Path, ours: Callable[[str], bool]) -> None:
    """Refuse a target that holds anything but our own files, see :func:`replaced`."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise FileExistsError(f"{target} exists and is no folder; name another target")
    found = target.iterdir() if target.exists() else ()
    others = sorted(p.name for p in found if p.is_dir() or not ours(p.name))
    if others:
        raise FileExistsError(
            f"{target} holds {others[0]}, which is no file of a policy; name another target"
        )


def _exchange(a: Path, b: Path) -> None:
    """Swap two folders: Linux's renameat2 does it in one step; elsewhere three renames."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if rename is not None and rename(here, os.fsencode(a), here, os.fsencode(b), exchange) == 0:
        return
    aside = a.with_name(a.name + ".old")
    os.rename(b, aside)
    os.rename(a, b)
    os.rename(aside, a)
