"""A tiny policy and a small tokenizer, made once for the tests of this folder."""

from __future__ import annotations

import pytest

from model.config import ModelConfig
from model.tokens import Call, ChatTemplate, Tokenizer, answer_text, call_text, tool_text, train_tokenizer
from model.transformer import init_params

TOOLS = [
    {
        "name": "search_airports",
        "description": "Find airports in a country.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "country": {"type": "string"},
                "limit": {"type": "integer", "description": "how many at most"},
            },
            "required": ["country"],
            "additionalProperties": False,
        },
        "annotations": {"readOnlyHint": True},
        "_meta": {"kind": "search"},
    },
    {
        "name": "book_flight",
        "description": "Book a seat.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "flight_id": {"type": "string"},
                "class": {"type": "string", "enum": ["economy", "business"]},
            },
            "required": ["flight_id", "class"],
        },
    },
]


@pytest.fixture(scope="session")
def tools() -> list[dict]:
    return TOOLS


@pytest.fixture(scope="session")
def config() -> ModelConfig:
    """Two query heads for each of two key/value heads, so that grouping is exercised."""
    return ModelConfig(
        vocab_size=512, d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=8, d_ff=64, max_len=256
    )


@pytest.fixture(scope="session")
def params(config):
    return init_params(config, seed=0)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory) -> Tokenizer:
    texts = [tool_text(tool) for tool in TOOLS]
    texts += ["How many airports does France have? Find the airports of the country."] * 3
    texts += [call_text(Call("search_airports", {"country": "France"})), answer_text(12)]
    return train_tokenizer(texts, 480, tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def template(tokenizer) -> ChatTemplate:
    return ChatTemplate(tokenizer)
