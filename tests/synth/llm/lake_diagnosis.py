"""What the scripted endpoint says as diagnostician: it reads, hands in two bad diagnoses, then a good one.

And the episodes that it reads: the tries of the filter's solver, as an arena would have recorded them.
"""

import json
import re

from synth.replay import replay
from synth.types import Check, Trajectory, Turn
from synth.verify import canonical

WHY = "The agent stops before the work is done and answers without having looked."
GUIDE = "Tasks whose answer can be known only after all look-ups were made, one building on another."


def guide(quote, episode, **more):
    fields = {"error_kind": "missing_step", "text": GUIDE, "min_steps": 1, "max_steps": 3}
    return {**fields, "evidence": [{"episode": episode, "quote": quote}], **more}


def diagnosis(messages, turn):
    """The calls of one turn, from what the conversation holds."""
    seen = [m["content"] for m in messages if m["role"] == "tool"]
    if turn == 0:
        return [("list", {"env_id": "lake_permits"})]
    listed = re.findall(r"^(\S+#\d+): (\w+):", seen[0], flags=re.M)
    name, kind = next(pair for pair in listed if pair[0].endswith("#2"))
    if turn == 1:
        return [("read", {"episode": name})]
    asked = next(line for line in seen[1].splitlines() if line.startswith("agent: "))
    if turn == 2:
        code = "result = sorted({e['kind'] for e in episodes})"
        return [("search", {"words": "right answer"}), ("python", {"code": code})]
    good = guide(asked, name, error_kind=kind)
    wrong = {
        3: guide("agent: I shall not look anything up", name, error_kind=kind),  # an invented quote
        4: {
            **good,
            "text": f"{GUIDE} Take Lake Baikal, Vanern, Malaren, Lake Victoria, Lake Malawi, Vattern.",
        },
        5: {**good, "error_kind": "laziness", "max_steps": 99},
    }
    chosen = wrong.get(turn, good)
    return [("submit", {"ranked": [{"env_id": "lake_permits", "why": WHY, "guides": [chosen]}]})]


def episode_of(server, task, attempt):
    """A try of a solver as an episode of the arena."""
    results = replay(server, attempt.calls, task.seed).results
    turns = [Turn(role="prompt", text=task.instruction, start=0, end=0)]
    for step, result in zip(attempt.calls, results, strict=True):
        text = json.dumps({"name": step.tool, "arguments": step.arguments})
        turns.append(Turn(role="assistant", text=text, start=0, end=0, call=step))
        turns.append(Turn(role="tool", text=result.to_json(), start=0, end=0, error=result.error_code))
    said = canonical({"answer": attempt.answer}) if attempt.answer is not None else "I could not find out."
    error = None if attempt.answer is not None else "no JSON answer"
    turns.append(Turn(role="assistant", text=said, start=0, end=0, error=error))
    checks = attempt.verdict.checks
    if attempt.answer is None:
        checks = (Check(name="form", passed=False, detail="not a JSON answer"),)
    return Trajectory(
        task_id=task.id,
        env_id=task.env_id,
        sample=attempt.number,
        seed=task.seed,
        turns=tuple(turns),
        token_ids=(),
        logprobs=(),
        loss_mask=(),
        finish_reason="answer",
        answer=attempt.answer,
        verdict=attempt.verdict.model_copy(update={"checks": checks}),
    )
