"""The 2-of-5 filter's solver as a model: a ReAct loop over an environment's tools.

It sees what an agent sees: the instruction and the tools. Nothing of the gold chain, the verifier or the
rows. A provider that fails is an infrastructure error, which the filter does not count as a try.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from synth.author import prompting
from synth.author.agent import AgentTool, run_agent
from synth.author.asking import Mend, read_json
from synth.author.llm import LLM, Reply
from synth.errors import CallerError, EnvironmentFault
from synth.solver import Attempt
from synth.types import Check, ToolStep, Verdict
from synth.verify import parse_answer, verify

if TYPE_CHECKING:
    from synth.env.bundle import Bundle
    from synth.env.episode import EnvServer, Episode, VerifierServer
    from synth.types import Task, Tool

MAX_TURNS = 24  # ours: three times the longest gold chain


@dataclass(frozen=True)
class LLMSolver:
    """See :class:`synth.solver.Solver`."""

    llm: LLM
    seed: int = 0

    @property
    def model(self) -> str:
        return self.llm.settings.solver_model or self.llm.settings.model

    @property
    def label(self) -> str:
        return f"llm:{self.model}"

    def attempt(
        self,
        bundle: Bundle,
        server: EnvServer,
        task: Task,
        number: int,
        verifier_server: VerifierServer | None,
    ) -> Attempt:
        """Try a task once, in a fresh episode.

        Raises:
            InfrastructureError: the sandbox or the provider failed; this was no attempt.
            BudgetExceeded: the budget is used up.
        """
        calls: list[ToolStep] = []
        with server.open(task.seed) as episode:
            tools = [_agent_tool(tool, episode, calls) for tool in bundle.tools]
            try:
                outcome = run_agent(
                    self.llm,
                    prompting.load("solve").render(instruction=task.instruction),
                    tools,
                    stage="filter",
                    prompt="solve",
                    max_turns=MAX_TURNS,
                    sample=1000 * self.seed + number,
                    model=self.model,
                )
                answer = _answer(outcome.text)
            except EnvironmentFault:  # it declines, or the conversation outgrew its context: a failed try
                answer = None
            final = None if episode.dead is not None else episode.snapshot()
        if final is None:
            check = Check(name="episode", passed=False, detail="a tool timed out")
            verdict = Verdict(passed=False, checks=(check,))
        else:
            verdict = verify(task, bundle, bundle.state, final, answer, verifier_server)
        return Attempt(task.id, number, None, tuple(calls), answer, verdict)


def _agent_tool(tool: Tool, episode: Episode, calls: list[ToolStep]) -> AgentTool:
    def run(**arguments: Any) -> str:
        if episode.dead is not None:
            return f"error: the environment has ended: {episode.dead}"
        result = episode.call(tool.name, arguments)
        if result.error_code != "invalid_arguments":
            calls.append(ToolStep(tool=tool.name, arguments=arguments))
        return result.to_json()

    return AgentTool(tool.name, tool.description, tool.input_schema, run, checked=False)


def _answer(text: str) -> Any:
    """What the last message answers; None when it holds no answer. Prose around the object is forgiven."""
    try:
        return parse_answer(text)
    except CallerError:
        pass
    try:
        value = read_json(Reply(text, (), "stop", ""), None)
    except Mend:
        return None
    return value.get("answer") if isinstance(value, dict) and set(value) == {"answer"} else None
