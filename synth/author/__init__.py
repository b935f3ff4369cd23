"""Authors by their names: who writes databases, tools and tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synth.errors import CallerError

if TYPE_CHECKING:
    from synth.author.base import Author
    from synth.author.settings import Settings

NAMES = ("offline", "llm")


def make_author(name: str, settings: Settings | None = None) -> Author:
    """The author that a name stands for.

    Args:
        name: ``offline`` (procedural), ``llm``, or ``llm:<path>``, where the path is that of a settings file;
            a name that holds all it takes can travel to workers.
        settings: of the model; ``llm`` without a path needs them.

    Raises:
        CallerError: no such author, no settings, or bad ones.
    """
    name, _, path = name.partition(":")
    if name == "llm" and path and settings is None:
        from synth.author.settings import Settings

        settings = Settings.read(path)
    if name == "offline":
        from synth.author.offline import OfflineAuthor

        return OfflineAuthor()
    if name == "llm":
        if settings is None:
            raise CallerError("author llm: needs the settings of a model: write llm:<path of a TOML file>")
        from synth.author.online import LLMAuthor

        return LLMAuthor(settings)
    raise CallerError(f"no author {name!r}; the authors are: {', '.join(NAMES)}")
