"""Python that a model wrote, run in the sandbox: the miner's interpreter and the programs that derive rows.

The code runs as a tool of a throw-away environment (:mod:`synth.env`), so it is shut off like any tool:
no network, no files, no processes; limited time and memory. It sees what it is given and gives back JSON.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synth.env.bundle import write_bundle
from synth.env.episode import EnvServer
from synth.env.sandbox import Limits
from synth.types import Column, Database, Environment, Provenance, Table, Theme, Tool

LIMITS = Limits(wall_s=20.0, cpu_s=20, output_bytes=8_000_000)  # ours: extractors over files of some MB

# the names of modules in the comment make the worker import them before it shuts the door
_CODE = """\
# math re datetime collections itertools statistics csv string decimal calendar textwrap difflib hashlib
import builtins
import contextlib
import io
import traceback


def python(ctx, *, code, given, names):
    files = {name: ctx.files[path].decode("utf-8", "replace") for path, name in names.items()}
    names = {"__name__": "scratch", "__builtins__": builtins, "rng": ctx.rng, "files": files, **given}
    printed = io.StringIO()
    error = None
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "<code>", "exec", dont_inherit=True), names)
    except BaseException as err:
        lines = [f.lineno for f in traceback.extract_tb(err.__traceback__) if f.filename == "<code>"]
        line = getattr(err, "lineno", None) if isinstance(err, SyntaxError) else (lines or [None])[-1]
        where = f" (line {line})" if line else ""
        error = f"{type(err).__name__}: {err}{where}"
    result = names.get("result") if error is None else None
    return {"printed": printed.getvalue(), "result": result, "error": error}
"""


@dataclass(frozen=True)
class Ran:
    """What a run gave: the value that the code left in ``result``, what it printed, or its error."""

    result: Any
    printed: str
    error: str | None


def run_python(
    code: str, *, files: dict[str, str] | None = None, given: dict[str, Any] | None = None, seed: int = 0
) -> Ran:
    """Run code once, in a sandbox of its own.

    Args:
        files: path -> text; the code sees the dictionary ``files``.
        given: JSON values; the code sees each under its name.
        seed: of the ``rng`` that the code sees.

    Raises:
        CallerError: no sandbox works here.
        InfrastructureError: the sandbox did not start.
    """
    names = {str(number): name for number, name in enumerate(files or {})}  # names need be no paths
    stored = {path: (files or {})[name].encode("utf-8", "replace") for path, name in names.items()}
    with tempfile.TemporaryDirectory(prefix="agent-world-scratch-") as folder:
        path = Path(folder) / "scratch"
        write_bundle(_environment(), path, files=stored)
        with EnvServer(path, limits=LIMITS) as server, server.open(seed) as episode:
            result = episode.call("python", {"code": code, "given": given or {}, "names": names})
    if result.error_code is not None:
        return Ran(None, "", f"{result.error_code}: {result.error_message}")
    if result.note is not None:  # never work on with a part of it
        return Ran(None, "", f"output_too_large: {result.note}")
    value = result.value
    return Ran(value["result"], value["printed"], value["error"])


def _environment() -> Environment:
    """An environment with one table, no rows and one tool."""
    parts = {"code": {"type": "string"}, "given": {"type": "object"}, "names": {"type": "object"}}
    schema = {"type": "object", "properties": parts, "required": list(parts)}
    key = Column(name="note_id", type="text", role="key", label="note")
    table = Table(
        name="notes", singular="note", plural="notes", kind="mined", columns=(key,), primary_key="note_id"
    )
    source = Provenance(target="notes", origin="none", license="Apache-2.0", sha256="-", retrieved="-")
    tool = Tool(
        name="python",
        description="Runs code.",
        input_schema=schema,
        output_schema={},
        read_only=False,
        code=_CODE,
    )
    return Environment(
        env_id="scratch",
        theme=Theme(id="scratch", source="prd", name="scratch", description="-", license="Apache-2.0"),
        database=Database(theme_id="scratch", tables=(table,), rows={"notes": []}, provenance=(source,)),
        tools=(tool,),
    )
