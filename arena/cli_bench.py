"""``agent-world bench``: the benchmarks of ``tests/bench``, listed and run.

A benchmark compares two sides in one run and prints their ratio. They live beside the tests, in the source
checkout; an installed wheel has none.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from synth.errors import CallerError

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "bench"


def bench(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Which; without it they are listed.")] = None,
) -> int:
    """Run a benchmark: two sides in one run, and their ratio.

    All further options go to it: `agent-world bench env --help` shows them. Run one at a time, on a machine
    without other work. Peers that need an environment of their own are left out unless their Python is named
    (see the benchmark's help).

    \b
    Examples:
      agent-world bench                       what there is
      agent-world bench env --seconds 2       episodes and calls a second in each sandbox
    """
    found = benches()
    if name is None:
        width = max(map(len, found))
        for known, path in found.items():
            print(f"{known:<{width}}  {first_line(path)}")
        return 0
    if name not in found:
        raise CallerError(f"there is no benchmark {name!r}; there are {', '.join(found)}")
    return subprocess.call([sys.executable, str(found[name]), *context.args])


def benches(folder: Path = FOLDER) -> dict[str, Path]:
    """Name -> script.

    Raises:
        CallerError: the package was installed without its tests.
    """
    found = {path.stem.removeprefix("bench_"): path for path in sorted(folder.glob("bench_*.py"))}
    if not found:
        raise CallerError(f"{folder}: no benchmarks here; run this from a checkout of the sources")
    return found


def first_line(path: Path) -> str:
    """What a benchmark says it compares."""
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
