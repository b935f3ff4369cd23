"""Where the code of environments may run: the providers of isolation, and the choice among them.

A provider says how to start the interpreter of a sandbox and which locks the worker must put on itself
(:mod:`synth.env.kernel`). What each stops, as tried by ``tests/security/test_escapes.py`` ("refused": EPERM):

    attack                     bwrap             landlock          gvisor            unsafe-local
    -------------------------  ----------------  ----------------  ----------------  ------------
    network, local sockets     no network        refused           no network        OPEN
    reading files outside      not there         refused           not there         OPEN
    names, sizes outside       not there         SEEN by stat (1)  not there         OPEN
    writing, links, renames    refused           refused           refused           OPEN
    processes, threads, exec   refused           refused           refused           OPEN
    signals, ptrace, /proc     refused           refused           refused           OPEN
    other system calls         refused           refused           refused (2)       OPEN
    memory                     512 MiB           512 MiB           512 MiB           512 MiB
    processor time             120 s             120 s             120 s             120 s
    wall time (the parent)     10 s a call       10 s a call       10 s a call       10 s a call
    size of a result           1 MB, then cut    1 MB, then cut    1 MB, then cut    the same
    stdout, stderr             /dev/null         /dev/null         /dev/null         /dev/null
    bytes into files           0                 0                 0                 OPEN
    open files                 64                64                64                OPEN
    environment variables      cleared           cleared           cleared           cleared
    other episodes, verifiers  processes of      the same          the same          OPEN
                               their own
    bugs of the kernel         NOT STOPPED       NOT STOPPED       own kernel        NOT STOPPED
    lies about its own state   NOT STOPPED (3)   NOT STOPPED (3)   NOT STOPPED (3)   NOT STOPPED
    timing, caches             NOT STOPPED       NOT STOPPED       NOT STOPPED       NOT STOPPED
    load of many episodes      NOT STOPPED (4)   NOT STOPPED (4)   NOT STOPPED (4)   NOT STOPPED

(1) where the path is known; folders cannot be listed. (2) by the worker's filter, and what is left ends in
gVisor's kernel. (3) it can spoil its own episode only; verdicts come from verifiers in a sandbox of their own
that read snapshots without trust. (4) limits are for each episode. Foreign programs (imported servers) run in
bubblewrap without the system-call filter: :mod:`synth.env.program`. README.md says more on each line.
A :class:`synth.env.zygote.Nest` keeps one of these open for many environments and stops what it stops.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from synth.env import kernel
from synth.errors import CallerError, InfrastructureError

CHOICE = "AGENT_WORLD_SANDBOX"
BWRAP, LANDLOCK, GVISOR = "bwrap", "landlock", "gvisor"
PACKAGE = Path(__file__).resolve().parent.parent  # synth/
INSIDE = "/agent-world"  # where bubblewrap shows the worker's own modules
_BOOT = "import sys; sys.path.append(sys.argv[1]); from synth.env.worker import main; main()"
SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache")


@dataclass(frozen=True)
class Limits:
    """Limits of one episode (ours: a wide margin over what the demo's tools need).

    Attributes:
        memory_mb: address space of the episode's process, MiB.
        cpu_s: processor seconds of the whole episode.
        wall_s: seconds for one call, one solution or one verification, enforced by the parent.
        processes: episodes open at once on one server; the code itself may start no process or thread.
        output_bytes: UTF-8 bytes of one result.
        state_mb: the largest snapshot taken back, MiB.
    """

    memory_mb: int = 512
    cpu_s: int = 120
    wall_s: float = 10.0
    processes: int = 256
    output_bytes: int = 1_000_000
    state_mb: int = 256

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Provider(Protocol):
    """One way to isolate the interpreter that runs the code of environments."""

    name: str
    isolated: bool

    def command(self) -> list[str]:
        """Arguments that start the worker; descriptor 0 will be its control socket."""
        ...

    def locks(self) -> dict[str, Any]:
        """Locks for the worker: seccomp, capabilities (drop them), landlock (readable paths or None)."""
        ...


def _interpreter() -> str:
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def python_paths() -> list[str]:
    """What the interpreter needs beyond the system folders: itself and its standard library."""
    prefix = Path(sys.base_prefix).resolve()
    paths = [_interpreter(), *(str(prefix / name) for name in ("lib", "lib64"))]
    return [p for p in paths if os.path.exists(p) and not p.startswith(("/usr/", "/lib"))]


def python(root: str) -> list[str]:
    # -s -P -S: no user or site packages, no current folder; not -I, which ignores PYTHONHASHSEED
    return [_interpreter(), "-s", "-P", "-S", "-B", "-c", _BOOT, root]


def environment() -> dict[str, str]:
    """The whole environment of a sandbox; string hashes are fixed so that sets keep their order."""
    values = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "TZ": "UTC", "TMPDIR": "/tmp"}
    return {**values, "LD_BIND_NOW": "1"}  # symbols are found once, not by every child


class Bubblewrap:
    """Namespaces through ``bwrap``: own read-only root, no network, own processes, mapped to nobody."""

    name = BWRAP
    isolated = True

    def command(self) -> list[str]:
        program = shutil.which("bwrap")
        if program is None:
            raise CallerError("bubblewrap is not installed: apt install bubblewrap")
        args = [program, "--unshare-all", "--unshare-user", "--uid", "65534", "--gid", "65534"]
        # --die-with-parent would follow the *thread* that starts us; the worker ends with its socket instead
        args += ["--cap-drop", "ALL", "--new-session", "--dev-bind", "/dev/null", "/dev/null"]
        for path in SYSTEM:
            if os.path.islink(path):
                args += ["--symlink", os.readlink(path), path]
            elif os.path.exists(path):
                args += ["--ro-bind", path, path]
        for path in python_paths():
            args += ["--ro-bind", path, path]
        for module in ("__init__.py", "errors.py", "env"):
            args += ["--ro-bind", str(PACKAGE / module), f"{INSIDE}/synth/{module}"]
        args += ["--tmpfs", "/tmp", "--remount-ro", "/tmp", "--remount-ro", "/", "--chdir", "/tmp"]
        return [*args, *python(INSIDE)]

    def locks(self) -> dict[str, Any]:
        return {"seccomp": True, "capabilities": True, "landlock": None}


class Landlock:
    """Landlock, seccomp, dropped capabilities and limits: for machines without user namespaces."""

    name = LANDLOCK
    isolated = True

    def command(self) -> list[str]:
        return python(str(PACKAGE.parent))

    def locks(self) -> dict[str, Any]:
        readable = [p for p in (*SYSTEM, *python_paths()) if os.path.exists(p)]
        return {"seccomp": True, "capabilities": True, "landlock": readable}


class UnsafeLocal:
    """A plain process with limits: NO sandbox. For code that you would run by hand anyway."""

    name = "unsafe-local"
    isolated = False

    def __init__(self) -> None:
        print(
            "WARNING: --unsafe-local is no sandbox: the code of environments runs as you, "
            "and can read, change and send what you can",
            file=sys.stderr,
        )

    def command(self) -> list[str]:
        return python(str(PACKAGE.parent))

    def locks(self) -> dict[str, Any]:
        return {"seccomp": False, "capabilities": False, "landlock": None}


@functools.cache
def _why_not(name: str) -> str | None:
    """None when the provider works on this machine (tried, not guessed), else the reason."""
    from synth.env.zygote import Zygote  # it needs the providers above, as gVisor's does

    if not sys.platform.startswith("linux"):
        return "the sandboxes need Linux"
    if not kernel.seccomp_supported():
        return "no system-call filter for this processor"
    if name in (BWRAP, GVISOR) and shutil.which("bwrap" if name == BWRAP else "runsc") is None:
        return "not installed"
    if name == LANDLOCK and kernel.landlock_version() < 1:
        return "the kernel has no Landlock (Linux 5.13 or newer, switched on)"
    try:
        with Zygote(provider(name), Limits(), "probe") as zygote:
            zygote.probe()
    except (InfrastructureError, CallerError, OSError) as err:
        return str(err)
    return None


_PROVIDERS: dict[str, type[Bubblewrap] | type[Landlock]] = {BWRAP: Bubblewrap, LANDLOCK: Landlock}


def provider(name: str) -> Provider:
    """The provider of a name."""
    if name == GVISOR:
        from synth.env.gvisor import Gvisor

        return Gvisor()
    return _PROVIDERS[name]()


def pick_provider(unsafe_local: bool = False) -> Provider:
    """The strongest isolation that works here: bubblewrap, else Landlock.

    Args:
        unsafe_local: the user asked for no sandbox (``--unsafe-local``).

    Raises:
        CallerError: neither works, or the one named in ``AGENT_WORLD_SANDBOX`` does not.
    """
    if unsafe_local:
        return UnsafeLocal()
    forced = os.environ.get(CHOICE)
    if forced and forced not in (*_PROVIDERS, GVISOR):
        raise CallerError(f"{CHOICE}={forced}: use {BWRAP}, {LANDLOCK} or {GVISOR}")
    reasons = []
    for name in [forced] if forced else list(_PROVIDERS):
        reason = _why_not(name)
        if reason is None:
            return provider(name)
        reasons.append(f"{name}: {reason}")
    raise CallerError(
        f"no sandbox works here ({'; '.join(reasons)}). Install bubblewrap (apt install bubblewrap) "
        "and allow user namespaces, or pass --unsafe-local to run without any isolation"
    )
