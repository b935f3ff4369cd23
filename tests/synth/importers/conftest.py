"""The notes server as an imported environment, once for the tests of this folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
SERVER = Path(__file__).parents[1] / "notes_server.py"


@pytest.fixture(scope="session")
def notes(tmp_path_factory):
    """A bundle of the notes server over six notes."""
    from synth.env.mcp_import import import_server

    folder = tmp_path_factory.mktemp("notes")
    state = folder / "state"
    state.mkdir()
    texts = ["prune the pears", "water the fig", "call Mei", "mend the gate", "sort seeds", "paint the shed"]
    lines = [
        {"title": f"Job {n}", "text": text, "day": "Monday" if n < 4 else "Friday"}
        for n, text in enumerate(texts)
    ]
    (state / "notes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = {
        "list_notes": [{}],
        "get_note": [{"title": "Job 1"}],
        "addNote": [{"title": "Trip", "text": "pack the tent"}],
    }
    command = [sys.executable, str(SERVER), "{state}"]
    import_server(command, state, folder / "notes", given=given, only=list(given), binds=[str(SERVER)])
    return folder / "notes"


@pytest.fixture(scope="session")
def made(notes):
    """Eight tasks over it."""
    from synth.env.mcp_client import McpEnvServer
    from synth.importers.maker import make

    with McpEnvServer(notes) as server:
        return make(server, 8)
