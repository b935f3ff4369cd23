"""One episode as an exported package uses it: tools, calls, verdict. What both adapters stand on.

with Session.of(Path("my_env/data"), task_id) as session:
    text = session.call("get_book", {"book_id": "B-1"})
    verdict = session.judge('{"answer": 2}')
"""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

from synth.env.bundle import mcp_tool
from synth.env.episode import ToolResult
from synth.env.sandbox import pick_provider
from synth.env.serving import EpisodeLike, ServerLike, open_environment
from synth.env.verifier import VerifierServer
from synth.errors import CallerError
from synth.types import Task, ToolStep, Verdict
from synth.verify import ANSWER_FORM, parse_answer, verify

SYSTEM = f"Use the tools to do what is asked. In the end {ANSWER_FORM}."


class Exported:
    """The data of an exported package: its bundle, served once a process, and its tasks.

    Raises:
        CallerError: the folder holds no bundle or no tasks.
    """

    def __init__(self, data: Path) -> None:
        path = data / "tasks.jsonl"
        if not path.is_file():
            raise CallerError(f"{path}: no such file; write the package again")
        lines = path.read_text("utf-8").splitlines()
        self.tasks = {t.id: t for t in (Task.from_json(line, where=str(path)) for line in lines)}
        self.provider = pick_provider()
        self._path = data / "bundle"
        self._lock = threading.Lock()
        self._server: ServerLike | None = None
        self._verifiers: VerifierServer | None = None

    @property
    def server(self) -> ServerLike:
        """The environment; started when first asked for, and again when it died."""
        with self._lock:
            if self._server is None or not self._server.alive:
                self._server = open_environment(self._path, provider=self.provider)
            return self._server

    @property
    def verifiers(self) -> VerifierServer:
        with self._lock:
            if self._verifiers is None:
                self._verifiers = VerifierServer(self.provider)
            return self._verifiers

    def tools(self) -> list[dict[str, Any]]:
        """MCP tool objects, without what is for synthesis only."""
        shown = ("name", "description", "inputSchema")
        return [{k: v for k, v in mcp_tool(tool).items() if k in shown} for tool in self.server.bundle.tools]

    def open(self, task_id: str) -> Session:
        """A fresh episode of a task.

        Raises:
            CallerError: no such task.
            InfrastructureError: the sandbox failed.
        """
        if task_id not in self.tasks:
            raise CallerError(f"{task_id}: no such task; there are {', '.join(list(self.tasks)[:5])}, ...")
        return Session(self, self.tasks[task_id])

    def replay(self, task_id: str, calls: list[dict[str, Any]], reply: str) -> Verdict:
        """The verdict over calls that were made elsewhere: made again here, which gives the same state."""
        with self.open(task_id) as session:
            for call in calls:
                session.call(call["tool"], call["arguments"])
            return session.judge(reply)

    def close(self) -> None:
        """End the sandboxes."""
        for part in (self._server, self._verifiers):
            if part is not None:
                part.close()
        self._server = self._verifiers = None


@functools.cache
def exported(data: str) -> Exported:
    """The package's data, once a process."""
    return Exported(Path(data))


class Session:
    """One episode of one task."""

    def __init__(self, package: Exported, task: Task) -> None:
        self.package, self.task = package, task
        self.episode: EpisodeLike = package.server.open(task.seed)
        self.calls: list[ToolStep] = []

    def result(self, tool: str, arguments: dict[str, Any]) -> ToolResult:
        """Run a tool.

        Raises:
            InfrastructureError: the sandbox failed.
        """
        result = self.episode.call(tool, arguments)
        if result.error_code not in ("unknown_tool", "invalid_arguments"):
            self.calls.append(ToolStep(tool=tool, arguments=arguments))
        return result

    def call(self, tool: str, arguments: dict[str, Any]) -> str:
        """Run a tool; the JSON text that the agent sees."""
        return self.result(tool, arguments).to_json()

    def judge(self, reply: str) -> Verdict:
        """The verdict over the state as it is now and the agent's last message; a malformed one fails."""
        try:
            answer = parse_answer(reply)
        except CallerError:
            answer = None
        bundle = self.package.server.bundle
        final = self.episode.snapshot()
        return verify(self.task, bundle, bundle.state, final, answer, self.package.verifiers)

    def close(self) -> None:
        self.episode.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
