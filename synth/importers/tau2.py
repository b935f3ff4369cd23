"""tau2-bench's domains: a JSON database, a toolkit class over pydantic models, tasks with actions.

    sources/data_model.py, tools.py, utils.py   the database's models; a class with methods under ``@is_tool``
    data/db.json (or db.toml), policy.md        the database; the rules that an agent has to keep
    data/tasks.json                             user_scenario, initial_state, evaluation_criteria

tau2's tasks are talks with a simulated user. Here what the user wants and knows is told at once, the
actions are replayed, and the outcome is graded; tasks with a state of their own or actions on the user's
side are refused. tau2-bench is a benchmark: what comes out is for measuring, and its theme says so. Reads
only; runs nothing: schemas are read from the sources' syntax (:mod:`synth.importers.signatures`), and the
few names that the sources import from tau2's own package are in ``TAU2`` below, written anew.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from synth.errors import CallerError
from synth.importers.base import Source
from synth.importers.signatures import Toolkit, read_toolkit
from synth.importers.tasks import RawTask
from synth.types import Theme

LICENSE = "MIT"
CALLS = 4  # published calls a tool that the import tries (ours)

_UTILS = """\
import hashlib, json
from pathlib import Path
from pydantic import BaseModel, ConfigDict

DATA_DIR = Path("/state")


class BaseModelNoExtra(BaseModel):
    model_config = ConfigDict(extra="forbid")

    def model_dump(self, **options):
        return super().model_dump(**{"mode": "json", **options})


def get_dict_hash(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def get_pydantic_hash(model):
    return get_dict_hash(model.model_dump())


def _merged(old, new):
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{k: _merged(old.get(k), v) for k, v in new.items()}}
    return new


def update_pydantic_model_with_dict(model, changes):
    return type(model).model_validate(_merged(model.model_dump(), changes))
"""
_TOOLKIT = """\
from enum import Enum


class ToolType(str, Enum):
    READ = "read"
    WRITE = "write"
    THINK = "think"
    GENERIC = "generic"


def is_tool(kind=ToolType.READ):
    return lambda function: function


class ToolKitBase:
    def __init__(self, db=None):
        self.db = db
"""
_DB = """\
from tau2.utils.utils import BaseModelNoExtra


class DB(BaseModelNoExtra):
    pass
"""
_LOG = """\
class _Silent:
    def __getattr__(self, name):
        return lambda *_, **__: None


logger = _Silent()
"""
TAU2 = {
    "tau2/utils/__init__.py": "from tau2.utils.utils import *\n",
    "tau2/utils/utils.py": _UTILS,
    "tau2/utils/pydantic_utils.py": "from tau2.utils.utils import *\n",
    "tau2/environment/db.py": _DB,
    "tau2/environment/toolkit.py": _TOOLKIT,
    "loguru.py": _LOG,
}
_START = """\
import json
from pathlib import Path
from tau2.domains.{domain}.data_model import {database}
from tau2.domains.{domain}.tools import {toolkit}


def start():
    return {toolkit}({database}.model_validate(json.loads(Path("/state/init.json").read_text("utf-8"))))
"""


def read(
    sources: Path, data: Path, count: int | None = None, rows: int | None = None, license: str = LICENSE
) -> Source:
    """A domain as an environment, with its first ``count`` tasks.

    Args:
        rows: at most so many records of every collection, those that the tasks need always; all when None.

    Raises:
        CallerError: a file is missing or not of that shape; the message names it.
    """
    domain = sources.name
    if not domain.isidentifier():
        raise CallerError(f"{sources}: the folder's name is the domain's, and must be a Python name")
    code = {f"tau2/domains/{domain}/{path.name}": _text(path) for path in sorted(sources.glob("*.py"))
            if path.name in ("data_model.py", "tools.py", "utils.py")}  # fmt: skip
    kit = read_toolkit(sources / "tools.py", sources / "data_model.py")
    database, raw = _database(data), _json(data / "tasks.json")
    if not isinstance(raw, list):
        raise CallerError(f"{data / 'tasks.json'}: must be a JSON list")
    every = [_task(item, number, data / "tasks.json") for number, item in enumerate(raw)]
    tasks, calls = every[:count], _calls(kit, every)  # tools are tried with the calls of all tasks
    if rows is not None:
        database = _trim(database, tasks, calls, rows)
    state = {"init.json": json.dumps(database).encode()}
    if (data / "policy.md").exists():
        state["policy.md"] = _text(data / "policy.md").encode()
    start = _START.format(domain=domain, database=kit.database, toolkit=kit.name)
    return Source(
        env_id=f"tau2_{domain}",
        theme=Theme(
            id=f"tau2_{domain}", source="tool_doc", name=f"tau2 {domain}", license=license,
            description="From the benchmark tau2-bench: for measuring, never for training.",
        ),
        tools=kit.tools,
        code={**TAU2, **code, "start.py": start},
        state=state,
        spec={"kind": "object", "file": "start.py", "class": "start", "load": ""},
        calls=calls,
        tasks=tasks,
    )  # fmt: skip


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise CallerError(f"{path}: cannot be read: {err}") from None


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except ValueError as err:
        raise CallerError(f"{path}: not JSON: {err}") from None


def _database(data: Path) -> dict[str, Any]:
    path = data / "db.json"
    if path.exists():
        value = _json(path)
    else:
        path = data / "db.toml"
        try:
            value = json.loads(json.dumps(tomllib.loads(_text(path)), default=str))  # dates as their text
        except ValueError as err:
            raise CallerError(f"{path}: not TOML: {err}") from None
    if not isinstance(value, dict):
        raise CallerError(f"{path}: must be an object of collections")
    return value


def _calls(kit: Toolkit, tasks: list[RawTask]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {tool["name"]: [] for tool in kit.tools}
    for call in (call for task in tasks for call in task.calls):
        known = found.get(call["tool"])
        if known is not None and call["args"] not in known and len(known) < CALLS:
            known.append(call["args"])
    return {name: some for name, some in found.items() if some}


def _task(item: Any, number: int, path: Path) -> RawTask:
    try:
        name, told = str(item["id"]), _told(item)
        criteria = item.get("evaluation_criteria") or {}
        actions = criteria.get("actions") or []
        ours = [action for action in actions if action.get("requestor", "assistant") == "assistant"]
        calls = [{"tool": str(a["name"]), "args": dict(a["arguments"])} for a in ours]
        if item.get("initial_state"):
            return RawTask(name, told, calls, fault="has a state or a talk of its own to start from")
        if len(ours) < len(actions):
            return RawTask(name, told, calls, fault="needs actions on the user's side")
        wanted = [_value(text) for text in criteria.get("communicate_info") or []]
        if len(wanted) == 1:
            told += " Answer with the value that is asked for."
        elif wanted:
            told += f" Answer with a list of the {len(wanted)} values that are asked for, in their order."
        answer = wanted[0] if len(wanted) == 1 else wanted or None
        return RawTask(name, told, calls, answer, prose=len(criteria.get("nl_assertions") or []))
    except (KeyError, TypeError, ValueError, AttributeError) as err:
        raise CallerError(f"{path}: item {number}: {type(err).__name__} {err}") from None


def _told(item: dict[str, Any]) -> str:
    """What the user wants and knows, at once."""
    if item.get("ticket"):
        return str(item["ticket"])
    told = item["user_scenario"]["instructions"]
    if isinstance(told, str):
        return told
    parts = (told.get(key) for key in ("known_info", "reason_for_call", "task_instructions"))
    return " ".join(" ".join(str(part).split()) for part in parts if part)


def _value(text: Any) -> Any:
    """Numbers are published as text, such as ``"1,628"``."""
    try:
        number = float(str(text).replace(",", ""))
    except ValueError:
        return text
    return int(number) if number.is_integer() else number


def _strings(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {s for part in value.values() for s in _strings(part)}
    if isinstance(value, list):
        return {s for part in value for s in _strings(part)}
    return {value} if isinstance(value, str) else set()


def _trim(database: dict[str, Any], tasks: list[RawTask], calls: dict[str, Any], rows: int) -> dict[str, Any]:
    """Records that tasks and calls name, those that these name in turn, then the first up to ``rows``."""
    tables = {name: part for name, part in database.items() if isinstance(part, dict)}
    kept: dict[str, set[str]] = {name: set() for name in tables}
    words = {word.strip(".,'\"()") for task in tasks for word in task.instruction.split()}
    fresh = words | _strings(calls) | _strings([task.calls for task in tasks])
    while fresh:
        new = [(name, key) for name, part in tables.items() for key in fresh & set(part) - kept[name]]
        for name, key in new:
            kept[name].add(key)
        fresh = {s for name, key in new for s in _strings(tables[name][key])}
    for name, part in tables.items():
        kept[name] |= set([key for key in part if key not in kept[name]][: max(0, rows - len(kept[name]))])
    cut = {name: {k: v for k, v in part.items() if k in kept[name]} for name, part in tables.items()}
    return {**database, **cut}
