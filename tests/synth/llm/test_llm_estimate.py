"""The estimate sends nothing, grows with what is asked, and learns from what was spent."""

from scripted_llm import settings_for

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
