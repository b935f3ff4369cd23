"""Write an exported package: adapter, bundle, tasks, and how to use it. Whole or not at all.

    <out>/pyproject.toml  README.md  <module>/__init__.py (the adapter)  <module>/data/bundle/
    <module>/data/tasks.jsonl for OpenEnv also      openenv.yaml  server/app.py  server/Dockerfile

Adapters are text files in ``templates/``; they need the other trainer's package and ``agent-world``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from synth.env.bundle import read_bundle
from synth.env.serving import is_imported
from synth.errors import CallerError
from synth.types import Task

Format = Literal["verifiers", "openenv"]
TEMPLATES = Path(__file__).with_name("templates")
NEEDS = {"verifiers": "verifiers>=0.4", "openenv": "openenv-core>=0.2"}


def read_tasks_of(path: Path, env_id: str, digest: str) -> list[Task]:
    """Tasks of one environment from JSONL.

    Raises:
        CallerError: the file cannot be read, or a task is of another environment or another version of it.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as err:
        raise CallerError(f"{path}: cannot be read ({err.strerror})") from None
    tasks = [Task.from_json(line, where=f"{path}:{n}") for n, line in enumerate(lines, 1) if line.strip()]
    for task in tasks:
        if (task.env_id, task.env_digest) != (env_id, digest):
            raise CallerError(
                f"{path}: task {task.id} was made for {task.env_id} of another digest; make it again"
            )
    if not tasks:
        raise CallerError(f"{path}: holds no tasks; run agent-world tasks first")
    return tasks


def export(bundle: Path, tasks: Path, out: Path, form: Format) -> Sequence[str]:
    """Write the package; the files that it holds.

    Args:
        bundle: an environment of ours. Imported ones run only where their server is installed, and say so.
        out: must not exist, or be an earlier package.

    Raises:
        CallerError: bundle or tasks are damaged, or something else stands at ``out``.
    """
    found = read_bundle(bundle)
    manifest = found.manifest
    kept = read_tasks_of(tasks, manifest.env_id, manifest.digest)
    if out.exists() and not (out / "agent_world.json").is_file():
        raise CallerError(f"{out}: something that is no exported package stands there; choose another place")
    module = re.sub(r"\W+", "_", manifest.env_id).strip("_").lower() or "environment"
    module = module if module[0].isalpha() else f"env_{module}"
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
        new = Path(scratch) / out.name
        data = new / module / "data"
        shutil.copytree(bundle, data / "bundle")
        (data / "tasks.jsonl").write_text("".join(t.to_json() + "\n" for t in kept), "utf-8")
        note = "Its server must be installed where this runs.\n" if is_imported(found) else ""
        words = {
            "MODULE": module, "ENV_ID": manifest.env_id, "NAME": manifest.theme.name, "NEEDS": NEEDS[form],
            "DESCRIPTION": " ".join(manifest.theme.description.split())[:200], "COUNT": str(len(kept)),
            "LICENSE": manifest.license, "NOTE": note,
        }  # fmt: skip
        for template in sorted((TEMPLATES / form).rglob("*.txt")):
            name = (
                template.relative_to(TEMPLATES / form)
                .as_posix()
                .removesuffix(".txt")
                .replace("MODULE", module)
            )
            text = template.read_text("utf-8")
            for key, value in words.items():
                text = text.replace(f"@{key}@", value)
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            (new / name).write_text(text, "utf-8")
        mark = {"format": form, "env_id": manifest.env_id, "digest": manifest.digest, "tasks": len(kept)}
        (new / "agent_world.json").write_text(json.dumps(mark, indent=1) + "\n", "utf-8")
        if out.exists():
            os.rename(out, Path(scratch) / "old")
        os.rename(new, out)
    return sorted(
        p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file() and "data" not in p.parts
    )
