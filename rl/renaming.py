"""Renaming of an episode's content words, so that a small model must copy instead of remember.

Twenty themes have a few hundred nouns between them. A model of two million parameters learns those by
heart, fails on the first new one, and never learns to copy (measured; see rl/README.md). So most training
episodes get other nouns: every content word is replaced, the same way in tool names, questions, calls,
results and answer. Words that many themes share (verbs, JSON, statuses, "highest") stay.
"""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from rl.corpus import Record

WORD = re.compile(r"[^\W\d_]{3,}")
SHARED = 0.3  # a word that at least this share of the themes use is no content word (ours)
INVENTED = 0.35  # share of replacements that are made-up words (ours)
KEPT = 0.1  # share of episodes that keep their words (ours)
VERBS = 0.5  # share of renamings that give the tools' names other verbs too (ours)
JSON_WORDS = {"null", "true", "false", "error", "code", "message"}
ONSETS = re.findall(
    r"\S+", "b bl br c ch cl d dr f fl g gr h j k l m n p pl pr qu r s sh sk st t th tr v w z"
)
NUCLEI = re.findall(r"\S+", "a e i o u ai ea ee io oa ou")
CODAS = re.findall(r"\S+", "b ck d g l ll m n nd ng nt p r rd rn s ss st t x")


def _texts(record: Record) -> list[str]:
    return [json.dumps(record.tools, ensure_ascii=False), record.instruction, *record.observations]


def _spread(texts: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """Word -> in how many groups of texts it occurs."""
    count: dict[str, int] = defaultdict(int)
    for group in texts.values():
        for word in {w.lower() for text in group for w in WORD.findall(text)}:
            count[word] += 1
    return count


def _common(count: Mapping[str, int], groups: int) -> set[str]:
    return {w for w, n in count.items() if n >= max(2.0, SHARED * groups)}


def common_words(texts: Mapping[str, Iterable[str]]) -> set[str]:
    """The words that many groups of texts share; at least two."""
    return _common(_spread(texts), len(texts))


class Renamer:
    """Draws consistent renamings; knows which words are content and which replacements exist."""

    def __init__(self, records: Sequence[Record], verbs: float = VERBS, keep: Collection[str] = ()):
        """
        Args:
            records: whose words are told apart.
            verbs: share of renamings that give the tools' names other verbs too.
            keep: words that stay, beside those that many themes share.
        """
        themes: dict[str, list[str]] = defaultdict(list)
        for record in records:
            themes[record.env_id.rsplit("-", 1)[0]] += _texts(record)
        count = _spread(themes)
        self.verb_share = verbs
        self.shared = JSON_WORDS | set(keep) | _common(count, len(themes))
        nouns = {w.lower() for r in records for w in WORD.findall(json.dumps(r.tools, ensure_ascii=False))}
        self.nouns = sorted(w for w in nouns if w not in self.shared)
        self.pool = sorted(w for w, n in count.items() if w not in self.shared and len(w) <= 9)

    def invent(self, rng: random.Random) -> str:
        """A pronounceable word of one to three syllables."""
        syllables = [rng.choice(ONSETS) + rng.choice(NUCLEI) for _ in range(rng.choice((1, 2, 2, 3)))]
        return "".join(syllables) + rng.choice(CODAS)

    def draw(self, rng: random.Random) -> str:
        """A replacement: made up, a noun of another theme, or any other content word."""
        if rng.random() < INVENTED:
            return self.invent(rng)
        return rng.choice(self.nouns if rng.random() < 0.6 and self.nouns else self.pool)

    def verbs(self, tools: Sequence[dict], rng: random.Random) -> dict[str, str]:
        """Tool name -> the same with another verb: a name must be read in the list, never guessed."""
        drawn: dict[str, str] = {}
        names: dict[str, str] = {}
        for tool in tools:
            words = tool["name"].split("_")
            n = next((i for i, w in enumerate(words) if w not in self.shared and len(w) > 2), 1)
            verb, rest = "_".join(words[:n]), words[n:]
            if verb not in drawn:
                drawn[verb] = self.draw(rng)
            names[tool["name"]] = "_".join([drawn[verb], *rest])
        return names if len(set(names.values())) == len(names) else {}

    def rename(self, records: Sequence[Record], rng: random.Random) -> list[Record]:
        """The records with one renaming for all of them (they share an environment)."""
        if rng.random() < KEPT:
            return list(records)
        mapping: dict[str, str] = {}
        taken: set[str] = set()

        def other(word: str) -> str:
            stem = word[:-1] if word.endswith("s") and len(word) > 3 else word
            if stem not in mapping:
                while True:
                    new = self.draw(rng)
                    if new not in taken:
                        break
                taken.add(new)
                mapping[stem] = new
            return mapping[stem] + ("s" if stem != word else "")

        def swap(match: re.Match[str]) -> str:
            word = match.group()
            low = word.lower()
            if low in self.shared:
                return word
            new = other(low)
            return new.upper() if word.isupper() else new.capitalize() if word[0].isupper() else new

        verbs = self.verbs(records[0].tools, rng) if rng.random() < self.verb_share else {}
        named = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in verbs)) if verbs else None

        def text(value: str) -> str:
            if named is not None:
                value = named.sub(lambda m: verbs[m.group()], value)
            return WORD.sub(swap, value)

        def data(value):
            """Strings and keys within; JSON's own escapes are no words."""
            if isinstance(value, dict):
                return {text(key): data(inner) for key, inner in value.items()}
            if isinstance(value, list):
                return [data(inner) for inner in value]
            return text(value) if isinstance(value, str) else value

        return [
            replace(
                r,
                tools=data(r.tools),
                instruction=text(r.instruction),
                calls=[
                    {**c, "tool": text(c["tool"]), "arguments": data(c["arguments"])}
                    | ({"raw": text(c["raw"])} if "raw" in c else {})
                    for c in r.calls
                ],
                observations=[text(o) for o in r.observations],
                answer=data(r.answer),
                needed=data(r.needed),
            )
            for r in records
        ]
