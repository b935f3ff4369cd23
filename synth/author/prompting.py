"""Prompts are files: ``prompts/<name>.md``, each with a header that says what it is for.

    +++
    role = "who the model is here"
    version = 1
    output_tokens = 900        # a usual reply, for estimates before a run
    why = "why the prompt is as it is"
    [inputs]
    theme = "what this input holds"
    +++
    ## system / ## user         the two messages, with {{input}} where an input goes
    ## output                   the JSON Schema of the reply, fenced; the prompt shows it as {{output}}

A prompt without an output section is answered in prose or by tool calls. The hash of a file's bytes goes
into the provenance of whatever was made with it.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from synth.errors import CallerError

FOLDER = Path(__file__).with_name("prompts")
_INPUT = re.compile(r"\{\{(\w+)\}\}")


@dataclass(frozen=True)
class Prompt:
    """One prompt file."""

    name: str
    role: str
    version: int
    why: str
    inputs: dict[str, str]
    output_tokens: int
    system: str
    user: str
    schema: dict[str, Any] | None
    digest: str

    def render(self, **inputs: Any) -> list[dict[str, Any]]:
        """System and user message. Inputs that are no text are shown as JSON.

        Raises:
            CallerError: an input is missing or unknown.
        """
        if set(inputs) != set(self.inputs):
            wrong = sorted(set(inputs) ^ set(self.inputs))
            raise CallerError(f"prompt {self.name}: inputs {', '.join(wrong)} are missing or unknown")
        words = {name: v if isinstance(v, str) else shown(v) for name, v in inputs.items()}
        if self.schema is not None:
            words["output"] = json.dumps(self.schema)

        def fill(text: str) -> str:
            return _INPUT.sub(lambda m: words[m[1]], text)

        return [
            {"role": "system", "content": f"[{self.name} v{self.version}] {fill(self.system)}"},
            {"role": "user", "content": fill(self.user)},
        ]


def shown(value: Any) -> str:
    """A value as a prompt shows it: JSON, one line an item for lists of records."""
    if isinstance(value, list) and value and all(isinstance(item, dict | list) for item in value):
        return "\n".join(json.dumps(item, ensure_ascii=False) for item in value)
    return json.dumps(value, ensure_ascii=False, indent=1)


@cache
def load(name: str) -> Prompt:
    """A prompt by its name.

    Raises:
        CallerError: there is none, or its file is damaged; names file and field.
    """
    path = FOLDER / f"{name}.md"
    try:
        text = path.read_text("utf-8")
        _, header, body = re.split(r"^\+\+\+$\n?", text, maxsplit=2, flags=re.M)
        fields = tomllib.loads(header)
    except (OSError, ValueError) as err:
        raise CallerError(f"{path}: no prompt, or no header between two lines +++ ({err})") from None
    parts = dict(re.findall(r"^## (system|user|output)\n(.*?)(?=^## |\Z)", body, flags=re.M | re.S))
    for field in ("role", "version", "why", "inputs", "output_tokens"):
        if field not in fields:
            raise CallerError(f"{path}: field {field}: is missing; add it to the header")
    return Prompt(
        name=name,
        role=fields["role"],
        version=fields["version"],
        why=fields["why"],
        inputs=fields["inputs"],
        output_tokens=fields["output_tokens"],
        system=parts["system"].strip(),
        user=parts["user"].strip(),
        schema=_schema(path, parts.get("output")),
        digest=hashlib.sha256(text.encode()).hexdigest(),
    )


def names() -> list[str]:
    """All prompts there are."""
    return sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "README")


def digests() -> dict[str, str]:
    """Name -> hash of every prompt, for provenance."""
    return {name: load(name).digest for name in names()}


def _schema(path: Path, section: str | None) -> dict[str, Any] | None:
    if section is None:
        return None
    try:
        schema = json.loads(re.sub(r"^```\w*$", "", section, flags=re.M))
        Draft202012Validator.check_schema(schema)
    except (ValueError, SchemaError) as err:
        raise CallerError(f"{path}: section output: not a JSON Schema ({str(err)[:200]})") from None
    return schema
