"""More examples for the cold start: the same calls told with other words, alike everywhere in an episode."""

from __future__ import annotations

import json
import re

import pytest
from arena_samples import save_tiny_policy

from arena.measure import load_policy
from arena.renamed import record_of, renamed_examples
from model.tokens import Call, answer_text, call_text
from rl.data import Recorder, ScriptedEpisode
from synth.types import ToolStep

TOOLS = [
    {
        "name": "read_records",
        "description": "Read records\nfrom a table",
        "inputSchema": {"type": "object", "properties": {"table": {"type": "string"}, "sql": {}}},
    }
]
STATES = {
    "cars": ("maker", "Chevrolet Vega", "Pontiac"),
    "films": ("genre", "Total Recall", "comedy"),
    "colleges": ("region", "Columbia University", "Pacific"),
}


def episode(table, template):
    column, name, value = STATES[table]
    step = ToolStep(
        tool="read_records",
        arguments={"table": table, "sql": f'SELECT "{column}" FROM "{table}" WHERE name = \'{name}\''},
    )
    said = Recorder()
    question = f'What is the {column} of "{name}", number 1970?'
    said.add("prompt", question, template.prompt(TOOLS, question))
    said.add("assistant", "", template.assistant(Call(step.tool, step.arguments)), call=step)
    result = json.dumps([{"name": name, column: value, "rank": 1970}])
    said.add("tool", result, template.observation(result))
    said.add("assistant", "", template.answer(value))
    return ScriptedEpisode(table, table, tuple(said.ids), tuple(said.mask), tuple(said.turns), value)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return load_policy(save_tiny_policy(tmp_path_factory.mktemp("policy"), "read records")).template


@pytest.fixture(scope="module")
def told(template):
    """Text of every copy: 20 of each state."""
    episodes = [episode(table, template) for table in STATES]
    made = renamed_examples(episodes, dict.fromkeys(STATES, TOOLS), template, 20, seed=0)
    return [(sample, template.tokenizer.decode(sample.ids.tolist())) for sample in made]


def test_tools_that_the_states_share_stay_and_so_do_numbers_and_sqls_own_words(told):
    assert len(told) == 60
    for _, text in told:
        assert text.count("read_records") == 2
        assert json.dumps(TOOLS[0]["description"]) in text
        assert re.search(r'SELECT \\"\w+\\" FROM \\"\w+\\" WHERE name = ', text)
        assert text.count("1970") == 2


def test_a_word_is_replaced_alike_in_question_call_result_and_answer(told):
    others = set()
    for _, text in told:
        asked = re.search(r'What is the (\w+) of "(.*?)", number', text)
        answer = json.loads(text[text.rindex('{"answer"') :].split("<|im_end|>")[0])["answer"]
        column, name = asked.groups()
        assert f"name = '{name}'" in text
        assert f'"name": "{name}", "{column}": "{answer}"' in text
        others.add(name)
    assert len(others) > 40  # nearly each copy has words of its own


def test_only_what_the_assistant_says_is_learnt_and_a_copy_shares_its_tools(told, template):
    for sample, _ in told:
        learnt = template.tokenizer.decode(sample.ids[sample.weights >= 1.0].tolist())
        assert "<tool_call>" in learnt
        assert "number" not in learnt
        assert sample.prompt_length > 1
    assert len({sample.group for sample, _ in told}) == 60


def test_the_same_arguments_give_the_same_copies(told, template):
    episodes = [episode(table, template) for table in STATES]
    again = renamed_examples(episodes, dict.fromkeys(STATES, TOOLS), template, 20, seed=0)
    assert [s.ids.tolist() for s, _ in told] == [s.ids.tolist() for s in again]


def test_an_episode_becomes_text_whole(template):
    record = record_of(episode("cars", template), TOOLS)
    assert (record.answer, record.needed, len(record.observations)) == ("Pontiac", ["read_records"], 1)
    assert call_text(Call(record.calls[0]["tool"], record.calls[0]["arguments"])) != ""
    assert answer_text(record.answer) == '{"answer": "Pontiac"}'
