"""The author that asks a language model, behind the same protocol as the procedural one.

One module a role: ``miner``, ``enrich`` (complexification), ``toolsmith``, ``tasks`` (both routes),
``solver`` (of the 2-of-5 filter) and ``diagnosis``. Every exchange is kept (:mod:`synth.author.store`), so a
run that goes on asks nothing twice; whatever a model wrote runs in the sandbox only.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from synth.author import prompting
from synth.author.base import Executed, ProgramDraft, Worded, World
from synth.author.library import FolderCorpus, Library, PackageCorpus, Shelf
from synth.author.llm import LLM, Settings
from synth.author.store import content_hash
from synth.author.web import Browser, Recorded, Search
from synth.errors import CallerError
from synth.types import Database, Diagnosis, Guide, Theme, Tool
from synth.verify import canonical

if TYPE_CHECKING:
    from synth.author.online.diagnosis import Case
    from synth.complexify import Gap


class LLMAuthor:
    """See :class:`synth.author.base.Author` and :class:`synth.author.base.Miner`.

    Args:
        settings: the model, its budget and folder, and the miner's web.
        web: search and browser instead of what the settings name.
    """

    def __init__(self, settings: Settings, web: tuple[Search, Browser] | None = None) -> None:
        self.llm = LLM(settings)
        self._web = web
        self._intents: set[str] = set()
        # changes with the model and with any prompt, so that stages know their outputs are another's
        self.name = f"llm-1:{settings.model}:{content_hash(prompting.digests())[:12]}"

    @property
    def provenance(self) -> dict[str, Any]:
        """For the generator of a manifest: the model and the hash of every prompt."""
        return {"model": self.llm.settings.model, "prompts": prompting.digests()}

    def solver(self, seed: int = 0) -> Any:
        """The solver of the 2-of-5 filter (:class:`synth.solver.Solver`)."""
        from synth.author.online.solver import LLMSolver

        return LLMSolver(self.llm, seed)

    def mine(self, theme: Theme, rng: random.Random) -> Database:
        """A database out of documents, every cell traced; see :class:`synth.author.online.miner.Miner`."""
        from synth.author.online.miner import Miner

        search, browser = self._web or self._configured()
        return Miner(self.llm, search, browser, theme, rng).run()

    def complexify(self, db: Database, theme: Theme, round_: int, rng: random.Random) -> Database:
        """Tables that close measured gaps; see :mod:`synth.author.online.enrich`."""
        from synth.author.online.enrich import enrich

        return enrich(self.llm, db, theme, round_, rng)

    def write_tools(self, db: Database, theme: Theme, rng: random.Random) -> list[Tool]:
        """Tools that passed their tests; see :mod:`synth.author.online.toolsmith`."""
        from synth.author.online.toolsmith import write_tools

        return write_tools(self.llm, db, theme, rng)

    def enlarge(
        self, db: Database, theme: Theme, lacking: Sequence[Gap], aims: Sequence[str], rng: random.Random
    ) -> Database:
        """Tables for a richer version of a finished environment; see :mod:`synth.author.online.enrich`."""
        from synth.author.online.enrich import enlarge

        return enlarge(self.llm, db, theme, aims, rng)

    def more_tools(
        self, before: Database, db: Database, theme: Theme, there: Sequence[Tool], rng: random.Random
    ) -> list[Tool]:
        """Tools over its new tables; see :mod:`synth.author.online.toolsmith`."""
        from synth.author.online.toolsmith import more_tools

        return more_tools(self.llm, before, db, theme, there, rng)

    def word_chain(self, world: World, steps: list[Executed], rng: random.Random) -> Worded | None:
        """A question for an executed chain; None when there is none, or the same was asked before."""
        from synth.author.online.tasks import word_chain

        intent = canonical([world.env_id, [step.step.model_dump() for step in steps]])
        if intent in self._intents:
            return None
        self._intents.add(intent)
        return word_chain(self.llm, world, steps, rng)

    def write_program(self, world: World, guide: Guide | None, rng: random.Random) -> ProgramDraft | None:
        """A programmatic task that ran; see :mod:`synth.author.online.tasks`."""
        from synth.author.online.tasks import write_program

        return write_program(self.llm, world, guide, rng)

    def diagnose(
        self, found: Diagnosis, cases: Sequence[Case], about: dict[str, Any], seed: int
    ) -> Diagnosis:
        """A round's diagnosis, read from its failed episodes; see :mod:`synth.author.online.diagnosis`."""
        from synth.author.online.diagnosis import Diagnostician

        return Diagnostician(self.llm, found, cases, about, seed).run()

    def _configured(self) -> tuple[Search, Browser]:
        """The web that the settings name, read through the store.

        A folder is the only local web where one is named; without one the registered data packages are.
        """
        settings = self.llm.settings
        library = None
        if "corpus" in (settings.search, settings.browse):
            shelves: list[Shelf] = []
            if settings.corpus is not None:
                shelves.append(FolderCorpus(settings.corpus, settings.corpus_license))
            if settings.packages or (settings.packages is None and settings.corpus is None):
                shelves.append(PackageCorpus())
            if not shelves:
                raise CallerError("field corpus: the miner needs documents; name a folder, or set packages")
            library = Library(shelves)
        search: Search | None = library
        browser: Browser | None = library
        if settings.search != "corpus":
            from synth.author.websearch import WebSearch

            search = WebSearch(settings.search)
        if settings.browse == "http":
            from synth.author.browser import HttpBrowser

            browser = HttpBrowser()
        assert search is not None
        assert browser is not None
        name = f"{settings.search}+{settings.browse}:{library.digest if library else ''}"
        web = Recorded(search, browser, self.llm.store, name)
        return web, web
