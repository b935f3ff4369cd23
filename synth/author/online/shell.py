"""A shell that a model drives, over the documents that it has read, in the sandbox for foreign programs.

The documents lie read-only in the working folder; ``INDEX.tsv`` says which file is which address. There is no
network, and nothing of this machine but its system folders, read-only (:mod:`synth.env.program`). What a
command writes goes to ``/tmp``, which is small and gone when it ends, so equal commands give equal answers.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from synth.author.web import Document
from synth.env.program import Program, require_bubblewrap, sandboxed
from synth.env.sandbox import Limits
from synth.errors import CallerError, InfrastructureError

LIMITS = Limits(wall_s=20.0, cpu_s=20, state_mb=16)  # ours: greps and sorts over files of some MB
SHOWN = 60_000  # bytes of output that are read; an agent sees less (synth.author.agent.OBSERVATION)
INDEX = "INDEX.tsv"
_KINDS = {"text/html": ".html", "text/csv": ".csv", "text/tab-separated-values": ".tsv",
          "application/json": ".json", "application/jsonl": ".jsonl", "text/markdown": ".md"}  # fmt: skip


@dataclass(frozen=True)
class Ran:
    """What a command said (standard output and error together), and its exit status."""

    output: str
    status: int


def shell_works() -> bool:
    """Whether there is a sandbox for it: bubblewrap, since Landlock alone can't give it a folder."""
    try:
        require_bubblewrap(None)
    except CallerError:
        return False
    return True


def run_shell(command: str, documents: Mapping[str, Document]) -> Ran:
    """Run one command line with ``/bin/sh`` over documents, by address.

    A command that takes too long is ended, with status 124.

    Raises:
        CallerError: no sandbox for it works here.
        InfrastructureError: the sandbox did not start.
    """
    require_bubblewrap(None)
    with tempfile.TemporaryDirectory(prefix="agent-world-shell-") as made, tempfile.TemporaryFile() as said:
        folder = Path(made)
        names = {file_name(number, d): d for number, d in enumerate(documents.values(), 1)}
        for name, document in names.items():
            (folder / name).write_text(document.text, "utf-8", "replace", newline="")
        lines = "".join(f"{name}\t{document.url}\n" for name, document in names.items())
        (folder / INDEX).write_text(lines, "utf-8")
        folder.chmod(0o755)
        program = Program(("/bin/sh", "-c", command))
        try:
            done = subprocess.run(
                sandboxed(program, folder, LIMITS, writable=False),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                timeout=LIMITS.wall_s,
            )
            status = done.returncode
        except subprocess.TimeoutExpired:
            status = 124
        except (OSError, ValueError) as err:  # a command with a null character, or far too long
            raise InfrastructureError(f"shell: the sandbox did not start ({err})") from None
        said.seek(0)
        output = said.read(SHOWN).decode("utf-8", "replace")
    if status == 124:
        output += f"\n(ended after {LIMITS.wall_s:g} s)"
    return Ran(output, status)


def file_name(number: int, document: Document) -> str:
    """A plain name for a document: its number, the end of its address, the ending of its kind."""
    stem = PurePosixPath(re.split(r"[?#]", document.url)[0].rpartition(":")[2]).name
    stem = re.sub(r"[^\w.-]+", "_", stem)[-60:].lstrip(".-") or "page"
    ending = _KINDS.get(document.kind, ".txt")
    return f"{number:02d}-{stem}" + ("" if stem.endswith(ending) else ending)
