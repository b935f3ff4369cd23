"""The provider's limits hold for all threads and processes that share a model's folder."""

import json
import signal
import subprocess
import sys
import threading
import time

import pytest
import scripted_llm as scripted
from scripted_llm import settings_for

from synth.author.limits import Pace, Room
from synth.author.llm import LLM
from synth.author.settings import Settings
from synth.errors import CallerError

HOLD = """
import sys, time
from pathlib import Path
from synth.author.limits import Room
with Room(Path(sys.argv[1]), 1).place():
    print("in", flush=True)
    time.sleep(600)
"""


def test_no_more_than_the_places_are_taken_at_once(tmp_path):
    inside, most, lock = [0], [0], threading.Lock()

    def work():
        with Room(tmp_path, 2).place():  # each its own: as separate processes would
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            time.sleep(0.05)
            with lock:
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (inside[0], most[0]) == (0, 2)


def test_another_process_counts_and_a_killed_one_lets_go(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "in\n"
        taken = threading.Event()

        def wait():
            with Room(tmp_path, 1).place():
                taken.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not taken.wait(0.3), "the other process has the only place"
        other.send_signal(signal.SIGKILL)
        waiting.join(30)
        assert taken.is_set()


def paces(folder, count, **limits):
    waits = []
    fields = {"requests": None, "tokens": None, **limits}
    return [Pace(folder, sleep=waits.append, **fields) for _ in range(count)], waits


def test_requests_a_minute_are_those_of_all(tmp_path):
    made, waits = paces(tmp_path, 3, requests=1.0)
    for pace in made:
        pace.wait(100)
    assert waits == [pytest.approx(60.0, abs=5.0), pytest.approx(120.0, abs=5.0)]


def test_tokens_a_minute_are_those_of_all(tmp_path):
    made, waits = paces(tmp_path, 3, tokens=600.0)
    for pace, tokens in zip(made, (2000, 500, 1), strict=True):
        pace.wait(tokens)
    assert waits == [pytest.approx(200.0, abs=5.0), pytest.approx(250.0, abs=5.0)]


def test_without_limits_nobody_waits(tmp_path):
    made, waits = paces(tmp_path, 4)
    for pace in made:
        pace.wait(10**9)
    assert waits == []


def test_a_pause_is_everybodys_and_has_an_end(tmp_path):
    (one, two), waits = paces(tmp_path, 2)
    one.pause(30.0)
    two.wait(1)
    one.pause(86400.0)
    two.wait(1)
    assert waits == [pytest.approx(30.0, abs=5.0), pytest.approx(120.0, abs=5.0)]


@pytest.mark.parametrize("text", ["", "{half", "[1]", '{"request": null}', '{"request": 9e12}'])
def test_a_damaged_file_or_a_clock_that_was_set_back_stops_nobody(tmp_path, text):
    (tmp_path / "pace.json").write_text(text)
    (pace,), waits = paces(tmp_path, 1, requests=60.0)
    pace.wait(1)
    assert waits == []
    assert set(json.loads((tmp_path / "pace.json").read_text())) == {"request", "tokens", "pause"}


def test_a_busy_providers_retry_after_holds_back_every_client(tmp_path, monkeypatch):
    """One client is told to wait a minute; another one, of the same folder, waits too."""
    usual, told, waits = scripted.send, [], []
    busy = (429, {"error": {"message": "busy"}}, {"retry-after": "60"})

    def send(http, *answer):
        told.append(answer[0])
        usual(http, *(busy if len(told) == 1 else answer))

    monkeypatch.setattr(scripted, "send", send)
    user = "The answer must state: a\n-----\nb\n-----"
    said = [{"role": "system", "content": "[judge v1] x"}, {"role": "user", "content": user}]
    with scripted.Scripted(misbehave=False) as server:
        for sample in range(2):
            client = LLM(settings_for(tmp_path, server), sleep=waits.append)
            client.complete(said, stage="t", prompt="judge", sample=sample)
    assert len(told) == 3
    assert [w for w in waits if w > 1] == [pytest.approx(60, abs=10)] * 2, (
        "its second try, and the other client"
    )


@pytest.mark.parametrize(
    "name", ["api_key", "extra_headers", "headers", "azure_ad_token", "aws_secret_access_key"]
)
def test_keys_are_refused_where_they_would_be_kept(tmp_path, name):
    """``extra`` is a part of every kept request, so no key may stand there."""
    with pytest.raises(CallerError, match=rf"field extra: .*{name}"):
        Settings.make("x.toml", model="m", folder=tmp_path, extra={name: "sk-1"})
    assert Settings.make("x.toml", model="m", folder=tmp_path, extra={"reasoning_effort": "low"}).extra
