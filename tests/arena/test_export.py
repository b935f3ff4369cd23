"""``agent-world export``: what it writes loads in transformers and speaks the same (must show 5)."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import pytest
from fixtures.make import write_library
from fixtures.rollouts import COPIES, make_task
from flax import nnx
from transformers_agent import TransformersAgent, ours, turns_of

from arena.cli import main
from arena.measure import BASE
from model.tokens import ChatTemplate, tool_text
from rl.policy import Policy
from rl.pool import EnvPool
from synth.env.bundle import read_bundle

TOOLS = [
    {
        "name": "get_airport",
        "description": "Look up an airport by its name.",
        "inputSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    }
]
QUESTION = "What is the elevation of the airport Lombok?"


def test_a_target_with_other_files_stays_and_a_missing_source_is_named(tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    assert main(["export", str(BASE), str(tmp_path / "mine")]) == 2
    assert "thesis.txt" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "gone"), str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()


def test_transformers_answers_a_task_as_the_engine_does(tmp_path, capsys):
    """The exported base policy: the template's ids, and the greedy first turn, token for token."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    out = tmp_path / "policy"
    assert main(["export", str(BASE), str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["family"] == "qwen3"
    words = transformers.AutoTokenizer.from_pretrained(out)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    policy = Policy.load(out)
    template = ChatTemplate(policy.tokenizer)
    prompt = template.prompt(TOOLS, QUESTION)
    talk = words.apply_chat_template(
        [{"role": "user", "content": QUESTION}],
        tools=[json.loads(tool_text(tool)) for tool in TOOLS],
        add_generation_prompt=True,
        tokenize=False,
    )
    assert talk == policy.tokenizer.decode(prompt)
    made = theirs.generate(
        torch.tensor([prompt]), max_new_tokens=48, do_sample=False, eos_token_id=policy.tokenizer.eos_id
    )[0, len(prompt) :].tolist()
    assert made == greedy(policy, prompt, len(made))
    turn = template.parse(made)
    assert turn.call is not None or turn.answer_text is not None or turn.error is not None


def greedy(policy: Policy, prompt: list[int], count: int) -> list[int]:
    """By the forward alone, over the whole row each time."""
    model, ids = nnx.merge(policy.graphdef, policy.params), list(prompt)
    for _ in range(count):
        row = jnp.array([ids])
        hidden = model(row, jnp.arange(len(ids))[None], jnp.ones_like(row))
        ids.append(int(np.argmax(np.asarray(model.logits(hidden[0, -1])))))
    return ids[len(prompt) :]


@pytest.mark.slow
def test_transformers_solves_a_whole_task_as_the_engine_does(tmp_path):
    """Turn by turn, calls in the sandbox, up to the verdict; a task that the base policy passes."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    write_library(tmp_path)
    bundle = read_bundle(tmp_path / "library")
    assert main(["export", str(BASE), str(tmp_path / "policy")]) == 0
    policy, agent = Policy.load(tmp_path / "policy"), TransformersAgent(tmp_path / "policy")
    tasks = [make_task(bundle, book) for book in COPIES]
    with EnvPool({bundle.manifest.env_id: bundle.path}) as pool:
        for task, trajectory in zip(tasks, ours(policy, tasks, pool), strict=True):
            turns, right = agent.answer(task, pool, policy)
            assert turns == turns_of(trajectory)
            assert trajectory.verdict is not None
            assert right == trajectory.verdict.passed
