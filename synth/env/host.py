"""An MCP server over stdio for imported Python sources; runs inside the sandbox. Standard library only.

``python host.py`` reads ``/server/spec.json``, loads the sources beside it, and answers ``initialize``,
``tools/list`` and ``tools/call``. State is ``/state``, the folder of the episode. Clock, ids and randomness
are held still by ``steady/sitecustomize.py`` before this file starts. Three kinds of source:

* ``functions``: a file with one function a tool, which finds its data through an environment variable;
* ``web``: a FastAPI application, one endpoint a tool (``web_host.py``);
* ``object``: a class whose methods are the tools and whose attributes are the state. The object is made from
  ``/state/init.json``, and what it holds is written to ``/state/object.json`` after every call.

An error that a source returns as ``{"error": ...}`` or raises goes back as MCP's ``isError`` with that shape.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import sys
import types
from pathlib import Path
from typing import Any, Protocol

SERVER, STATE = Path("/server"), Path("/state")
MIRROR = STATE / "object.json"
DEEPEST = 40


class Kind(Protocol):
    """What every kind of source can do."""

    def call(self, name: str, arguments: dict[str, Any]) -> Any: ...

    def after(self) -> None: ...


def load(path: Path, name: str) -> types.ModuleType:
    """Run a source file as a module of that name; other files beside it can be imported."""
    module = types.ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    exec(compile(path.read_text("utf-8"), path.name, "exec", dont_inherit=True), module.__dict__)
    return module


class Functions:
    """Tools that are functions, each in a file of its own."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.found: dict[str, Any] = {}
        self.broken: dict[str, str] = {}
        for tool in spec["tools"]:
            name = tool["name"]
            try:
                module = load(SERVER / tool["file"], f"tool_{len(self.found)}")
                self.found[name] = self._pick(module, name)
            except Exception as err:  # one bad source must not take the others along
                self.broken[name] = f"{type(err).__name__}: {err}"

    @staticmethod
    def _pick(module: types.ModuleType, name: str) -> Any:
        own = {
            k: v for k, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__
        }
        public = [k for k in own if not k.startswith("_")]
        for wanted in (name, name.replace("-", "_"), "run", "main", *(public if len(public) == 1 else ())):
            if wanted in own:
                return own[wanted]
        raise NameError(f"the source defines no function {name}")

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        if name in self.broken:
            raise RuntimeError(self.broken[name])
        return self.found[name](**arguments)

    def after(self) -> None:
        """Nothing: the functions have written their files themselves."""


class Object:
    """Tools that are methods of one object."""

    def __init__(self, spec: dict[str, Any]) -> None:
        module = load(SERVER / spec["file"], spec.get("module", "environment"))
        kind = getattr(module, spec["class"])
        config = json.loads((STATE / "init.json").read_text("utf-8"))
        self.object = self._make(kind, config, spec.get("load", ""))
        self.after()

    @staticmethod
    def _make(kind: Any, config: Any, how: str) -> Any:
        """``how``: ``config``, for the constructor if it takes one and then as attributes; or a method."""
        if how == "config":
            takes = len(inspect.signature(kind).parameters) > 0
            made = kind(json.loads(json.dumps(config))) if takes else kind()
            for name, value in config.items():
                setattr(made, name, value)
            return made
        made = kind()
        if how:
            getattr(made, how)(config)
        return made

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        return getattr(self.object, name)(**arguments)

    def after(self) -> None:
        text = json.dumps(plain(vars(self.object)), sort_keys=True, ensure_ascii=False)
        scratch = MIRROR.with_suffix(".new")
        scratch.write_text(text, "utf-8")
        scratch.replace(MIRROR)


def plain(value: Any, depth: int = 0) -> Any:
    """Attributes of objects as JSON: sets sorted, objects by class and attributes, functions left out."""
    if depth > DEEPEST:
        return "(deeper)"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {str(k): plain(v, depth + 1) for k, v in value.items() if not callable(v)}
    if isinstance(value, list | tuple):
        return [plain(v, depth + 1) for v in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(v, depth + 1) for v in value), key=repr)
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(), depth + 1)
    if type(value).__module__ == "random":
        return "(random)"
    if hasattr(value, "__dict__") and not callable(value):
        if id(value) in _SEEN:
            return f"({type(value).__name__} above)"  # a tree whose nodes know their parents
        _SEEN.add(id(value))
        try:
            return {"class": type(value).__name__, **plain(vars(value), depth + 1)}
        finally:
            _SEEN.discard(id(value))
    return f"({type(value).__name__})"  # not its text, which may hold an address


_SEEN: set[int] = set()


def call(source: Kind, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """One call as an MCP result."""
    try:
        value = source.call(name, arguments)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
        if hasattr(value, "model_dump"):
            value = value.model_dump()
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                parsed = json.loads(value)
                value = parsed if isinstance(parsed, dict | list) else value
        wrong = isinstance(value, dict) and bool(value.get("error"))
        text = (
            value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False, allow_nan=False)
        )
    except Exception as err:
        wrong = True
        text = json.dumps({"error": {"code": type(err).__name__, "message": str(err)[:500]}})
    source.after()
    return {"content": [{"type": "text", "text": text}], "isError": wrong}


def answer(source: Kind, spec: dict[str, Any], message: dict[str, Any]) -> dict[str, Any] | None:
    """The reply to one JSON-RPC message; None for a notification."""
    if "id" not in message:
        return None
    method, params = message.get("method"), message.get("params") or {}
    reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    names = {tool["name"] for tool in spec["tools"]}
    if method == "initialize":
        info = {"name": spec["name"], "version": spec["version"]}
        version = params.get("protocolVersion", "2025-06-18")
        reply["result"] = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    elif method == "ping":
        reply["result"] = {}
    elif method == "tools/list":
        shown = ("name", "description", "inputSchema", "annotations")
        reply["result"] = {"tools": [{k: tool[k] for k in shown if k in tool} for tool in spec["tools"]]}
    elif method == "tools/call" and params.get("name") in names:
        reply["result"] = call(source, params["name"], params.get("arguments") or {})
    elif method == "tools/call":
        reply["error"] = {"code": -32602, "message": f"there is no tool {params.get('name')!r}"}
    else:
        reply["error"] = {"code": -32601, "message": f"{method} is not served"}
    return reply


def _source(spec: dict[str, Any]) -> Kind:
    if spec["kind"] == "web":
        from web_host import Application  # beside this file

        return Application(spec, STATE, lambda file, name: load(SERVER / file, name))
    return {"functions": Functions, "object": Object}[spec["kind"]](spec)


def main() -> None:
    """Serve until standard input ends."""
    spec = json.loads((SERVER / "spec.json").read_text("utf-8"))
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what sources print is no protocol
    for name in spec.get("data_variables", ()):
        os.environ[name] = str(STATE)
    sys.path.insert(0, str(SERVER))
    source = _source(spec)
    for line in sys.stdin:
        if line.strip():
            reply = answer(source, spec, json.loads(line))
            if reply is not None:
                out.write(json.dumps(reply, ensure_ascii=True) + "\n")
                out.flush()


if __name__ == "__main__":
    main()
