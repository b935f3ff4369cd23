"""Rollouts: the policy meets sandboxed environments, many episodes at a time.

In: an engine, a chat template, a pool of environments and a list of jobs. Out: one finished
:class:`synth.types.Trajectory` a job, in the order of the jobs, with its verdict.

Episodes go in lockstep rounds: decode a turn in every slot, parse the turns, run the tool calls in
threads, append what the tools said. Nothing depends on timing: jobs enter free slots in order,
results are taken in the order of slots, and a sampled token depends on the episode's seed and its
position only. So the same jobs and weights give the same trajectories.

Rules kept here: ids are only ever extended (1), ids, log-probabilities and mask grow together (2, in
:class:`rl.data.Recorder`), a cut-off turn has its own finish reason (6), the members of a group share
state, clock and seed of the environment (8), every turn carries the policy's version (9), and the
policy reaches tools only (10).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

from model.engine import Engine, Generation
from model.tokens import ChatTemplate, ParsedTurn
from rl.data import MAX_OBSERVATION, Recorder, observation_text
from rl.learner import Config
from rl.pool import EnvPool
from synth import verify
from synth.env.bundle import mcp_tool
from synth.env.episode import ToolResult
from synth.env.serving import EpisodeLike
from synth.errors import CallerError, InfrastructureError
from synth.types import Check, FinishReason, Task, ToolStep, Trajectory, Verdict

THREADS = 8  # ours: a call waits for its sandbox most of the time

Progress = Callable[[int, int], None]  # episodes done, episodes in all


class RolloutLimits(Config):
    """Bounds of an episode. All ours, fitted to tasks of 1 to 6 calls and a context of 1,024 tokens."""

    max_turns: int = 8  # turns of the assistant, the answer among them
    max_new_per_turn: int = 96  # sampled tokens of a turn
    max_len: int = 1024  # tokens of the whole episode
    max_observation: int = MAX_OBSERVATION  # characters of a tool's result
    max_errors: int = 0  # failed calls after which an episode ends with "turns"; 0: as many as turns allow
    long_turn: Literal["truncated", "failed"] = "truncated"
    # What a turn is that reaches max_new_per_turn: "truncated" as at the episode's end (masked, rule 6), or
    # "failed": over-long messages break the protocol, the episode ends with "turns" and is trained on.


@dataclass(frozen=True)
class EpisodeJob:
    """One episode to run. The task's own seed goes to the environment, ``seed`` to the sampler."""

    task: Task
    sample: int
    seed: int


@dataclass
class _Run:
    """One episode while it runs."""

    job: EpisodeJob
    slot: int
    recorder: Recorder = field(default_factory=Recorder)
    episode: EpisodeLike | None = None
    finish: FinishReason | None = None
    answer: Any = None
    answer_fault: str | None = None
    error: str | None = None

    def end(self, finish: FinishReason, error: str | None = None) -> None:
        self.finish, self.error = finish, error


def run_episodes(
    engine: Engine,
    template: ChatTemplate,
    jobs: Sequence[EpisodeJob],
    pool: EnvPool,
    limits: RolloutLimits | None = None,
    *,
    temperature: float = 1.0,
    progress: Progress | None = None,
) -> list[Trajectory]:
    """Run every job to its end.

    Args:
        engine: with all slots free; its ``version`` is stamped on the turns.
        jobs: at best members of a group side by side (their prompt is then prefilled once).
        temperature: of the sampler; 0 is greedy. The paper samples at 1.0.
        progress: called after each round with the number of finished episodes.

    Returns:
        One trajectory a job, in order. An episode that the infrastructure broke has
        ``finish_reason="error"``, ``error`` set and no verdict.

    Raises:
        CallerError: a prompt alone doesn't fit in ``limits.max_len``.
    """
    limits = limits or RolloutLimits()
    rollout = _Rollout(engine, template, pool, limits, temperature)
    done: dict[int, Trajectory] = {}
    waiting = deque(enumerate(jobs))
    running: dict[int, tuple[int, _Run]] = {}  # slot -> (index of the job, run)
    try:
        with ThreadPoolExecutor(THREADS) as threads:
            while waiting or running:
                free = [slot for slot in range(engine.slots) if slot not in running]
                entering = [(slot, *waiting.popleft()) for slot in free[: len(waiting)]]
                starts = rollout.start([(slot, job) for slot, _, job in entering], threads)
                for (slot, index, _), run in zip(entering, starts, strict=True):
                    running[slot] = (index, run)
                rollout.round([run for _, run in running.values()], threads)
                ended = [slot for slot, (_, run) in running.items() if run.finish]
                results = list(threads.map(rollout.judged, [running[slot][1] for slot in ended]))
                for slot, trajectory in zip(ended, results, strict=True):
                    engine.free_resource(slot)
                    done[running.pop(slot)[0]] = trajectory
                if progress:
                    progress(len(done), len(jobs))
    finally:
        for slot, (_, run) in running.items():  # only when something raised
            engine.free_resource(slot)
            if run.episode is not None:
                run.episode.close()
    return [done[index] for index in range(len(jobs))]


@dataclass(frozen=True)
class _Rollout:
    """The steps of a round; see :func:`run_episodes`."""

    engine: Engine
    template: ChatTemplate
    pool: EnvPool
    limits: RolloutLimits
    temperature: float

    def start(self, entering: Sequence[tuple[int, EpisodeJob]], threads: ThreadPoolExecutor) -> list[_Run]:
        """Prefill prompts, once for neighbours of one task, and open the environments."""
        runs = []
        for _, members in groupby(entering, key=lambda pair: pair[1].task.id):
            group = list(members)
            task = group[0][1].task
            tools = [mcp_tool(tool) for tool in self.pool.bundle(task.env_id).tools]
            ids = self.template.prompt(tools, task.instruction)
            if len(ids) >= self.limits.max_len:
                raise CallerError(
                    f"task {task.id}: its prompt has {len(ids)} tokens, max_len is {self.limits.max_len}; "
                    "raise max_len or leave the task out"
                )
            self.engine.bulk_insert(self.engine.prefill(ids), [slot for slot, _ in group])
            for slot, job in group:
                run = _Run(job, slot)
                run.recorder.add("prompt", task.instruction, ids)
                runs.append(run)
        list(threads.map(self._open, runs))
        return runs

    def _open(self, run: _Run) -> None:
        try:
            run.episode = self.pool.open(run.job.task)
        except InfrastructureError as err:
            run.end("error", f"open: {err}")

    def round(self, runs: Sequence[_Run], threads: ThreadPoolExecutor) -> None:
        """One turn of every episode that goes on: decode, act, append what the tools said."""
        acting = [run for run in runs if not run.finish]
        if not acting:
            return
        generations = self.engine.generate(
            [run.slot for run in acting],
            [run.job.seed for run in acting],
            temperature=self.temperature,
            max_new=[self._budget(run) for run in acting],
        )
        steps = [self._read(run, made) for run, made in zip(acting, generations, strict=True)]
        calling = [(run, step) for run, step in zip(acting, steps, strict=True) if not run.finish]
        results = list(threads.map(lambda pair: self._act(*pair), calling))
        messages = {}
        for (run, _), result in zip(calling, results, strict=True):
            ids = self._observe(run, result)
            if ids is not None:
                messages[run.slot] = ids
        self.engine.append_many(messages)

    def _budget(self, run: _Run) -> int:
        return min(self.limits.max_new_per_turn, self.limits.max_len - len(run.recorder.ids))

    def _read(self, run: _Run, made: Generation) -> ParsedTurn:
        """Record a sampled turn; end the episode when it is an answer or was cut off."""
        turn = self.template.parse(made.tokens)
        call = None if turn.call is None else ToolStep(tool=turn.call.name, arguments=turn.call.arguments)
        run.recorder.add(
            "assistant",
            turn.text,
            made.tokens,
            made.logprobs,
            policy_version=self.engine.version,
            call=call,
            error=turn.error,
            fault="caller" if turn.error and call is None else None,
        )
        if not made.stopped:
            room = self.limits.max_len - len(run.recorder.ids)
            run.end("turns" if self.limits.long_turn == "failed" and room > 0 else "length")
        elif turn.answer_text is not None:
            try:
                run.answer = verify.parse_answer(turn.answer_text)
            except CallerError as err:
                run.answer_fault = str(err)
            run.end("answer")
        return turn

    def _act(self, run: _Run, turn: ParsedTurn) -> ToolResult | InfrastructureError:
        if turn.call is None:
            return ToolResult(None, "malformed_call", turn.error, "caller")
        try:
            assert run.episode is not None
            return run.episode.call(turn.call.name, turn.call.arguments)
        except InfrastructureError as err:
            return err

    def _observe(self, run: _Run, result: ToolResult | InfrastructureError) -> list[int] | None:
        """Record a tool's message and return its ids, or end the episode and return None."""
        if isinstance(result, InfrastructureError):
            run.end("error", f"call: {result}")
            return None
        text = observation_text(result, self.limits.max_observation)
        ids = self.template.observation(text)
        turns = sum(turn.role == "assistant" for turn in run.recorder.turns)
        errors = sum(turn.role == "tool" and bool(turn.error) for turn in run.recorder.turns)
        lost = self.limits.max_errors and errors + bool(result.error_code) >= self.limits.max_errors
        if run.episode is None or run.episode.dead is not None:
            run.end("error", f"the environment broke down: {result.error_code} {result.error_message}")
        elif turns >= self.limits.max_turns or lost:
            run.end("turns")
        elif len(run.recorder.ids) + len(ids) >= self.limits.max_len:
            run.end("length")
        going = run.finish is None  # else the message is kept as text, for who reads the trace
        error, fault = result.error_code, result.fault
        run.recorder.add("tool", text, ids if going else (), error=error, fault=fault)
        return ids if going else None

    def judged(self, run: _Run) -> Trajectory:
        """Judge an ended episode and close its sandbox."""
        assert run.finish is not None
        verdict = self._judge(run)
        if run.episode is not None:
            run.episode.close()
        if verdict is not None and verdict.error is not None:
            run.end("error", f"verifier: {verdict.error}")
        task, recorder = run.job.task, run.recorder
        return Trajectory(
            task_id=task.id,
            env_id=task.env_id,
            sample=run.job.sample,
            seed=run.job.seed,
            turns=tuple(recorder.turns),
            token_ids=tuple(recorder.ids),
            logprobs=tuple(recorder.logprobs),
            loss_mask=tuple(recorder.mask),
            finish_reason=run.finish,
            answer=run.answer,
            verdict=verdict,
            error=run.error,
        )

    def _judge(self, run: _Run) -> Verdict | None:
        if run.finish == "error":
            return None
        if run.finish != "answer":
            check = Check(name="finished", passed=False, detail=f"no answer: out of {run.finish}")
            return Verdict(passed=False, checks=(check,))
        if run.answer_fault is not None:
            return Verdict(passed=False, checks=(Check(name="form", passed=False, detail=run.answer_fault),))
        try:
            assert run.episode is not None
            bundle, final = self.pool.bundle(run.job.task.env_id), run.episode.snapshot()
            return verify.verify(run.job.task, bundle, bundle.state, final, run.answer, self.pool.verifier)
        except InfrastructureError as err:
            return Verdict(passed=False, error=str(err))
