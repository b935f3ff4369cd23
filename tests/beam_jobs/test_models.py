"""Language models behind the pipelines: one client a process, counted, limited, within one budget."""

from __future__ import annotations

from pathlib import Path

import asked
import chat_server
import pytest

from beam_jobs import io, models
from beam_jobs.stage import run_stage
from beam_jobs.store import LocalStore


def test_elements_of_a_process_share_a_client_and_not_an_author(tmp_path: Path) -> None:
    with chat_server.serve() as chat:
        name = chat.author(tmp_path, requests_per_minute=600.0)
    one, two = models.open_author(name), models.open_author(name)
    assert models.client(name) is models.client(name)
    assert one is not two
    assert one.llm._room is two.llm._room is models.client(name)._room  # type: ignore[attr-defined]
    assert one.llm._pace is two.llm._pace  # type: ignore[attr-defined]
    assert models.spent(models.open_author("offline")) == {}


def test_tokens_and_money_are_counted_and_the_same_when_nothing_is_paid_again(tmp_path: Path) -> None:
    with chat_server.serve() as chat:
        elements = asked.elements(3, chat.author(tmp_path / "llm"))
        first = run_stage(asked.STAGE, elements, tmp_path / "a")
        again = run_stage(asked.STAGE, elements, tmp_path / "b")
    assert first.done == again.done == 3
    assert chat.seen.total() == 3, "the second run read what the first had paid"
    assert first.counters == again.counters == {
        "squares": 3,
        "llm_exchanges": 3,
        "llm_tokens_in": 300,
        "llm_tokens_out": 60,
        "llm_microdollars": 3 * (100 * 2 + 20 * 10),
    }  # fmt: skip


def test_requests_keep_their_distance(tmp_path: Path) -> None:
    with chat_server.serve() as chat:
        name = chat.author(tmp_path / "llm", requests_per_minute=120.0)
        run_stage(asked.STAGE, asked.elements(3, name), tmp_path / "run")
    assert chat.times[2] - chat.times[0] >= 0.8  # two times half a second, less the way there


def test_a_budget_ends_the_asking_and_the_letters_say_so(tmp_path: Path) -> None:
    with chat_server.serve() as chat:
        name = chat.author(tmp_path / "llm", max_tokens=100, budget_tokens=480)
        summary = run_stage(asked.STAGE, asked.elements(6, name), tmp_path / "run")
    letters = io.read_dead_letters(LocalStore(tmp_path / "run"), "asked")
    assert 0 < summary.done < 6
    assert summary.counters["llm_tokens_in"] + summary.counters["llm_tokens_out"] <= 480
    assert {(letter.fault, letter.error) for letter in letters} == {("caller", "BudgetExceeded")}
    assert chat.seen.total() == summary.done


@pytest.mark.parametrize(("name", "expected"), [("offline", False), ("llm", True), ("llm:/a.toml", True)])
def test_a_model_is_known_by_its_name(name: str, expected: bool) -> None:
    assert models.is_model(name) is expected
