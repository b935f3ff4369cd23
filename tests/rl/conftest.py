"""A tiny policy, a real bundle of the fixtures and tasks over it, for the tests of this folder."""

from __future__ import annotations

import pytest
from fixtures.compiled import compile_once  # noqa: F401
from fixtures.make import write_library
from fixtures.rollouts import COPIES, make_task

from model.config import ModelConfig
from model.tokens import ChatTemplate, Tokenizer, answer_text, call_text, tool_text, train_tokenizer
from rl.batch import text_sample
from rl.data import scripted_episode
from rl.learner import OptimizerConfig
from rl.policy import Policy
from rl.pool import EnvPool
from rl.sft import SFTConfig, train_sft
from synth.env.bundle import Bundle, mcp_tool, read_bundle
from synth.types import Task, ToolStep


@pytest.fixture(scope="session")
def bundle(tmp_path_factory) -> Bundle:
    return read_bundle(write_library(tmp_path_factory.mktemp("bundles")))


@pytest.fixture(scope="session")
def pool(bundle):
    with EnvPool({bundle.manifest.env_id: bundle.path}) as pool:
        yield pool


@pytest.fixture(scope="session")
def tokenizer(bundle, tmp_path_factory) -> Tokenizer:
    texts = [tool_text(mcp_tool(tool)) for tool in bundle.tools]
    texts += ["How many copies of the book are there?", answer_text(3)] * 3
    texts += [call_text(ToolStep(tool="get_book", arguments={"book_id": "B-1"}))] * 3
    return train_tokenizer(texts, 420, tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def template(tokenizer) -> ChatTemplate:
    return ChatTemplate(tokenizer)


@pytest.fixture(scope="session")
def policy(tokenizer) -> Policy:
    config = ModelConfig(
        vocab_size=448, d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=8, d_ff=64, max_len=640
    )
    return Policy.fresh(config, tokenizer, seed=0)


@pytest.fixture(scope="session")
def tasks(bundle) -> list[Task]:
    return [make_task(bundle, book) for book in COPIES]


@pytest.fixture(scope="session")
def twins(bundle) -> list[Task]:
    """Two tasks with the same answer, so that a model of 30,000 parameters can learn it."""
    return [make_task(bundle, book) for book in (2, 5)]


@pytest.fixture(scope="session")
def half_trained(policy, pool, twins, tmp_path_factory) -> Policy:
    """A policy that calls the right tool and then names the right number in about 3 of 10 episodes.

    Made by supervised training on scripted episodes, most of which end in a wrong number.
    """
    examples = []
    for task in twins:
        for n in range(10):
            answer = task.reference_answer if n < 3 else 9
            episode = scripted_episode(pool.server(task.env_id), policy.template, task, task.chain, answer)
            examples.append(text_sample(episode.ids, episode.weights()))
    optimizer = OptimizerConfig(learning_rate=1e-2, schedule="cosine", warmup_steps=5)
    config = SFTConfig(epochs=40, rows=4, row_length=640, checkpoint_every=1000, optimizer=optimizer)
    return train_sft(config, policy, examples, tmp_path_factory.mktemp("half_trained"))


@pytest.fixture
def run_dir(tmp_path):
    return tmp_path / "run"
