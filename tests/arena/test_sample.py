"""Held out means held out: the split, the guard, and a fair choice of tasks."""

from collections import Counter

import pytest
from arena_samples import manifest, task

from arena.sample import assert_held_out, choose_tasks, split_environments
from synth.errors import CallerError


def test_marked_themes_are_held_out_and_the_rest_trains():
    split = split_environments(
        [manifest("a", "X", arena=True), manifest("b", "X"), manifest("c", "X"), manifest("d", "Y")], seed=0
    )
    assert split.arena == ("a",)
    assert split.train == ("b", "c", "d")  # a class of one, unmarked, stays in training


def test_without_marks_one_of_each_class_is_drawn_by_the_seed():
    manifests = [manifest(f"{c}{i}", c) for c in "XYZ" for i in range(4)]
    splits = {split_environments(manifests, seed).arena for seed in range(20)}
    assert len(splits) > 1
    for held_out in splits:
        assert [name[0] for name in held_out] == ["X", "Y", "Z"]
    shuffled = split_environments(manifests[::-1], seed=3)
    assert shuffled == split_environments(manifests, seed=3)


def test_a_split_with_an_empty_side_is_refused():
    with pytest.raises(CallerError, match="measure"):
        split_environments([manifest("a", "X")], seed=0)
    with pytest.raises(CallerError, match="train on"):
        split_environments([manifest("a", "X", arena=True)], seed=0)


def test_the_guard_lets_a_clean_split_pass():
    assert_held_out(["b"], ["a"], [task("m1", "a")], [task("t1", "b")])


@pytest.mark.parametrize(
    ("train_ids", "measured", "learnt", "message"),
    [
        (["a", "b"], [], [], "environment a is in training and in the arena"),
        (["b"], [task("m1", "b")], [], "task m1 is of b, which is not held out"),
        (["b"], [], [task("t1", "a")], "training task t1 is of a, which is held out"),
        (["b"], [task("same", "a")], [task("same", "b")], "task same is in training and in the arena"),
        (
            ["b"],
            [task("m1", "a", instruction="How high is Lombok?")],
            [task("t1", "b", instruction="How high is Lombok?")],
            "task m1 is in training and in the arena",
        ),
    ],
)
def test_the_guard_names_what_is_on_both_sides(train_ids, measured, learnt, message):
    with pytest.raises(CallerError, match=message):
        assert_held_out(train_ids, ["a"], measured, learnt)


def test_tasks_are_spread_over_environments_and_patterns():
    tasks = [task(f"{e}{p}{i}", e, pattern=p) for e in "ab" for p in "pqr" for i in range(10)]
    tasks += [task("c0", "c")]
    chosen = choose_tasks(tasks, 13, seed=1)
    assert Counter(t.env_id for t in chosen) == {"a": 6, "b": 6, "c": 1}
    assert set(Counter((t.env_id, t.pattern) for t in chosen if t.env_id != "c").values()) == {2}
    assert chosen == choose_tasks(tasks[::-1], 13, seed=1)
    assert chosen != choose_tasks(tasks, 13, seed=2)
    assert len(choose_tasks(tasks, 1000, seed=1)) == len(tasks)
