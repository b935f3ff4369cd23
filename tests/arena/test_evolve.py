"""Requests: to training environments of the weak one's class, in proportion, never to a measured one."""

from collections import Counter

import pytest
from arena_samples import manifest

from arena.evolve import apportion, read_requests, requests, write_requests
from synth.errors import CallerError
from synth.types import Diagnosis, Guide, Weakness


def weak(env_id, taxonomy, pass_rate, **kinds):
    guides = tuple(Guide(id=f"{env_id}.{kind}", text=kind) for kind in kinds)
    return Weakness(
        env_id=env_id, taxonomy=taxonomy, pass_rate=pass_rate, error_kinds=kinds, evidence=(), guides=guides
    )


DIAGNOSIS = Diagnosis(
    round="after GRPO",
    weaknesses=(
        weak("held_air", ("Travel",), 0.1, wrong_tool=6, missing_step=3),
        weak("held_song", ("Culture",), 0.7, wrong_answer=3),
        weak("held_bank", ("Money",), 0.0, truncated=9),
    ),
)
TRAIN = [
    manifest("rail", "Travel"),
    manifest("bus", "Travel"),
    manifest("film", "Culture"),
    manifest("ice", "Cold"),
]
TAXONOMY = {m.env_id: m.taxonomy for m in TRAIN}


def test_a_guide_goes_to_training_environments_of_the_same_class():
    found = requests(DIAGNOSIS, TRAIN, TAXONOMY, budget=40, seed=0)
    assert {(r.env_id, r.because_of) for r in found} == {
        ("rail", "held_air"),
        ("bus", "held_air"),
        ("film", "held_song"),
    }
    assert all(r.guide.id.startswith(r.because_of) for r in found)


def test_counts_follow_weakness_and_add_up_to_the_budget():
    found = requests(DIAGNOSIS, TRAIN, TAXONOMY, budget=40, seed=0)
    by_weak, by_kind = Counter(), Counter()
    for r in found:
        by_weak[r.because_of] += r.count
        by_kind[r.guide.text] += r.count
    assert by_weak == {"held_air": 30, "held_song": 10}  # failure rates 0.9 and 0.3
    assert by_kind["wrong_tool"] == 2 * by_kind["missing_step"] == 20
    for budget in (1, 2, 7, 61):
        assert sum(r.count for r in requests(DIAGNOSIS, TRAIN, TAXONOMY, budget, seed=0)) == budget


def test_only_the_weakest_class_is_asked_to_grow():
    found = requests(DIAGNOSIS, TRAIN, TAXONOMY, budget=40, seed=0)
    assert {r.env_id for r in found if r.complexify} == {"rail", "bus"}


def test_the_seed_decides_who_gets_the_remainder():
    single = Diagnosis(round="r", weaknesses=(weak("held_air", ("Travel",), 0.1, wrong_tool=1),))
    lucky = {requests(single, TRAIN, TAXONOMY, 1, seed)[0].env_id for seed in range(20)}
    assert lucky == {"rail", "bus"}
    assert requests(single, TRAIN, TAXONOMY, 5, 3) == requests(single, TRAIN, TAXONOMY, 5, 3)


def test_a_measured_environment_is_never_asked_for():
    with pytest.raises(CallerError, match="held_air is measured"):
        requests(DIAGNOSIS, [*TRAIN, manifest("held_air", "Travel")], TAXONOMY, 10, 0)


def test_nothing_to_help_with_and_no_budget_are_said():
    with pytest.raises(CallerError, match="training environment of its class"):
        requests(DIAGNOSIS, [manifest("ice", "Cold")], TAXONOMY, 10, 0)
    with pytest.raises(CallerError, match="budget is 0"):
        requests(DIAGNOSIS, TRAIN, TAXONOMY, 0, 0)


def test_apportion_gives_whole_shares_in_proportion():
    assert apportion([1, 1, 1], 10) == [4, 3, 3]
    assert apportion([0.5, 0.25, 0.25], 8) == [4, 2, 2]
    assert apportion([0, 0], 3) == [2, 1]


def test_requests_survive_the_file_and_a_bad_line_is_named(tmp_path):
    path = tmp_path / "round" / "requests.jsonl"
    found = requests(DIAGNOSIS, TRAIN, TAXONOMY, 40, 0)
    write_requests(path, found)
    assert read_requests(path) == found
    path.write_text(path.read_text() + '{"env_id": "x"}\n')
    with pytest.raises(CallerError, match=rf"requests.jsonl:{len(found) + 1}: .*because_of"):
        read_requests(path)
    with pytest.raises(CallerError, match=r"none.jsonl: No such file"):
        read_requests(tmp_path / "none.jsonl")
