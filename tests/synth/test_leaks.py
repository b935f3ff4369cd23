"""An instruction may not say tool, parameter, column or file names, nor the answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth import leaks as inside
from synth.leaks import find_leaks
from synth.types import Column, Table, Tool

TOOLS = [
    Tool(
        name="search_airports",
        description="",
        input_schema={
            "type": "object",
            "properties": {"country": {"type": "string"}, "min_elevation": {"type": "integer"}},
        },
        output_schema={
            "type": "array",
            "items": {"type": "object", "properties": {"airportId": {"type": "string"}}},
        },
        read_only=True,
        code="",
    ),
    Tool(name="transfer", description="", input_schema={}, output_schema={}, read_only=False, code=""),
]
TABLES = [
    Table(
        name="airports",
        singular="airport",
        plural="airports",
        kind="mined",
        primary_key="iata_code",
        columns=(
            Column(name="iata_code", type="text", role="key", label="code"),
            Column(name="status", type="text", role="status", label="status"),
            Column(name="tz2", type="text", role="text", label="time zone"),
        ),
    )
]


def leaks(instruction, answer=None, given=()):
    return find_leaks(instruction, TOOLS, TABLES, answer, given)


@pytest.mark.parametrize(
    ("instruction", "leak"),
    [
        ("Call search_airports for Iceland.", "tool name search_airports"),
        ("Please search airports in Iceland.", "tool name search_airports"),
        ("Use SEARCH_AIRPORTS!", "tool name search_airports"),
        ("Use `transfer` on two seats.", "tool name transfer"),
        ("Those with MIN_ELEVATION above 10.", "identifier min_elevation"),
        ("What is its airportid?", "identifier airportId"),
        ("Look at the tz2 of Keflavik.", "identifier tz2"),
        ("Where status=open.", "identifier status"),
        ("Set status: open.", "identifier status"),
        ('Change its "status" to open.', "identifier status"),
        ("Read state/notes.json first.", "file name state/notes.json"),
        ("It is in data.sqlite", "file name data.sqlite"),
    ],
)
def test_a_name_from_inside_the_environment_is_a_leak(instruction, leak):
    assert leaks(instruction) == [leak]


def test_a_file_that_the_gold_calls_are_about_may_be_named():
    text = "Rename draft.csv to final.csv, as notes.md says."
    calls = [{"old": "draft.csv"}, {"to": {"path": "out/final.csv"}}]
    assert find_leaks(text, TOOLS, TABLES, None, (), calls) == ["file name notes.md"]


@pytest.mark.parametrize(
    "instruction",
    [
        "Which of the airports of Iceland lies highest, and what is its status?",
        "Transfer two seats from the first flight to the second.",
        "The search for airports is done; what country is next?",
        "Its elevation is min elevations apart, e.g. at noon.",
        "",
    ],
)
def test_plain_words_are_no_leak(instruction):
    assert leaks(instruction) == []


@pytest.mark.parametrize(
    ("instruction", "answer", "leak"),
    [
        ("Is it Keflavik that lies highest?", "keflavik", 'answer "keflavik"'),
        ("Is it  New\nYork?", "New York", 'answer "New York"'),
        ("Is it 1,234 feet?", 1234, "answer 1234"),
        ("Is it 1234.0?", 1234, "answer 1234"),
        ("Is it -45.5 degrees?", -45.5, "answer -45.5"),
        ("Oslo and Bergen and where?", ["Oslo", "Tromso"], 'answer "Oslo"'),
        ("Oslo and where?", {"city": "Oslo", "n": 1}, 'answer "Oslo"'),
    ],
)
def test_the_answer_in_the_instruction_is_a_leak(instruction, answer, leak):
    assert leaks(instruction, answer) == [leak]


@pytest.mark.parametrize(
    ("instruction", "answer"),
    [
        ("Name 3 of the 12.", 12),  # short numbers occur by chance
        ("Is it yes or no?", "yes"),
        ("At least 1234567 of them.", 1234),  # part of a longer number
        ("Flight 1,234,567.", 234),
        ("The Osloers.", "Oslo"),  # part of a longer word
        ("Is that true?", True),
        ("Is that null?", None),
    ],
)
def test_short_answers_and_parts_of_words_are_no_leak(instruction, answer):
    assert leaks(instruction, answer) == []


def test_a_value_that_the_user_gives_on_purpose_may_be_the_answer():
    instruction = "Set the booking of Oslo to cancelled and tell me its status."
    assert leaks(instruction, "cancelled") == ['answer "cancelled"']
    assert leaks(instruction, "cancelled", given=["Cancelled"]) == []


# letters that ``re.IGNORECASE`` takes for i, s and k, among others that it doesn't
LETTERS = st.text(alphabet="iIsSkK\u0130\u0131\u017f\u212a\u00e9\u00df_- .mn1", max_size=30)


@given(text=LETTERS, name=st.text(alphabet="iskISK_mn1", min_size=1, max_size=8))
def test_no_name_is_passed_over_that_the_patterns_would_find(text, name):
    """What is left out without a pattern is what no pattern could have found."""
    found = inside._mentions(text, name)
    inside._may_stand_in, real = lambda *_: True, inside._may_stand_in
    try:
        assert inside._mentions(text, name) == found
    finally:
        inside._may_stand_in = real
