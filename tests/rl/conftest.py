"""A tiny policy, a real bundle of the fixtures and tasks over it, for the tests of this folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fixtures.compiled import compile_once  # noqa: F401
from fixtures.make import write_library
from fixtures.rollouts import COPIES, make_task
from fixtures.toy import teach_half, toy_policy, toy_tokenizer

from model.tokens import ChatTemplate, Tokenizer
from rl.policy import Policy
from rl.pool import EnvPool
from synth.env.bundle import Bundle, read_bundle
from synth.types import Task


@pytest.fixture(scope="session")
def bundle(tmp_path_factory) -> Bundle:
    return read_bundle(write_library(tmp_path_factory.mktemp("bundles")))


@pytest.fixture(scope="session")
def pool(bundle):
    with EnvPool({bundle.manifest.env_id: bundle.path}) as pool:
        yield pool


@pytest.fixture(scope="session")
def tokenizer(bundle, tmp_path_factory) -> Tokenizer:
    return toy_tokenizer(bundle, tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def template(tokenizer) -> ChatTemplate:
    return ChatTemplate(tokenizer)


@pytest.fixture(scope="session")
def policy(tokenizer) -> Policy:
    return toy_policy(tokenizer)


@pytest.fixture(scope="session")
def tasks(bundle) -> list[Task]:
    return [make_task(bundle, book) for book in COPIES]


@pytest.fixture(scope="session")
def twins(bundle) -> list[Task]:
    """Two tasks with the same answer, so that a model of 30,000 parameters can learn it."""
    return [make_task(bundle, book) for book in (2, 5)]


@pytest.fixture(scope="session")
def half_trained(policy, pool, twins, tmp_path_factory) -> Policy:
    """A policy that calls the right tool and then names the right number in less than 2 of 10 episodes."""
    return teach_half(policy, pool, twins, tmp_path_factory.mktemp("half_trained"), right=2)


@pytest.fixture
def run_dir(tmp_path):
    return tmp_path / "run"


@pytest.fixture(scope="module")
def home(half_trained, bundle, twins, tmp_path_factory) -> Path:
    """A folder with what runs in processes of their own need (one_run.py)."""
    folder = tmp_path_factory.mktemp("processes")
    half_trained.save(folder / "policy")
    (folder / "tasks.jsonl").write_text("".join(task.to_json() + "\n" for task in twins))
    shutil.copytree(bundle.path, folder / "bundle")
    return folder
