"""May it come in? The gates that a bundle, its tools and its tasks pass before anything uses them.

Bundles come from :func:`synth.env.bundle.write_bundle`, tasks from the task stages; what comes out is a
:class:`CheckReport` that names every fault by gate, target and detail. No model has a say here.
Gates that only read are in :mod:`synth.gates`, the tools' tests in :mod:`synth.tool_tests`, the gates
of a task in :mod:`synth.task_gates`; this file puts them together:

* :func:`check_bundle` for ``agent-world check``: everything, on a bundle on disk;
* :func:`validate_environment` for synthesis: drops the tools that don't hold, keeps the rest;
* :func:`check_task` for the task stages: one task.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from synth.env.bundle import check_hashes, read_bundle, write_bundle
from synth.env.episode import EnvServer, VerifierServer
from synth.env.serving import ServerLike, is_imported, open_environment
from synth.errors import EnvironmentFault
from synth.gates import Fault, Ledger, Progress, check_graph, check_provenance, check_tool
from synth.task_gates import TaskGates
from synth.tool_tests import KEEP_ABOVE, run_tests
from synth.types import Environment, Record, Task, Tool, ToolGraph

if TYPE_CHECKING:
    from synth.env.bundle import Bundle
    from synth.env.sandbox import Provider


class CheckReport(Record):
    """What the gates found.

    ``tools`` holds each tool's real test pass rate, ``failed_cases`` the tests that failed (no fault
    as long as the tool stays above the bar), ``dropped`` the tools that
    :func:`validate_environment` left out, with their rates.
    """

    env_id: str
    passed: int
    failed: int
    faults: tuple[Fault, ...] = ()
    tools: dict[str, float] = Field(default_factory=dict)
    dropped: dict[str, float] = Field(default_factory=dict)
    failed_cases: tuple[Fault, ...] = ()


# --- a bundle on disk ---------------------------------------------------------------------------


def check_bundle(
    path: str | Path,
    tasks: Sequence[Task] | None = None,
    provider: Provider | None = None,
    progress: Progress | None = None,
) -> CheckReport:
    """Run every gate on a bundle, and on tasks over it.

    Args:
        provider: the sandbox; None picks the best one here.
        progress: called with (done, total, what) after each tool and each task.

    Raises:
        CallerError: there is no bundle at ``path``, or it is too damaged to read.
        InfrastructureError: the sandbox died.
    """
    ledger = Ledger()
    bundle = read_bundle(path)
    for problem in (problems := check_hashes(path)):
        ledger.check(False, "integrity", problem.split(":")[0], problem)
    if not problems:
        ledger.check(True, "integrity", bundle.manifest.env_id)
    check_provenance(bundle.manifest.tables, bundle.provenance, ledger)
    if bundle.graph is not None:
        check_graph(bundle.graph, bundle.tools, ledger)
    foreign = is_imported(bundle)  # its tools are a program's, not Python of ours
    sound = [tool for tool in bundle.tools if foreign or check_tool(tool, ledger)]
    rates = dict.fromkeys((tool.name for tool in bundle.tools), 0.0)
    with open_environment(path, provider=provider) as server:
        tested, failed = run_tests(bundle, sound, server, ledger, progress)
        rates |= tested
        valid = [name for name, rate in rates.items() if rate > KEEP_ABOVE]
        ledger.check(bool(valid), "not-empty", bundle.manifest.env_id, "has no valid tool with a test")
        if tasks:
            with VerifierServer(provider=provider) as verifier_server:
                for done, task in enumerate(tasks):
                    TaskGates(server, bundle, task, verifier_server, ledger).run()
                    if progress:
                        progress(done + 1, len(tasks), task.id)
    return _report(bundle.manifest.env_id, ledger, rates, failed)


def _report(
    env_id: str,
    ledger: Ledger,
    rates: dict[str, float],
    failed: Sequence[Fault],
    dropped: dict[str, float] | None = None,
) -> CheckReport:
    return CheckReport(
        env_id=env_id,
        passed=ledger.passed,
        failed=len(ledger.faults),
        faults=tuple(ledger.faults),
        tools=rates,
        dropped=dropped or {},
        failed_cases=tuple(failed),
    )


# --- an environment in memory ------------------------------------------------------------------


def validate_environment(
    env: Environment, workdir: str | Path, provider: Provider | None = None
) -> tuple[Environment, CheckReport]:
    """Keep the tools that hold: every gate of a tool passed, and more than half of its tests.

    The environment is written as a bundle below ``workdir`` (removed afterwards) and its tests are
    run there, in the sandbox.

    Returns:
        The environment with the kept tools and the graph among them, and a report over all
        tools: ``dropped`` names those left out (rate 0.0 when a tool was not worth running).

    Raises:
        EnvironmentFault: no tool held.
        InfrastructureError: the sandbox died.
    """
    ledger = Ledger()
    sound = [tool for tool in env.tools if check_tool(tool, ledger)]
    rates: dict[str, float] = dict.fromkeys((tool.name for tool in env.tools), 0.0)
    failed: list[Fault] = []
    if sound:
        Path(workdir).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=workdir, prefix="candidate-") as folder:
            path = Path(folder) / env.env_id
            write_bundle(_with_tools(env, sound), path)
            with EnvServer(path, provider=provider) as server:
                tested, failed = run_tests(server.bundle, sound, server, ledger)
        rates |= tested
    faulty = {fault.target for fault in ledger.faults}
    kept = [tool for tool in env.tools if tool.name not in faulty]
    dropped = {name: rates[name] for name in rates if name in faulty}
    report = _report(env.env_id, ledger, rates, failed, dropped)
    if not kept:
        reasons = "; ".join(f"{f.target}: {f.gate}: {f.detail}" for f in ledger.faults[:3])
        raise EnvironmentFault(f"{env.env_id}: no tool passed its gates ({reasons})")
    return _with_tools(env, kept), report


def _with_tools(env: Environment, tools: Sequence[Tool]) -> Environment:
    """The environment with some of its tools, and its graph among them."""
    names = {tool.name for tool in tools}
    graph = env.graph
    if graph is not None:
        edges = tuple(e for e in graph.edges if e.source in names and e.target in names)
        graph = ToolGraph(nodes=tuple(n for n in graph.nodes if n in names), edges=edges)
    return env.model_copy(update={"tools": tuple(tools), "graph": graph})


# --- one task -----------------------------------------------------------------------------------


def check_task(
    server: ServerLike, bundle: Bundle, task: Task, verifier_server: VerifierServer | None
) -> list[Fault]:
    """Run the gates of one task; an empty list admits it.

    Raises:
        InfrastructureError: a sandbox died.
    """
    ledger = Ledger()
    TaskGates(server, bundle, task, verifier_server, ledger).run()
    return ledger.faults
