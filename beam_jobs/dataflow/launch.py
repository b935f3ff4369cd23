"""Send one stage to Dataflow, from a laptop or from the flex template's launcher.

    python -m beam_jobs.dataflow.launch --stage=mine --run=gs://BUCKET/RUN \\
        --project=P --region=R --temp_location=gs://BUCKET/temp \\
        --sdk_container_image=R-docker.pkg.dev/P/REPO/agent-world:TAG

Words that are not ours go to Beam, after those of ``options.txt``; a later word wins. ``--wheel=DIST`` stages
that wheel of this project over the one in the image, so that changed code needs no new image. Themes are
read here; workers get them within their elements.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from beam_jobs import mine, pack, synthesize, validate
from beam_jobs.stage import Summary
from beam_jobs.store import GCS, open_store
from synth.errors import AgentWorldError, CallerError
from synth.themes import builtin, read_themes
from synth.types import Theme

OPTIONS = Path(__file__).with_name("options.txt")
STAGES = ("mine", "validate", "synthesize", "pack")


def default_options() -> list[str]:
    """The words of ``options.txt``."""
    lines = (line.strip() for line in OPTIONS.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def build_wheel(project: Path, folder: Path, *, isolated: bool = True) -> Path:
    """This project's wheel without its dependencies, built in a copy: nothing is left in ``project``.

    Args:
        project: the folder of pyproject.toml.
        folder: where the wheel goes.
        isolated: let pip fetch the build system; else the installed setuptools is used (77 or newer).

    Raises:
        CallerError: pip can't build it; the message is the line in which pip says why.
    """
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", str(folder)]
    if not isolated:
        command.append("--no-build-isolation")
    with tempfile.TemporaryDirectory() as room:
        for path in project.iterdir():
            if (path / "__init__.py").exists():
                shutil.copytree(path, Path(room) / path.name, ignore=shutil.ignore_patterns("__pycache__"))
            elif path.is_file():
                shutil.copy(path, room)
        made = subprocess.run([*command, room], capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("agent_world-*.whl"))
    if made.returncode or not wheels:
        said = [line.strip() for line in made.stderr.splitlines() if "rror" in line] or ["pip said nothing"]
        raise CallerError(f"{project}: no wheel: {said[-1]}")
    return wheels[-1]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise CallerError(f"options: {message}")


def launch(words: Sequence[str]) -> Summary:
    """Run one stage as the words say, and wait for its end.

    Raises:
        CallerError: a bad option, or a run folder that workers in the cloud can't see.
    """
    parser = _Parser(prog="beam_jobs.dataflow.launch", allow_abbrev=False, add_help=False)
    parser.add_argument("--stage", choices=STAGES, required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--themes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tag", default="train")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--author", default="offline")
    parser.add_argument("--wheel")
    ours, beam = parser.parse_known_args(list(words))
    if not GCS.fullmatch(ours.run):
        raise CallerError(f"--run={ours.run}: workers in the cloud need a gs:// folder")
    options = [*default_options(), *beam]
    if ours.wheel:
        options.append(f"--extra_package={ours.wheel}")
    if ours.stage == "pack":
        return pack.run(ours.run, options=options)
    if ours.stage == "synthesize":
        env_ids = synthesize.environments(ours.run)
        orders = [synthesize.Order(env_id, ours.count, ours.seed) for env_id in env_ids]
        return synthesize.run(ours.run, orders, tag=ours.tag, author=ours.author, options=options)
    job = mine.run if ours.stage == "mine" else validate.run
    return job(ours.run, load_themes(ours.themes), seed=ours.seed, author=ours.author, options=options)


def load_themes(path: str | None) -> list[Theme]:
    """Themes of a local or ``gs://`` file, or those of the demo."""
    if path is None:
        return builtin("demo")
    if not GCS.fullmatch(path):
        return read_themes(path)
    folder, _, name = path.rpartition("/")
    with tempfile.TemporaryDirectory() as room:
        local = Path(room) / name
        local.write_bytes(open_store(folder).read(name))
        return read_themes(local)


def main(words: Sequence[str]) -> int:
    try:
        summary = launch(words)
    except AgentWorldError as err:
        print(f"error: {err}", file=sys.stderr)
        return 2 if isinstance(err, CallerError) else 1
    print(summary.line())
    return 1 if summary.dead else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
