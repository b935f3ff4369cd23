"""Scoring: what counts, what is left out, and how it is grouped."""

from arena_samples import episode, task

from arena.evaluate import episode_seed, score

TASKS = [task("a", "airports"), task("b", "airports", pattern="other"), task("c", "songs")]
TAXONOMY = {"airports": ("Travel", "Air"), "songs": ("Culture",)}


def scored(*trajectories):
    return score(trajectories, TASKS, samples=2, round="before", taxonomy=TAXONOMY, seed=0)


def test_rates_by_class_environment_and_pattern():
    report = scored(
        episode(task_id="a", passed=True),
        episode(task_id="a", sample=1),
        episode(task_id="b"),
        episode(task_id="b", sample=1),
        episode(task_id="c", env_id="songs", passed=True),
        episode(task_id="c", env_id="songs", sample=1, passed=True),
    )
    assert report.overall.passed == 0.5
    assert {k: v.passed for k, v in report.per_class.items()} == {"Culture": 1.0, "Travel": 0.25}
    assert {k: v.passed for k, v in report.per_environment.items()} == {"airports": 0.25, "songs": 1.0}
    assert {k: v.passed for k, v in report.per_pattern.items()} == {"find-book": 0.75, "other": 0.0}
    assert report.pass_at_k == {"1": 0.5, "2": 2 / 3}
    assert report.failures == ("a#1", "b#0", "b#1")


def test_an_infrastructure_error_is_neither_passed_nor_failed():
    report = scored(episode(task_id="a", passed=True), episode(task_id="a", sample=1, broken="sandbox died"))
    assert report.overall.passed == 1.0
    assert report.overall.episodes == 1
    assert report.infrastructure_errors == 1
    assert report.failures == ()


def test_a_task_with_only_broken_episodes_has_no_weight():
    report = scored(episode(task_id="a", broken="disk full"), episode(task_id="b", passed=True))
    assert (report.overall.passed, report.overall.tasks) == (1.0, 1)


def test_an_episode_cut_off_is_failed_and_named():
    report = scored(episode(task_id="a", finish="length"), episode(task_id="b", finish="turns"))
    assert report.overall.passed == 0.0
    assert report.finish_reasons == {"length": 1, "turns": 1}


def test_an_environment_outside_the_taxonomy_is_unclassified():
    report = score([episode(task_id="a")], TASKS, 1, "before", {})
    assert list(report.per_class) == ["unclassified"]


def test_the_seed_of_an_episode_depends_on_its_task_and_sample_only():
    seeds = {episode_seed(0, t, s) for t in ("a", "b") for s in range(4)}
    assert len(seeds) == 8
    assert episode_seed(0, "a", 1) == episode_seed(0, "a", 1) != episode_seed(1, "a", 1)
    assert all(0 <= seed < 2**31 for seed in seeds)
