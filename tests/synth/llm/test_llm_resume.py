"""A run that is killed five times, at random points, pays for no exchange twice and ends the same."""

import multiprocessing
import os
import random
import signal

import lake_run as work
import pytest
import scripted_llm as scripted

from synth.author.store import Store

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")


@pytest.mark.timeout(1800)
def test_five_kills_and_no_exchange_is_paid_twice(tmp_path):
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["litellm", "lake_run"])  # its import takes seconds; pay them once

    def start(folder, server, out):
        process = processes.Process(target=work.work, args=(str(folder), server.url, str(out)))
        process.start()
        return process

    with scripted.Scripted(misbehave=False) as server:
        whole = start(tmp_path / "whole", server, tmp_path / "whole.json")
        whole.join()
        assert whole.exitcode == 0
        arrivals = server.seen.total()
    points = sorted(random.Random(7).sample(range(2, arrivals + 1), 5))
    with scripted.Scripted(misbehave=False) as server:
        killed = []

        def before_answer(number):
            """Kill the client while the provider works on its request; it gets no answer, and pays none."""
            if len(killed) < 5 and number >= points[len(killed)] + len(killed):
                killed.append(number)
                os.kill(running.pid, signal.SIGKILL)
                return True
            return False

        server.before_answer = before_answer
        for attempt in range(6):
            running = start(tmp_path / "killed", server, tmp_path / "killed.json")
            running.join()
            assert running.exitcode == (0 if attempt == 5 else -signal.SIGKILL)
        assert len(killed) == 5
        assert max(server.paid.values()) == 1
        assert server.paid.total() == arrivals
    assert (tmp_path / "killed.json").read_text() == (tmp_path / "whole.json").read_text()
    ledger = Store(tmp_path / "killed/llm").ledger()
    assert sum(line.exchanges for line in ledger) == arrivals
    assert sum(line.unanswered for line in ledger) == 0, "what was under way was asked again"
