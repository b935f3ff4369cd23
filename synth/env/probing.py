"""What do the tools of a foreign server do? Called in fresh episodes, twice, and watched from outside.

For every tool some calls are made: those that the user gives, and guesses from its schema and from what the
state holds. Published sequences of calls are followed too, each in an episode: some tools work only after
others. A tool whose call changed the state (as the lens sees it) writes; one that answers or changes
differently the second time is unsteady. Goes to :mod:`synth.env.mcp_import`, which keeps what is proven.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from synth.env import state as states
from synth.env.episode import ToolResult
from synth.env.folder import fingerprint, listing
from synth.env.mcp_client import McpEnvServer, McpEpisode
from synth.env.program import STATE
from synth.env.state import State
from synth.errors import InfrastructureError
from synth.types import Tool, ToolCase, ToolStep
from synth.verify import canonical

GUESSES = 6  # ours: calls guessed for a tool that has none given
PROVEN = 3  # ours: working guesses after which guessing ends
CHAINS, LONGEST_CHAIN = 8, 12  # ours: sequences that are followed, and calls of one
_PATHS = re.compile(r"path|file|dir|folder|repo|source|destination|workbook", re.IGNORECASE)
_FOLDERS = re.compile(r"dir|folder|repo", re.IGNORECASE)
_SQL = re.compile(r"sql|query", re.IGNORECASE)


@dataclass(frozen=True)
class Observed:
    """One call as seen from outside: on the pristine state, or after other calls."""

    arguments: dict[str, Any]
    result: ToolResult
    digest: str
    changes: dict[str, int]  # table -> rows added, changed and removed
    before: tuple[ToolStep, ...] = ()

    def same_as(self, other: Observed) -> bool:
        return (self.result.to_json(), self.digest) == (other.result.to_json(), other.digest)

    def case(self) -> ToolCase:
        """The call as a unit test of the tool."""
        if not self.result.ok:
            return ToolCase(arguments=self.arguments, error=self.result.error_code, before=self.before)
        return ToolCase(
            arguments=self.arguments, expect=self.result.value, changes=self.changes, before=self.before
        )


@dataclass
class Found:
    """What is known about one tool."""

    tool: Tool
    seen: list[Observed] = field(default_factory=list)
    unsteady: list[str] = field(default_factory=list)  # how the second time differed
    trouble: list[str] = field(default_factory=list)  # calls that took the server down

    @property
    def worked(self) -> list[Observed]:
        return [call for call in self.seen if call.result.ok]

    @property
    def writes(self) -> bool:
        return any(call.changes for call in self.seen)


class Prober:
    """Makes calls on the pristine state; a new process only after something changed."""

    def __init__(self, server: McpEnvServer, pristine: State, seed: int = 0) -> None:
        self.server, self.pristine, self.seed = server, pristine, seed
        self.paths = listing(server.seed)
        self._digest = states.digest(pristine)
        self._episode: McpEpisode | None = None
        self._bytes = ""

    def observe(self, tool: str, arguments: dict[str, Any]) -> Observed:
        """One call.

        Raises:
            InfrastructureError: the server died under it, or its state cannot be read.
        """
        try:
            if self._episode is None or self._episode.dead is not None:
                self._episode = self.server.open(self.seed)
                self._bytes = fingerprint(self._episode.save())
            result = self._episode.call(tool, arguments)
            if self._episode.dead is not None:
                return Observed(arguments, result, self._digest, {})
            now = fingerprint(self._episode.save())
            after = self.pristine if now == self._bytes else self._episode.snapshot()
        except InfrastructureError:
            self.close()
            raise
        digest = self._digest if after is self.pristine else states.digest(after)
        if digest == self._digest:
            self._bytes = now  # other bytes, the same state: git looks at its index, say
            return Observed(arguments, result, digest, {})
        self.close()
        return Observed(arguments, result, digest, _counts(self.pristine, after))

    def close(self) -> None:
        if self._episode is not None:
            self._episode.close()
            self._episode = None


def _counts(before: State, after: State) -> dict[str, int]:
    counts = {t: sum(map(len, parts.values())) for t, parts in states.diff(before, after).items()}
    return {t: n for t, n in counts.items() if n}


Chain = Sequence[tuple[str, dict[str, Any]]]  # MCP names and arguments, in order


def probe(
    server: McpEnvServer,
    pristine: State,
    given: Mapping[str, Sequence[dict[str, Any]]],
    chains: Sequence[Chain] = (),
) -> dict[str, Found]:
    """Call every tool of ``server``, then all of it a second time.

    Args:
        given: tool (its MCP name) -> arguments that the user wants tried; such tools are not guessed at.
        chains: sequences that a publisher says work, followed after that.
    """
    found = {tool.name: Found(tool) for tool in server.bundle.tools}
    first = Prober(server, pristine)
    for entry in found.values():
        _first_time(first, entry, given.get(server.names[entry.tool.name]))
    first.close()
    second = Prober(server, pristine)
    for entry in found.values():
        for call in entry.seen:
            try:
                again = second.observe(entry.tool.name, call.arguments)
            except InfrastructureError as err:
                entry.trouble.append(str(err))
                continue
            if not call.same_as(again):
                entry.unsteady.append(_difference(call, again))
    second.close()
    for chain in chains[:CHAINS]:
        _follow(server, pristine, found, chain[:LONGEST_CHAIN])
    return found


def _follow(server: McpEnvServer, pristine: State, found: dict[str, Found], chain: Chain) -> None:
    """Make the calls of a chain in one episode, and again in another; what they show goes to their tools."""
    ours = {name: tool for tool, name in server.names.items()}
    steps = [ToolStep(tool=ours[name], arguments=arguments) for name, arguments in chain if name in ours]
    if len(steps) < len(chain):
        return  # without one of its tools the others would see another state
    try:
        first, again = (list(_walk(server, pristine, steps)) for _ in range(2))
    except InfrastructureError as err:
        found[steps[0].tool].trouble.append(f"in a sequence of calls: {err}")
        return
    for step, call, other in zip(steps, first, again, strict=False):
        entry = found[step.tool]
        if not call.same_as(other):
            entry.unsteady.append(_difference(call, other))
            return  # what follows stands on another state
        new = len(entry.worked) < PROVEN or (bool(call.changes) and not entry.writes)
        known = any((c.arguments, c.before) == (call.arguments, call.before) for c in entry.seen)
        if call.result.ok and new and not known:
            entry.seen.append(call)


def _walk(server: McpEnvServer, pristine: State, steps: Sequence[ToolStep]) -> Iterator[Observed]:
    with server.open(0) as episode:
        now, marked = pristine, fingerprint(episode.save())
        for number, step in enumerate(steps):
            result = episode.call(step.tool, step.arguments)
            if episode.dead is not None:
                return
            was, mark = now, fingerprint(episode.save())
            now = was if mark == marked else episode.snapshot()
            changes, marked = {} if now is was else _counts(was, now), mark
            yield Observed(step.arguments, result, states.digest(now), changes, tuple(steps[:number]))


def _first_time(prober: Prober, entry: Found, given: Sequence[dict[str, Any]] | None) -> None:
    calls = given if given is not None else guesses(entry.tool, prober.pristine, prober.paths, GUESSES)
    for arguments in calls:
        try:
            entry.seen.append(prober.observe(entry.tool.name, dict(arguments)))
        except InfrastructureError as err:
            entry.trouble.append(f"{canonical(arguments)[:120]}: {err}")
            if len(entry.trouble) > 1:
                break
        if given is None and len(entry.worked) >= PROVEN:
            break


def _difference(first: Observed, second: Observed) -> str:
    a, b = first.result.to_json(), second.result.to_json()
    if a == b:
        return f"{canonical(first.arguments)[:120]} leaves another state the second time"
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    start = max(0, at - 20)
    return f"{canonical(first.arguments)[:120]}: ...{a[start : at + 30]!r} and then ...{b[start : at + 30]!r}"


# --- guesses --------------------------------------------------------------------------------------


def guesses(tool: Tool, state: State, paths: Sequence[str], count: int) -> list[dict[str, Any]]:
    """Arguments that may work, from the schema and from what the state holds; the same every time."""
    schema, rng = tool.input_schema, random.Random(f"guess:{tool.name}")
    made: dict[str, dict[str, Any]] = {}
    for attempt in range(count * 3):
        with_optional = attempt >= count  # first without what may be left out
        value = _Guesser(schema, state, paths, rng, attempt).value(schema, "", with_optional)
        if isinstance(value, dict):
            made.setdefault(canonical(value), value)
        if len(made) == count:
            break
    return list(made.values())


class _Guesser:
    def __init__(
        self, root: dict[str, Any], state: State, paths: Sequence[str], rng: random.Random, attempt: int
    ) -> None:
        self.root, self.state, self.paths, self.rng, self.attempt = root, state, paths, rng, attempt

    def value(self, schema: Any, name: str, optional: bool = False, depth: int = 0) -> Any:
        if not isinstance(schema, dict) or depth > 6:
            return None
        if "$ref" in schema:
            schema = self._referred(schema["$ref"])
        for key in ("anyOf", "oneOf", "allOf"):
            if schema.get(key):
                options = [s for s in schema[key] if s.get("type") != "null"] or schema[key]
                return self.value(options[self.attempt % len(options)], name, optional, depth + 1)
        fixed = _fixed(schema)
        if fixed:
            return fixed[self.attempt % len(fixed)]
        kind = schema.get("type")
        kind = kind[0] if isinstance(kind, list) else kind
        if kind == "object" or "properties" in schema:
            return self._object(schema, optional, depth)
        if kind == "array":
            return [self.value(schema.get("items", {}), name, optional, depth + 1)]
        if kind in ("integer", "number"):
            return max(schema.get("minimum", 1), 1)
        if kind == "boolean":
            return bool(self.attempt % 2)
        return self._text(name)

    def _object(self, schema: dict[str, Any], optional: bool, depth: int) -> dict[str, Any]:
        required = schema.get("required", [])
        return {
            name: self.value(inner, name, optional, depth + 1)
            for name, inner in schema.get("properties", {}).items()
            if name in required or (optional and self.rng.random() < 0.4)
        }

    def _referred(self, reference: str) -> Any:
        found: Any = self.root
        for part in reference.removeprefix("#/").split("/"):
            found = found.get(part, {}) if isinstance(found, dict) else {}
        return found

    def _text(self, name: str) -> str:
        options = list(dict.fromkeys(self._texts(name)))
        return options[self.attempt % len(options)] if options else "example"

    def _texts(self, name: str) -> Iterable[str]:
        db = states.open_readonly(self.state)
        tables = states.table_names(db)
        if _PATHS.search(name):
            files = [path for path in self.paths if not path.endswith("/")]
            folders = [path.rstrip("/") for path in self.paths if path.endswith("/")]
            ways = [
                [f"{STATE}/{path}" for path in files[:3]],
                [*(f"{STATE}/{f}" for f in folders[:3]), STATE],
            ]
            for way in reversed(ways) if _FOLDERS.search(name) else ways:
                yield from way
            return
        if _SQL.search(name):
            yield from (f'SELECT * FROM "{table}" LIMIT 3' for table in tables)
            return
        if "table" in name.lower():
            yield from tables
            return
        columns = [(t, c[1]) for t in tables for c in db.execute(f'PRAGMA table_info("{t}")')]
        plain = name.lower().replace("_", "")
        same = [(t, c) for t, c in columns if c.lower().replace("_", "") == plain]
        for table, column in same or columns:
            query = f'SELECT DISTINCT "{column}" FROM "{table}" WHERE typeof("{column}") = \'text\' LIMIT 3'
            yield from (value for (value,) in db.execute(query) if len(value) < 60)


def _fixed(schema: dict[str, Any]) -> list[Any]:
    """Values that the schema itself names."""
    if "const" in schema:
        return [schema["const"]]
    named = [
        *schema.get("enum", []),
        *(schema["examples"] if isinstance(schema.get("examples"), list) else []),
    ]
    return named or ([schema["default"]] if schema.get("default") is not None else [])
