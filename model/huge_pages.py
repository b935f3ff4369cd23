"""Let malloc take huge pages: a fifth of a training step on CPUs.

XLA asks for the memory of a program anew each time it runs it, and gives it back after. In pages of 4 KiB
the kernel then clears and enters tens of thousands of pages a step; in pages of 2 MiB, hardly any. glibc
(2.35 and later) asks for them when the tunable ``glibc.malloc.hugetlb=1`` is set, which it reads as a process
begins: so the process begins again. Ours, measured (tests/bench/bench_grpo.py, tunable at 0 and at 1):
a step takes 0.39 s instead of 0.47.

Who sets the tunable decides: ``GLIBC_TUNABLES=glibc.malloc.hugetlb=0`` leaves everything as it is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

TUNABLE = "glibc.malloc.hugetlb"
BEFORE = "AGENT_WORLD_TUNABLES_BEFORE"  # what the variable held, for the process that begins again
THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def with_huge_pages() -> None:
    """Begin this process again with huge pages, where that helps; the second time, go on.

    Call it first thing in a program. Processes that this one starts don't inherit the tunable: small ones,
    such as sandboxes, would only have more to clear.
    """
    if BEFORE in os.environ:
        before = os.environ.pop(BEFORE)
        del os.environ["GLIBC_TUNABLES"]
        if before:
            os.environ["GLIBC_TUNABLES"] = before
    elif wanted(os.environ):
        old = os.environ.get("GLIBC_TUNABLES", "")
        new = f"{old}:{TUNABLE}=1".lstrip(":")
        sys.stdout.flush()
        os.execve(
            sys.executable,
            [sys.executable, *sys.orig_argv[1:]],
            {**os.environ, "GLIBC_TUNABLES": new, BEFORE: old},
        )


def wanted(environment: Mapping[str, str]) -> bool:
    """Whether glibc could take huge pages, doesn't by itself, and nobody decided."""
    if not sys.platform.startswith("linux") or TUNABLE in environment.get("GLIBC_TUNABLES", ""):
        return False
    try:
        library = os.confstr("CS_GNU_LIBC_VERSION") or ""  # "glibc 2.36"
        major, minor = map(int, library.removeprefix("glibc ").split(".")[:2])
        enabled = THP.read_text()
    except (ValueError, OSError):  # another C library, or a kernel without huge pages
        return False
    return (major, minor) >= (2, 35) and "[madvise]" in enabled
