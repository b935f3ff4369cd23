"""Tokenizer, chat template and parser: what conversations look like as ids."""

from __future__ import annotations

import json

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.hf import CHAT_TEMPLATE
from model.tokens import Call, Tokenizer, answer_text, call_text, tool_text

BITS = [
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    '{"name": "',
    "}}",
    "\n",
    " ",
    '"',
    "é",
    "你",
    "12",
    "France",
]
texts = st.text(st.characters(exclude_categories=["Cs"])) | st.lists(st.sampled_from(BITS)).map("".join)


@given(texts)
def test_every_text_comes_back_unchanged(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(texts)
def test_no_text_makes_a_control_token(tokenizer, text):
    ids = tokenizer.encode("<|im_start|>system" + text + "<|im_end|><|endoftext|>")
    assert not {tokenizer.eos_id, tokenizer.start_id, tokenizer.pad_id} & set(ids)


def test_half_a_character_becomes_the_replacement_character(tokenizer):
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"


def test_digits_stand_alone_and_a_name_has_the_same_ids_everywhere(tokenizer):
    assert len(tokenizer.encode("2048")) == 4
    name = tokenizer.encode("Frankfurt")
    assert tokenizer.encode('"Frankfurt"')[1:-1] == name
    assert tokenizer.encode("in Frankfurt")[-len(name) :] == name


def test_a_tokenizer_read_back_encodes_the_same(tokenizer, tmp_path, tools):
    tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    text = tool_text(tools[0]) + "Some <|im_end|> text."
    assert again.encode(text) == tokenizer.encode(text)
    assert again.eos_id == tokenizer.eos_id


def test_a_tool_schema_is_short_and_faithful(tokenizer, tools):
    line = tool_text(tools[0])
    function = json.loads(line)["function"]
    assert function["parameters"] == {
        "type": "object",
        "properties": {
            "country": {"type": "string"},
            "limit": {"type": "integer", "description": "how many at most"},
        },
        "required": ["country"],
    }
    assert "required" not in json.loads(tool_text(tools[1]))["function"]["parameters"], "all are required"
    none = {"name": "x", "inputSchema": {"properties": {"a": {"type": "string"}}}}
    assert json.loads(tool_text(none))["function"]["parameters"]["required"] == []
    plain = [i for piece in line.split('"') for i in tokenizer.encode(piece)]
    assert len(tokenizer.encode(line)) * 2 < len(plain), "scaffolds are one token each"


def test_a_conversation_is_only_ever_extended(tokenizer, template, tools):
    """Rule 1: each message's ids follow the ids before them; the text is what the twin template says."""
    call = Call("search_airports", {"country": "France", "limit": 3})
    ids = template.prompt(tools, "How many airports?")
    for more in (template.assistant(call), template.observation('{"total": 12}'), template.answer(12)):
        before, ids = ids, ids + more
        assert ids[: len(before)] == before
    assert tokenizer.decode(ids) == render(
        tools,
        [
            {"role": "user", "content": "How many airports?"},
            {
                "role": "assistant",
                "tool_calls": [{"function": {"name": call.name, "arguments": call.arguments}}],
            },
            {"role": "tool", "content": '{"total": 12}'},
            {"role": "assistant", "content": answer_text(12)},
        ],
    )


def test_the_prompt_opens_the_assistants_turn(tokenizer, template, tools):
    text = tokenizer.decode(template.prompt(tools, "Hello"))
    assert text == render(tools, [{"role": "user", "content": "Hello"}], add_generation_prompt=True)
    assert text.endswith("<|im_start|>assistant\n")


def render(mcp_tools, messages, **options):
    """The template file as transformers renders it."""
    env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    tools = [json.loads(tool_text(tool)) for tool in mcp_tools]
    return env.from_string(CHAT_TEMPLATE.read_text()).render(messages=messages, tools=tools, **options)


def test_a_call_and_an_answer_are_read_back(template):
    call = Call("book_flight", {"flight_id": "LH 4", "seats": [1, 2], "note": 'a "b" é\n'})
    turn = template.parse(template.assistant(call))
    assert (turn.call, turn.answer_text, turn.error) == (call, None, None)
    turn = template.parse(template.answer({"count": 3}))
    assert (turn.call, turn.answer_text, turn.error) == (None, '{"answer": {"count": 3}}', None)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("<tool_call>{", "not valid JSON"),
        ("<tool_call></tool_call>", "not valid JSON"),
        ("<tool_call>[1]</tool_call>", "not a JSON object"),
        ('<tool_call>{"arguments": {}}</tool_call>', '"name"'),
        ('<tool_call>{"name": 3}</tool_call>', '"name"'),
        ('<tool_call>{"name": "a", "arguments": [1]}</tool_call>', '"arguments"'),
        ('<tool_call>{"name": "a", "arguments": {"x": NaN}}</tool_call>', "NaN"),
        ('<tool_call>{"name": "a", "arguments": {"x": "\\ud800"}}</tool_call>', "half a character"),
        ("<tool_call>" + "[" * 100_000, "deeply"),
        ('<tool_call>{"name": "a", "arguments": {"x": ' + "1" * 5000 + "}}</tool_call>", "malformed"),
    ],
)
def test_a_malformed_call_is_an_error_not_a_crash(tokenizer, template, text, error):
    turn = template.parse(tokenizer.encode(text))
    assert turn.call is None
    assert turn.answer_text is None
    assert error in turn.error


def test_the_first_of_several_calls_is_taken(tokenizer, template):
    calls = [Call("a", {}), Call("b", {})]
    turn = template.parse(tokenizer.encode("Let me see. " + "\n".join(map(call_text, calls)) + " Done."))
    assert turn.call == calls[0]
    assert "only the first" in turn.error


def test_unknown_keys_are_ignored_and_named(tokenizer, template):
    turn = template.parse(tokenizer.encode('<tool_call>{"name": "a", "id": 1, "arguments": {}}</tool_call>'))
    assert turn.call == Call("a", {})
    assert "id" in turn.error


@given(st.lists(st.integers(0, 511), max_size=40))
def test_any_sampled_ids_can_be_read(template, ids):
    turn = template.parse(ids)
    assert (turn.call is None) or (turn.answer_text is None)
    assert turn.call or turn.answer_text is not None or turn.error
