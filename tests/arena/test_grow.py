"""Acting on requests for richer environments: versions of training environments, never of measured ones."""

import json

import pytest
from arena_samples import manifest

from arena.grow import grow_file, grow_requested
from arena.sample import split_environments
from beam_jobs import mine, synthesize, validate
from synth.admission import check_bundle
from synth.complexify import depth, further
from synth.env.bundle import check_hashes, read_bundle
from synth.errors import CallerError
from synth.grow import database_of, lineage, newest, next_id, root_of
from synth.themes import builtin
from synth.types import Guide, SynthesisRequest, Task

GUIDE = Guide(id="held.missing_step", text="Exercise results of one call that another call needs.")


def ask(env_id, complexify=True, count=6):
    return SynthesisRequest(env_id=env_id, because_of="held", guide=GUIDE, count=count, complexify=complexify)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A run with one environment of the demo, grown once."""
    folder = tmp_path_factory.mktemp("run")
    themes = [theme for theme in builtin("demo") if theme.id == "airport_slots"]
    mine.run(folder, themes, seed=0)
    validate.run(folder, themes, seed=0)
    return folder


@pytest.fixture(scope="module")
def grown(root):
    return grow_requested(root, [ask("airport_slots"), ask("other", complexify=False)], ["held"], seed=0)


@pytest.fixture(scope="module")
def versions(root, grown):
    return read_bundle(root / "bundles/airport_slots"), read_bundle(root / "bundles/airport_slots-v2")


def test_requests_name_the_new_version_and_no_longer_ask(grown):
    assert grown.versions == {"airport_slots": "airport_slots-v2"}
    assert [(r.env_id, r.complexify) for r in grown.requests] == [
        ("airport_slots-v2", False),
        ("other", False),
    ]
    assert grown.summary.counters == {
        "environments_grown": 1, "tables_added": 3, "tools_added": 6, "tools_dropped": 0
    }  # fmt: skip


def test_the_round_closes_what_was_measured_to_be_lacking(versions):
    old, new = map(database_of, versions)
    assert [gap.kind for gap in further(old)] == ["follow-ups", "totals"]
    assert further(new) == []
    assert (depth(old), depth(new)) == (2, 3)
    assert new.rounds == old.rounds + 1
    assert "because nothing that follows from slot requests was recorded" in new.log[-1]


def test_old_tables_rows_and_tools_stay_and_new_ones_pass_every_gate(versions):
    old, new = versions
    assert new.tools[: len(old.tools)] == old.tools
    before, after = database_of(old), database_of(new)
    assert {name: after.rows[name] for name in before.rows} == before.rows
    kinds = [tool.meta["kind"] for tool in new.tools[len(old.tools) :]]
    assert kinds == ["dues", "charge", "settle", "waive", "limits", "profile"]
    report = check_bundle(new.path)
    assert report.faults == ()
    assert set(report.tools.values()) == {1.0}
    links = {(e.source, e.target) for e in new.graph.edges if e.kind == "strong"}
    names = {tool.meta["kind"]: tool.name for tool in new.tools}
    assert {(names["list_ledger"], names["dues"]), (names["dues"], names["settle"])} <= links


def test_the_lineage_is_in_the_manifest_and_the_old_bundle_as_it_was(versions):
    old, new = versions
    assert check_hashes(old.path) == []
    assert new.manifest.parent_digest == old.manifest.digest
    assert lineage(new.manifest) == [{"env_id": "airport_slots", "digest": old.manifest.digest}]
    assert (root_of(new.manifest), next_id(new.manifest)) == ("airport_slots", "airport_slots-v3")
    assert new.manifest.taxonomy == old.manifest.taxonomy
    assert newest([old.manifest, new.manifest]) == [new.manifest]


def test_half_of_the_tasks_over_it_use_what_it_gained(root, versions):
    orders = [synthesize.Order("airport_slots-v2", 12, 3)]
    synthesize.run(root, orders, tag="evolve1")
    lines = (root / "tasks/airport_slots-v2.evolve1.jsonl").read_text().splitlines()
    tasks = [Task.from_json(line) for line in lines]
    gained = set(versions[1].manifest.generator["added_tools"])
    using = [task for task in tasks if any(step.tool in gained for step in task.chain)]
    assert len(tasks) >= 9
    assert len(using) >= len(tasks) / 3
    assert {task.route for task in using} == {"graph", "program"}
    assert any(task.changes_state for task in using)


def test_it_is_done_once_and_a_version_that_lacks_nothing_stays(root, grown):
    again = grow_requested(root, [ask("airport_slots")], ["held"], seed=0)
    assert (again.versions, again.summary.skipped) == (grown.versions, 1)
    more = grow_requested(root, [ask("airport_slots-v2")], ["held"], seed=0)
    assert more.versions == {}
    assert more.summary.counters == {"nothing_lacking": 1}
    assert [(r.env_id, r.complexify) for r in more.requests] == [("airport_slots-v2", False)]


def test_without_such_a_request_nothing_is_made(root):
    asked = [ask("airport_slots", complexify=False)]
    found = grow_requested(root, asked, [], seed=0)
    assert (found.requests, found.versions, found.summary) == (asked, {}, None)


@pytest.mark.parametrize("env_id", ["airport_slots", "airport_slots-v2"])
def test_a_measured_environment_and_its_versions_are_refused(root, grown, env_id):
    with pytest.raises(CallerError, match="only training ones may grow"):
        grow_requested(root, [ask(env_id)], ["airport_slots"], seed=0)


def test_an_environment_that_is_not_there_is_named(root):
    with pytest.raises(CallerError, match="no bundle of environment nowhere"):
        grow_requested(root, [ask("nowhere")], [], seed=0)


def test_a_request_file_is_handed_on(root, grown, tmp_path, monkeypatch):
    monkeypatch.setattr("arena.grow.split_environments", lambda manifests, seed: split("held"))
    path = tmp_path / "requests.jsonl"
    path.write_text(ask("airport_slots").to_json() + "\n")
    grow_file(root, path, seed=0)
    assert [json.loads(line)["env_id"] for line in path.read_text().splitlines()] == ["airport_slots-v2"]


def split(*measured):
    from arena.sample import Split

    return Split((), measured)


# --- sides of the split -----------------------------------------------------------------------------


def version(env_id, level, *earlier):
    first = manifest(env_id, level)
    chain = [{"env_id": name, "digest": "d"} for name in earlier]
    return first.model_copy(update={"generator": {"lineage": chain}} if chain else {})


def test_versions_change_nothing_about_who_is_held_out():
    plain = [manifest(name, "Travel") for name in ("air", "bus", "rail")]
    for seed in range(6):
        before = split_environments(plain, seed)
        for name in ("air", "bus", "rail"):
            after = split_environments([*plain, version(f"{name}-v2", "Travel", name)], seed)
            assert set(before.arena) <= set(after.arena)
            assert (f"{name}-v2" in after.arena) == (name in before.arena)


def test_a_version_whose_first_is_gone_keeps_its_side():
    plain = [manifest(name, "Travel") for name in ("air", "bus", "rail")]
    for seed in range(6):
        (held,) = split_environments(plain, seed).arena
        rest = [m for m in plain if m.env_id != held] + [version(f"{held}-v2", "Travel", held)]
        assert split_environments(rest, seed).arena == (f"{held}-v2",)
