"""``agent-world evolve --author llm`` as a user runs it: a process of its own, a real endpoint, a run folder.

The lake office is measured; an office of the same class is trained on. The model reads the failed episodes,
writes the guides, and grows the training office: tables and tools over them, mended from real errors.
"""

import json
import os
import subprocess
import sys

import pytest
import scripted_llm as scripted
from lake_diagnosis import GUIDE

from arena.folder import RunFolder, write_records
from arena.sample import split_environments
from synth.admission import check_bundle
from synth.env.bundle import check_hashes, read_bundle, write_bundle
from synth.grow import lineage, root_of


def agent_world(*words):
    command = [sys.executable, "-m", "arena.cli", *map(str, words)]
    env = {**os.environ, "AGENT_WORLD_TEST_KEY": scripted.KEY}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=env)


class Evolved:
    """A run folder before and after ``evolve``."""

    def __init__(self, run, folder, server):
        self.server, self.root = server, folder / "run"
        theme = run.env.theme
        measured = theme.model_copy(update={"spec": {"arena": True}})
        office = theme.model_copy(update={"id": "pond_permits", "name": "Pond permits"})
        for env_id, about in (("lake_permits", measured), ("pond_permits", office)):
            database = run.env.database.model_copy(update={"theme_id": about.id})
            made = {"env_id": env_id, "theme": about, "taxonomy": ("Nature", "Lakes"), "database": database}
            write_bundle(run.env.model_copy(update=made), self.root / "bundles" / env_id)
        write_records(self.root / "tasks" / "lake_permits.heldout.jsonl", run.sound)
        self.run = RunFolder(self.root)
        self.run.round(0, "before").save(run.round, run.episodes)
        self.measured = (self.root / "bundles/lake_permits/manifest.json").read_bytes()
        self.settings = folder / "llm.toml"
        self.settings.write_text(
            f'model = "scripted-8b"\napi_base = "{server.url}"\nkey_env = "AGENT_WORLD_TEST_KEY"\n'
            "backoff_s = 0.01\nretries = 8\ntimeout_s = 6.0\n"
        )
        self.first = self.evolve()

    def evolve(self):
        words = ("--author", "llm", "--llm", self.settings, "--budget", 3, "--json")
        return agent_world("evolve", self.root, *words)

    @property
    def requests(self):
        return [json.loads(line) for line in next(self.root.glob("arena/*/requests.jsonl")).open()]


@pytest.fixture(scope="module")
def evolved(run, tmp_path_factory):
    with scripted.Scripted() as server:
        yield Evolved(run, tmp_path_factory.mktemp("evolve"), server)


def test_the_command_diagnoses_asks_and_grows(evolved):
    assert (evolved.first.returncode, evolved.first.stderr) == (0, "")
    printed = json.loads(evolved.first.stdout.splitlines()[-1])
    assert printed["author"] == "llm:scripted-8b"
    assert printed["grown"] == {"pond_permits": "pond_permits-v2"}
    assert printed["requests"] == evolved.requests
    assert {(r["env_id"], r["because_of"], r["complexify"]) for r in evolved.requests} == {
        ("pond_permits-v2", "lake_permits", False)
    }
    assert {r["guide"]["text"] for r in evolved.requests} == {GUIDE}


def test_the_new_version_adds_tables_and_tools_and_passes_every_gate(evolved):
    old, new = (read_bundle(evolved.root / "bundles" / f"pond_permits{v}") for v in ("", "-v2"))
    assert check_bundle(new.path).faults == ()
    assert {t.name for t in new.tools} - {t.name for t in old.tools} == {"list_fees", "pay_fee"}
    assert new.tools[: len(old.tools)] == old.tools
    added = [t for t in new.manifest.tables if t not in old.manifest.tables]
    assert [t.name for t in added] == ["permit_fees"]
    assert {p.target: p.origin for p in new.provenance}["permit_fees"] == "simulated"


def test_the_lineage_is_recorded(evolved):
    old, new = (read_bundle(evolved.root / "bundles" / f"pond_permits{v}") for v in ("", "-v2"))
    assert lineage(new.manifest) == [{"env_id": "pond_permits", "digest": old.manifest.digest}]
    assert (new.manifest.parent_digest, root_of(new.manifest)) == (old.manifest.digest, "pond_permits")
    assert new.manifest.generator["model"] == "scripted-8b"
    assert "closes 'follow-ups'" in new.manifest.generator["log"][-1]


def test_the_measured_environment_is_as_it_was_and_stays_measured(evolved):
    measured = evolved.root / "bundles/lake_permits"
    assert (measured / "manifest.json").read_bytes() == evolved.measured
    assert check_hashes(measured) == []
    split = split_environments(evolved.run.manifests(), 0)
    assert (split.arena, split.train) == (("lake_permits",), ("pond_permits", "pond_permits-v2"))


def test_wrong_designs_were_told_back(evolved):
    assert {"busy", "broken", "slow", "malformed", "cut off"} & set(evolved.server.faults)
    asked = evolved.server.prompts
    assert asked["enrich"] >= 3, "malformed, then a table that closes no gap, then the fees"
    assert asked["tool_design"] >= 2, "first with a tool over old tables only"
    assert asked["tool_code"] == 3, "two tools, one of them mended from the real error"


def test_the_same_command_again_pays_nothing_and_asks_the_new_version(evolved):
    before = evolved.server.paid.total()
    again = evolved.evolve()
    assert again.returncode == 0, again.stderr
    assert evolved.server.paid.total() == before
    assert {r["env_id"] for r in evolved.requests} == {"pond_permits-v2"}
    assert not (evolved.root / "bundles/pond_permits-v3").exists()


def test_tasks_are_made_over_the_new_version(evolved):
    """Drafted by the model, through all gates; the scripted solver does not know them, so none is kept."""
    requests = next(evolved.root.glob("arena/*/requests.jsonl"))
    words = ("--tag", "evolve1", "--requests", requests, "--author", "llm", "--llm", evolved.settings)
    done = agent_world("tasks", evolved.root, *words, "--json")
    assert done.returncode == 0, done.stderr
    counters = json.loads(done.stdout.splitlines()[-1])["counters"]
    assert counters["drafted"] >= 1
    assert counters["dropped_unsolved"] == counters["drafted"] - sum(
        n for name, n in counters.items() if name.startswith("dropped_") and name != "dropped_unsolved"
    )
