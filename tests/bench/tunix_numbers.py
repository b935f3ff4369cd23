"""What both Tunix peers (engine_tunix.py, grpo_tunix.py) give it as a tokenizer."""

from __future__ import annotations

from typing import Any


class Numbers:
    """A tokenizer whose words are token ids; 0 is padding, and no word is an end."""

    def encode(self, text: str, **kwargs: Any) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: Any, **kwargs: Any) -> str:
        return " ".join(str(int(i)) for i in ids)

    def pad_id(self) -> int:
        return 0

    def bos_id(self) -> int:
        return 1

    def eos_id(self) -> int:
        return 2
