"""From failed episodes to weak environments, error kinds with evidence, and guides for new tasks.

Comes from: an ArenaReport with its trajectories, their tasks, and the manifests of the measured environments.
Goes to: ``diagnosis.json`` and :mod:`arena.evolve`.

:func:`diagnose` is the offline diagnosis: every kind is decided by program (:mod:`arena.failures`), every
guide is a count over failed tasks put into words. It sees what differs from the gold calls, never why the
model erred. :func:`diagnose_by` gives these counts and the failed episodes to an author that is a model
(:mod:`synth.author.online.diagnosis`), who ranks, explains and writes guides. Evidence quotes measured tasks,
so it stays in reports; a guide holds shapes only (kinds of tools, lengths, patterns), never a value of a
measured task.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

from arena.evaluate import episode_name, rewards_by_task
from arena.failures import Failure, explain, show_call
from arena.rates import rate, wilson
from rl.rewards import reward
from synth.author.base import Author
from synth.author.online.diagnosis import Case
from synth.types import ArenaReport, Diagnosis, Guide, Manifest, Task, Trajectory, Weakness
from synth.verify import canonical

TURN = 1500  # characters of one message that a reader of an episode sees (ours)
EVIDENCE = 3  # quotes an error kind
TOP_KINDS = 3  # error kinds with evidence, and guides, an environment (ours)
MAJORITY = 2 / 3  # share of failed tasks that makes a feature part of the guide (ours)

ADVICE = {
    "malformed_call": "short tasks that need one well-formed call, then an answer",
    "unknown_tool": "tasks that name their need in many words, so that a tool is found in the list",
    "invalid_arguments": "calls with several typed parameters (numbers, dates, closed sets of values)",
    "wrong_tool": "a choice between tools that look alike",
    "wrong_argument": "copying exact values from the question or an earlier result into an argument",
    "missing_step": "results of one call that another call needs before the answer is known",
    "repeated_call": "using a result once it is there, and going on",
    "rule_refused": "business rules that must be looked up or respected before a change",
    "wrong_answer": "picking or computing the asked value from the last result",
    "state_wrong": "changing exactly what was asked, and nothing else",
    "truncated": "tasks with short results and few calls",
    "too_many_turns": "tasks with few calls, answered as soon as the value is known",
    "tool_failed": "other calls than those that broke a tool",
}

Failed = tuple[Trajectory, Task, Failure]
ToolKinds = Mapping[str, Mapping[str, str]]  # env_id -> tool name -> kind (``Tool.meta["kind"]``)


def diagnose(
    report: ArenaReport,
    trajectories: Sequence[Trajectory],
    tasks: Sequence[Task],
    manifests: Sequence[Manifest],
    tool_kinds: ToolKinds | None = None,
) -> Diagnosis:
    """Rank the weak environments of a round and say what new tasks should exercise.

    Args:
        report: of the round; only its name is taken, rates are counted from the trajectories.
        trajectories: all episodes of the round, passed ones too.
        tasks: the measured tasks.
        manifests: of the measured environments, for their taxonomy.
        tool_kinds: kind of each tool; without it guides ask for no kinds.

    Returns:
        Environments with at least one failed episode, weakest first: by the lower Wilson bound of the failure
        rate over tasks (so that three tasks can't outrank thirty by luck), then by pass rate, then by id.
    """
    by_id = {task.id: task for task in tasks}
    taxonomy = {m.env_id: m.taxonomy for m in manifests}
    episodes: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        episodes[trajectory.env_id].append(trajectory)
    ranked: list[tuple[float, Weakness]] = []
    for env_id in sorted(episodes):
        failed = [
            (t, by_id[t.task_id], explain(t, by_id[t.task_id])) for t in episodes[env_id] if reward(t) == 0.0
        ]
        if failed:
            counted = rate(rewards_by_task(episodes[env_id]), seed=0)
            kinds = (tool_kinds or {}).get(env_id, {})
            weakness = _weakness(env_id, taxonomy.get(env_id, ()), counted.passed, failed, kinds)
            ranked.append((wilson(1 - counted.passed, counted.tasks)[0], weakness))
    ranked.sort(key=lambda pair: (-pair[0], pair[1].pass_rate, pair[1].env_id))
    return Diagnosis(round=report.round, weaknesses=tuple(weakness for _, weakness in ranked))


def diagnose_by(
    author: Author,
    report: ArenaReport,
    trajectories: Sequence[Trajectory],
    tasks: Sequence[Task],
    manifests: Sequence[Manifest],
    tool_kinds: ToolKinds | None = None,
    seed: int = 0,
) -> Diagnosis:
    """The diagnosis by an author: counted by :func:`diagnose`, then read by the author if it is a model.

    Args:
        author: one without the method ``diagnose`` (the procedural one) leaves the counts as they are.
        seed: of the model's exchanges; the others as for :func:`diagnose`.

    Raises:
        EnvironmentFault: the model declines, or never hands in a diagnosis that holds.
        BudgetExceeded, CallerError, InfrastructureError: see :meth:`synth.author.llm.LLM.complete`.
    """
    found = diagnose(report, trajectories, tasks, manifests, tool_kinds)
    reads = getattr(author, "diagnose", None)
    if reads is None or not found.weaknesses:
        return found
    by_id = {task.id: task for task in tasks}
    cases = [case(t, by_id[t.task_id]) for t in trajectories if reward(t) == 0.0]
    taxonomy = {m.env_id: m.taxonomy for m in manifests}
    about = {
        w.env_id: {
            "class": (taxonomy.get(w.env_id) or ("unclassified",))[0],
            "tools": dict((tool_kinds or {}).get(w.env_id, {})),
        }
        for w in found.weaknesses
    }
    return reads(found, cases, about, seed)


def case(trajectory: Trajectory, task: Task) -> Case:
    """A failed episode in words: what was asked, written, answered and judged, and what was right."""
    failure = explain(trajectory, task)
    lines = [f"asked: {task.instruction}"]
    for turn in trajectory.turns[1:]:
        said = turn.text if turn.error is None else f"{turn.text} [{turn.error}]"
        lines.append(f"{'agent' if turn.role == 'assistant' else 'tool'}: {said[:TURN]}")
    lines.append(f"ended by: {trajectory.finish_reason}; answered {canonical(trajectory.answer)}")
    for check in trajectory.verdict.checks if trajectory.verdict else ():
        lines.append(
            f"verifier: {check.name}: {'passed' if check.passed else f'failed: {check.detail[:TURN]}'}"
        )
    lines += [f"right call {n}: {show_call(step, TURN)}" for n, step in enumerate(task.chain, 1)]
    lines.append(f"right answer: {canonical(task.reference_answer)}")
    values = [value for step in task.chain for value in step.arguments.values()]
    answer = task.reference_answer
    values += (
        answer if isinstance(answer, list) else answer.values() if isinstance(answer, dict) else [answer]
    )
    return Case(
        name=episode_name(trajectory),
        env_id=trajectory.env_id,
        kind=failure.kind,
        detail=failure.detail,
        text="\n".join(lines),
        steps=task.difficulty.steps,
        values=tuple(v for v in values if not isinstance(v, list | dict | bool)),
    )


def _weakness(
    env_id: str, taxonomy: Sequence[str], pass_rate: float, failed: Sequence[Failed], kinds: Mapping[str, str]
) -> Weakness:
    groups: dict[str, list[Failed]] = defaultdict(list)
    for item in failed:
        groups[item[2].kind].append(item)
    order = sorted(groups, key=lambda kind: (-len(groups[kind]), kind))
    evidence = [
        f"{episode_name(t)}: {kind}: {failure.detail}"
        for kind in order[:TOP_KINDS]
        for t, _, failure in _one_a_task(groups[kind])[:EVIDENCE]
    ]
    return Weakness(
        env_id=env_id,
        taxonomy=tuple(taxonomy),
        pass_rate=pass_rate,
        error_kinds={kind: len(groups[kind]) for kind in order},
        evidence=tuple(evidence),
        guides=tuple(_guide(env_id, kind, groups[kind], kinds) for kind in order[:TOP_KINDS]),
    )


def _one_a_task(items: Sequence[Failed]) -> list[Failed]:
    """First failed episode of each task: evidence from several tasks says more than several samples."""
    return list({task.id: (t, task, failure) for t, task, failure in reversed(items)}.values())[::-1]


def _guide(env_id: str, kind: str, items: Sequence[Failed], kinds: Mapping[str, str]) -> Guide:
    """What the tasks that failed in one way have in common, as constraints that some failed task meets."""
    items, changes_state = _majority(items, lambda task: task.changes_state)
    items, branch = _majority(items, lambda task: task.difficulty.branch)
    steps = [task.difficulty.steps for _, task, _ in items]
    patterns = Counter(task.pattern for _, task, _ in items)
    due = Counter(kinds[f.due_tool] for _, _, f in items if f.due_tool is not None and f.due_tool in kinds)
    tool_kinds = tuple(sorted(kind for kind, _ in due.most_common(2)))
    calls = f"{min(steps)} to {max(steps)}" if min(steps) < max(steps) else str(steps[0])
    words = [f"Exercise {ADVICE[kind]}: {calls} call{'s' if max(steps) > 1 else ''}"]
    if tool_kinds:
        words.append(f"with a tool of kind {' or '.join(tool_kinds)}")
    if changes_state is not None:
        words.append("that changes the state" if changes_state else "that changes nothing")
    if branch:
        words.append("with a branch on an earlier result")
    return Guide(
        id=f"{env_id}.{kind}",
        text=", ".join(words) + f" (patterns: {', '.join(sorted(patterns))}).",
        tool_kinds=tool_kinds,
        min_steps=max(1, min(steps)),
        max_steps=max(1, *steps),
        changes_state=changes_state,
        branch=branch,
        patterns=tuple(name for name, _ in sorted(patterns.items(), key=lambda p: (-p[1], p[0]))),
    )


def _majority(items: Sequence[Failed], feature: Callable[[Task], bool]) -> tuple[list[Failed], bool | None]:
    """The items of the clear majority and its value; all items and None when there is no clear one."""
    true = [item for item in items if feature(item[1])]
    if len(true) >= MAJORITY * len(items):
        return true, True
    if len(true) <= (1 - MAJORITY) * len(items):
        return [item for item in items if not feature(item[1])], False
    return list(items), None
