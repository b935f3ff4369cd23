"""The estimate sends nothing, grows with what is asked, and learns from what was spent."""

import json

from scripted_llm import settings_for
from typer.testing import CliRunner

from arena.cli import app
from synth.author.estimate import estimate
from synth.author.store import Budget, Store


def test_it_adds_up_sends_nothing_and_scales(server, tmp_path):
    settings = settings_for(tmp_path, server, usd_per_million=(1.0, 4.0))
    *lines, total = estimate(settings, themes=2, tasks=10)
    assert total.exchanges == sum(line.exchanges for line in lines)
    assert total.usd == sum(line.usd for line in lines)
    twice = estimate(settings, themes=4, tasks=10)[-1]
    assert abs(twice.usd - 2 * total.usd) < 0.01 * total.usd
    assert server.seen.total() == 0


def test_real_exchanges_replace_the_guess(server, tmp_path):
    settings = settings_for(tmp_path, server)
    store = Store(settings.folder)
    store.reserve("k", "mine", "mine", {}, (1, 1, 0.0), Budget())
    store.keep("k", {}, (7, 3, 0.0))
    line = estimate(settings, themes=1, tasks=2)[0]
    assert (line.prompt, line.tokens_in, line.tokens_out, line.usd) == ("mine", 84, 36, None)


def agent_world(*words):
    done = CliRunner().invoke(app, [str(w) for w in words], standalone_mode=False)
    assert done.exception is None, done.exception
    return done.return_value, done.stdout


def test_the_command_shows_the_ledger_and_a_dry_run_and_says_when_the_budget_is_too_small(server, tmp_path):
    path = tmp_path / "llm.toml"
    lines = ['model = "m"', f'api_base = "{server.url}"', "usd_per_million = [1.0, 4.0]", "budget_usd = 0.5"]
    path.write_text("\n".join(lines))
    store = Store(tmp_path / "llm")
    store.reserve("k", "tools", "tool_code", {}, (1, 1, 0.0), Budget())
    store.keep("k", {}, (700, 300, 0.25))
    code, text = agent_world("costs", "--llm", path)
    assert code == 0
    assert "tool_code" in text
    assert "spent: $0.2500, 1,000 tokens; budget: $0.5" in text
    code, text = agent_world("costs", "--llm", path, "--themes", 40, "--tasks", 20, "--json")
    told = json.loads(text.splitlines()[-1])
    assert (code, told["met"], told["spent_usd"]) == (1, False, 0.25)
    assert told["estimate"][-1]["usd"] > 0.25
    code, text = agent_world("costs", "--llm", path, "--themes", 40)
    assert code == 1
    assert "nothing was sent" in text
    assert "exceeds the $0.25 that are left" in text
    assert server.seen.total() == 0
