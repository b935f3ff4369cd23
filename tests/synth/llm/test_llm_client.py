"""The client: cache, retries, repair, cut-off and declined replies, budget, keys; over real HTTP."""

import json
import logging
import random
import threading

import pytest
import scripted_llm as scripted
from scripted_llm import settings_for

from synth.author import make_author
from synth.author.asking import Mend, Unusable, ask
from synth.author.base import World
from synth.author.llm import LLM, Refused, TooLong
from synth.author.online.tasks import write_program
from synth.author.settings import Settings
from synth.author.store import BudgetExceeded
from synth.errors import CallerError, InfrastructureError

HELLO = [{"role": "system", "content": "[solve v1] x"}, {"role": "user", "content": "hello"}]
WHERE = {"stage": "test", "prompt": "solve"}


class Plain(scripted.Scripted):
    """Says what ``answers`` holds, in order, the last one again and again: (status or finish, text)."""

    def __init__(self, *answers):
        super().__init__(misbehave=False)
        self.answers, self.requests = list(answers) or [("stop", "hi")], []

    def handle(self, http):
        request = json.loads(http.rfile.read(int(http.headers["content-length"])))
        with self.lock:
            self.requests.append(request)
            said = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(said[0], int):
            echo = f"{said[1]} {http.headers['authorization']}"
            return scripted.send(http, said[0], {"error": {"message": echo, "code": said[1]}})
        message = {"role": "assistant", "content": said[1]}
        choice = {"index": 0, "message": message, "finish_reason": said[0]}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        with self.lock:
            self.paid["all"] += 1
        return scripted.send(
            http, 200, {"id": "x", "created": 1, "model": "m", "choices": [choice], "usage": usage}
        )


@pytest.fixture
def made(tmp_path):
    """``made(*answers, **settings)`` gives (endpoint, client)."""
    open_ = []

    def make(*answers, **more):
        server = Plain(*answers).__enter__()
        open_.append(server)
        return server, LLM(settings_for(tmp_path, server, **more))

    yield make
    for server in open_:
        server.__exit__()


def many(llm, samples):
    for sample in samples:
        llm.complete(HELLO, sample=sample, **WHERE)


def test_an_exchange_is_paid_once(made):
    server, llm = made(("stop", "hi"))
    first = llm.complete(HELLO, **WHERE)
    assert (first.text, first.finish) == ("hi", "stop")
    assert LLM(llm.settings).complete(HELLO, **WHERE) == first
    assert server.paid["all"] == 1
    llm.complete(HELLO, sample=1, **WHERE)
    assert server.paid["all"] == 2


def test_equal_requests_at_once_are_one_exchange(made):
    server, llm = made(("stop", "hi"))
    threads = [threading.Thread(target=llm.complete, args=(HELLO,), kwargs=WHERE) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.paid["all"] == 1


def test_busy_and_broken_providers_are_asked_again(made):
    server, llm = made((429, "slow down"), (500, "oops"), (503, "later"), ("stop", "hi"))
    assert llm.complete(HELLO, **WHERE).text == "hi"
    assert len(server.requests) == 4


def test_a_provider_that_stays_broken_is_an_infrastructure_error(made):
    _, llm = made((500, "oops"), retries=1)
    with pytest.raises(InfrastructureError, match="2 tries"):
        llm.complete(HELLO, **WHERE)
    assert llm.store.ledger()[0].unanswered == 1
    assert llm.store.ledger()[0].usd == 0


@pytest.mark.parametrize("status", [400, 401, 404])
def test_a_refused_request_is_the_callers_mistake_and_hides_the_key(made, caplog, capfd, status):
    caplog.set_level(logging.DEBUG)
    _, llm = made((status, "no"))
    with pytest.raises(CallerError, match="check model, api_base and key") as err:
        llm.complete(HELLO, **WHERE)
    seen = "".join(capfd.readouterr()) + str(err.value)
    seen += "".join(r.getMessage() for r in caplog.records if r.name.startswith("synth"))
    assert scripted.KEY not in seen


def test_a_cut_off_reply_is_asked_for_with_more_room(made):
    server, llm = made(("length", "{"), ("length", "{"), ("stop", "{}"), max_tokens=100, longest=400)
    assert llm.complete(HELLO, **WHERE).text == "{}"
    assert [r["max_tokens"] for r in server.requests] == [100, 200, 400]


def test_the_budget_in_dollars_stops_before_it_is_passed(made):
    server, llm = made(("stop", "hi"), usd_per_million=(1000.0, 1000.0), max_tokens=100, budget_usd=0.3)
    with pytest.raises(BudgetExceeded, match="raise the budget"):
        many(llm, range(99))
    spent = sum(line.usd for line in llm.store.ledger())
    assert spent == pytest.approx(0.015 * server.paid["all"])
    assert 0.1 < spent <= 0.3
    more = LLM(llm.settings.model_copy(update={"budget_usd": 9.0}))
    before = server.paid["all"]
    more.complete(HELLO, sample=0, **WHERE)
    assert server.paid["all"] == before


def test_the_budget_in_tokens_counts_earlier_runs(made):
    _, llm = made(("stop", "hi"), budget_tokens=200, max_tokens=100)
    llm.complete(HELLO, **WHERE)
    again = LLM(llm.settings)
    with pytest.raises(BudgetExceeded):
        many(again, range(1, 20))
    assert sum(line.tokens_in + line.tokens_out for line in again.store.ledger()) <= 200


def test_dollars_want_a_price(made):
    _, llm = made(budget_usd=1.0)
    with pytest.raises(CallerError, match="usd_per_million"):
        llm.complete(HELLO, **WHERE)


# --- asking for JSON ------------------------------------------------------------------------------

CHAIN = {"steps": "s", "theme": "t", "harder": "h"}


def asked(llm, check=lambda value: value, **more):
    return ask(llm, "word_chain", CHAIN, check, stage="test", **more)


@pytest.mark.parametrize(
    "text",
    [
        '{"sensible": false}',
        'Sure:\n```json\n{"sensible": false}\n```\nDone.',
        'Here it is: {"sensible": false} as wished',
    ],
)
def test_json_is_found_in_what_models_write(made, text):
    _, llm = made(("stop", text))
    assert asked(llm) == {"sensible": False}


def test_what_is_wrong_is_told_and_mended(made):
    server, llm = made(
        ("stop", '{"sensible":'), ("stop", '{"sensible": 3}'), ("stop", '{"sensible": true, "why": "a"}'),
        ("stop", '{"sensible": true, "why": "b"}'),
    )  # fmt: skip

    def check(value):
        if value["why"] != "b":
            raise Mend("why must be b")
        return value["why"]

    assert asked(llm, check) == "b"
    told = [r["messages"][-1]["content"] for r in server.requests[1:]]
    assert "is not JSON" in told[0]
    assert "sensible: 3 is not of type 'boolean'" in told[1]
    assert "why must be b" in told[2]


def test_repairs_have_an_end(made):
    server, llm = made(("stop", "no"), repairs=2)
    with pytest.raises(Unusable, match="word_chain"):
        asked(llm)
    assert len(server.requests) == 3


def test_who_declines_is_asked_once_more(made):
    _, llm = made(("stop", "I'm sorry, I can't help with that."), ("stop", '{"sensible": false}'))
    assert asked(llm) == {"sensible": False}
    _, llm = made(("content_filter", ""), repairs=0)
    with pytest.raises(Refused):
        asked(llm, sample=7)


def test_a_task_whose_prompt_is_too_long_is_given_up_and_the_next_one_is_tried(made):
    told = "This model's maximum context length is 64 tokens, and your prompt has 900 tokens."
    server, llm = made((400, told))
    with pytest.raises(TooLong, match="longer than the model takes"):
        llm.complete(HELLO, **WHERE)
    assert write_program(llm, World({}, {}, {}), None, random.Random(0)) is None
    assert len(server.requests) == 2, "nothing was sent again"


# --- settings -------------------------------------------------------------------------------------


def test_settings_come_from_a_file(tmp_path):
    path = tmp_path / "llm.toml"
    path.write_text('model = "m"\nbudget_usd = 2.5\n')
    settings = Settings.read(path)
    assert (settings.budget_usd, settings.folder) == (2.5, tmp_path / "llm")
    author = make_author(f"llm:{path}")
    assert author.name.startswith("llm-1:m:")
    assert Settings.read(path, folder=tmp_path / "x").folder == tmp_path / "x"
    path.write_text('model = "m"\napi_key = "sk-1"\n')
    with pytest.raises(CallerError, match=r"llm\.toml: field api_key"):
        Settings.read(path, folder=tmp_path)
    with pytest.raises(CallerError, match=r"none\.toml"):
        Settings.read(tmp_path / "none.toml")
    for name, message in (("llm", "llm:<path"), ("gpt", "the authors are: offline, llm")):
        with pytest.raises(CallerError, match=message):
            make_author(name)
