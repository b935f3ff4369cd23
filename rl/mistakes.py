"""Mistakes on purpose: wrong calls with their real errors, so that the base policy learns to recover.

Scripted episodes are perfect; a policy that has seen nothing else doesn't know what to do after its own
first slip. (Measured: of 470 episodes of such a policy, 312 met an error and 14 of those passed.) So
some calls of the pretraining corpus are preceded by a wrong one of the kinds that a small policy makes:
a garbled name, another tool, two tools' names mixed up, an argument left out or misnamed, JSON that
breaks off. It is executed in the sandbox like any call, its result or error is what the episode goes on
from, and its own tokens carry no loss.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from model.tokens import Call, call_text, read_call
from synth.env.episode import ToolResult

SHARE = 0.3  # of gold calls that follow a mistake (ours)
AGAIN = 0.3  # chance of one more mistake after a mistake (ours)
IDLE = 0.1  # chance of a needless read before the answer (ours)
Json = dict[str, Any]


def garble(text: str, rng: random.Random) -> str:
    """``text`` as a small policy would spoil it: a word twice, left out, cut, or letters swapped."""
    words = text.split(" ")
    place = rng.randrange(len(words))
    word = words[place]
    kind = rng.choice(("twice", "drop", "cut", "swap", "end"))
    if kind == "twice":
        words.insert(place, word)
    elif kind == "drop" and len(words) > 1:
        del words[place]
    elif kind == "cut" and len(word) > 2:
        words[place] = word[: rng.randrange(1, len(word))]
    elif kind == "swap" and len(word) > 2:
        i = rng.randrange(len(word) - 1)
        words[place] = word[:i] + word[i + 1] + word[i] + word[i + 2 :]
    else:
        words[place] = word + word[-2:]
    return " ".join(words)


class Blunderer:
    """Draws wrong calls for an environment's tools.

    Args:
        tools: MCP tool objects.
        calls: gold calls of the environment; strings for the arguments of other tools come from them.
    """

    def __init__(self, tools: Sequence[Json], calls: Sequence[Json]):
        self.tools = list(tools)
        self.calls = list(calls)
        self.of_tool: dict[str, list[Json]] = {}
        for call in calls:
            self.of_tool.setdefault(call["tool"], []).append(call["arguments"])

    def draw(self, gold: Json, rng: random.Random) -> Json:
        """A wrong call in the place of ``gold``: its keys, ``"wrong"``, and ``"raw"`` where unreadable."""
        kind = rng.choice(("garble", "garble", "other", "other", "mixed", "left_out", "misnamed", "broken"))
        wrong = getattr(self, f"_{kind}")(gold, rng)
        return {"tool": gold["tool"], "arguments": {}, **wrong, "wrong": True}

    def _garble(self, gold: Json, rng: random.Random) -> Json:
        texts = [k for k, v in gold["arguments"].items() if isinstance(v, str) and v]
        if not texts:
            return self._other(gold, rng)
        key = rng.choice(texts)
        return {"arguments": {**gold["arguments"], key: garble(gold["arguments"][key], rng)}}

    def _other(self, gold: Json, rng: random.Random) -> Json:
        tool = rng.choice(self.tools)
        known = self.of_tool.get(tool["name"])
        arguments = dict(rng.choice(known)) if known else {}
        texts = [v for v in gold["arguments"].values() if isinstance(v, str)]
        for key, value in arguments.items():
            if isinstance(value, str) and texts and rng.random() < 0.7:
                arguments[key] = rng.choice(texts)
        return {"tool": tool["name"], "arguments": arguments}

    def _mixed(self, gold: Json, rng: random.Random) -> Json:
        verb, _, rest = gold["tool"].partition("_")
        other, _, tail = rng.choice(self.tools)["name"].partition("_")
        return {"tool": rng.choice((f"{other}_{rest}", f"{verb}_{tail}", garble(gold["tool"], rng))),
                "arguments": gold["arguments"]}  # fmt: skip

    def _left_out(self, gold: Json, rng: random.Random) -> Json:
        arguments = dict(gold["arguments"])
        if arguments:
            del arguments[rng.choice(list(arguments))]
        return {"arguments": arguments}

    def _misnamed(self, gold: Json, rng: random.Random) -> Json:
        keys = [k for t in self.tools for k in t["inputSchema"].get("properties", {})]
        if not gold["arguments"] or not keys:
            return self._left_out(gold, rng)
        old, new = rng.choice(list(gold["arguments"])), rng.choice(keys)
        return {"arguments": {new if k == old else k: v for k, v in gold["arguments"].items()}}

    def _broken(self, gold: Json, rng: random.Random) -> Json:
        text = call_text(Call(gold["tool"], gold["arguments"]))
        inside = [m.end() for m in re.finditer(r"[^\W_]+", text) if m.end() < len(text) - 14]
        cut = rng.choice([p for p in inside if p > 24] or [len(text) - 14])
        return {"raw": text[:cut] + rng.choice(("}", "}}\n</tool_call>", '"', ""))}


def broken_error(raw: str) -> str | None:
    """The error that a rollout reports for such a turn; None when it can be read after all."""
    body = raw.partition("<tool_call>")[2].partition("</tool_call>")[0]
    try:
        read_call(body)
    except ValueError as err:
        return ToolResult(None, "malformed_call", f"malformed tool call: {err}", "caller").to_json()
    return None
