"""The report: well-formed, self-contained, and it shows what the run folder holds."""

import io
import re
import xml.etree.ElementTree as ElementTree

import pytest
from arena_run import ROUNDS, make_run
from arena_samples import episode, said, task
from rich.console import Console

from arena.charts import dot_chart, esc, gain_text, line_chart, nice_ticks
from arena.evaluate import score
from arena.report import Story, gather, render, rises, summary_table, write_report
from synth.types import Rate


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def html(run):
    return write_report(run, {"seed": "0"}).read_text(encoding="utf-8")


def parsed(text):
    return ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n").replace("&middot;", "·"))


def test_the_report_is_well_formed_and_needs_nothing_from_elsewhere(html):
    tree = parsed(html)
    assert tree.tag == "html"
    tags = {element.tag for element in tree.iter()}
    assert not tags & {"script", "link", "img", "iframe"}
    assert "http://" not in html
    assert "https://" not in html
    assert "prefers-color-scheme: dark" in html


def test_every_section_is_there(html):
    headings = [element.text or "" for element in parsed(html).iter("h2")]
    assert headings == [
        "Pass rate by class",
        "Training",
        "Synthesis",
        "Diagnosis: after GRPO",
        "Episodes",
        "Where the data comes from",
    ]


def test_the_charts_show_every_class_and_every_round(html, run):
    dots = next(s for s in parsed(html).iter("svg") if "95%" in s.get("aria-label", ""))
    titles = [t.text for t in dots.iter("title")]
    assert len(titles) == 6 * len(ROUNDS)  # five classes and all
    overall = run.rounds()[-1].report().overall
    assert f"all, after evolution: {100 * overall.passed:.0f}%" in titles[-1]
    assert f"{overall.tasks} tasks, {overall.episodes} episodes" in titles[-1]


def test_text_from_data_is_escaped():
    trajectory = episode(said('<script>alert("x")</script>\x00'), task_id="a")
    t = task("a", instruction="Is 1 < 2 & 3 > 2?")
    report = score([trajectory], [t], 1, "<round>", {"airports": ("A & B",)})
    html = render(Story("title <b>", rounds=[report], examples=[("<round>", t, trajectory)]))
    parsed(html)
    assert "<script>" not in html
    assert "Is 1 &lt; 2 &amp; 3 &gt; 2?" in html
    assert esc("\x00\x1f") == "\ufffd\ufffd"


def test_a_run_without_rounds_says_so():
    assert "No arena round has finished yet" in render(Story("empty"))


def test_the_headline_claims_a_rise_only_when_its_interval_clears_zero(run):
    first, *_, last = gather(run).rounds
    cleared = render(Story("t", rounds=[first, last], gains=[(last.round, (0.05, 0.01, 0.09))]))
    assert "+5.0 points [+1.0, +9.0], paired by task, which clears the start" in cleared
    level = render(Story("t", rounds=[first, last], gains=[(last.round, (0.02, -0.01, 0.05))]))
    assert "which does not clear the start" in level


def test_a_rise_is_taken_over_the_same_tasks_of_first_and_later_rounds(run):
    gains = rises(run.rounds())
    assert [name for name, _ in gains] == [r.round for r in gather(run).rounds[1:]]
    rewards = [{e.task_id: e.verdict.reward for e in r.episodes() if e.verdict} for r in run.rounds()]
    shared = sorted(set(rewards[0]) & set(rewards[-1]))
    assert shared
    mean, low, high = gains[-1][1]
    assert low <= mean <= high
    assert gain_text((mean, low, high)).startswith(f"{100 * mean:+.1f} points")


def test_examples_are_passed_and_failed_episodes_of_first_and_last_round(run):
    shown = gather(run).examples
    assert {name for name, _, _ in shown} == {"before training", "after evolution"}
    assert {t.verdict.passed for _, _, t in shown} == {True, False}


def test_points_lie_where_the_numbers_say():
    svg = line_chart("t", {"a": [(0, 0.0), (10, 1.0)]}, share=True)
    (x0, y0), (x1, y1) = (map(float, p.split(",")) for p in re.search('points="(.*?)"', svg)[1].split())
    assert x0 < x1
    assert y0 > y1
    rate = Rate(passed=0.5, low=0.25, high=0.75, tasks=4, episodes=4)
    bar = re.search('class="bar s0" x1="(.*?)" x2="(.*?)"', dot_chart({"c": [rate]}, ["r"]))
    mid = float(re.search('cx="(.*?)"', dot_chart({"c": [rate]}, ["r"]))[1])
    assert (float(bar[1]) + float(bar[2])) / 2 == pytest.approx(mid)


def test_the_steps_of_a_later_stage_follow_those_of_the_earlier(html):
    chart = next(s for s in parsed(html).iter("svg") if s.get("aria-label", "").startswith("Reward"))
    first, second = (line.get("points", "").split() for line in chart.iter("polyline"))
    assert len(first) == len(second) == 40
    assert float(first[-1].split(",")[0]) < float(second[0].split(",")[0])
    assert "step 79" in [t.text for t in chart.iter("text")]


def test_a_chart_without_numbers_is_left_out():
    assert line_chart("kl", {"a": [(0, float("nan"))]}) == ""


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.013, 0.019), (-3, 120), (5, 5), (0, 0)])
def test_ticks_are_round_and_enclose(low, high):
    ticks = nice_ticks(low, high)
    assert ticks[0] <= low
    assert ticks[-1] >= high
    assert 2 <= len(ticks) <= 7


def test_the_table_for_the_terminal_has_a_row_a_class_and_one_for_all(run):
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(summary_table(gather(run).rounds))
    text = console.export_text()
    for word in ("Culture", "Geography", "before training", "after evolution"):
        assert word in text
    overall = run.rounds()[0].report().overall
    assert f"{100 * overall.passed:.0f}% [{100 * overall.low:.0f}, {100 * overall.high:.0f}]" in text
