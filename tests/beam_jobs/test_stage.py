"""A stage does what is missing, survives bad elements, and says what it did."""

from __future__ import annotations

import dataclasses
import logging
import threading
from pathlib import Path

import pytest
import squares

from beam_jobs import io
from beam_jobs.stage import Summary, run_stage
from beam_jobs.store import LocalStore
from synth.errors import CallerError, InfrastructureError


def run(folder: Path, numbers: range, **trouble: str) -> Summary:
    return run_stage(squares.STAGE, squares.elements(numbers, **trouble), folder)


def calls(folder: Path) -> list[str]:
    return sorted((folder / "calls.txt").read_text().split())


def test_all_elements_are_done_and_counted(tmp_path: Path) -> None:
    summary = run(tmp_path, range(4))
    assert (summary.total, summary.done, summary.skipped, summary.dead) == (4, 4, 0, 0)
    assert summary.counters == {"squares": 4, "sum": 0 + 1 + 4 + 9}
    assert (tmp_path / "squares/3.txt").read_text() == "9\n"
    assert set(summary.outputs) >= {"squares/3.txt", "folders/3"}
    assert summary.line().startswith("squares: 4 done, squares 4, sum 14 (")


def test_a_second_run_does_nothing_and_reports_the_same_counters(tmp_path: Path) -> None:
    first, second = run(tmp_path, range(3)), run(tmp_path, range(3))
    assert (second.done, second.skipped) == (0, 3)
    assert second.counters == first.counters
    assert calls(tmp_path) == ["0", "1", "2"]


def test_resuming_does_only_what_is_missing(tmp_path: Path) -> None:
    run(tmp_path, range(2))
    summary = run(tmp_path, range(4))
    assert (summary.done, summary.skipped) == (2, 2)
    assert calls(tmp_path) == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    "harm", ["file deleted", "file changed", "folder emptied", "receipt cut", "no receipt"]
)
def test_a_harmed_output_is_made_again(tmp_path: Path, harm: str) -> None:
    run(tmp_path, range(2))
    receipt = tmp_path / "receipts/squares/1.json"
    match harm:
        case "file deleted":
            (tmp_path / "squares/1.txt").unlink()
        case "file changed":
            (tmp_path / "squares/1.txt").write_text("2\n")
        case "folder emptied":
            (tmp_path / "folders/1/0.txt").unlink()
        case "receipt cut":
            receipt.write_bytes(receipt.read_bytes()[:40])
        case "no receipt":
            receipt.unlink()
    assert run(tmp_path, range(2)).done == 1
    assert calls(tmp_path) == ["0", "1", "1"]
    assert (tmp_path / "squares/1.txt").read_text() == "1\n"
    assert (tmp_path / "folders/1/0.txt").read_text() == "1\n"


def test_a_new_version_of_the_stage_does_everything_again(tmp_path: Path) -> None:
    run(tmp_path, range(2))
    newer = dataclasses.replace(squares.STAGE, version=2)
    summary = run_stage(newer, squares.elements(range(2), newer), tmp_path)
    assert (summary.done, summary.skipped) == (2, 0)


def test_a_poison_element_becomes_a_dead_letter_and_the_others_go_on(tmp_path: Path) -> None:
    summary = run(tmp_path, range(5), n1="poison", n3="broken")
    assert (summary.done, summary.dead) == (3, 2)
    poison, broken = io.read_dead_letters(LocalStore(tmp_path), "squares")
    assert (poison.name, poison.input, poison.fault, poison.error) == (
        "1",
        "number 1",
        "program",
        "ValueError",
    )
    assert poison.message == "1 is poison"
    assert poison.where.startswith("squares.py:")
    assert (broken.fault, broken.error) == ("environment", "EnvironmentFault")
    assert poison.attempts == broken.attempts == 1, "only infrastructure errors are tried again"
    assert calls(tmp_path).count("1") == 1


def test_an_infrastructure_error_is_retried_and_may_pass(tmp_path: Path) -> None:
    summary = run(tmp_path, range(2), n1="shaky")
    assert (summary.done, summary.dead) == (2, 0)
    assert calls(tmp_path) == ["0", "1", "1", "1"]


def test_an_infrastructure_error_that_stays_ends_as_a_dead_letter(tmp_path: Path) -> None:
    summary = run(tmp_path, range(2), n1="down")
    assert (summary.done, summary.dead) == (1, 1)
    (letter,) = io.read_dead_letters(LocalStore(tmp_path), "squares")
    assert (letter.fault, letter.attempts) == ("infrastructure", 3)


def test_a_dead_element_is_tried_again_and_its_letter_goes_when_it_passes(tmp_path: Path) -> None:
    run(tmp_path, range(3), n1="poison", n2="poison")
    summary = run(tmp_path, range(2))  # 1 is sound now, 2 isn't asked for
    assert (summary.done, summary.skipped, summary.dead) == (1, 1, 0)
    assert [letter.name for letter in io.read_dead_letters(LocalStore(tmp_path), "squares")] == ["2"]


def test_what_died_of_its_content_is_left_alone_until_it_is_asked_for(tmp_path: Path) -> None:
    first = run(tmp_path, range(3), n1="poison", n2="down")
    assert (first.dead, first.left_dead) == (2, 0)
    again = run(tmp_path, range(3), n1="poison", n2="down")
    assert (again.done, again.skipped, again.dead, again.left_dead) == (0, 1, 2, 1)
    assert calls(tmp_path) == ["0", "1", *["2"] * 6], "the machine may be well again: 2 was tried anew"
    assert "2 dead (1 from before; --retry-dead tries again)" in again.line()
    elements = squares.elements(range(3), n1="poison", n2="down")
    asked = run_stage(squares.STAGE, elements, tmp_path, options=["--retry-dead"])
    assert (asked.dead, asked.left_dead, calls(tmp_path).count("1")) == (2, 0, 2)


def test_a_harmed_output_that_cannot_be_made_again_is_dead_and_not_done(tmp_path: Path) -> None:
    (sound,) = squares.elements(range(1))
    run_stage(squares.STAGE, [sound], tmp_path)
    (tmp_path / "squares/0.txt").unlink()
    broken = dataclasses.replace(sound, payload={"n": 0, "trouble": "down"})
    summary = run_stage(squares.STAGE, [broken], tmp_path)
    assert (summary.done, summary.skipped, summary.dead) == (0, 0, 1)
    assert [letter.name for letter in io.read_dead_letters(LocalStore(tmp_path), "squares")] == ["0"]


def test_a_letter_holds_the_input_with_which_the_element_can_be_done_again(tmp_path: Path) -> None:
    run(tmp_path, range(1), n0="poison")
    (letter,) = io.read_dead_letters(LocalStore(tmp_path), "squares")
    with pytest.raises(ValueError, match="0 is poison"):
        squares.work(LocalStore(tmp_path), letter.payload, [])


def test_letters_that_a_killed_run_left_are_read_and_folded(tmp_path: Path) -> None:
    run(tmp_path, range(3), n1="poison", n2="poison")
    store = LocalStore(tmp_path)
    one, two = io.read_dead_letters(store, "squares")
    (tmp_path / "dead_letters/squares.jsonl").write_text(one.to_json() + "\n")
    io.write_dead_letter(store, two)
    assert [letter.name for letter in io.read_dead_letters(store, "squares")] == ["1", "2"]
    summary = run(tmp_path, range(3), n1="poison", n2="poison")
    assert (summary.dead, summary.left_dead) == (2, 2)
    assert len((tmp_path / "dead_letters/squares.jsonl").read_text().splitlines()) == 2
    assert not list((tmp_path / "dead_letters/squares").iterdir())


def test_an_element_that_is_out_of_time_is_stopped_and_the_others_go_on(tmp_path: Path) -> None:
    elements = squares.elements(range(3), n1="endless")
    summary = run_stage(squares.STAGE, elements, tmp_path, options=["--element-timeout", "2"])
    assert (summary.done, summary.dead) == (2, 1)
    (letter,) = io.read_dead_letters(LocalStore(tmp_path), "squares")
    assert (letter.name, letter.fault, letter.error) == ("1", "infrastructure", "TimeLimitExceeded")
    assert letter.message == "1 was not done within 2 s"
    assert (letter.attempts, calls(tmp_path).count("1")) == (1, 1)
    assert not [thread for thread in threading.enumerate() if thread.name == "squares:1"], "it ended"


def test_what_elements_share_is_opened_once_and_anew_after_an_infrastructure_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "bench.log"
    monkeypatch.setenv("AGENT_WORLD_TEST_BENCH", str(log))
    run(tmp_path / "a", range(6), n1="poison")
    assert log.read_text().split() == ["open", "close"]
    log.unlink()
    run(tmp_path / "b", range(3), n1="shaky")
    assert log.read_text().split() == ["open", "close"] * 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--attempts", "0"], "argument --attempts: 0 is not above 0"),
        (["--element-timeout=soon"], "argument --element-timeout/--element_timeout: "),
    ],
)
def test_a_bad_option_of_ours_is_one_clear_line(tmp_path: Path, words: list[str], said: str) -> None:
    with pytest.raises(CallerError, match=f"options: {said}") as caught:
        run_stage(squares.STAGE, squares.elements(range(1)), tmp_path, options=words)
    assert "\n" not in str(caught.value)


def test_attempts_are_the_users_choice(tmp_path: Path) -> None:
    elements = squares.elements(range(1), n0="down")
    run_stage(squares.STAGE, elements, tmp_path, options=["--attempts=2"])
    assert calls(tmp_path) == ["0", "0"]


def test_progress_runs_from_what_was_done_to_the_end(tmp_path: Path) -> None:
    run(tmp_path, range(2))
    seen: list[tuple[int, int, str]] = []
    every = squares.elements(range(5), n4="poison")
    run_stage(squares.STAGE, every, tmp_path, progress=lambda *now: seen.append(now))
    assert seen[0] == (2, 5, "")
    assert seen[-1][:2] == (5, 5)
    assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)
    assert {name for _, _, name in seen} == {"", "2", "3", "4"}, "the dead are seen too"


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--nonsense=1", "--nonsense=1 is not an option that Beam knows"),
        ("--direct_num_workers=two", "argument --direct_num_workers: invalid int value: 'two'"),
        ("--runner=NoSuchRunner", "--runner=NoSuchRunner"),
        ("--runner=no.such.Runner", "--runner=no.such.Runner"),
    ],
)
def test_a_bad_beam_option_is_one_clear_line(tmp_path: Path, option: str, said: str) -> None:
    with pytest.raises(CallerError, match=said.replace("(", r"\(")) as caught:
        run_stage(squares.STAGE, squares.elements(range(1)), tmp_path, options=[option])
    assert "\n" not in str(caught.value)


def test_names_must_be_safe_and_differ(tmp_path: Path) -> None:
    (one,) = squares.elements(range(1))
    with pytest.raises(CallerError, match="0 is asked for 2 times"):
        run_stage(squares.STAGE, [one, one], tmp_path)
    with pytest.raises(CallerError, match=r"'\.\./0' can't name a file"):
        run_stage(squares.STAGE, [dataclasses.replace(one, name="../0")], tmp_path)


def test_the_run_folder_must_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for bad in (tmp_path / "file", "s3://bucket/run", "gs://bucket"):
        with pytest.raises(CallerError, match="run folder"):
            run_stage(squares.STAGE, [], bad)


def test_a_full_disk_is_the_infrastructures_fault(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.prepare()
    (tmp_path / "taken").write_text("")  # where a folder is needed: refused by the system, even for root
    with pytest.raises(InfrastructureError, match="cannot write taken/it"):
        store.write("taken/it", "text")
    assert not list((tmp_path / "tmp").iterdir())


def test_beam_keeps_quiet_and_leaves_logging_as_it_was(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    before = (list(root.handlers), list(root.filters), logging.getLogger("apache_beam").level)
    run(tmp_path, range(2), n1="poison")
    assert (list(root.handlers), list(root.filters), logging.getLogger("apache_beam").level) == before
    assert capfd.readouterr() == ("", "")
