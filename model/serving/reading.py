"""Sampled tokens as text, piece by piece: what may be shown already, and what must wait.

:class:`Text` holds back half a character and the beginning of a stop string; :class:`Calls` finds
tool calls in the text and holds back what may be the beginning of one. A whole answer is read by
the same code as a streamed one, so both say the same.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from typing import Literal, NamedTuple

from model.tokenizer import Tokenizer
from model.tokens import CALL_CLOSE, CALL_OPEN, Call, read_call

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)+")\s*,\s*"arguments"\s*:\s*(?=\{)')
_JSON = json.JSONDecoder()


def held_back(text: str, words: Sequence[str]) -> int:
    """Characters at the end of ``text`` that may be the beginning of one of ``words``."""
    return max(
        (n for word in words for n in range(min(len(word) - 1, len(text)), 0, -1) if text.endswith(word[:n])),
        default=0,
    )


class Text:
    """The text of tokens that arrive one by one, up to a stop string.

    Args:
        stops: texts that end it; none of them is shown.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()):
        self._decode, self._stops = tokenizer.decode, stops
        self._ids: list[int] = []  # not shown yet, or half a character of what comes next
        self._pending = ""
        self.stopped: str | None = None  # the stop string that was met

    def add(self, token: int) -> str:
        """What this token allows to show."""
        self._ids.append(token)
        text = self._decode(self._ids)
        if text.endswith("\ufffd") and len(self._ids) < 4:  # a character of UTF-8 has four bytes at most
            return ""
        self._ids = []
        self._pending += text
        found = min(((self._pending.find(s), s) for s in self._stops if s in self._pending), default=None)
        if found is not None:
            self.stopped = found[1]
            shown, self._pending = self._pending[: found[0]], ""
            return shown
        keep = held_back(self._pending, self._stops)
        return self._cut(len(self._pending) - keep)

    def end(self) -> str:
        """The rest, when no token follows."""
        self._pending += self._decode(self._ids) if self._ids else ""
        self._ids = []
        return self._cut(len(self._pending))

    def _cut(self, at: int) -> str:
        shown, self._pending = self._pending[:at], self._pending[at:]
        return shown


class Delta(NamedTuple):
    """A piece of an assistant's message.

    ``content``: text. ``call``: a new call, with ``id`` and ``text`` its name. ``arguments``: more of
    the last call's arguments.
    """

    kind: Literal["content", "call", "arguments"]
    text: str
    id: str = ""


class Calls:
    """Reads tool calls out of a text that arrives in pieces.

    A call's name and arguments are passed on as they come once the arguments have begun, so they may
    turn out to be cut off or no JSON, as OpenAI's may. A call in another order of keys is passed on
    whole at its end; what is no call at all comes back as text, tags and all. White space around
    calls is dropped.

    Args:
        limit: calls that are passed on; further ones are dropped.
    """

    def __init__(self, limit: int | None = None):
        self._limit = limit
        self._text = ""  # not understood yet
        self._state: Literal["text", "head", "arguments", "tail"] = "text"
        self._said = ""  # the arguments passed on of the current call
        self._space = ""  # white space, shown only if text follows
        self._after_call = False  # and nothing shown since
        self.count = 0

    def add(self, text: str) -> list[Delta]:
        """What this piece allows to pass on."""
        self._text += text
        out: list[Delta] = []
        while getattr(self, f"_in_{self._state}")(out):
            pass
        return out

    def end(self) -> list[Delta]:
        """The rest, when no text follows."""
        out: list[Delta] = []
        if self._state == "text":
            self._show(self._text, out)
        elif self._state == "head":
            self._whole(self._text, "", out)
        elif self._state == "arguments":
            self._argue(self._text, out)
        self._text = ""
        return out

    # Each of these understands a part of the text; False when it needs more.

    def _in_text(self, out: list[Delta]) -> bool:
        before, opened, after = self._text.partition(CALL_OPEN)
        if not opened:
            keep = held_back(self._text, [CALL_OPEN])
            before, self._text = self._text[: len(self._text) - keep], self._text[len(self._text) - keep :]
            self._show(before, out)
            return False
        self._show(before, out)
        self._space, self._text, self._state = "", after, "head"
        return True

    def _in_head(self, out: list[Delta]) -> bool:
        head = _HEAD.match(self._text)
        name = _string(head.group(1)) if head else None
        if head and name:
            self._open(name, out)
            self._text, self._state = self._text[head.end() :], "arguments"
            return True
        body, closed, after = self._text.partition(CALL_CLOSE)
        if not closed:
            return False
        self._whole(body, CALL_CLOSE, out)
        self._text, self._state = after, "text"
        return True

    def _in_arguments(self, out: list[Delta]) -> bool:
        so_far = self._said + self._text
        try:
            _, end = _JSON.raw_decode(so_far)
        except (ValueError, RecursionError):
            body, closed, _ = self._text.partition(CALL_CLOSE)  # no JSON: the tag ends it
            keep = 0 if closed else held_back(body, [CALL_CLOSE])
            end = len(self._said) + len(body) - keep
            done = bool(closed)
        else:
            done = True
        piece, self._text = so_far[len(self._said) : end], so_far[end:]
        self._argue(piece, out)
        if done:
            self._state = "tail"
        return done

    def _in_tail(self, out: list[Delta]) -> bool:
        _, closed, after = self._text.partition(CALL_CLOSE)
        if not closed:
            self._text = self._text[len(self._text) - held_back(self._text, [CALL_CLOSE]) :]
            return False
        self._text, self._state = after, "text"
        return True

    # Each of these passes something on.

    def _show(self, text: str, out: list[Delta]) -> None:
        text = self._space + text
        body = text.rstrip()
        self._space = text[len(body) :]
        if body:
            out.append(Delta("content", body.lstrip() if self._after_call else body))
            self._after_call = False

    def _open(self, name: str, out: list[Delta]) -> None:
        self.count, self._said, self._after_call = self.count + 1, "", True
        if self._passing:
            out.append(Delta("call", name, f"call_{uuid.uuid4().hex[:24]}"))

    def _argue(self, text: str, out: list[Delta]) -> None:
        self._said += text
        if text and self._passing:
            out.append(Delta("arguments", text))

    @property
    def _passing(self) -> bool:
        return self._limit is None or self.count <= self._limit

    def _whole(self, body: str, close: str, out: list[Delta]) -> None:
        """A body that isn't in the usual form: calls if it can be read, else text."""
        try:
            calls = _calls_of(body)
        except ValueError:
            out.append(Delta("content", CALL_OPEN + body + close))
            return
        for call in calls:
            self._open(call.name, out)
            self._argue(json.dumps(call.arguments, ensure_ascii=False), out)


def _string(quoted: str) -> str | None:
    try:
        return json.loads(quoted)
    except ValueError:
        return None


def _calls_of(body: str) -> list[Call]:
    """One call, or a list of calls as some models write it.

    Raises:
        ValueError: neither.
    """
    if not body.lstrip().startswith("["):
        return [read_call(body)[0]]
    try:
        items = json.loads(body)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return [read_call(json.dumps(item))[0] for item in items]
