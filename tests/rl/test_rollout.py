"""Rollouts: real sandboxes, the real engine's cache, and turns that a script gives."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from fixtures.make import extra_tool, library, with_tools
from fixtures.rollouts import Puppet, make_task

from model.engine import Engine
from model.tokens import answer_text
from rl.data import Recorder, token_versions, version_runs
from rl.pool import EnvPool
from rl.rollout import EpisodeJob, RolloutLimits, run_episodes
from synth.env.bundle import read_bundle, write_bundle
from synth.env.sandbox import Limits
from synth.errors import CallerError, InfrastructureError
from synth.types import Criterion, Program, Rubric, ToolStep, Trajectory

LIMITS = RolloutLimits(max_turns=4, max_new_per_turn=48, max_len=640)


def call(tool, **arguments) -> ToolStep:
    return ToolStep(tool=tool, arguments=arguments)


@pytest.fixture(scope="module")
def engine(policy):
    with Puppet(policy, slots=8, max_len=640) as driver:
        yield driver


def play(engine, pool, scripts, tasks, limits=LIMITS):
    """One episode a script, in order."""
    engine.play(scripts)
    jobs = [EpisodeJob(task, sample, seed=7 + sample) for sample, task in enumerate(tasks)]
    return run_episodes(engine, engine.template, jobs, pool, limits)


def test_a_right_episode_passes_and_a_wrong_answer_fails(engine, pool, tasks):
    script = [call("get_book", book_id="B-1")]
    right, wrong = play(engine, pool, [[*script, answer_text(2)], [*script, answer_text(9)]], [tasks[0]] * 2)
    assert (right.finish_reason, right.answer, right.verdict.passed) == ("answer", 2, True)
    assert (wrong.finish_reason, wrong.answer, wrong.verdict.passed) == ("answer", 9, False)
    assert [turn.role for turn in right.turns] == ["prompt", "assistant", "tool", "assistant"]
    assert json.loads(right.turns[2].text)["copies"] == 2
    assert right.turns[1].call == script[0]


def test_rule_1_the_next_prompt_is_the_last_plus_sampled_plus_message(engine, pool, tasks):
    script = [call("get_book", book_id="B-1"), answer_text(2)]
    (trajectory,) = play(engine, pool, [script], tasks[:1])
    template, ids = engine.template, list(trajectory.token_ids)
    prompt, first, tool, last = trajectory.turns
    assert ids[first.start : first.end] == template.assistant(script[0])
    assert ids[tool.start : tool.end] == template.observation(tool.text)
    assert ids[last.start : last.end] == template.assistant(script[1])
    assert [turn.start for turn in trajectory.turns] == [0, prompt.end, first.end, tool.end]
    assert last.end == len(ids)


def test_rule_2_ids_mask_and_logprobs_belong_together(engine, pool, tasks):
    script = [call("get_book", book_id="B-1"), answer_text(2)]
    (t,) = play(engine, pool, [script], tasks[:1])
    assert len(t.token_ids) == len(t.logprobs) == len(t.loss_mask)
    sampled = {i for turn in t.turns if turn.role == "assistant" for i in range(turn.start, turn.end)}
    assert {i for i, on in enumerate(t.loss_mask) if on} == sampled
    assert all((t.logprobs[i] != 0.0) == (i in sampled) for i in range(len(t.token_ids)))
    assert t.logprobs[t.turns[1].start] == -0.01


def test_rule_6_a_cut_turn_is_no_answer_and_has_its_own_finish_reason(engine, pool, tasks):
    scripts = [[answer_text("x" * 200)], [call("get_book", book_id="B-1")] * 4, [answer_text(2)]]
    cut, endless, done = play(engine, pool, scripts, [tasks[0]] * 3)
    assert (cut.finish_reason, cut.verdict.passed) == ("length", False)
    assert sum(cut.loss_mask) == LIMITS.max_new_per_turn
    assert (endless.finish_reason, endless.verdict.passed) == ("turns", False)
    assert endless.turns[-1].text  # the last message stays readable but was never seen
    assert endless.turns[-1].start == endless.turns[-1].end == len(endless.token_ids)
    assert done.finish_reason == "answer"


def test_a_long_turn_can_be_a_failure_that_is_trained_on(engine, pool, tasks):
    """With long_turn="failed" an over-long message breaks the protocol; the episode's end still masks."""
    strict = LIMITS.model_copy(update={"long_turn": "failed"})
    (cut,) = play(engine, pool, [[answer_text("x" * 200)]], tasks[:1], strict)
    assert (cut.finish_reason, cut.verdict.passed) == ("turns", False)
    assert sum(cut.loss_mask) == LIMITS.max_new_per_turn
    prompt = cut.turns[0].end
    small = strict.model_copy(update={"max_len": prompt + 10})
    (full,) = play(engine, pool, [[answer_text("x" * 200)]], tasks[:1], small)
    assert full.finish_reason == "length"


def test_an_episode_without_room_for_a_message_is_cut_by_length(engine, pool, tasks):
    (whole,) = play(engine, pool, [[answer_text(2)]], tasks[:1])
    prompt = whole.turns[0].end
    small = LIMITS.model_copy(update={"max_len": prompt + 40})
    (cut,) = play(engine, pool, [[call("get_book", book_id="B-1")]], tasks[:1], small)
    assert cut.finish_reason == "length"
    assert len(cut.token_ids) < prompt + 40


def test_rule_8_members_of_a_group_start_alike_and_never_meet(engine, pool, bundle):
    """Each of 6 members lends the last copy: all succeed, with the same minted id and time."""
    task = make_task(
        bundle, 2, verifier=Rubric(criteria=(Criterion(field="answer", check="equals", expected="ok"),))
    )
    lend = call("lend_book", book_id="B-2", member_id="M-1")
    group = play(engine, pool, [[lend, answer_text("ok")]] * 6, [task] * 6)
    seen = {"loan_id": "LN-9001", "book_id": "B-2", "member_id": "M-1"}
    assert [json.loads(t.turns[2].text) for t in group] == [seen] * 6
    assert all(t.verdict.passed for t in group)


def test_rule_9_every_sampled_turn_carries_the_version_of_its_weights(engine, pool, tasks):
    script = [call("get_book", book_id="B-1"), answer_text(2)]
    engine.update_weights(engine.engine.params, version=41)
    (t,) = play(engine, pool, [script], tasks[:1])
    assert [turn.policy_version for turn in t.turns] == [None, 41, None, 41]


def test_rule_9_weights_that_change_in_mid_turn_are_written_down_token_by_token():
    assert version_runs([3, 3, 3]) == ()
    assert version_runs([3, 3, 4, 5, 5]) == ((3, 2), (4, 1), (5, 2))
    recorder = Recorder()
    recorder.add("prompt", "", [1, 2])
    for versions in ([3, 3, 4], [4, 4]):
        runs = version_runs(versions)
        recorder.add("assistant", "", versions, policy_version=min(versions), version_runs=runs)
        recorder.add("tool", "", [9])
    trajectory = Trajectory(
        task_id="t", env_id="e", sample=0, seed=0, turns=tuple(recorder.turns), token_ids=tuple(recorder.ids),
        logprobs=tuple(recorder.logprobs), loss_mask=tuple(recorder.mask), finish_reason="turns",
    )  # fmt: skip
    again = Trajectory.from_json(trajectory.to_json())
    assert token_versions(again) == [None, None, 3, 3, 4, None, 4, 4, None]


def test_rule_10_what_is_no_tool_cannot_be_called(engine, pool, tasks):
    names = ("reset", "verify", "run_solution", "snapshot", "__import__", "get_book.__globals__")
    scripts = [[call(name), answer_text(2)] for name in names]
    for t in play(engine, pool, scripts, [tasks[0]] * len(names)):
        assert '"unknown_tool"' in t.turns[2].text
        assert t.turns[2].fault == "caller"


def test_malformed_calls_and_bad_arguments_are_told_to_the_policy(engine, pool, tasks):
    scripts = [
        ['<tool_call>\n{"name": "get_book"\n</tool_call>', answer_text(2)],
        [call("get_book"), answer_text(2)],
        [call("get_book", book_id="B-77"), answer_text(2)],
    ]
    malformed, missing, unknown = play(engine, pool, scripts, [tasks[0]] * 3)
    assert "malformed_call" in malformed.turns[2].text
    assert malformed.turns[1].fault == "caller"
    assert "invalid_arguments" in missing.turns[2].text
    assert "not_found" in unknown.turns[2].text
    assert all(t.verdict.passed for t in (malformed, missing, unknown))  # the answer was right all the same


def test_an_episode_can_end_after_so_many_failed_calls(engine, pool, tasks):
    """Looping on a failing call costs turns and teaches nothing; it is a failure that is trained on."""
    script = [call("get_book", book_id="B-77"), call("get_book", book_id="B-77"), answer_text(2)]
    patient = LIMITS.model_copy(update={"max_errors": 3})
    strict = LIMITS.model_copy(update={"max_errors": 2})
    (passed,) = play(engine, pool, [script], tasks[:1], patient)
    (ended,) = play(engine, pool, [script], tasks[:1], strict)
    assert (passed.finish_reason, passed.verdict.passed) == ("answer", True)
    assert (ended.finish_reason, ended.verdict.passed) == ("turns", False)


def test_an_answer_of_another_form_fails_with_the_reason(engine, pool, tasks):
    loose, twice = play(engine, pool, [["It is 2."], ['{"answer": 2} {"answer": 3}']], [tasks[0]] * 2)
    assert not loose.verdict.passed
    assert "answer" in loose.verdict.checks[0].detail
    assert not twice.verdict.passed


def test_a_program_verifier_sees_both_states(engine, pool, bundle):
    code = """
def verify(initial, final, answer):
    return [("lent", len(final.rows("loan")) == len(initial.rows("loan")) + 1, "one loan more")]
"""
    task = make_task(bundle, 2, verifier=Program(code=code), changes_state=True)
    lend = call("lend_book", book_id="B-2", member_id="M-1")
    did, didnt = play(engine, pool, [[lend, answer_text("ok")], [answer_text("ok")]], [task] * 2)
    assert did.verdict.passed
    assert not didnt.verdict.passed


def test_a_broken_sandbox_is_no_wrong_answer(engine, bundle, tasks, monkeypatch):
    with EnvPool({"library": bundle.path}) as pool:

        def broken(self, name, arguments):
            raise InfrastructureError("the disk is full")

        monkeypatch.setattr("synth.env.episode.Episode.call", broken)
        script = [call("get_book", book_id="B-1"), answer_text(2)]
        hit, spared = play(engine, pool, [script, [answer_text(2)]], [tasks[0]] * 2)
    assert (hit.finish_reason, hit.verdict) == ("error", None)
    assert "disk is full" in hit.error
    assert spared.verdict.passed


def test_a_dead_server_is_replaced(engine, bundle, tasks):
    with EnvPool({"library": bundle.path}) as pool:
        play(engine, pool, [[answer_text(2)]], tasks[:1])
        pool.server("library").close()
        script = [call("get_book", book_id="B-1"), answer_text(2)]
        (t,) = play(engine, pool, [script], tasks[:1])
    assert t.verdict.passed


def signal_tree(pid: int, number: int) -> None:
    """A signal to a process and all below it, the lowest first."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        signal_tree(int(child), number)
    os.kill(pid, number)


def process_of(pool) -> int:
    """The process at the head of the library's sandbox."""
    return pool.server("library")._zygote._process.pid


def test_a_sandbox_that_is_killed_in_mid_episode_ends_its_episodes_and_is_replaced(engine, bundle, tasks):
    """kill -9 of the whole sandbox while an episode runs in it; the next episodes get a new one."""
    with EnvPool({"library": bundle.path}) as pool:
        episode = pool.open(tasks[0])
        first = process_of(pool)
        signal_tree(first, signal.SIGKILL)
        with pytest.raises(InfrastructureError):
            episode.call("get_book", {"book_id": "B-1"})
        script = [call("get_book", book_id="B-1"), answer_text(2)]
        (t,) = play(engine, pool, [script], tasks[:1])
        assert process_of(pool) != first
    assert t.verdict.passed


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_sandbox_that_hangs_is_replaced(engine, bundle, tasks):
    """Its process is stopped: alive, but it opens nothing. Takes the 30 s that an opening may take."""
    with EnvPool({"library": bundle.path}) as pool:
        first = process_of(pool)
        signal_tree(first, signal.SIGSTOP)
        script = [call("get_book", book_id="B-1"), answer_text(2)]
        hit, other = play(engine, pool, [script, script], tasks[:1] * 2)
        assert process_of(pool) != first
    assert hit.verdict.passed
    assert other.verdict.passed


def test_a_tool_that_hangs_costs_its_own_episode_only(engine, tmp_path):
    """A real endless loop in a tool: ended at its time limit, the other episode goes on."""
    write_bundle(
        with_tools(library(), extra_tool("spin", "def spin(ctx):\n    while True: pass")), tmp_path / "l"
    )
    task = make_task(read_bundle(tmp_path / "l"), 1)
    with EnvPool({task.env_id: tmp_path / "l"}, limits=Limits(wall_s=5.0)) as pool:
        fine = [call("get_book", book_id="B-1"), answer_text(2)]
        hit, spared = play(engine, pool, [[call("spin")], fine], [task] * 2)
    assert (hit.finish_reason, hit.verdict) == ("error", None)
    assert "timeout" in hit.error
    assert spared.verdict.passed


def test_more_jobs_than_slots_end_in_the_order_of_jobs_with_the_same_tokens(policy, pool, tasks):
    """The real sampler: a job's trajectory doesn't depend on slot, neighbours or number of slots."""
    jobs = [
        EpisodeJob(task, sample, seed=hash((sample, 5)) & 0xFFFF) for task in tasks[:3] for sample in range(3)
    ]
    limits = LIMITS.model_copy(update={"max_new_per_turn": 12})

    def run(slots, which):
        engine = Engine(
            policy.config, policy.params, slots=slots, max_len=640, eos_id=policy.tokenizer.eos_id, shard=4
        )
        return run_episodes(engine, policy.template, which, pool, limits)

    few, many = run(4, jobs), run(8, jobs)
    assert [(t.task_id, t.sample) for t in few] == [(job.task.id, job.sample) for job in jobs]
    assert few == many
    assert run(4, jobs[4:5]) == few[4:5]


def test_what_cannot_run_is_refused_before_it_runs(engine, pool, bundle, tasks):
    with pytest.raises(CallerError, match="prompt has"):
        play(engine, pool, [[]], tasks[:1], LIMITS.model_copy(update={"max_len": 20}))
    with pytest.raises(CallerError, match="no bundle of that name"):
        play(engine, pool, [[]], [tasks[0].model_copy(update={"env_id": "elsewhere"})])
    with pytest.raises(CallerError, match="make the tasks again"):
        play(engine, pool, [[]], [tasks[0].model_copy(update={"env_digest": "0" * 64})])
