"""What is worth an environment, and what is the same thing twice."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.sources import dedup, state
from synth.sources.found import Found, ToolDoc, make


def server(name: str, description: str, *tools: str, key: str = "", **other) -> Found:
    docs = tuple(ToolDoc(name=tool) for tool in tools)
    return make(key or f"x/{name}", "mcp", "x", name, description, tools=docs, license="MIT", **other)


KEPT = [
    server(
        "Todo",
        "Keeps a list of tasks for a person with due dates.",
        "add_task",
        "complete_task",
        "list_tasks",
    ),
    server("Hotel desk", "Manage reservations and guests of a hotel."),
    server("Shop", "Search products of an online shop and place orders.", "search_products", "create_order"),
    server(
        "Weather diary",
        "Record the weather of each day in a journal.",
        "add_entry",
        "delete_entry",
        "get_entry",
    ),
    server(
        "Wiki",
        "Create and update documentation pages of a team.",
        "create_page",
        "update_page",
        "search_docs",
    ),
]
REFUSED = [
    (server("React docs", "Search the official React documentation.", "search_docs"), "documentation"),
    (server("Fetch", "Search the web and scrape pages with a headless browser.", "scrape"), "API proxy"),
    (server("Ask", "Ask the OpenAI API for a second opinion on your code.", "ask"), "API proxy"),
    (server("Weather", "Current weather and forecasts for a city.", "get_weather"), "API proxy"),
    (server("Units", "A calculator that converts between units of length.", "convert_length"), "computation"),
    (server("Hub", "An MCP gateway that combines multiple MCP servers into one.", "call"), "about MCP"),
    (server("Hello", "A hello world example for people who learn the protocol.", "hello"), "about MCP"),
    (server("Thing", "Does many wonderful and exciting deeds for everyone today."), "no state"),
    (server("Short", "Nice thing."), "no text"),
    (server("地图", "提供地图服务和地点搜索功能给所有的用户使用 a b c d"), "not English"),
    (server("Gone", "Manage reservations and guests of a hotel.", refused="withdrawn"), "withdrawn"),
]  # fmt: skip


@pytest.mark.parametrize("found", KEPT, ids=lambda f: f.name)
def test_what_has_records_stays_with_the_signs_that_were_seen(found):
    reason, signs = state.judge(found)
    assert reason == ""
    assert signs


@pytest.mark.parametrize(("found", "reason"), REFUSED, ids=lambda x: x.name if isinstance(x, Found) else "")
def test_what_has_no_state_is_refused_with_the_reason(found, reason):
    assert state.judge(found)[0] == reason
    assert reason in state.REASONS


def test_a_theme_that_only_its_tools_describe_needs_two():
    one = make("seal-tools/a", "tool_doc", "seal-tools", "A", "Book a room for a guest in a hotel.",
               tools=(ToolDoc(name="bookRoom"),))  # fmt: skip
    assert state.judge(one)[0] == "single function"
    two = one.model_copy(update={"tools": (*one.tools, ToolDoc(name="cancelBooking"))})
    assert state.judge(two)[0] == ""


def test_writing_tools_outweigh_proxy_words():
    words = "Search the web for offers and keep them."
    assert state.judge(server("Offers", words, "search_web"))[0] == "API proxy"
    assert state.judge(server("Offers", words, "search_web", "save_offer", "delete_offer"))[0] == ""


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=80), st.text(max_size=200), st.lists(st.text(min_size=1, max_size=20), max_size=4))
def test_any_text_gets_a_known_verdict(name, description, tools):
    found = make("k", "mcp", "x", name, description, tools=tuple(ToolDoc(name=t) for t in tools))
    assert state.judge(found)[0] in ("", *state.REASONS)


# --- duplicates


LONG = "Keeps the bookings of a hotel with rooms, guests and prices in one place."


def test_the_same_description_is_one_theme_and_the_best_documented_stays():
    poor, rich = server("Hotel", LONG, key="a/1"), server("Inn", LONG.upper(), "book_room", key="b/2")
    kept, pairs = dedup.exact([poor, rich])
    assert [f.key for f in kept] == ["b/2"]
    assert [p.to_json() for p in pairs] == [
        {"kept": "b/2", "dropped": "a/1", "why": "same text", "similarity": 1.0}
    ]


def test_the_same_repository_is_one_theme_unless_it_holds_several():
    def at(key, name, url):
        return server(name, f"{name} desk of the house", key=key, url=url)

    three = [
        at("a", "Hotel", "https://github.com/acme/desk"),
        at("b", "Hotel", "git+https://github.com/acme/desk.git"),
        at("c", "Bar", "https://github.com/acme/desk"),
    ]
    kept, pairs = dedup.exact(three)
    assert [f.key for f in kept] == ["a", "c"]
    assert [p.why for p in pairs] == ["same repository"]


def test_short_descriptions_agree_by_chance():
    assert (
        len(dedup.exact([server("A", "A hotel desk.", key="1"), server("B", "A hotel desk.", key="2")])[0])
        == 2
    )


CLOSE = [
    server("Hotel", LONG, key="1"),
    server("Hotels", LONG.replace("one", "a single"), key="2"),
    server("Trello", "Moves cards between boards and lists of a kanban.", key="3"),
    server("Trello API", "Cards, boards, labels and checklists for planning teams.", key="4"),
    server("Chess", "Plays games of chess and keeps the score.", key="5"),
]


def test_near_duplicates_are_dropped_and_reported_with_their_likeness():
    kept, pairs = dedup.near(CLOSE)
    assert {f.key for f in kept} >= {"2", "5"}  # the longer description stays
    assert {(p.kept, p.dropped, p.why) for p in pairs} >= {("2", "1", "near text")}
    assert all(0 < p.similarity <= 1 for p in pairs)
    assert len(kept) + len(pairs) == len(CLOSE)


def test_one_name_needs_less_likeness():
    assert ("same name",) in {(p.why,) for p in dedup.near(CLOSE)[1]}


def test_nothing_is_dropped_against_what_was_dropped():
    kept, pairs = dedup.near(CLOSE)
    assert {p.kept for p in pairs} <= {f.key for f in kept}


def test_the_order_of_the_input_does_not_matter():
    assert dedup.near(CLOSE)[0] == dedup.near(CLOSE[::-1])[0]


def test_few_candidates_have_no_duplicates():
    assert dedup.near([]) == ([], [])
    assert dedup.near(CLOSE[:1]) == (CLOSE[:1], [])
