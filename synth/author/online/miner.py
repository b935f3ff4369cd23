"""The deep-research miner: a theme and a web in, a database out of which every cell is traced.

A ReAct loop with search, browse, Python and a shell in sandboxes, and two ways out: ``submit_table`` hands in
one table with the documents that its rows come from, ``finish`` ends. A table is taken only when every row is
found in its document (:mod:`synth.author.online.tracing`); what was not found is told back. Where each row
stands goes to ``traces/<theme>.jsonl`` in the model's folder, where it came from to the provenance.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from synth.author import prompting
from synth.author.agent import AgentTool, Stop, run_agent
from synth.author.asking import Mend
from synth.author.llm import LLM
from synth.author.online.intake import MOST_ROWS, TABLE, Taken, take
from synth.author.online.scratch import run_python
from synth.author.online.shell import INDEX, run_shell, shell_works
from synth.author.web import Browser, Document, NotFound, Search
from synth.errors import EnvironmentFault
from synth.mining import validate
from synth.types import Database, Theme

MAX_TURNS = 40  # ours: about 4 tables, each with a search, two pages, a program and a repair
PAGE = 5000  # characters of a document that one browse shows (ours)
FEWEST_ROWS = 8  # of the table that people ask about (ours)
WANTED = (
    "A database of 1 to 4 tables that hang together. The table that people ask about has at least "
    f"{FEWEST_ROWS} rows, a name, one or two categories and at least two measures. No table has more than "
    f"{MOST_ROWS} rows."
)
_TEXT = {"type": "string"}


@dataclass
class Miner:
    """One run of the miner; its methods are the agent's tools."""

    llm: LLM
    search: Search
    browser: Browser
    theme: Theme
    rng: random.Random
    read: dict[str, Document] = field(default_factory=dict)
    taken: dict[str, Taken] = field(default_factory=dict)

    def run(self) -> Database:
        """Mine.

        Raises:
            EnvironmentFault: no sound database came out (Refused when the model declines).
        """
        inputs = {"theme": f"{self.theme.name}: {self.theme.description}", "wanted": WANTED}
        outcome = run_agent(
            self.llm,
            prompting.load("mine").render(**inputs),
            self._tools(),
            stage="mine",
            prompt="mine",
            max_turns=MAX_TURNS,
            sample=self.rng.randrange(1_000_000),
            nudge="Go on with a tool call; finish when all tables are handed in.",
        )
        try:
            db = outcome.value if outcome.done else self._database()
        except Mend as err:
            raise EnvironmentFault(f"{self.theme.id}: the miner found no usable database: {err}") from None
        self._write_traces()
        return db

    def _tools(self) -> list[AgentTool]:
        def tool(
            name: str, description: str, run: Any, required: tuple[str, ...] = (), **properties: Any
        ) -> AgentTool:
            parameters = {
                "type": "object",
                "properties": properties,
                "required": list(required),
                "additionalProperties": False,
            }
            return AgentTool(name, description, parameters, run)

        shell = (
            f"Run a command line (sh, grep, awk, sort, head ...) over the documents that you have browsed; "
            f"{INDEX} lists their file names. It reads only; /tmp is scratch for one command."
        )
        shells = [tool("shell", shell, self.shell, ("command",), command=_TEXT)] if shell_works() else []
        offset = {"type": "integer", "minimum": 0, "description": "where to start, in characters"}
        return [
            tool("search", "Find documents.", self.look, ("query",), query=_TEXT),
            tool(
                "browse", f"Read {PAGE} characters of one.", self.browse, ("url",), url=_TEXT, offset=offset
            ),
            tool("python", "Run code; prints and `result` come back.", self.python, ("code",), code=_TEXT),
            *shells,
            AgentTool("submit_table", "Hand in one table with its sources.", TABLE, self.submit),
            tool("finish", "All tables are handed in.", self.finish),
        ]

    # --- the agent's tools ---

    def look(self, query: str) -> str:
        hits = self.search.search(query, 8)
        return "\n".join(f"{h.url} - {h.title}: {h.snippet}" for h in hits) or "nothing found"

    def browse(self, url: str, offset: int = 0) -> str:
        document = self._document(url)
        text = document.main()
        more = f"; go on with offset {offset + PAGE}" if len(text) > offset + PAGE else ""
        head = f"{document.url} ({document.kind}, {len(text):,} characters, license {document.license}{more})"
        return f"{head}\n{text[offset : offset + PAGE]}"

    def python(self, code: str) -> str:
        ran = run_python(code, files={url: d.text for url, d in self.read.items()})
        parts = [ran.printed.rstrip(), f"error: {ran.error}" if ran.error else ""]
        parts += [] if ran.result is None else [f"result = {json.dumps(ran.result, ensure_ascii=False)}"]
        return "\n".join(part for part in parts if part) or "(no output)"

    def shell(self, command: str) -> str:
        if "\0" in command:
            raise Mend("a command holds no null character")
        ran = run_shell(command, self.read)
        ended = [] if ran.status == 0 else [f"(exit status {ran.status})"]
        return "\n".join(part for part in [ran.output.rstrip(), *ended] if part) or "(no output)"

    def submit(self, **spec: Any) -> str:
        documents = {source["url"]: self._document(source["url"]) for source in spec["sources"]}
        taken = take(spec, documents, self.taken, self.rng)
        self.taken[taken.table.name] = taken
        return f"accepted: {taken.table.name} with {len(taken.rows)} rows, every value traced"

    def finish(self) -> str:
        raise Stop(self._database())

    def _document(self, url: str) -> Document:
        if url not in self.read:
            try:
                self.read[url] = self.browser.fetch(url)
            except NotFound as err:
                raise Mend(str(err)) from None
        return self.read[url]

    # --- the end ---

    def _database(self) -> Database:
        """The tables taken so far as a database. Raises Mend when they don't make one."""
        asked = [t for t in self.taken.values() if t.table.by_role("name") and len(t.rows) >= FEWEST_ROWS]
        if not asked:
            raise Mend(f"no table with a name column and at least {FEWEST_ROWS} rows was handed in")
        db = Database(
            theme_id=self.theme.id,
            tables=tuple(t.table for t in self.taken.values()),
            rows={name: t.rows for name, t in self.taken.items()},
            provenance=tuple(p for t in self.taken.values() for p in t.provenance),
            log=(f"round 0: mined {', '.join(self.taken)} from {len(self.read)} documents",),
        )
        try:
            validate(db)
        except EnvironmentFault as err:
            raise Mend(str(err)) from None
        return db

    def _write_traces(self) -> None:
        path = Path(self.llm.settings.folder) / "traces" / f"{self.theme.id}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = []
        for taken in self.taken.values():
            for record, found in zip(taken.records(), taken.traces, strict=True):
                line = {**found, "key": record[taken.table.primary_key]}
                lines.append(json.dumps(line, ensure_ascii=False))
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        scratch.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        os.replace(scratch, path)
