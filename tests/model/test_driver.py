"""The driver: many conversations at a time, each as if it were alone."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time

import jax
import numpy as np
import pytest

from model.driver import Busy, Driver, Request
from model.engine import Engine
from model.sampling import Sampling
from model.slots import Slots
from model.transformer import init_params

EOS = 9


@pytest.fixture(scope="module")
def sharp(config):
    return jax.tree.map(lambda x: x * 2.0, init_params(config, 0))


@pytest.fixture(scope="module")
def make(config, sharp):
    """Engines that share their compiled programs."""

    def make(slots=8, exact=False, **options):
        how = dataclasses.replace(config, batch_invariant=exact)
        return Engine(how, sharp, slots=slots, shard=4, max_len=256, eos_id=EOS, **options)

    return make


@pytest.fixture
def driver(make):
    with Driver(make()) as driver:
        yield driver


def ids(n, seed=0):
    return np.random.default_rng(seed).integers(10, 500, n).tolist()


def settle(driver):
    """Wait until nothing is left of closed sessions."""
    deadline = time.monotonic() + 60
    while (s := driver.stats()).slots_used + s.sessions + s.waiting:
        assert time.monotonic() < deadline, s
        time.sleep(0.01)


def talk(session, prompt, turns=3, max_new=14):
    """A conversation with messages that depend on what was sampled."""
    out, message = [], prompt
    for turn in range(turns):
        session.append(message)
        result = session.generate(max_new).result(120)
        out.append((result.tokens, result.logprobs, result.finish_reason))
        message = ids(5 + 20 * turn, seed=sum(result.tokens))
    return out


def test_a_request_gives_what_the_slots_by_hand_give(make, driver):
    slots = Slots(make())
    slots.insert(slots.prefill(ids(40)), 0)
    (expected,) = slots.generate([0], [7], max_new=50)
    result = driver.submit(Request(ids(40), 50, seed=7)).result(60)
    assert (result.tokens, result.logprobs, result.stopped) == (
        expected.tokens,
        expected.logprobs,
        expected.stopped,
    )
    assert result.versions == [0] * len(result.tokens)


@pytest.mark.parametrize("exact", [False, True], ids=["plain", "batch_invariant"])
def test_the_same_request_alone_and_among_31_neighbours(make, exact):
    """The same tokens and the same bits, with cut-off and greedy neighbours beside it."""
    request = Request(ids(30), 40, seed=3)
    with Driver(make(32, exact)) as driver:
        alone = driver.submit(request).result(60)
        how = [Sampling(), Sampling(temperature=0), Sampling(top_k=5), Sampling(0.7, top_p=0.8)]
        others = [Request(ids(10 + n, n), 60, seed=n, sampling=how[n % 4]) for n in range(31)]
        handles = [driver.submit(r) for r in (*others[:17], request, *others[17:])]
        together = [handle.result(120) for handle in handles]
    assert together[17] == alone


def test_sessions_that_lose_their_slots_go_on_bit_for_bit(make):
    """Twelve conversations over four slots, each as in a driver of its own."""
    with Driver(make()) as driver:
        expected = []
        for n in range(12):
            with driver.session(n) as session:
                expected.append(talk(session, ids(20 + 9 * n, n)))
        assert driver.stats().evictions == 0
    out = {}
    with Driver(make(4), steps=5) as driver:

        def play(n):
            with driver.session(n) as session:
                out[n] = talk(session, ids(20 + 9 * n, n))

        threads = [threading.Thread(target=play, args=(n,)) for n in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(240)
        stats = driver.stats()
    assert [out[n] for n in range(12)] == expected
    settle(driver)
    assert stats.evictions > 0
    assert stats.replayed > 0


def test_a_group_is_prefilled_once_and_a_message_computes_only_itself(driver):
    handles = [driver.submit(Request(ids(100), 4, seed=n)) for n in range(8)]
    assert len({tuple(handle.result(60).tokens) for handle in handles}) > 1
    stats = driver.stats()
    assert (stats.prefilled, stats.shared) == (100, 700)
    with driver.session() as session:
        session.append(ids(50, 1))
        session.generate(3).result(60)
        known = session.length
        session.append(ids(10))
        assert driver.stats().kept == known
        assert session.length == known + 10


def test_chunks_arrive_while_the_turn_goes_on(make):
    with Driver(make(), steps=4) as driver:
        seen = []
        handle = driver.submit(Request(ids(9), 30, seed=1), on_chunk=seen.append)
        chunks = list(handle)
        result = handle.result(60)
    assert [token for chunk in chunks for token in chunk.tokens] == result.tokens
    assert all(len(chunk.tokens) <= 4 for chunk in chunks)
    assert seen == [*chunks, None]


def test_an_event_loop_reads_chunks_and_leaving_it_cancels(driver):
    async def read(limit):
        handle = driver.submit(Request(ids(9), 200, seed=1, stop_ids=()))
        got = []
        async for chunk in handle:
            got += chunk.tokens
            if len(got) > limit:
                break
        return handle, got

    whole, got = asyncio.run(read(10**6))
    assert got == whole.result(60).tokens


def test_a_cancelled_turn_frees_its_slot_and_a_session_can_go_on(config, sharp):
    engine = Engine(config, sharp, slots=1, max_len=256, eos_id=-1)  # no turn ends by itself
    with Driver(engine, steps=1) as driver:
        session = driver.session(5)
        session.append(ids(10))
        handle = session.generate(240)
        next(iter(handle))
        handle.cancel()
        result = handle.result(60)
        assert (result.finish_reason, handle.done) == ("cancelled", True)
        assert session.length == 10 + len(result.tokens)
        session.append(ids(3))
        again = session.generate(5).result(60)
        assert again.finish_reason == "length"
        gone = driver.submit(Request(ids(10), 240))
        gone.cancel()
        assert gone.result(60).finish_reason == "cancelled"
        assert driver.submit(Request(ids(10), 2)).result(60).finish_reason == "length"
        session.close()
        assert driver.submit(Request(ids(10), 2)).result(60).finish_reason == "length"
        settle(driver)


def test_a_full_queue_says_so(config, sharp):
    engine = Engine(config, sharp, slots=1, max_len=256, eos_id=-1)
    with Driver(engine, steps=1, max_waiting=2) as driver:
        first = driver.submit(Request(ids(10), 200))
        next(iter(first))
        waiting = [driver.submit(Request(ids(10), 1)) for _ in range(2)]
        with pytest.raises(Busy, match="2 turns wait"):
            driver.submit(Request(ids(10), 1))
        assert driver.stats().waiting == 2
        first.cancel()
        assert [handle.result(60).finish_reason for handle in waiting] == ["length"] * 2


@pytest.mark.parametrize("keep", [True, False])
def test_weights_change_between_two_dispatches(config, sharp, keep):
    """Every token knows its version; with caches computed again the rest is what the new weights say."""
    other = init_params(config, 1)
    engine = Engine(config, sharp, slots=2, max_len=256, eos_id=-1)
    with Driver(engine, steps=2) as driver:
        session = driver.session(4)
        session.append(ids(20))
        changed = threading.Event()

        def change(chunk):
            if not changed.is_set():
                changed.set()
                driver.update_weights(other, 7, keep_caches=keep)

        result = session.generate(30, on_chunk=change).result(60)
        whole = session.ids
        session.append(ids(6))
        later = session.generate(5).result(60)
    old = result.versions.count(0)
    assert 0 < old < 30
    assert result.versions == [0] * old + [7] * (30 - old)
    assert later.versions == [7] * 5
    with Driver(Engine(config, other, slots=2, max_len=256, eos_id=-1)) as driver:
        fresh = driver.submit(Request(whole[: 20 + old], 30 - old, seed=4)).result(60)
    assert (fresh.logprobs == result.logprobs[old:]) == (not keep)


def test_cut_off_draws_stay_inside_and_have_the_log_probabilities_of_what_is_left(driver):
    request = Request(ids(30), 1, sampling=Sampling(top_k=3))
    results = [driver.submit(Request(request.ids, 1, n, request.sampling)).result(60) for n in range(40)]
    shares = {r.tokens[0]: np.exp(r.logprobs[0]) for r in results}
    assert 1 < len(shares) <= 3
    assert sum(shares.values()) <= 1 + 1e-5
    (nucleus,) = {
        driver.submit(Request(ids(30), 1, n, Sampling(top_p=1e-6))).result(60).tokens[0] for n in range(3)
    }
    greedy = driver.submit(Request(ids(30), 1, 0, Sampling(temperature=0))).result(60)
    assert [nucleus] == greedy.tokens


def test_stop_tokens_end_a_turn(driver):
    whole = driver.submit(Request(ids(12), 40, seed=2)).result(60).tokens
    stop = whole[5]
    result = driver.submit(Request(ids(12), 40, seed=2, stop_ids=[stop])).result(60)
    assert result.tokens == whole[: whole.index(stop) + 1]
    assert result.finish_reason == "stop"


def test_misuse_has_a_clear_message(driver):
    with pytest.raises(ValueError, match="at least one token"):
        driver.submit(Request([], 5))
    with pytest.raises(ValueError, match="from 0 to 511"):
        driver.submit(Request([512], 5))
    with pytest.raises(ValueError, match="don't fit"):
        driver.submit(Request(ids(256), 5))
    with pytest.raises(ValueError, match="at most 7"):
        driver.submit(Request(ids(5), 5, stop_ids=range(8)))
    with pytest.raises(ValueError, match="top_p"):
        Sampling(top_p=0.0)
    session = driver.session()
    with pytest.raises(ValueError, match="append a prompt"):
        session.generate(3)
    session.close()
    with pytest.raises(RuntimeError, match="closed"):
        session.append([1])
    settle(driver)


def test_a_failure_reaches_those_who_wait(make, monkeypatch):
    driver = Driver(make())

    def broken(*_):
        raise OSError("no memory")

    monkeypatch.setattr(driver._scheduler, "compute", broken)
    handle = driver.submit(Request(ids(5), 5))
    with pytest.raises(RuntimeError, match="no memory"):
        handle.result(60)
    with pytest.raises(RuntimeError, match="no memory"):
        driver.submit(Request(ids(5), 5))
    driver.close()


def test_closing_ends_what_goes_on_and_another_driver_may_take_over(config, sharp):
    engine = Engine(config, sharp, slots=2, max_len=256, eos_id=-1)
    with Driver(engine, steps=1) as driver:
        handle = driver.submit(Request(ids(10), 240))
        next(iter(handle))
    assert handle.result(1).finish_reason == "cancelled"
    with Driver(engine) as driver:
        assert len(driver.submit(Request(ids(10), 3)).result(60).tokens) == 3
