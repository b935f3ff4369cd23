"""The work of one process in the test of interruptions: all stages, from the theme to tasks."""

import json
import os
from pathlib import Path

import scripted_llm as scripted
from lake_world import THEME
from scripted_llm import settings_for

from synth import tasks_graph, tasks_program
from synth.admission import validate_environment
from synth.author import make_author
from synth.complexify import complexify
from synth.env.bundle import read_bundle, write_bundle
from synth.env.episode import EnvServer, VerifierServer
from synth.mining import mine
from synth.tools import make_environment


class Address:
    def __init__(self, url):
        self.url = url


def work(folder, url, out):
    """Make three tasks of both routes and write them to ``out``; one request at a time."""
    os.environ["AGENT_WORLD_TEST_KEY"] = scripted.KEY
    folder = Path(folder)
    author = make_author("llm", settings_for(folder, Address(url), concurrency=1))
    db = complexify(mine(THEME, 0, author), THEME, author, 0)
    env, _ = validate_environment(make_environment(db, THEME, author, 0), folder)
    write_bundle(env, folder / "bundle")
    bundle = read_bundle(folder / "bundle")
    with EnvServer(folder / "bundle") as server, VerifierServer() as judge:
        tasks = tasks_graph.make_tasks(bundle, server, author, 1, 2)
        tasks += tasks_program.make_tasks(bundle, server, author, 1, 1, verifier_server=judge)
    Path(out).write_text(json.dumps([task.model_dump(mode="json") for task in tasks]))
