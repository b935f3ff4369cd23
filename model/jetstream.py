"""What only JetStream's own server needs: our classes made known to it, the policy's tokenizer as its kind.

Everything here imports ``jetstream`` (extra ``jetstream``: google-jetstream 0.2.2, which brings TensorFlow
and takes seconds to import), so nothing else imports this module when it is loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from model.engine import Engine
from model.results import ResultTokens
from model.tokenizer import Tokenizer

NO_BOS = -1  # JetStream puts a start token in front; the policy has none, Engine.prefill drops this one


@contextmanager
def logging_as_it_was() -> Iterator[None]:
    """For importing JetStream's orchestrator, which sends all libraries' debug lines to standard output."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers


def register() -> Any:
    """Make JetStream take our engine and results for its own; returns its ``engine_api`` module.

    Also gives ``jax.tree_map`` back, which JetStream's orchestrator calls and newer versions of jax lack.

    Raises:
        ImportError: the extra ``jetstream`` isn't installed.
    """
    if not hasattr(jax, "tree_map"):
        jax.tree_map = jax.tree.map  # pyright: ignore[reportAttributeAccessIssue]
    from jetstream.engine import engine_api  # pyright: ignore[reportMissingImports]

    engine_api.Engine.register(Engine)
    engine_api.ResultTokens.register(ResultTokens)
    return engine_api


def tokenizer_parameters() -> Any:
    """JetStream's description of a tokenizer; ours comes with the engine, so it names no file."""
    from jetstream.engine import tokenizer_pb2  # pyright: ignore[reportMissingImports]

    return tokenizer_pb2.TokenizerParameters(path="", extra_ids=0)


def make_tokenizer(tokenizer: Tokenizer | None, eos_id: int) -> Any:
    """The policy's tokenizer with JetStream's methods.

    Raises:
        ValueError: the engine was made without one.
    """
    from jetstream.engine import token_utils, tokenizer_api  # pyright: ignore[reportMissingImports]

    if tokenizer is None:
        raise ValueError("this engine has no tokenizer; give it one: Engine(..., tokenizer=tokenizer)")

    class PolicyTokenizer(tokenizer_api.Tokenizer):
        """Text to padded ids and back."""

        def encode(self, s: str, **kwargs: Any) -> tuple[Any, int]:
            ids = np.array(tokenizer.encode(s), np.int32)
            known = ("is_bos", "prefill_lengths", "max_prefill_length", "jax_padding")
            options = {name: kwargs[name] for name in known if name in kwargs}
            return token_utils.pad_tokens(ids, self.bos_id, self.pad_id, **options)

        def decode(self, token_ids: list[int], **kwargs: Any) -> str:
            return tokenizer.decode([int(token) for token in token_ids])

        @property
        def pad_id(self) -> int:
            return 0

        @property
        def eos_id(self) -> int:
            return eos_id

        @property
        def bos_id(self) -> int:
            return NO_BOS

        @property
        def stop_tokens(self) -> set[int]:
            return {eos_id}  # padding's id is a word of ours

    return PolicyTokenizer()
