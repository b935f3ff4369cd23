"""Episodes as tokens: the recorder that builds every trajectory, and scripted episodes for SFT.

:class:`Recorder` is the one place where ids, log-probabilities and loss mask grow, always together
(rule 2) and only at the end (rule 1). Sampled episodes (:mod:`rl.rollout`) and scripted ones come
through it alike.

:func:`scripted_episode` replays known tool calls in the real sandbox and writes down what a policy
would have seen and should have said: real observations, never imagined ones. It feeds SFT and
pretraining (:mod:`rl.sft`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from model.tokens import ChatTemplate
from synth.env.bundle import mcp_tool
from synth.errors import EnvironmentFault
from synth.types import Task, Tool, ToolStep, Trajectory, Turn

if TYPE_CHECKING:
    from synth.env.episode import ToolResult
    from synth.env.serving import ServerLike

MAX_OBSERVATION = 600  # characters; ours: some 250 tokens, a quarter of the shipped policy's context


@dataclass
class Recorder:
    """A trajectory under construction. The three lists always have equal length."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    def add(
        self,
        role: Literal["prompt", "assistant", "tool"],
        text: str,
        ids: Sequence[int],
        logprobs: Sequence[float] | None = None,
        **turn: Any,
    ) -> None:
        """Append one message.

        Args:
            role: an assistant's tokens are in the loss mask, no others are.
            ids: its tokens, exactly as sampled or as the template gives them.
            logprobs: of sampled tokens; None means 0.0 for each.
            turn: further fields of :class:`synth.types.Turn`.
        """
        if logprobs is not None and len(logprobs) != len(ids):
            raise ValueError(f"{len(ids)} ids but {len(logprobs)} log-probabilities")
        start = len(self.ids)
        self.ids.extend(ids)
        self.logprobs.extend([0.0] * len(ids) if logprobs is None else logprobs)
        self.mask.extend([int(role == "assistant")] * len(ids))
        self.turns.append(Turn(role=role, text=text, start=start, end=len(self.ids), **turn))


def version_runs(versions: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The policy version of each token, run by run; nothing where all have the same."""
    runs = tuple((version, len(list(run))) for version, run in itertools.groupby(versions))
    return runs if len(runs) > 1 else ()


def token_versions(trajectory: Trajectory) -> list[int | None]:
    """The policy version that drew each token of a trajectory; None for tokens that no policy drew."""
    versions: list[int | None] = [None] * len(trajectory.token_ids)
    for turn in trajectory.turns:
        if turn.role == "assistant":
            size = turn.end - turn.start
            runs = turn.version_runs or ((turn.policy_version, size),)
            versions[turn.start : turn.end] = [version for version, count in runs for _ in range(count)]
    return versions


def observation_text(result: ToolResult, limit: int = MAX_OBSERVATION) -> str:
    """What the agent reads of a tool's result: JSON, cut at ``limit`` characters with a note."""
    text = result.to_json()
    if len(text) <= limit:
        return text
    return f"{text[:limit]}... ({len(text) - limit} more characters cut)"


@dataclass(frozen=True)
class ScriptedEpisode:
    """One episode in tokens; ``mask`` is 1 on what the policy should say. Lists of equal length."""

    task_id: str
    env_id: str
    ids: tuple[int, ...]
    mask: tuple[int, ...]
    turns: tuple[Turn, ...]
    answer: Any

    @property
    def prompt_length(self) -> int:
        return self.turns[0].end

    def weights(self, other: float = 0.0) -> list[float]:
        """Loss weight of each token: 1 for the assistant's, ``other`` for the rest of the text."""
        return [1.0 if on else other for on in self.mask]


def scripted_episode(
    server: ServerLike,
    template: ChatTemplate,
    task: Task,
    calls: Sequence[ToolStep],
    answer: Any,
    *,
    tools: Sequence[Tool] | None = None,
    max_observation: int = MAX_OBSERVATION,
) -> ScriptedEpisode:
    """Replay ``calls`` in a fresh episode and write the conversation that ends in ``answer``.

    Args:
        server: of the task's environment.
        calls: what the policy should do, in order; refusals by a rule of the environment are kept.
        answer: the value of the final message.
        tools: the tools that the prompt lists, in order; default all tools of the bundle.
        max_observation: characters shown of each result.

    Raises:
        EnvironmentFault: a tool failed in a way that is not the caller's fault.
        InfrastructureError: the sandbox died.
    """
    recorder = Recorder()
    listed = [mcp_tool(tool) for tool in (server.bundle.tools if tools is None else tools)]
    recorder.add("prompt", task.instruction, template.prompt(listed, task.instruction))
    episode = server.open(task.seed)
    try:
        for step in calls:
            ids = template.assistant(step)
            recorder.add("assistant", template.parse(ids).text, ids, call=step)
            result = episode.call(step.tool, step.arguments)
            if result.fault == "environment":
                raise EnvironmentFault(f"{task.env_id}: {step.tool} failed: {result.error_message}")
            text = observation_text(result, max_observation)
            recorder.add(
                "tool", text, template.observation(text), error=result.error_code, fault=result.fault
            )
    finally:
        episode.close()
    ids = template.answer(answer)
    recorder.add("assistant", template.parse(ids).text, ids)
    return ScriptedEpisode(
        task_id=task.id,
        env_id=task.env_id,
        ids=tuple(recorder.ids),
        mask=tuple(recorder.mask),
        turns=tuple(recorder.turns),
        answer=answer,
    )
