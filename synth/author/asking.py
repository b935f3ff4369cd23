"""Ask a model for JSON, and let it mend what is wrong with it.

One loop serves all roles: the reply is read, held against the prompt's schema, then given to the
role's own check, which may run it in the sandbox. Whatever is wrong goes back to the model in the words
of the real error, a limited number of times. A reply that was cut off and one that declines are treated
here too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from synth.author import prompting
from synth.author.llm import LLM, Message, Refused, Reply, TooLong
from synth.errors import EnvironmentFault

T = TypeVar("T")
_DECLINES = re.compile(r"^\W*(i('m| am) (sorry|unable)|sorry,|i (can ?not|can't|won't))", re.IGNORECASE)


class Mend(Exception):
    """What is wrong with a reply, for the model to read."""


class Unusable(EnvironmentFault):
    """The model did not get it right within the repairs it has."""


GIVEN_UP = (Unusable, Refused, TooLong)  # one piece of work came to nothing; the next one may not


def ask(
    llm: LLM,
    prompt: str,
    inputs: dict[str, Any],
    check: Callable[[Any], T],
    *,
    stage: str,
    sample: int = 0,
    repairs: int | None = None,
) -> T:
    """What ``check`` makes of the model's reply to a prompt.

    Args:
        check: gets the reply, valid under the prompt's schema; raises :class:`Mend` with what to do better.
        repairs: how often; the settings' number by default.

    Raises:
        Unusable: still wrong after all repairs; the message holds the last error.
        Refused: the model declines, twice.
        TooLong: the conversation outgrew the model.
        BudgetExceeded, CallerError, InfrastructureError: see :meth:`LLM.complete`.
    """
    page = prompting.load(prompt)
    messages = page.render(**inputs)
    left = llm.settings.repairs if repairs is None else repairs
    declined = 0
    while True:
        reply = llm.complete(messages, stage=stage, prompt=prompt, sample=sample + declined)
        if declines(reply):
            declined += 1
            if declined == 2:
                raise Refused(f"{stage}: the model declines: {reply.text.strip()[:160]!r}")
            continue
        try:
            return check(read_json(reply, page.schema))
        except Mend as err:
            problem = str(err)
        if not left:
            raise Unusable(f"{stage}: {prompt}: {problem[:600]}")
        left -= 1
        messages = [*messages, reply.message(), mending(problem)]


def mending(problem: str) -> Message:
    """The message that hands an error back."""
    page = prompting.load("mend")
    return {"role": "user", "content": page.render(problem=problem)[1]["content"]}


def declines(reply: Reply) -> bool:
    """Whether a reply is a refusal: the provider says so, or the text does and has nothing else in it."""
    if reply.finish == "refusal":
        return True
    text = reply.text.strip()
    return not reply.calls and "{" not in text and _DECLINES.match(text) is not None


def read_json(reply: Reply, schema: dict[str, Any] | None) -> Any:
    """The JSON value of a reply: all of it, its fenced block, or its first object.

    Raises:
        Mend: none is there, it was cut off, or it does not fit the schema.
    """
    if reply.finish == "length":
        raise Mend("your reply was cut off; say the same in fewer words")
    value = _first_value(reply.text)
    if schema is not None:
        fit(value, schema)
    return value


def fit(value: Any, schema: dict[str, Any]) -> None:
    """Raise :class:`Mend` where a value does not fit a schema."""
    error = best_match(Draft202012Validator(schema).iter_errors(value))
    if error is not None:
        where = ".".join(map(str, error.absolute_path)) or "the whole reply"
        raise Mend(f"does not fit the output schema: {where}: {error.message[:300]}")


def _first_value(text: str) -> Any:
    fenced: Sequence[str] = re.findall(r"```(?:json)?\s*\n(.*?)```", text, flags=re.S)
    problem = "there is no JSON object in it"
    for candidate in (text, *fenced, text[text.find("{") :] if "{" in text else ""):
        if not candidate.strip():
            continue
        try:
            value, end = json.JSONDecoder(strict=False).raw_decode(candidate.strip())
        except ValueError as err:
            problem = str(err)
            continue
        if isinstance(value, dict | list) and (candidate is not text or not candidate.strip()[end:].strip()):
            return value
    raise Mend(f"is not JSON: {problem}; reply with one JSON object and nothing else")
