"""The seam to language models: one client a process behind Beam's ``ModelHandler``, and what it spends.

Stages whose author is a model run through RunInference (:mod:`beam_jobs.inference`): Beam loads it once a
process (:func:`client`), and an element's work, which may be a long conversation, is one inference. All
elements of a process share the client's limits (requests at once and a minute), its store of exchanges and
its budget, which counts all processes that use the same folder. Each element has an author of its own on
top, because an author remembers what it has asked.

What an element's exchanges cost becomes counters of its receipt and so Beam counters (:func:`spent`):
``llm_exchanges``, ``llm_tokens_in``, ``llm_tokens_out``, ``llm_microdollars``. They count every exchange
that the element's output stands on, also one that a killed try has paid already, so the sums of a run that
was killed equal those of an unbroken one. What was really paid, failures included, is in the folder's ledger.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from synth.author.base import Author
    from synth.author.llm import LLM

_clients: dict[str, LLM] = {}
_lock = threading.Lock()


def is_model(name: str) -> bool:
    """Whether an author of that name asks a language model."""
    return name.partition(":")[0] == "llm"


def open_author(name: str) -> Author:
    """The author that a name stands for, for one element; called on the worker: only the name travels.

    Raises:
        CallerError: no such author, or bad settings.
    """
    from synth.author import make_author

    author = make_author(name)
    if is_model(name):
        author.llm = _metered(_client(author.llm))  # type: ignore[attr-defined]
    return author


def client(name: str) -> LLM:
    """The client of this process for an author; its first call opens it."""
    from synth.author import make_author

    return _client(make_author(name).llm)  # type: ignore[attr-defined]


def _client(llm: LLM) -> LLM:
    with _lock:
        return _clients.setdefault(llm.settings.model_dump_json(), llm)


def spent(author: Any) -> dict[str, int]:
    """What the exchanges of an element's author cost, as counters; {} for one that asks no model."""
    store: Any = getattr(getattr(author, "llm", None), "store", None)
    return store.spent() if hasattr(store, "spent") else {}


def _metered(shared: LLM) -> LLM:
    """The same client (same limits, same budget), with a store that notes which exchanges were used."""
    from synth.author.store import Store

    class Metered(Store):
        def __init__(self, store: Store) -> None:  # the folder is there already
            self.folder, self.path = store.folder, store.path
            self._used: set[str] = set()

        def answer(self, key: str) -> dict[str, Any] | None:
            found = super().answer(key)
            if found is not None:
                self._used.add(key)
            return found

        def keep(self, key: str, response: dict[str, Any], cost: tuple[int, int, float]) -> None:
            super().keep(key, response, cost)
            self._used.add(key)

        def spent(self) -> dict[str, int]:
            return _counters([self.cost(key) for key in sorted(self._used)])

        def cost(self, key: str) -> tuple[int, int, float]:
            with self._open() as db:
                query = "SELECT tokens_in, tokens_out, usd FROM exchanges WHERE key = ?"
                return db.execute(query, [key]).fetchone()

    mine = copy.copy(shared)
    mine.store = Metered(shared.store)
    return mine


def _counters(costs: Sequence[tuple[int, int, float]]) -> dict[str, int]:
    return {
        "llm_exchanges": len(costs),
        "llm_tokens_in": sum(cost[0] for cost in costs),
        "llm_tokens_out": sum(cost[1] for cost in costs),
        "llm_microdollars": round(1e6 * sum(cost[2] for cost in costs)),
    }
