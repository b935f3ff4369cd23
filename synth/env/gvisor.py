"""gVisor as a provider of isolation: system calls of the sandbox end in a kernel of its own, not the host's.

Needs ``runsc`` (Debian: ``apt install runsc``); runs without root and without a network. The sandbox sees a
root of its own: system folders, the interpreter and the worker's modules, read-only; nothing else of this
machine is there. The worker's own locks (system-call filter, no capabilities) are taken inside as well.

Slower than the others by far (every system call is two changes of process where there is no KVM), so it is
never chosen by itself: ``AGENT_WORLD_SANDBOX=gvisor``.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Any

from synth.env import sandbox
from synth.errors import CallerError

PLATFORM = "AGENT_WORLD_GVISOR_PLATFORM"  # ptrace (the default, everywhere), kvm, systrap (newer releases)

# folders that gVisor would fill, and that are empty and read-only here: no look at other episodes' processes
HIDDEN = ("/proc", "/sys", "/tmp", "/dev/shm")


class Gvisor:
    """Worker processes in gVisor; one container a worker, which ends with its control socket."""

    name = sandbox.GVISOR
    isolated = True

    def __init__(self) -> None:
        self._room = tempfile.TemporaryDirectory(prefix="agent-world-gvisor-")

    def command(self) -> list[str]:
        program = shutil.which("runsc")
        if program is None:
            raise CallerError("gVisor is not installed: apt install runsc")
        bundle = Path(self._room.name) / uuid.uuid4().hex[:12]
        write_container(bundle)
        return [
            program, "--rootless", "--network=none", "--ignore-cgroups",
            f"--platform={os.environ.get(PLATFORM, 'ptrace')}", f"--root={self._room.name}/state",
            "run", f"--bundle={bundle}", bundle.name,
        ]  # fmt: skip

    def locks(self) -> dict[str, Any]:
        return {"seccomp": True, "capabilities": True, "landlock": None}


def write_container(bundle: Path) -> None:
    """An OCI bundle: ``config.json``, and a root that holds mount points, links and two small files."""
    root = bundle / "rootfs"
    folders: dict[str, str] = {f"{sandbox.INSIDE}/synth/env": str(sandbox.PACKAGE / "env")}
    files = {f"{sandbox.INSIDE}/synth/{n}": sandbox.PACKAGE / n for n in ("__init__.py", "errors.py")}
    links: dict[str, str] = {}
    for path in (*sandbox.SYSTEM, *sandbox.python_paths()):
        if os.path.islink(path) and path in sandbox.SYSTEM:
            links[path] = os.readlink(path)
        elif os.path.isdir(path):
            folders[path] = path
        elif os.path.isfile(path) and path in sandbox.SYSTEM:
            files[path] = Path(path)
        elif os.path.isfile(path):  # the interpreter: single files can't be mounted on nothing
            folders[os.path.dirname(path)] = os.path.dirname(path)
    empty = bundle / "empty"
    empty.mkdir(parents=True)
    folders |= dict.fromkeys(HIDDEN, str(empty))
    for inside in folders:
        (root / inside.lstrip("/")).mkdir(parents=True, exist_ok=True)
    for inside, source in files.items():
        target = root / inside.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    for inside, target in links.items():
        (root / inside.lstrip("/")).symlink_to(target)
    mounts = [
        {"destination": inside, "type": "bind", "source": source, "options": ["ro", "rbind"]}
        for inside, source in sorted(folders.items())
    ]
    config = {
        "ociVersion": "1.0.0",
        "process": {
            "terminal": False, "user": {"uid": 0, "gid": 0}, "cwd": "/", "noNewPrivileges": True,
            "args": sandbox.python(sandbox.INSIDE),
            "env": [f"{name}={value}" for name, value in sandbox.environment().items()],
        },
        "root": {"path": "rootfs", "readonly": True},
        "mounts": mounts,
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "mount", "network", "ipc", "uts")]},
    }  # fmt: skip
    (bundle / "config.json").write_text(json.dumps(config), "utf-8")
