"""EnvScaler's layout: environments as one Python class, scenarios with an initial state and check functions.

    env items (JSON list)    env_class_code, tools[], environment_introduction, constraints_rules[]
    task items (JSON list)   env_id (index of the environment), env_class_name, init_config, task,
                             checklist_with_func[{check_item, check_func}]

A scenario has a state of its own, so each becomes an environment. The layout has no calls that solve its
task, so tasks are refused unless ``calls`` are given; then the scenario's own check functions grade them.
Reads only; runs nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from synth.errors import CallerError
from synth.importers.base import Source
from synth.importers.tasks import RawTask
from synth.types import Theme

LICENSE = "see the release"


def read(
    environments: Path, scenarios: Path, count: int | None = None, license: str = LICENSE,
    calls: Mapping[str, Sequence[dict[str, Any]]] | None = None,
) -> list[Source]:  # fmt: skip
    """The first ``count`` scenarios.

    Args:
        calls: task id -> [{"tool", "args"}], such as a trajectory that solved it.

    Raises:
        CallerError: a file is not JSON of that shape; the message names item and field.
    """
    kinds, items = _list(environments), _list(scenarios)
    return [
        _source(kinds, item, number, scenarios, license, calls or {})
        for number, item in enumerate(items[:count])
    ]


def _list(path: Path) -> list[Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as err:
        raise CallerError(f"{path}: cannot be read as JSON: {err}") from None
    if not isinstance(value, list):
        raise CallerError(f"{path}: must be a JSON list")
    return value


def _source(
    kinds: list[Any], item: Any, number: int, path: Path, license: str,
    calls: Mapping[str, Sequence[dict[str, Any]]],
) -> Source:  # fmt: skip
    try:
        kind, task_id = kinds[item["env_id"]], str(item.get("task_id", number))
        tools = [_tool(tool) for tool in kind["tools"]]
        name = f"{re.sub(r'(?<=[a-z])(?=[A-Z])', '_', item['env_class_name']).lower()}_{number}"
        return Source(
            env_id=name,
            theme=Theme(
                id=name, source="tool_doc", name=item["env_class_name"], license=license,
                description=kind.get("environment_introduction", ""),
            ),
            tools=tools,
            code={"environment.py": kind["env_class_code"]},
            state={"init.json": json.dumps(item["init_config"]).encode()},
            spec={
                "kind": "object",
                "file": "environment.py",
                "class": item["env_class_name"],
                "load": "config",
            },
            tasks=[_task(item, task_id, calls.get(task_id, []))],
        )  # fmt: skip
    except (KeyError, IndexError, TypeError) as err:
        raise CallerError(f"{path}: item {number}: {type(err).__name__} {err}") from None


def _task(item: dict[str, Any], task_id: str, calls: Sequence[dict[str, Any]]) -> RawTask:
    checks = [str(check["check_func"]) for check in item.get("checklist_with_func", [])]
    return RawTask(task_id, str(item.get("task", "")), [dict(c) for c in calls], checks=checks)


def _tool(raw: dict[str, Any]) -> dict[str, Any]:
    """A tool in OpenAI's function form, or bare."""
    inner = raw.get("function", raw)
    parameters = inner.get("parameters") or inner.get("inputSchema") or {}
    return {
        "name": inner["name"],
        "description": inner.get("description") or inner["name"],
        "inputSchema": {"type": "object", "properties": {}, **parameters},
    }
