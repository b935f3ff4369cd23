"""The same calls give the same results and the same state, wherever they run.

Random calls (hypothesis, over the tools' schemas and the values in the state) are made in process, in an
episode of every sandbox of this machine, and in a second, fresh episode of each. All texts and digests agree.

    AGENT_WORLD_CALLS=10000 python -m pytest -m slow tests/synth/env/test_differential.py
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fixtures.make import write_library, write_parking
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from inprocess import InProcess

from synth.author.offline import OfflineAuthor
from synth.complexify import complexify
from synth.env import sandbox
from synth.env.bundle import Bundle, write_bundle
from synth.env.episode import EnvServer
from synth.env.sandbox import Provider, UnsafeLocal
from synth.env.state import rows
from synth.mining import mine
from synth.themes import builtin
from synth.tools import make_environment

CALLS = int(os.environ.get("AGENT_WORLD_CALLS", "10000"))
BUNDLES = 10
LENGTH = 20  # calls an episode
ODD = st.sampled_from(
    [None, True, 0, -1, 10**30, 1.5, -0.0, 1e308, "", "no such", "Ünïcödé 漢字 \u202e\U0001f40d", "\x00",
     "'; --",
     [], {}, [[[[1]]]], {"a": {"b": [None]}}]
)  # fmt: skip


def providers() -> list[Provider]:
    names = ("bwrap", "landlock", "gvisor")
    return [sandbox.provider(name) for name in names if sandbox._why_not(name) is None] + [UnsafeLocal()]


def synthesized(folder: Path, theme_id: str) -> Path:
    """The bundle of one of the demo's themes, made as the demo makes it."""
    author = OfflineAuthor()
    theme = next(theme for theme in builtin("demo") if theme.id == theme_id)
    db = complexify(mine(theme, 0), theme, author, 0)
    write_bundle(make_environment(db, theme, author, 0), folder / theme.id)
    return folder / theme.id


def values_of(bundle: Bundle) -> list[Any]:
    """Values that occur in the state, a few of each column."""
    found = []
    for table in bundle.manifest.tables:
        records = rows(bundle.state, table.name)
        for column in table.columns:
            found += list(dict.fromkeys(record[column.name] for record in records))[:6]
    return found


def right_value(bundle: Bundle, tool: Any, name: str, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """A value that may well work: what the schema names, or one of the column behind the parameter."""
    if named := schema.get("enum") or schema.get("examples"):
        return st.sampled_from(named)
    table, _, column = str(tool.meta.get("inputs", {}).get(name, "")).partition(".")
    known = [t for t in bundle.manifest.tables if t.name == table]
    if known and column in [c.name for c in known[0].columns]:
        values = [r[column] for r in rows(bundle.state, table) if r[column] is not None]
        minted = [f"{v.split('-')[0]}-{n}" for v in values[:1] if isinstance(v, str) for n in (9001, 9002)]
        if values:
            return st.sampled_from([*values[:20], *minted])
    return {"integer": st.integers(-2, 12), "number": st.floats(-5, 50), "boolean": st.booleans()}.get(
        schema.get("type", ""),
        st.sampled_from([v for v in values_of(bundle) if isinstance(v, str)][:40] or ["x"]),
    )


def calls_of(bundle: Bundle) -> st.SearchStrategy[tuple[str, Any]]:
    """One call: mostly right, sometimes with a wrong, a missing or an unknown argument."""
    options = []
    for tool in bundle.tools:
        schemas = tool.input_schema.get("properties", {})
        required = tool.input_schema.get("required", [])
        right = {name: right_value(bundle, tool, name, schema) for name, schema in schemas.items()}
        good = st.fixed_dictionaries(
            {n: right[n] for n in right if n in required},
            optional={n: right[n] for n in right if n not in required},
        )
        wrong = st.dictionaries(
            st.sampled_from([*schemas, "other"]), ODD | st.sampled_from(values_of(bundle))
        )
        options += [st.tuples(st.just(tool.name), good)] * 5
        options.append(st.tuples(st.just(tool.name), st.builds(lambda a, b: {**a, **b}, good, wrong)))
    strange = st.tuples(st.sampled_from(["nope", "", "__init__"]), st.just({}))
    return st.one_of(*options, strange)


def run(episode: Any, calls: list[tuple[str, Any]]) -> list[str]:
    """What the agent sees of each call, with the digest after every fifth and the last."""
    seen = []
    for number, (name, arguments) in enumerate(calls, 1):
        result = episode.call(name, arguments)
        seen.append(result if isinstance(result, str) else result.to_json())
        if number % 5 == 0 or number == len(calls):
            seen.append(episode.digest())
    return seen


def differ(path: Path, examples: int) -> dict[str, int]:
    """Run ``examples`` random episodes everywhere; counts of calls, and of those that worked."""
    counts = {"calls": 0, "worked": 0, "changed": 0}
    with ExitStack() as stack:
        servers = [stack.enter_context(EnvServer(path, provider=provider)) for provider in providers()]
        bundle = servers[0].bundle

        @settings(
            max_examples=examples, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(st.lists(calls_of(bundle), min_size=LENGTH, max_size=LENGTH), st.integers(0, 99))
        def same_everywhere(calls: list[tuple[str, Any]], seed: int) -> None:
            wanted = run(InProcess(bundle, seed), calls)
            for server in servers:
                for again in ("first", "after a reset"):
                    with server.open(seed) as episode:
                        got = run(episode, calls)
                    assert got == wanted, (server.provider.name, again, calls)
            counts["calls"] += len(calls)
            counts["worked"] += sum('{"error": {' not in text[:12] for text in wanted if text[:1] in '{["')
            counts["changed"] += wanted[-1] != bundle.manifest.state_digest

        same_everywhere()
    return counts


@pytest.mark.parametrize("write", [write_library, write_parking])
def test_calls_give_the_same_in_process_and_in_every_sandbox(write, tmp_path):
    counts = differ(write(tmp_path), examples=6)
    assert counts["calls"] >= 100
    assert counts["worked"] > counts["calls"] // 4  # else the test would compare refusals only


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("theme", [theme.id for theme in builtin("demo")[:BUNDLES]])
def test_ten_thousand_calls_on_ten_bundles(theme, tmp_path):
    counts = differ(synthesized(tmp_path, theme), examples=-(-CALLS // (BUNDLES * LENGTH)))
    print(theme, counts, [p.name for p in providers()])
    assert counts["calls"] >= CALLS // BUNDLES
    assert counts["worked"] > counts["calls"] // 3
    assert counts["changed"] > 0
