"""How to reach a language model, what it may cost, and what the miner may read: one TOML file, or options.

The key of the provider is not here: it is read from the environment when a request leaves.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from synth.errors import CallerError

_KEY = re.compile(r"(^|_)(key|headers|token|secret|password|credentials)(_|$)", re.IGNORECASE)


class Settings(BaseModel):
    """How to reach a model and what it may cost. Defaults are ours unless a source is named."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str  # LiteLLM's name, such as "anthropic/..."; with api_base the endpoint's own name
    folder: Path  # of the store
    api_base: str | None = None  # an OpenAI-compatible endpoint, such as http://localhost:8000/v1
    key_env: str = "OPENAI_API_KEY"  # the variable that holds the key; an endpoint without one needs none
    solver_model: str | None = None  # of the 2-of-5 filter; the same model by default
    temperature: float = 1.0  # the paper's rollouts; authors and solvers alike
    max_tokens: int = Field(default=4096, gt=0)
    longest: int = Field(default=16384, gt=0)  # a reply that was cut off is asked for again up to here
    timeout_s: float = Field(default=180.0, gt=0)
    concurrency: int = Field(default=8, ge=1)  # requests at once, of all processes that share the folder
    requests_per_minute: float | None = Field(default=None, gt=0)  # likewise; None is no limit
    tokens_per_minute: float | None = Field(default=None, gt=0)  # in and out, as much as they can come to
    retries: int = Field(default=5, ge=0)
    backoff_s: float = Field(default=1.0, ge=0)  # before the first retry; it doubles, up to 60 s
    repairs: int = Field(default=3, ge=0)  # how often an author may mend one piece of work
    budget_usd: float | None = None
    budget_tokens: int | None = None
    usd_per_million: tuple[float, float] | None = None  # in, out; for models that LiteLLM does not know
    json_mode: bool = False  # ask the endpoint for JSON objects too; the prompts ask in words anyway
    extra: dict[str, Any] = Field(default_factory=dict)  # handed to LiteLLM, such as reasoning_effort
    corpus: Path | None = None  # the miner's folder of documents (synth.author.library)
    corpus_license: str = "unknown"  # of its files that sources.jsonl does not list
    packages: bool | None = None  # also the registered data packages; None: only where no folder is named
    search: Literal["corpus", "brave", "tavily"] = "corpus"  # what the miner searches
    browse: Literal["corpus", "http"] = "corpus"  # what it reads

    @field_validator("extra")
    @classmethod
    def _no_keys(cls, extra: dict[str, Any]) -> dict[str, Any]:
        """It is kept with every request, so it holds no keys."""
        if named := [name for name in extra if _KEY.search(name)]:
            raise ValueError(
                f"{named[0]} would be kept on disk; put the key into the environment and name it with key_env"
            )
        return extra

    @classmethod
    def read(cls, path: str | Path, **more: Any) -> Settings:
        """Settings from a TOML file; ``more`` wins.

        Paths in the file are relative to it; the store is the folder ``llm`` beside it by default.

        Raises:
            CallerError: no such file, no TOML, an unknown or bad field.
        """
        try:
            found = {"folder": "llm", **tomllib.loads(Path(path).read_text("utf-8"))}
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as err:
            raise CallerError(f"{path}: cannot be read as TOML ({err}); mend the model's settings") from None
        beside = Path(path).absolute().parent
        for name in ("folder", "corpus"):
            if isinstance(found.get(name), str):
                found[name] = beside / found[name]
        return cls.make(f"{path}", **{**found, **more})

    @classmethod
    def make(cls, where: str, **fields: Any) -> Settings:
        """Checked settings. Raises CallerError, naming ``where`` and the field."""
        try:
            return cls(**fields)
        except ValidationError as err:
            first = err.errors()[0]
            name = ".".join(map(str, first["loc"]))
            raise CallerError(f"{where}: field {name}: {first['msg']}; mend the model's settings") from None
