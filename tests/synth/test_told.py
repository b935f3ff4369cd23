"""Whoever reads an instruction can know the arguments of the calls: said, found, or of a closed set."""

import pytest

from synth.told import untold
from synth.types import Tool, ToolStep

TOOL = Tool(
    name="lend",
    description="",
    input_schema={
        "type": "object",
        "properties": {
            "book": {"type": "string"},
            "days": {"type": "integer"},
            "way": {"enum": ["post", "desk"]},
        },
    },
    output_schema={},
    read_only=False,
    code="",
)


def lines(instruction, results=(), **arguments):
    steps = [ToolStep(tool="find", arguments={}), ToolStep(tool="lend", arguments=arguments)]
    return untold(instruction, steps, [*results, None], {"lend": TOOL})


@pytest.mark.parametrize(
    ("instruction", "results", "arguments"),
    [
        ("Lend B01 for 14 days.", [{}], {"book": "B01", "days": 14}),
        ("Lend it for fourteen days.", [{"items": [{"id": "B01"}]}], {"book": "B01", "days": 14}),
        ("Lend b01 for 1,400 days.", [{}], {"book": "B01", "days": 1400}),
        ("Lend B01 somehow.", [{}], {"book": "B01", "way": "post"}),
    ],
)
def test_what_can_be_known(instruction, results, arguments):
    assert lines(instruction, results, **arguments) == []


def test_what_comes_from_nowhere_is_named():
    (line,) = lines("Lend the oldest one.", [{"id": "B02"}], book="B01")
    assert line == "step 2 needs 'B01' (book), which nothing says"
    assert lines("Lend B01.", [{}], book="B01", days=14)


def test_a_step_does_not_see_its_own_result():
    assert lines("Lend one.", [{}], book="B01")
