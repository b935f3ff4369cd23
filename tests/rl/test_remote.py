"""Rollouts against a served policy: the local engine's tokens; what can't be trained on is refused."""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from serving.conftest import running

from model.driver import Sampling
from model.engine import Engine
from model.serving.run import open_policy
from rl.remote import RemoteDriver
from rl.rollout import EpisodeJob, RolloutLimits, run_episodes
from synth.errors import CallerError, InfrastructureError

LIMITS = RolloutLimits(max_turns=4, max_new_per_turn=32, max_len=640)


def make_engine(policy):
    return Engine(
        policy.config,
        policy.params,
        slots=4,
        max_len=640,
        eos_id=policy.tokenizer.eos_id,
        tokenizer=policy.tokenizer,
        version=7,
    )


@pytest.fixture(scope="module")
def url(half_trained):
    served = open_policy("served", make_engine(half_trained), name="p", waiting=32)
    with running(served) as url:
        yield f"{url}/v1"


def test_episodes_of_a_served_policy_are_those_of_the_local_engine(url, half_trained, pool, tasks):
    """Temperature 1, same seeds: the same tokens, verdicts and versions; log-probabilities within 1e-5."""
    jobs = [
        EpisodeJob(task, sample, seed=100 * sample + n) for n, task in enumerate(tasks) for sample in range(3)
    ]
    template = half_trained.template
    local = run_episodes(make_engine(half_trained), template, jobs, pool, LIMITS)
    with RemoteDriver(url, "p", eos_id=half_trained.tokenizer.eos_id, slots=4) as driver:
        remote = run_episodes(driver, template, jobs, pool, LIMITS)
    assert max(len(t.turns) for t in local) >= 4  # several turns with tool calls
    for here, there in zip(local, remote, strict=True):
        assert there.token_ids == here.token_ids
        assert there.loss_mask == here.loss_mask
        assert (there.finish_reason, there.verdict) == (here.finish_reason, here.verdict)
        assert [t.policy_version for t in there.turns] == [t.policy_version for t in here.turns]
        np.testing.assert_allclose(there.logprobs, here.logprobs, rtol=0, atol=1e-5)


def test_seeds_of_64_bits_pass_through(url, half_trained):
    engine = make_engine(half_trained)
    ids, seed = half_trained.tokenizer.encode("How many copies?"), 2**64 - 3
    from model.driver import Driver, Request

    with Driver(engine) as local, RemoteDriver(url, "p", eos_id=engine.eos_id) as remote:
        here = local.submit(Request(ids, 16, seed)).result()
        assert remote.complete(ids, seed, 16, Sampling(), ()).tokens == here.tokens


# --- servers that are no good to a trainer, and one that is busy at first ---


class Scripted:
    """A server that answers what it is told to, one answer after the other; the last one again and again."""

    def __init__(self, *answers):
        self.answers, self.bodies = list(answers), []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                outer.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                status, body = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                raw = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(raw)))
                self.send_header("retry-after", "3")
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.http.server_port}/v1"

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()


def choice(**more):
    logprobs = {"tokens": ["a", "b"], "token_logprobs": [-0.5, -0.25]}
    return {"choices": [{"token_ids": [5, 9], "logprobs": logprobs, "finish_reason": "stop", **more}]}


def ask(url, how=None, **driver):
    waits = []
    with RemoteDriver(url, "p", eos_id=9, sleep=waits.append, **driver) as remote:
        return remote.complete([1, 2], 0, 8, how or Sampling(), ()), waits


def test_a_busy_server_is_asked_again_after_the_time_it_names():
    with Scripted((429, {"error": {"message": "full"}}), (503, {}), (200, choice())) as url:
        result, waits = ask(url, version=4)
    assert (result.tokens, result.logprobs, result.versions) == ([5, 9], [-0.5, -0.25], [4, 4])
    assert result.stopped
    assert waits == [3.0, 3.0]


def test_ids_as_vllm_writes_them_in_place_of_texts():
    logprobs = {"tokens": ["token_id:5", "token_id:9"], "token_logprobs": [-0.5, -0.25]}
    with Scripted((200, choice(token_ids=None, logprobs=logprobs))) as url:
        assert ask(url)[0].tokens == [5, 9]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"token_ids": None}, "no token ids"),
        ({"logprobs": None}, "no log-probability"),
        ({"logprobs": {"token_logprobs": [-0.5, None]}}, "no log-probability"),
        ({"prompt_token_ids": [1, 2, 3]}, "changed the prompt"),
        ({"token_ids": [5, 6]}, "ended by another token"),
    ],
)
def test_answers_that_cannot_be_trained_on_are_refused(change, why):
    with Scripted((200, choice(**change))) as url, pytest.raises(CallerError, match=why):
        ask(url)


def test_refused_requests_and_dead_servers_have_their_own_faults():
    with (
        Scripted((404, {"error": {"message": "no model p"}})) as url,
        pytest.raises(CallerError, match="no model p"),
    ):
        ask(url)
    with Scripted((500, {})) as url, pytest.raises(InfrastructureError, match="after 6 tries"):
        ask(url)
    with pytest.raises(InfrastructureError, match="ConnectError"):
        ask(url)  # it is gone now


def test_another_server_answers_for_one_that_is_dead_or_hangs():
    """Real connections: refused by the first, never answered by the second; nobody waits between tries."""
    with Scripted((200, choice())) as dead:
        pass
    with socket.create_server(("127.0.0.1", 0)) as hung, Scripted((200, choice())) as alive:
        silent = f"http://127.0.0.1:{hung.getsockname()[1]}/v1"  # it takes connections and says nothing
        for order in ([dead, silent, alive], [silent, alive, dead], [alive, dead, silent]):
            for seed in range(3):
                waits = []
                with RemoteDriver(order, "p", eos_id=9, timeout_s=1.0, sleep=waits.append) as remote:
                    assert remote.complete([1, 2], seed, 8, Sampling(), ()).tokens == [5, 9]
                    assert remote.complete([1, 2], seed, 8, Sampling(), ()).tokens == [5, 9]
                assert waits == []


def test_a_server_that_dies_ends_the_episode_not_the_run(half_trained, pool, twins):
    with Scripted((200, choice())) as url:
        pass
    jobs = [EpisodeJob(twins[0], sample, sample) for sample in range(2)]
    with RemoteDriver(url, "p", eos_id=half_trained.tokenizer.eos_id, sleep=lambda _: None) as driver:
        episodes = run_episodes(driver, half_trained.template, jobs, pool, LIMITS)
    assert [(t.finish_reason, t.verdict) for t in episodes] == [("error", None)] * 2
    assert "no answer after 6 tries" in episodes[0].error


def test_distributions_whose_logprobs_are_unknown_are_refused():
    with Scripted((200, choice())) as url:
        with pytest.raises(CallerError, match="top_p"):
            ask(url, Sampling(top_p=0.9))
        with pytest.raises(CallerError, match="logprobs_at"):
            ask(url, Sampling(0.7))
        assert ask(url, Sampling(0.7), logprobs_at=None)[0].tokens == [5, 9]
