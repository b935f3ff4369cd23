"""An agent of ``transformers`` alone: an exported folder and whole tasks.

For test_export.py, and by hand over tasks of a run:

    python tests/arena/transformers_agent.py EXPORTED RUN [TAG] [COUNT]

The conversation is kept as messages and written by the folder's own chat template each turn; the turn is
what ``generate`` gives, greedily. What is ours: the environment, the reading of a call, and the verdict.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from model.engine import Engine
from model.tokens import tool_text
from rl.data import observation_text
from rl.policy import Policy
from rl.pool import EnvPool
from rl.rollout import EpisodeJob, RolloutLimits, run_episodes
from synth import verify
from synth.env.bundle import mcp_tool
from synth.env.episode import ToolResult
from synth.errors import CallerError
from synth.types import Task, Trajectory

LIMITS = RolloutLimits(max_turns=7, max_new_per_turn=72)  # as tpu_configs/cpu.toml


class TransformersAgent:
    """``AutoModelForCausalLM`` and ``AutoTokenizer`` of a folder."""

    def __init__(self, folder: Path):
        import torch
        import transformers

        self.words: Any = transformers.AutoTokenizer.from_pretrained(folder)
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def turn(self, messages: list[dict], tools: list[dict]) -> str:
        """The assistant's next turn, greedily."""
        asked = self.words.apply_chat_template(
            messages, tools=tools, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        made = self.model.generate(**asked, max_new_tokens=LIMITS.max_new_per_turn, do_sample=False)
        new = made[0, asked["input_ids"].shape[1] :]
        return self.words.decode(new, skip_special_tokens=False).removesuffix(self.words.eos_token)

    def answer(self, task: Task, pool: EnvPool, policy: Policy) -> tuple[list[str], bool]:
        """The assistant's turns and whether the answer is right. ``policy`` only reads the calls."""
        bundle, episode = pool.bundle(task.env_id), pool.open(task)
        tools = [json.loads(tool_text(mcp_tool(tool))) for tool in bundle.tools]
        messages, said = [{"role": "user", "content": task.instruction}], []
        try:
            while len(said) < LIMITS.max_turns:
                said.append(self.turn(messages, tools))
                parsed = policy.template.parse(policy.tokenizer.encode(said[-1]))
                messages.append({"role": "assistant", "content": said[-1]})
                if parsed.answer_text is not None:
                    answer = verify.parse_answer(parsed.answer_text)
                    final = episode.snapshot()
                    verdict = verify.verify(task, bundle, bundle.state, final, answer, pool.verifier)
                    return said, verdict.passed
                result = ToolResult(None, "malformed_call", parsed.error, "caller")
                if parsed.call is not None:
                    result = episode.call(parsed.call.name, parsed.call.arguments)
                messages.append({"role": "tool", "content": observation_text(result, LIMITS.max_observation)})
        except CallerError:
            pass  # an answer that is none
        finally:
            episode.close()
        return said, False


def ours(policy: Policy, tasks: list[Task], pool: EnvPool) -> list[Trajectory]:
    """Greedy episodes of the engine."""
    engine = Engine(
        policy.config, policy.params, slots=min(32, len(tasks)), max_len=1024, eos_id=policy.tokenizer.eos_id
    )
    jobs = [EpisodeJob(task, 0, 0) for task in tasks]
    return run_episodes(engine, policy.template, jobs, pool, LIMITS, temperature=0.0)


def turns_of(trajectory: Trajectory) -> list[str]:
    return [turn.text for turn in trajectory.turns if turn.role == "assistant"]


def main(exported: str, run: str, tag: str = "heldout", count: str = "12") -> None:
    from arena.folder import RunFolder

    folder = RunFolder(Path(run))
    tasks = list(folder.tasks(tag).values())
    tasks = tasks[:: max(1, len(tasks) // int(count))][: int(count)]
    policy, agent = Policy.load(exported), TransformersAgent(Path(exported))
    bundles = {task.env_id: Path(run) / "bundles" / task.env_id for task in tasks}
    same, passed = 0, 0
    with EnvPool(bundles) as pool:
        for task, trajectory in zip(tasks, ours(policy, tasks, pool), strict=True):
            theirs, right = agent.answer(task, pool, policy)
            equal = theirs == turns_of(trajectory)
            agree = right == bool(trajectory.verdict and trajectory.verdict.passed)
            same, passed = same + (equal and agree), passed + (equal and right)
            print(f"{task.id}: {len(theirs)} turns, {'same' if equal else 'other'} words, passed {right}")
            if equal and right:
                print("   " + "\n   ".join(theirs))
    print(f"{same} of {len(tasks)} tasks the same way, {passed} of them passed")


if __name__ == "__main__":
    main(*sys.argv[1:])
