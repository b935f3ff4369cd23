"""Text to token ids and back: a byte-level BPE tokenizer and its training.

The chat template that puts conversations together is :mod:`model.tokens`. Besides byte-level BPE
there are two kinds of added tokens:

* control tokens (``<|im_start|>``, ``<|im_end|>``, ``<|endoftext|>``). Only the template places
  them; the same characters inside a text are encoded as plain characters, so that a tool's
  output cannot end a turn.
* scaffolds: long, frequent runs of the template's JSON, one token each, matched in any text.
  They carry no information of their own and make a tool list about 3.5 times shorter (measured
  in the README).

Words: lower-case words and ``_words`` carry what stands before them; capitalised words, codes and
digits don't, so that a name has the same ids after a space as after a quote. Copying a name from
a question into a call is then a copy of ids (ours: copying is the hard part for a tiny policy).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as RustTokenizer

START, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CONTROL = (PAD, START, END)
# What other programs keep beside tokenizer.json; read and written with it, not used here.
SIDE_FILES = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
)

SYSTEM = 'system\nCall tools with <tool_call>. Finish with {"answer": value}.\n<tools>\n'
_TYPES = ("string", "integer", "number", "boolean")
SCAFFOLDS = (
    SYSTEM,
    "user\n",
    "assistant\n",
    "</tools>",
    # a tool schema
    '{"type": "function", "function": {"name": "',
    '", "description": "',
    '", "parameters": {"type": "object", "properties": {"',
    '", "parameters": {"type": "object", "properties": {}}}}\n',
    *(f'": {{"type": "{kind}"}}' for kind in _TYPES),
    *(f'": {{"type": "{kind}", "description": "' for kind in _TYPES),
    '": {"type": "string", "enum": ["',
    '"}, "',
    '"]}, "',
    '"], "description": "',
    ', "',
    '": {"type": "array", "items": {"type": "string"}}',
    "}}}}\n",
    '"}}}}}\n',
    '"]}}}}}\n',
    '}, "required": ["',
    '"}}, "required": ["',
    '"]}}, "required": ["',
    '"]}}}\n',
    '}, "required": []}}}\n',
    '"}}, "required": []}}}\n',
    '"]}}, "required": []}}}\n',
    # a call
    "<tool_call>",
    "</tool_call>",
    '<tool_call>\n{"name": "',
    '", "arguments": {"',
    '", "arguments": {}}\n</tool_call>',
    "}}\n</tool_call>",
    '"}}\n</tool_call>',
    # JSON values, as in calls, results and answers
    '": "',
    '", "',
    '": ',
    '{"',
    '"}',
    '": [',
    '": [{"',
    '": {"',
    '"}, {"',
    '}, {"',
    '["',
    '"]',
    '{"answer": ',
    '{"answer": "',
    # a result
    "<tool_response>",
    "</tool_response>",
    "user\n<tool_response>\n",
    "\n</tool_response>",
    '{"error": {"code": "',
    '", "message": "',
)

# In order: words in lower case with the space or underscore before them; capitalised words and
# codes; other letters; one digit; a run of punctuation; white space.
WORDS = (
    r"[ _]?\p{Ll}[\p{Ll}\p{M}]*|\p{Lu}[\p{Lu}\p{M}]*[\p{Ll}\p{M}]*|[\p{L}\p{M}]+|\p{N}"
    r"|[^\s\p{L}\p{M}\p{N}]+|\s+"
)


class Tokenizer:
    """Byte-level BPE: every text has ids, and ``decode(encode(text)) == text``.

    Lone surrogates, which UTF-8 cannot write, become U+FFFD first.
    """

    def __init__(self, rust: RustTokenizer, side_files: dict[str, str] | None = None):
        self.side_files = dict(side_files or {})  # name -> text, see SIDE_FILES
        self._rust = rust
        self._rust.encode_special_tokens = True  # control tokens are never made out of text
        self.pad_id, self.start_id, self.eos_id = (self._control(token) for token in CONTROL)

    def _control(self, token: str) -> int:
        found = self._rust.token_to_id(token)
        if found is None:
            raise ValueError(f"tokenizer.json: no token {token}")
        return found

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Read ``tokenizer.json`` of a policy folder, and what stands beside it."""
        folder = Path(folder)
        beside = {name: (folder / name).read_text() for name in SIDE_FILES if (folder / name).exists()}
        return cls(RustTokenizer.from_file(str(folder / "tokenizer.json")), beside)

    def save(self, folder: str | Path) -> None:
        """Write ``tokenizer.json`` into an existing folder."""
        self._rust.save(str(Path(folder) / "tokenizer.json"))

    @property
    def vocab_size(self) -> int:
        """Number of ids in use; a model's vocabulary may be larger, never smaller."""
        return self._rust.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        clean = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return self._rust.encode(clean, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; bytes that are no UTF-8 show as U+FFFD, ids out of the vocabulary vanish."""
        return self._rust.decode(list(ids), skip_special_tokens=False)


def train_tokenizer(texts: Iterable[str], vocab_size: int, out_dir: str | Path) -> Tokenizer:
    """Learn a tokenizer and write it to ``out_dir/tokenizer.json``.

    Args:
        texts: conversations and schemas, as the functions of :mod:`model.tokens` write them. Scaffolds
            are cut out first, so that no merge is spent on them.
        vocab_size: of all tokens: 256 bytes, scaffolds, control tokens and merges.
        out_dir: made if missing.
    """
    rust = RustTokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    rust.decoder = decoders.ByteLevel()
    added = len(CONTROL) + len(SCAFFOLDS)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - added,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    longest_first = sorted((*CONTROL, *SCAFFOLDS), key=len, reverse=True)
    cut = re.compile("|".join(map(re.escape, longest_first)))
    rust.train_from_iterator((piece for text in texts for piece in cut.split(text)), trainer)
    rust.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL])
    rust.add_tokens([AddedToken(token, special=False, normalized=False) for token in SCAFFOLDS])
    tokenizer = Tokenizer(rust)
    Path(out_dir).mkdir(parents=True, exist_ok=True)
    tokenizer.save(out_dir)
    return tokenizer
