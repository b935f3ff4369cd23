"""A foreign program in the sandbox: what it may see, where its state lies, what it may use up.

Used for imported MCP servers, for the lens that reads their state, and for solutions over their tools. The
program runs in bubblewrap: no network, own processes, read-only system and installation, an own ``/tmp``, and
one writable folder, ``/state``. Unlike tools of our own bundles it may start threads and processes (Node and
git need them), so there is no system-call filter; what it cannot do is reach anything but its own folder.

Landlock alone is not offered: a server's results name its paths, which must be ``/state`` everywhere.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from synth.env.sandbox import BWRAP, Limits, Provider, _interpreter, pick_provider, python_paths
from synth.errors import CallerError

STATE, SERVER = "/state", "/server"
CODE = "server/code"  # below a bundle
PYTHON = "{python}"  # a command's first word: the interpreter that runs our own sandboxes
STEADY = "/agent-world/steady"
CLOCK = "2026-01-05T09:00:00Z"
_HERE = Path(__file__).resolve().parent
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")
_TOO_MUCH = {"/", "/home", "/root", "/etc", "/var", "/proc", "/sys", "/dev", "/tmp"}
TMP_MB = 64  # ours: scratch of one program
PROCESSES = 256  # ours: Node takes about 12 threads, git a process a command
DATA_MB = 2048  # ours: writable memory of one process; Node reserves far more than it uses


@dataclass(frozen=True)
class Program:
    """How to start a program, as kept in ``manifest.generator["mcp_server"]``.

    Attributes:
        command: absolute path of the executable, then arguments; ``/state`` is the state's folder.
        roots: folders and files of this machine that the program needs, read-only.
        env: environment variables of its own.
        steady: hold clock, ids and randomness still (``synth/env/steady``).
        code: a folder that the program sees as ``/server``, such as sources that came with a bundle.
    """

    command: tuple[str, ...]
    roots: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    steady: bool = False
    code: str | None = None

    def to_json(self) -> dict[str, Any]:
        """For a manifest; ``code`` is left out, because it travels in the bundle."""
        return {
            "command": list(self.command),
            "roots": list(self.roots),
            "env": self.env,
            "steady": self.steady,
        }

    @classmethod
    def from_json(cls, raw: dict[str, Any], bundle: Path) -> Program:
        """Inverse of :meth:`to_json`; other keys are ignored.

        Args:
            bundle: its ``server/code``, when there, is what the program sees as ``/server``.
        """
        code = bundle / CODE
        found = str(code.resolve()) if code.is_dir() else None
        return cls(tuple(raw["command"]), tuple(raw["roots"]), dict(raw["env"]), bool(raw["steady"]), found)

    def here(self) -> Program:
        """With our own interpreter in place of ``{python}``, and what that needs."""
        if self.command[0] != PYTHON:
            return self
        roots = tuple(dict.fromkeys((*self.roots, *python_paths())))
        return replace(self, command=(_interpreter(), *self.command[1:]), roots=roots)

    @property
    def python(self) -> str:
        """The interpreter of the program's virtual environment, else ours; the lens runs in it."""
        for root in self.roots:
            if (Path(root) / "pyvenv.cfg").is_file():
                return str(Path(root) / "bin" / "python")
        return _interpreter()


def locate(command: list[str], state: Path, binds: list[str], env: dict[str, str]) -> Program:
    """Make a program of a command line: find its executable and what it needs to run.

    Args:
        command: as typed; where an argument or a variable holds the path of ``state`` (or the text
            ``{state}``) the program will see ``/state``.
        binds: more paths that it needs.

    Raises:
        CallerError: the command isn't there, or a path to show is far too wide.
    """
    if not command:
        raise CallerError(
            "import mcp: no command; write it after --, as in: import mcp ... -- mcp-server-git"
        )
    executable = shutil.which(command[0])
    if executable is None:
        raise CallerError(f"{command[0]}: no such command here; install the server first")
    executable = os.path.abspath(executable)
    roots = [*roots_of(executable), *(os.path.abspath(path) for path in binds)]
    for path in command[1:]:
        if os.path.isabs(path) and os.path.isfile(path) and not _below(path, state):
            roots += roots_of(path)  # node /path/to/server.js
    for root in roots:
        if root in _TOO_MUCH or root == os.path.expanduser("~") or _below(str(state), Path(root)):
            raise CallerError(f"{root}: too much to show to a foreign program; give a narrower --bind")

    def inside(text: str) -> str:
        return text.replace("{state}", STATE).replace(str(state.resolve()), STATE).replace(str(state), STATE)

    arguments = (executable, *(inside(text) for text in command[1:]))
    own = {name: inside(value) for name, value in env.items()}
    return Program(arguments, tuple(dict.fromkeys(roots)), own)


def _below(path: str, folder: Path) -> bool:
    return folder.resolve() in (Path(path).resolve(), *Path(path).resolve().parents)


def roots_of(executable: str) -> list[str]:
    """The installation that an executable belongs to: a virtual environment, a node folder, or itself."""
    roots = []
    for path in dict.fromkeys((executable, os.path.realpath(executable))):
        if path.startswith(("/usr/", "/bin/", "/lib")):
            continue
        parents = Path(path).parents
        venv = next((p for p in parents if (p / "pyvenv.cfg").is_file()), None)
        node = next((p.parent for p in reversed(parents) if p.name == "node_modules"), None)
        if venv is not None:
            roots += [str(venv), *roots_of(os.path.realpath(venv / "bin" / "python"))]
        elif parents[0].name == "bin" and any(parents[1].glob("lib/python3*")):
            roots.append(str(parents[1]))  # an interpreter with its library
        else:
            roots.append(str(node or path))
    return list(dict.fromkeys(roots))


def require_bubblewrap(provider: Provider | None) -> Provider:
    """The provider for foreign programs.

    Raises:
        CallerError: another one was asked for, or bubblewrap does not work here.
    """
    chosen = provider or pick_provider()
    if chosen.name != BWRAP:
        raise CallerError(
            f"sandbox {chosen.name}: imported servers run in bubblewrap only (apt install bubblewrap)"
        )
    return chosen


def sandboxed(
    program: Program,
    folder: Path,
    limits: Limits,
    seed: int = 0,
    *,
    writable: bool = True,
    clock: str = CLOCK,
) -> list[str]:
    """The command line that runs a program over a folder; standard input and output are its only way out."""
    program = program.here()
    args = [str(shutil.which("bwrap")), "--unshare-all", "--unshare-user", "--uid", "65534", "--gid", "65534"]
    args += ["--cap-drop", "ALL", "--new-session", "--die-with-parent", "--clearenv", "--dev", "/dev"]
    for path in _SYSTEM:
        if os.path.islink(path):
            args += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            args += ["--ro-bind", path, path]
    args += ["--size", str(TMP_MB << 20), "--tmpfs", "/tmp"]  # before the roots, which may lie below /tmp
    for root in program.roots:
        args += ["--ro-bind", root, root]
    args += [
        "--ro-bind",
        str(_HERE),
        "/agent-world",
        "--bind" if writable else "--ro-bind",
        str(folder),
        STATE,
    ]
    if program.code is not None:
        args += ["--ro-bind", program.code, SERVER]
    args += ["--remount-ro", "/", "--chdir", STATE]
    for name, value in {**_environment(program, seed, clock), **program.env}.items():
        args += ["--setenv", name, value]
    bounds = {"fsize": limits.state_mb << 20, "cpu": limits.cpu_s, "nproc": PROCESSES, "core": 0}
    bounds |= {"nofile": 1024, "data": DATA_MB << 20}
    prlimit = [shutil.which("prlimit") or "/usr/bin/prlimit", *(f"--{k}={v}" for k, v in bounds.items())]
    return [*args, "--", *prlimit, "--", *program.command]


def _environment(program: Program, seed: int, clock: str) -> dict[str, str]:
    """The whole environment: nothing of ours gets in."""
    values = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "TMPDIR": "/tmp",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "AGENT_WORLD_SEED": str(seed),
        "AGENT_WORLD_CLOCK": clock,
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    for role in ("AUTHOR", "COMMITTER"):  # git's own way to hold its clock
        values |= {f"GIT_{role}_NAME": "Agent", f"GIT_{role}_EMAIL": "agent@example.org"}
        values[f"GIT_{role}_DATE"] = f"{int(datetime.fromisoformat(clock).timestamp())} +0000"
    if program.steady:
        values |= {"PYTHONPATH": STEADY, "NODE_OPTIONS": f"--require={STEADY}/steady.js"}
    return values
