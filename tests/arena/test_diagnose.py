"""Diagnosis: the ranking of weak environments, counted kinds, evidence, and guides that hold no secret."""

from arena_samples import BOOK, FIND, call, episode, gold, manifest, said, task

from arena.diagnose import EVIDENCE, diagnose
from arena.evaluate import score
from synth.types import Difficulty

ANSWER = said('{"answer": "LOP"}')
KINDS = {"airports": {"find_airport": "search", "book_slot": "create"}}


def diagnosed(tasks, trajectories, manifests=(), kinds=None):
    report = score(trajectories, tasks, 1, "after GRPO", {})
    return diagnose(report, trajectories, tasks, manifests, kinds)


def test_many_failures_outrank_few_and_an_environment_without_failures_is_not_weak():
    tasks = [task(f"{e}{i}", e) for e, n in (("few", 2), ("many", 20), ("fine", 5)) for i in range(n)]
    trajectories = [
        episode(task_id=t.id, env_id=t.env_id, passed=t.env_id == "fine" or t.id == "many0") for t in tasks
    ]
    found = diagnosed(tasks, trajectories, [manifest("many", "Travel", "Air")])
    assert [w.env_id for w in found.weaknesses] == ["many", "few"]
    assert found.weaknesses[0].taxonomy == ("Travel", "Air")
    assert found.weaknesses[0].pass_rate == 0.05
    assert found.round == "after GRPO"


def test_kinds_are_counted_once_an_episode_and_broken_episodes_are_left_out():
    tasks = [task("a"), task("b"), task("c")]
    found = diagnosed(
        tasks,
        [
            episode(gold(FIND), ANSWER, task_id="a"),
            episode(gold(FIND), ANSWER, task_id="a", sample=1),
            episode(call("list_airports"), ANSWER, task_id="b"),
            episode(task_id="c", broken="sandbox died"),
        ],
    ).weaknesses[0]
    assert found.error_kinds == {"missing_step": 2, "wrong_tool": 1}
    assert found.evidence == (
        'a#0: missing_step: answered "LOP" where book_slot(airport="LOP", hours=2) was due',
        'b#0: wrong_tool: called list_airports() where find_airport(city="Praya") was due',
    )


def test_evidence_comes_from_several_tasks_and_is_bounded():
    tasks = [task(f"t{i}") for i in range(6)]
    trajectories = [episode(gold(FIND), ANSWER, task_id=t.id, sample=s) for t in tasks for s in range(3)]
    evidence = diagnosed(tasks, trajectories).weaknesses[0].evidence
    assert [line.split(":")[0] for line in evidence] == [f"t{i}#0" for i in range(EVIDENCE)]


def test_a_guide_asks_for_what_the_failed_tasks_have_in_common():
    long = Difficulty(steps=4, tools=3, writes=1, branch=True)
    tasks = [
        task("a"),
        task("b", pattern="find-if-book", difficulty=long),
        task("c", chain=(FIND,), pattern="find"),
    ]
    trajectories = [
        episode(gold(FIND), ANSWER, task_id="a"),
        episode(gold(FIND), ANSWER, task_id="b"),
        episode(gold(FIND), ANSWER, task_id="c", passed=True),
    ]
    guide = diagnosed(tasks, trajectories, kinds=KINDS).weaknesses[0].guides[0]
    assert guide.id == "airports.missing_step"
    assert guide.tool_kinds == ("create",)  # the kind of book_slot, which was due
    assert (guide.min_steps, guide.max_steps) == (2, 4)
    assert guide.changes_state is True
    assert guide.branch is None  # one of two: no clear majority
    assert guide.patterns == ("find-book", "find-if-book")
    assert "create" in guide.text
    assert "2 to 4 calls" in guide.text


def test_the_constraints_of_a_guide_can_be_met_together():
    reads = [task(f"r{i}", chain=(FIND,), pattern="find") for i in range(4)]
    write = task("w", pattern="find-book")
    trajectories = [
        episode(said("x", error="not JSON"), task_id=t.id, finish="turns") for t in [*reads, write]
    ]
    guide = diagnosed([*reads, write], trajectories).weaknesses[0].guides[0]
    assert guide.changes_state is False
    assert guide.patterns == ("find",)  # the writing pattern would contradict changes_state
    assert guide.max_steps == 1


def test_a_guide_holds_no_value_of_a_measured_task():
    tasks = [task("a", chain=(FIND, BOOK))]
    trajectories = [episode(call("find_airport", city="Lombok"), ANSWER, task_id="a")]
    guides = diagnosed(tasks, trajectories, kinds=KINDS).weaknesses[0].guides
    for secret in ("Praya", "Lombok", "LOP", "a#0"):
        assert secret not in "".join(g.to_json() for g in guides)
