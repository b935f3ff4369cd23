"""Hand-made tasks, episodes and manifests, in the records of synth.types, for the tests of the arena."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from model.config import ModelConfig
from model.tokens import train_tokenizer
from rl.policy import Policy
from synth.types import (
    Check,
    Criterion,
    Difficulty,
    Manifest,
    Rubric,
    Task,
    Theme,
    ToolStep,
    Trajectory,
    Turn,
    Verdict,
)

FIND = ToolStep(tool="find_airport", arguments={"city": "Praya"})
BOOK = ToolStep(tool="book_slot", arguments={"airport": "LOP", "hours": 2})


def save_tiny_policy(folder: Path, words: str) -> Path:
    """A random policy of a few thousand parameters, whose tokenizer knows ``words``."""
    texts = [f'{{"answer": {n}}} {words} <tools>' for n in range(50)]
    tokenizer = train_tokenizer(texts, 512, folder)
    config = ModelConfig(
        vocab_size=512, d_model=32, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=16, d_ff=32, max_len=1024
    )
    Policy.fresh(config, tokenizer, seed=0).save(folder)
    return folder


def task(
    id: str = "t1", env_id: str = "airports", chain=(FIND, BOOK), pattern: str = "find-book", **other
) -> Task:
    """A task whose gold solution is ``chain`` and whose answer is "LOP"."""
    writes = sum(step.tool == "book_slot" for step in chain)
    return Task(
        **{
            "id": id,
            "env_id": env_id,
            "env_digest": "0" * 64,
            "route": "graph",
            "instruction": f"Book two hours at the airport of Praya and tell me its code. ({id})",
            "reference_answer": "LOP",
            "verifier": Rubric(criteria=(Criterion(field="answer", check="text", expected="LOP"),)),
            "chain": tuple(chain),
            "difficulty": Difficulty(steps=len(chain), tools=len({s.tool for s in chain}), writes=writes),
            "changes_state": writes > 0,
            "pattern": pattern,
            "seed": 7,
            **other,
        }
    )


def call(tool: str, error: str | None = None, fault: str | None = None, **arguments: Any) -> list[Turn]:
    """An assistant turn with a call, and the tool turn that answers it."""
    step = ToolStep(tool=tool, arguments=arguments)
    text = f'<tool_call>\n{{"name": "{tool}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
    result = {"error": {"code": error, "message": "no"}} if error else {"code": "LOP"}
    if error and fault is None:
        fault = "caller"
    return [
        Turn(role="assistant", text=text, start=0, end=0, policy_version=3, call=step),
        Turn(role="tool", text=json.dumps(result), start=0, end=0, error=error, fault=fault),
    ]


def gold(step: ToolStep) -> list[Turn]:
    return call(step.tool, **step.arguments)


def said(text: str, error: str | None = None) -> list[Turn]:
    """An assistant turn without a call."""
    return [Turn(role="assistant", text=text, start=0, end=0, policy_version=3, error=error)]


def episode(
    *moves: list[Turn],
    task_id: str = "t1",
    env_id: str = "airports",
    sample: int = 0,
    passed: bool = False,
    finish: str = "answer",
    answer: Any = "LOP",
    checks: tuple[Check, ...] = (),
    broken: str | None = None,
) -> Trajectory:
    """An episode of the given moves; ``broken`` makes it an infrastructure error."""
    prompt = Turn(role="prompt", text="<tools>…</tools> Book two hours", start=0, end=3)
    return Trajectory(
        task_id=task_id,
        env_id=env_id,
        sample=sample,
        seed=11,
        turns=(prompt, *(turn for move in moves for turn in move)),
        token_ids=(1, 2, 3),
        logprobs=(0.0, -0.1, -0.2),
        loss_mask=(0, 1, 1),
        finish_reason="error" if broken else finish,  # type: ignore[arg-type]
        answer=answer,
        verdict=Verdict(passed=passed and not broken, checks=checks, error=broken),
        error=broken,
    )


def manifest(env_id: str, *taxonomy: str, arena: bool = False) -> Manifest:
    theme = Theme(
        id=env_id,
        source="prd",
        name=env_id,
        description="",
        spec={"arena": True} if arena else {},
        license="MIT",
    )
    return Manifest(
        env_id=env_id, theme=theme, taxonomy=taxonomy, license="MIT", digest="d", state_digest="s"
    )
