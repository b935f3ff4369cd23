"""Rollouts: the policy meets sandboxed environments, many episodes at a time.

In: an engine (or a driver over one), a chat template, a pool of environments and a list of jobs. Out: one
finished :class:`synth.types.Trajectory` a job, in the order of the jobs, with its verdict.

Each episode goes its own way: decode a turn, parse it, run the tool call in a worker thread, append what the
tool said, decode on. While one waits for its tool, the others decode (:mod:`model.driver`). Nothing depends
on timing all the same: a sampled token depends on the weights and on the episode's seed and ids only, and an
environment on its own episode's calls. So the same jobs and weights give the same trajectories. (Weights that
change meanwhile, through ``driver.update_weights``, are the exception: every turn says with which version
its first token was drawn.)

Rules kept here: ids are only ever extended (1), ids, log-probabilities and mask grow together (2, in
:class:`rl.data.Recorder`), a cut-off turn has its own finish reason (6), the members of a group share
state, clock and seed of the environment (8), every turn carries the policy's version (9), and the
policy reaches tools only (10).
"""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from typing import Any

from model.driver import Driver, Result, Session
from model.engine import Engine
from model.sampling import Sampling
from model.tokens import ChatTemplate, ParsedTurn
from rl.data import Recorder, observation_text, version_runs
from rl.jobs import EpisodeJob, RolloutLimits
from rl.pool import EnvPool
from synth import verify
from synth.env.bundle import mcp_tool
from synth.env.episode import ToolResult
from synth.env.serving import EpisodeLike
from synth.errors import CallerError, InfrastructureError
from synth.types import Check, FinishReason, ToolStep, Trajectory, Verdict

Progress = Callable[[int, int], None]  # episodes done, episodes in all


@dataclass
class _Run:
    """One episode while it runs."""

    index: int
    job: EpisodeJob
    session: Session
    recorder: Recorder = field(default_factory=Recorder)
    episode: EpisodeLike | None = None
    finish: FinishReason | None = None
    answer: Any = None
    answer_fault: str | None = None
    error: str | None = None

    def end(self, finish: FinishReason, error: str | None = None) -> None:
        self.finish, self.error = finish, error


def run_episodes(
    engine: Engine | Driver,
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
        engine: with no other driver over it; or a driver, which others may use too.
        jobs: at best members of a group side by side (their prompt is then prefilled once).
        temperature: of the sampler; 0 is greedy. The paper samples at 1.0. Cut-off distributions (top-p,
            top-k) are not offered: a trainer can't score what was drawn from them.
        progress: called after each episode with the number of finished ones.

    Returns:
        One trajectory a job, in order. An episode that the infrastructure broke has
        ``finish_reason="error"``, ``error`` set and no verdict.

    Raises:
        CallerError: a prompt alone doesn't fit in ``limits.max_len``.
    """
    waiting, done = iter(jobs), dict[int, Trajectory]()
    with Driver(engine) if isinstance(engine, Engine) else nullcontext(engine) as driver:
        stream = stream_episodes(
            driver, template, lambda: next(waiting, None), pool, limits, temperature=temperature
        )
        with closing(stream):
            for index, trajectory in stream:
                done[index] = trajectory
                if progress:
                    progress(len(done), len(jobs))
    return [done[index] for index in range(len(jobs))]


def stream_episodes(
    driver: Driver,
    template: ChatTemplate,
    next_job: Callable[[], EpisodeJob | None],
    pool: EnvPool,
    limits: RolloutLimits | None = None,
    *,
    temperature: float = 1.0,
) -> Generator[tuple[int, Trajectory], None, None]:
    """Run jobs that may come while others run; each trajectory is given as soon as its episode ends.

    Args:
        next_job: asked whenever a slot is free: the next job, or None when there is none now. The stream
            ends when it says None and no episode runs.
        driver, template, pool, limits, temperature: as for :func:`run_episodes`.

    Yields:
        The place of the job among those that ``next_job`` gave, and its trajectory. Closing the generator
        ends the episodes that still run.
    """
    yield from _Rollout(driver, template, pool, limits or RolloutLimits(), temperature).run(next_job)


class _Rollout:
    """All episodes of one call. An episode is touched by one worker thread at a time."""

    def __init__(
        self, driver: Driver, template: ChatTemplate, pool: EnvPool, limits: RolloutLimits, temperature: float
    ):
        self.driver, self.template, self.pool, self.limits = driver, template, pool, limits
        self._sampling = Sampling(temperature)
        # what happened to which episode: a turn has ended, or a worker is through with it
        self._events: queue.SimpleQueue[tuple[_Run, Trajectory | BaseException | None]] = queue.SimpleQueue()

    def run(self, next_job: Callable[[], EpisodeJob | None]) -> Generator[tuple[int, Trajectory], None, None]:
        places = itertools.count()
        running: dict[int, _Run] = {}
        with ThreadPoolExecutor(self.driver.engine.slots) as threads:
            try:
                while True:
                    while len(running) < self.driver.engine.slots and (job := next_job()):
                        run = self._enter(next(places), job)
                        running[run.index] = run
                        threads.submit(self._guarded, self._start, run)
                    if not running:
                        return
                    run, news = self._events.get()
                    if isinstance(news, BaseException):
                        raise news
                    if news is None:
                        threads.submit(self._guarded, self._advance, run)
                        continue
                    del running[run.index]
                    yield run.index, news
            finally:
                for run in running.values():  # only when something raised, or nobody wants the rest
                    run.session.close()
                threads.shutdown(cancel_futures=True)
                for run in running.values():
                    if run.episode is not None:
                        run.episode.close()

    def _guarded(self, step: Callable[[_Run], None], run: _Run) -> None:
        """A step in a worker thread; when it ended the episode, judge it."""
        try:
            step(run)
            if run.finish:
                run.session.close()
                self._events.put((run, self._judged(run)))
        except BaseException as err:
            self._events.put((run, err))

    def _enter(self, index: int, job: EpisodeJob) -> _Run:
        tools = [mcp_tool(tool) for tool in self.pool.bundle(job.task.env_id).tools]
        ids = self.template.prompt(tools, job.task.instruction)
        if len(ids) >= self.limits.max_len:
            raise CallerError(
                f"task {job.task.id}: its prompt has {len(ids)} tokens, max_len is {self.limits.max_len}; "
                "raise max_len or leave the task out"
            )
        run = _Run(index, job, self.driver.session(job.seed))
        run.recorder.add("prompt", job.task.instruction, ids)
        return run

    def _start(self, run: _Run) -> None:
        """Open the environment and ask for the first turn."""
        try:
            run.episode = self.pool.open(run.job.task)
        except InfrastructureError as err:
            run.end("error", f"open: {err}")
            return
        run.session.append(run.recorder.ids)
        self._decode(run)

    def _decode(self, run: _Run) -> None:
        """Ask for a turn. When it has ended, another worker advances the episode."""

        def on_chunk(chunk: object) -> None:
            if chunk is None:
                self._events.put((run, None))

        limit = min(self.limits.max_new_per_turn, self.limits.max_len - len(run.recorder.ids))
        run.session.generate(limit, self._sampling, on_chunk=on_chunk)

    def _advance(self, run: _Run) -> None:
        """After a turn: act, append what the tool said, decode on."""
        assert run.session.turn is not None
        try:
            made = run.session.turn.result()
        except InfrastructureError as err:  # of a remote server; our own driver's failure ends the run
            run.end("error", f"turn: {err}")
            return
        if made.finish_reason == "cancelled":
            run.end("error", "cancelled: the driver was closed")
            return
        turn = self._read(run, made)
        if run.finish:
            return
        ids = self._observe(run, self._act(run, turn))
        if ids is not None:
            run.session.append(ids)
            self._decode(run)

    def _read(self, run: _Run, made: Result) -> ParsedTurn:
        """Record a sampled turn; end the episode when it is an answer or was cut off."""
        turn = self.template.parse(made.tokens)
        call = None if turn.call is None else ToolStep(tool=turn.call.name, arguments=turn.call.arguments)
        run.recorder.add(
            "assistant",
            turn.text,
            made.tokens,
            made.logprobs,
            policy_version=min(made.versions, default=self.driver.version),
            version_runs=version_runs(made.versions),
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

    def _judged(self, run: _Run) -> Trajectory:
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
