"""Scripted episodes: real observations, and the same tokens that a rollout would have built."""

from __future__ import annotations

import json

import pytest
from fixtures.rollouts import Puppet

from model.tokens import answer_text
from rl.data import Recorder, observation_text, scripted_episode
from rl.rollout import EpisodeJob, RolloutLimits, run_episodes
from synth.env.episode import ToolResult
from synth.types import ToolStep


def test_rule_2_a_scripted_episode_has_the_tokens_of_the_same_sampled_one(policy, pool, tasks):
    task = tasks[3]
    scripted = scripted_episode(pool.server("library"), policy.template, task, task.chain, 3)
    limits = RolloutLimits(max_len=640)
    with Puppet(policy, slots=8, max_len=640) as driver:
        driver.play([[*task.chain, answer_text(3)]])
        (sampled,) = run_episodes(driver, policy.template, [EpisodeJob(task, 0, 0)], pool, limits)
    assert (scripted.ids, scripted.mask) == (sampled.token_ids, sampled.loss_mask)
    assert [t.text for t in scripted.turns] == [t.text for t in sampled.turns]
    assert scripted.prompt_length == sampled.turns[0].end


def test_observations_are_the_environments_own(policy, pool, tasks):
    calls = [
        ToolStep(tool="lend_book", arguments={"book_id": "B-2", "member_id": "M-1"}),
        ToolStep(tool="lend_book", arguments={"book_id": "B-2", "member_id": "M-2"}),
    ]
    episode = scripted_episode(pool.server("library"), policy.template, tasks[0], calls, "none")
    first, second = (json.loads(turn.text) for turn in episode.turns if turn.role == "tool")
    assert first["loan_id"] == "LN-9001"
    assert second["error"]["code"] == "not_available"


def test_weights_put_full_loss_on_what_the_policy_says(policy, pool, tasks):
    episode = scripted_episode(pool.server("library"), policy.template, tasks[0], tasks[0].chain, 2)
    assert set(episode.weights(0.2)) == {1.0, 0.2}
    said = [i for i, weight in enumerate(episode.weights()) if weight]
    text = policy.tokenizer.decode([episode.ids[i] for i in said])
    assert text.startswith('<tool_call>\n{"name": "get_book"')
    assert text.endswith('{"answer": 2}<|im_end|>')


def test_only_the_named_tools_are_listed(policy, pool, tasks):
    server = pool.server("library")
    tools = [tool for tool in server.bundle.tools if tool.name == "get_book"]
    episode = scripted_episode(server, policy.template, tasks[0], tasks[0].chain, 2, tools=tools)
    prompt = policy.tokenizer.decode(episode.ids[: episode.prompt_length])
    assert "get_book" in prompt
    assert "lend_book" not in prompt


def test_long_results_are_cut_with_a_note():
    text = observation_text(ToolResult({"text": "x" * 1000}), limit=100)
    assert text.startswith('{"text": "xxx')
    assert "more characters cut" in text
    assert len(text) < 140


def test_rule_2_the_recorder_refuses_lists_of_unequal_length():
    recorder = Recorder()
    with pytest.raises(ValueError, match="2 ids but 1 log-probabilities"):
        recorder.add("assistant", "", [1, 2], [-0.5])
    assert recorder.ids == recorder.logprobs == recorder.mask == []
