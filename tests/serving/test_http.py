"""``agent-world serve`` as real clients use it: the openai package, litellm, and plain HTTP."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from serving.conftest import BASE, TOOLS, running, until

from model.serving.run import open_engine, open_policy
from model.tokens import ChatTemplate

ASK = [{"role": "user", "content": "How high is Lombok airport?"}]
CHAT = {"model": "base", "messages": ASK, "max_tokens": 48}


def called(message):
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls]


# --- what clients get ---


def test_models(client):
    (model,) = client.models.list().data
    assert (model.id, model.max_model_len) == ("base", 1024)
    assert client.models.retrieve("base").id == "base"


def test_a_chat_with_tools_and_its_continuation(client):
    answer = client.chat.completions.create(**CHAT, tools=TOOLS, temperature=0)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert called(choice.message)[0][0] == "get_airport"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    result = {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": '{"elevation": 52}'}
    messages = [*ASK, choice.message, result]
    second = client.chat.completions.create(
        model="base", messages=messages, tools=TOOLS, temperature=0, max_tokens=24
    )
    assert second.usage.prompt_tokens > answer.usage.total_tokens


def test_streamed_tool_calls_say_the_same_as_a_whole_answer(client):
    how = {**CHAT, "tools": TOOLS, "seed": 5, "n": 3}
    whole = client.chat.completions.create(**how)
    said = [{"content": "", "calls": [], "finish": None} for _ in range(3)]
    usage = None
    with client.chat.completions.create(**how, stream=True, stream_options={"include_usage": True}) as events:
        for event in events:
            usage = event.usage or usage
            for choice in event.choices:
                mine = said[choice.index]
                mine["content"] += choice.delta.content or ""
                mine["finish"] = choice.finish_reason or mine["finish"]
                for call in choice.delta.tool_calls or []:
                    if call.id:
                        mine["calls"].append([call.function.name, ""])
                    mine["calls"][call.index][1] += call.function.arguments
    for choice, mine in zip(whole.choices, said, strict=True):
        assert mine["finish"] == choice.finish_reason
        assert mine["content"] == (choice.message.content or "")
        calls = choice.message.tool_calls or []
        assert mine["calls"] == [[c.function.name, c.function.arguments] for c in calls]
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert any(choice.message.tool_calls for choice in whole.choices)


def test_tool_choice_none_shows_no_tools_and_a_named_tool_is_called(client):
    none = client.chat.completions.create(**CHAT, tools=TOOLS, tool_choice="none", seed=1)
    assert none.choices[0].message.tool_calls is None
    assert none.usage.prompt_tokens == client.chat.completions.create(**CHAT, seed=1).usage.prompt_tokens
    named = {"type": "function", "function": {"name": "list_countries"}}
    forced = client.chat.completions.create(**CHAT, tools=TOOLS, tool_choice=named, seed=1)
    assert forced.choices[0].message.tool_calls[0].function.name == "list_countries"


def test_the_same_seed_gives_the_same_answer_and_logprobs_add_up(client):
    how = {**CHAT, "seed": 11, "logprobs": True, "extra_body": {"return_token_ids": True}}
    one, two = (client.chat.completions.create(**how).choices[0] for _ in range(2))
    assert one.message.content == two.message.content
    assert [t.logprob for t in one.logprobs.content] == [t.logprob for t in two.logprobs.content]
    assert len(one.logprobs.content) == len(one.token_ids) == len(one.policy_versions)
    assert all(t.logprob <= 0 for t in one.logprobs.content)


def test_stop_strings_stop_tokens_and_max_tokens(client, served):
    how = {
        "model": "base",
        "prompt": "one two three",
        "temperature": 0,
        "extra_body": {"return_token_ids": True},
    }
    free = client.completions.create(**how, max_tokens=12).choices[0]
    assert (free.finish_reason, len(free.token_ids)) == ("length", 12)
    stop = served.tokenizer.decode(free.token_ids[4:6])
    cut = client.completions.create(**how, max_tokens=12, stop=[stop]).choices[0]
    assert cut.finish_reason == "stop"
    assert cut.text == free.text[: free.text.index(stop)]
    assert cut.token_ids == free.token_ids[: len(cut.token_ids)]
    how["extra_body"] = {"return_token_ids": True, "stop_token_ids": [free.token_ids[3]]}
    ended = client.completions.create(**how, max_tokens=12).choices[0]
    assert (ended.finish_reason, ended.token_ids[-1]) == ("stop", free.token_ids[3])


def test_prompts_of_ids_many_prompts_and_echo(client, served):
    ids = served.tokenizer.encode("one two")
    extra = {"return_token_ids": True}
    answer = client.completions.create(
        model="base", prompt=[ids, ids], n=2, seed=3, echo=True, max_tokens=4, extra_body=extra
    )
    a, b, c, d = answer.choices
    assert (a.token_ids, b.token_ids) == (c.token_ids, d.token_ids)  # same prompt, same seeds
    assert a.prompt_token_ids == ids
    assert a.text == "one two" + served.tokenizer.decode(a.token_ids)
    assert answer.usage.prompt_tokens == 2 * len(ids)


def test_litellm_chats_with_tools_whole_and_streamed(url):
    import litellm

    how = {"api_base": f"{url}/v1", "api_key": "none", "tools": TOOLS, "temperature": 0, "num_retries": 0}
    how |= {"model": "openai/base", "messages": ASK, "max_tokens": 48}
    whole = litellm.completion(**how)
    assert called(whole.choices[0].message)[0][0] == "get_airport"
    streamed = litellm.stream_chunk_builder(list(litellm.completion(**how, stream=True)))
    assert called(streamed.choices[0].message) == called(whole.choices[0].message)
    assert streamed.choices[0].finish_reason == "tool_calls"


def test_the_llm_author_s_client_talks_to_it(url, tmp_path):
    """Protocol only: what a 1.7M-parameter policy writes is rubbish."""
    from synth.author.llm import LLM
    from synth.author.settings import Settings

    settings = tmp_path / "llm.toml"
    settings.write_text(
        f'model = "base"\napi_base = "{url}/v1"\nmax_tokens = 64\nlongest = 64\nretries = 0\n'
    )
    llm = LLM(Settings.read(settings))
    tools = [TOOLS[0]]
    reply = llm.complete(ASK, stage="test", prompt="test", tools=tools)
    assert reply.finish in ("stop", "length")
    more = [
        *ASK,
        reply.message(),
        *({"role": "tool", "tool_call_id": c.id, "content": "{}"} for c in reply.calls),
    ]
    assert llm.complete([*more, *ASK], stage="test", prompt="test", tools=tools).key != reply.key


# --- many at once, and those who leave ---


def test_32_requests_at_once_and_each_answer_is_its_own(client):
    """Over 8 slots: 24 wait their turn; nobody's answer depends on neighbours."""

    def ask(seed):
        answer = client.chat.completions.create(
            **CHAT, tools=TOOLS, seed=seed, extra_body={"return_token_ids": True}
        )
        return answer.choices[0].token_ids

    with ThreadPoolExecutor(32) as threads:
        together = list(threads.map(ask, range(32)))
    assert [ask(seed) for seed in (0, 9, 31)] == [together[0], together[9], together[31]]
    assert len({tuple(ids) for ids in together}) > 1


def endless(served):
    """A prompt and a seed whose answer is long, so that there is time to leave."""
    prompt = served.tokenizer.encode("one two three")
    return {"model": "base", "prompt": prompt, "seed": 4, "max_tokens": 1000, "temperature": 2.0}


def test_a_stream_that_is_left_frees_its_slot(url, served):
    before = served.driver.stats().cancelled
    with (
        httpx.Client(timeout=240) as http,
        http.stream("POST", f"{url}/v1/completions", json={**endless(served), "stream": True}) as answer,
    ):
        next(answer.iter_lines())
        assert served.driver.stats().slots_used == 1
    until(lambda: served.driver.stats().cancelled == before + 1)
    until(lambda: served.driver.stats().slots_used == 0)


def test_a_whole_answer_nobody_waits_for_is_cancelled_too(url, served):
    before = served.driver.stats().cancelled
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}/v1/completions", json=endless(served), timeout=0.3)
    until(lambda: served.driver.stats().cancelled == before + 1)
    until(lambda: served.driver.stats().slots_used == 0)


# --- refusals ---


def test_a_full_queue_is_a_429_that_says_when_to_come_back():
    served = open_policy(BASE, open_engine(BASE, slots=1, max_len=128), waiting=1)
    with running(served) as url:
        ids = served.tokenizer.encode("one")
        body = {"model": "base", "prompt": [ids] * 2, "max_tokens": 120, "temperature": 2.0}
        with ThreadPoolExecutor(6) as threads:
            answers = list(
                threads.map(lambda _: httpx.post(f"{url}/v1/completions", json=body, timeout=240), range(6))
            )
        codes = {answer.status_code for answer in answers}
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert codes <= {200, 429}
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "queue_full"
        until(lambda: served.driver.stats().slots_used == 0)
        served.driver.close()  # an engine that stopped is a 503, and not healthy
        assert httpx.post(f"{url}/v1/completions", json={**body, "prompt": ids}).status_code == 503
        assert httpx.get(f"{url}/health").status_code == 503


REFUSED = [
    ({"model": "other"}, 404, "model"),
    ({"messages": []}, 400, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, 400, "messages.0.role"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages.0.content"),
    ({"temperature": 3}, 400, "temperature"),
    ({"max_tokens": 0}, 400, "max_tokens"),
    ({"n": 33}, 400, "n"),
    ({"presence_penalty": 1}, 400, None),
    ({"response_format": {"type": "json_object"}}, 400, None),
    ({"tool_choice": "required"}, 400, None),
    ({"top_logprobs": 2, "logprobs": True}, 400, "top_logprobs"),
    ({"messages": [{"role": "user", "content": "word " * 3000}]}, 400, "prompt"),
    ({"no_such_field": 1}, 400, "no_such_field"),
]


@pytest.mark.parametrize(("change", "status", "param"), REFUSED)
def test_a_bad_request_is_refused_in_openai_s_shape(post, change, status, param):
    answer = post("chat/completions", {**CHAT, **change})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param)
    assert set(error) == {"message", "type", "param", "code"}
    assert len(error["message"]) < 300


def test_clients_know_a_context_that_is_too_long(client, url):
    import litellm

    messages = [{"role": "user", "content": "word " * 3000}]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="base", messages=messages)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion("openai/base", messages, api_base=f"{url}/v1", api_key="none", num_retries=0)


def test_bodies_that_are_no_json_too_large_or_of_another_type(url):
    to = f"{url}/v1/completions"
    as_json = {"content-type": "application/json"}
    assert httpx.post(to, content=b"{", headers=as_json).status_code == 400
    assert httpx.post(to, content=b"[1]", headers=as_json).status_code == 400
    assert httpx.post(to, content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
    assert httpx.post(to, content=b" " * (9 * 2**20), headers=as_json).status_code == 413
    assert httpx.get(to).status_code == 405
    assert httpx.get(f"{url}/v1/nothing").json()["error"]["message"]


def test_ids_out_of_the_vocabulary_are_refused(post):
    assert post("completions", {"model": "base", "prompt": [99999]}).status_code == 400
    assert post("completions", {"model": "base", "prompt": [-1]}).status_code == 400
    assert post("completions", {"model": "base", "prompt": []}).status_code == 400


def test_the_key_is_asked_for_and_never_told(served_with_key):
    url, key = served_with_key
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": key},
        {"Authorization": "Bearer \xff"},
    ):
        raw = {name: value.encode("latin-1") for name, value in headers.items()}
        answer = httpx.get(f"{url}/v1/models", headers=raw)
        assert answer.status_code == 401
        assert key not in answer.text
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0).models.list()
    assert openai.OpenAI(base_url=f"{url}/v1", api_key=key).models.list().data
    assert httpx.get(f"{url}/health").status_code == 200
    assert key not in httpx.get(f"{url}/metrics").text


@pytest.fixture
def served_with_key():
    served = open_policy(BASE, open_engine(BASE, slots=1, max_len=64))
    with running(served, api_key="s3cret-key") as url:
        yield url, "s3cret-key"


# --- watching it ---


def test_health_and_metrics_count_what_happened(client, url, served):
    from prometheus_client.parser import text_string_to_metric_families as families

    def numbers():
        text = httpx.get(f"{url}/metrics").text
        return {(s.name, *s.labels.values()): s.value for f in families(text) for s in f.samples}

    before = numbers()
    answer = client.chat.completions.create(**CHAT, seed=1)
    httpx.get(f"{url}/v1/completions")
    after = numbers()
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown["agent_world_requests_total", "/v1/chat/completions", "200"] == 1
    assert grown["agent_world_requests_total", "/v1/completions", "405"] == 1
    assert grown["agent_world_prompt_tokens_total",] == answer.usage.prompt_tokens
    assert grown["agent_world_sampled_tokens_total",] == answer.usage.completion_tokens
    assert grown["agent_world_first_token_seconds_count",] == 1
    assert after["agent_world_slots",] == 8
    health = httpx.get(f"{url}/health").json()
    assert (health["status"], health["slots"]) == ("ok", 8)


def test_the_served_prompt_is_the_template_s(client, served):
    tool = {"name": "get_airport", **{k: v for k, v in TOOLS[0]["function"].items() if k == "description"}}
    tool["inputSchema"] = TOOLS[0]["function"]["parameters"]
    extra = {"return_token_ids": True}
    answer = client.chat.completions.create(**CHAT, tools=TOOLS[:1], extra_body=extra)
    assert answer.prompt_token_ids == ChatTemplate(served.tokenizer).prompt([tool], ASK[0]["content"])
