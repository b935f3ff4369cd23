"""Gates on one task, by executing it: is the right thing judged right, and the wrong thing wrong?

Gold calls are replayed in a fresh episode and judged; then everything an idle, hasty or
sloppy agent might hand in is judged, and must fail. The gold outcome is judged in a process of its own,
all wrong ones together (:func:`synth.verify.verify_all`). The instruction is read for leaks. Called by
:func:`synth.admission.check_task` and :func:`synth.admission.check_bundle`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from synth.env.series import in_series
from synth.errors import CallerError, InfrastructureError
from synth.gates import Ledger
from synth.judging import for_programs, judged_faults
from synth.leaks import task_leaks
from synth.replay import Replay, perturbed, replay
from synth.types import Task, ToolStep, Verdict
from synth.verify import canonical, comparable_diff, state_change, verify_all

if TYPE_CHECKING:
    from synth.env.bundle import Bundle
    from synth.env.episode import VerifierServer
    from synth.env.serving import ServerLike
    from synth.env.state import State

IDLE_ANSWERS: tuple[Any, ...] = ("", [], 0)  # what an agent says that skipped the last step


class Wrong(NamedTuple):
    """Outcomes (final state, answer) that must fail, and what a fault says if any pass ({}: the answers)."""

    gate: str
    detail: str
    outcomes: list[tuple[State, Any]]


class TaskGates:
    """The gates of one task; :meth:`run` writes what they find into a ledger."""

    def __init__(
        self,
        server: ServerLike,
        bundle: Bundle,
        task: Task,
        verifier_server: VerifierServer | None,
        ledger: Ledger,
    ) -> None:
        self.server, self.bundle, self.task = server, bundle, task
        self.verifier_server, self.ledger = verifier_server, ledger

    def run(self) -> None:
        """All gates; those that need a working gold solution only when there is one.

        Raises:
            InfrastructureError: a sandbox died: nothing is known about the task.
        """
        task, bundle = self.task, self.bundle
        manifest = bundle.manifest
        ours = (task.env_id, task.env_digest) == (manifest.env_id, manifest.digest)
        self._check(ours, "digest", "made for another environment or another version of it")
        leaks = task_leaks(task, bundle.tools, manifest.tables)
        self._check(not leaks, "leak", "the instruction holds " + ", ".join(leaks))
        for fault in judged_faults(task.verifier):
            self._check(False, "judged", fault)
        try:
            gold = self._gold()
            if gold is not None and gold.final is not None:
                self._wrong(gold.final)
        except CallerError as err:
            self._check(False, "verifier", str(err))

    def _check(self, ok: bool, gate: str, detail: str) -> bool:
        return self.ledger.check(ok, gate, self.task.id, detail)

    def _writes(self, step: ToolStep) -> bool:
        return any(tool.name == step.tool and not tool.read_only for tool in self.bundle.tools)

    def _passes(self, final: State, answer: Any) -> tuple[bool, str]:
        """Whether the verifier takes it, and the checks that failed."""
        verdict = self._verdicts([(final, answer)])[0]
        return verdict.passed, "; ".join(f"{c.name}: {c.detail}" for c in verdict.checks if not c.passed)

    def _verdicts(self, outcomes: list[tuple[State, Any]]) -> list[Verdict]:
        start = self.bundle.state
        verdicts = verify_all(self.task, self.bundle, start, outcomes, self.verifier_server)
        for verdict in verdicts:
            if verdict.error is not None:
                raise InfrastructureError(f"task {self.task.id}: verifier: {verdict.error}")
        return verdicts

    def _change(self, final: State) -> dict[str, Any]:
        manifest = self.bundle.manifest
        return comparable_diff(state_change(self.bundle.state, final, manifest.tables, manifest.audit_tables))

    # --- the right thing ---

    def _gold(self) -> Replay | None:
        """Replay the gold chain twice, once in a process of its own and once in one that served other
        episodes, and run the solution; None when it does not pass."""
        task = self.task
        if not self._check(bool(task.chain), "gold", "the chain of calls is empty"):
            return None
        gold = replay(self.server, task.chain, task.seed)
        again = replay(in_series(self.server), task.chain, task.seed)
        self._check(gold.same_as(again), "deterministic", "two replays of the gold calls differ")
        broken = [
            f"{step.tool}: {result.error_code}: {result.error_message}"
            for step, result in zip(task.chain, gold.results, strict=False)
            if result.fault == "environment" or result.error_code in ("unknown_tool", "invalid_arguments")
        ]
        if broken or gold.final is None:
            self._check(False, "gold", "a gold call failed: " + "; ".join(broken))
            return None
        passed, why = self._passes(gold.final, task.reference_answer)
        ok = self._check(passed, "gold", f"the gold answer and state do not pass: {why}")
        if task.solution is not None:
            ok = self._solution(gold, task.solution) and ok
        changed = bool(self._change(gold.final))
        does = "do" if changed else "do not"
        self._check(
            changed == task.changes_state,
            "changes-state",
            f"changes_state is {task.changes_state}, but the gold calls {does} change it",
        )
        return gold if ok else None

    def _solution(self, gold: Replay, code: str) -> bool:
        """The program gives the reference answer by the calls of the chain."""
        with self.server.open(self.task.seed) as episode:
            result = episode.run_solution(code)
            final = episode.snapshot() if result.error is None else None
        if not self._check(result.error is None, "gold", f"the solution failed: {result.error}"):
            return False
        same_answer = canonical(result.answer) == canonical(self.task.reference_answer)
        ok = self._check(same_answer, "gold", f"the solution answers {canonical(result.answer)[:160]}")
        same_calls = [canonical(step.model_dump()) for step in result.calls] == [
            canonical(step.model_dump()) for step in self.task.chain
        ]
        audit = self.bundle.manifest.audit_tables
        same = same_calls and (final == gold.final or Replay((), final, audit).digest == gold.digest)
        return (
            self._check(same, "deterministic", "the solution's calls or final state differ from the chain's")
            and ok
        )

    # --- wrong things ---

    def _wrong(self, final: State) -> None:
        """Everything wrong is judged at once, and must fail."""
        wrong = [self._idle(), *self._told(), *self._dropped_step(final), self._perturbed(final)]
        verdicts = iter(self._verdicts([outcome for one in wrong for outcome in one.outcomes]))
        for one in wrong:
            taken = [canonical(answer) for _, answer in one.outcomes if next(verdicts).passed]
            self._check(not taken, one.gate, one.detail.format(", ".join(taken)[:160]))

    def _idle(self) -> Wrong:
        """An agent that does nothing."""
        outcomes = [(self.bundle.state, None)]
        return Wrong("no-op", "an agent that does and says nothing passes", outcomes)

    def _told(self) -> list[Wrong]:
        """On a state-changing task: the right answer of an agent that does nothing."""
        if not self.task.changes_state:
            return []
        outcomes = [(self.bundle.state, self.task.reference_answer)]
        return [Wrong("no-op", "the right answer passes although the state was left as it was", outcomes)]

    def _dropped_step(self, final: State) -> list[Wrong]:
        """Without one of the writes that matter or, when none is asked, without a result."""
        task, found = self.task, []
        if not task.changes_state:
            others = [x for x in IDLE_ANSWERS if canonical(x) != canonical(task.reference_answer)]
            return [Wrong("dropped-step", "passes with the answer {}", [(final, x) for x in others])]
        wanted = self._change(final)
        for index, step in enumerate(task.chain):
            if not self._writes(step):
                continue
            rest = replay(in_series(self.server), task.chain[:index] + task.chain[index + 1 :], task.seed)
            if rest.final is None or self._change(rest.final) == wanted:
                continue
            detail = f"passes without step {index + 1}, {step.tool}"
            found.append(Wrong("dropped-step", detail, [(rest.final, task.reference_answer)]))
        return found

    def _perturbed(self, final: State) -> Wrong:
        """The right state with an answer that is a little off; judged parts are not for programs."""
        seen = canonical(for_programs(self.task.verifier, self.task.reference_answer))
        moved = perturbed(self.task.reference_answer)
        others = [x for x in moved if canonical(for_programs(self.task.verifier, x)) != seen]
        return Wrong("perturbed", "passes with the wrong answer {}", [(final, x) for x in others])
