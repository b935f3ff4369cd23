"""The report says what the environments are about: counts and a wheel of their classes."""

from xml.etree import ElementTree

from arena.portrait import portrait
from arena.report import Story, render

PATHS = [("Games", "Chess"), ("Games", "Chess"), ("Games", "Cards & <dice>"), ("Travel", "Flights")]


def test_every_class_has_its_count_and_its_piece_of_the_wheel():
    section = ElementTree.fromstring(portrait(PATHS))
    cells = [["".join(cell.itertext()) for cell in row] for row in section.iter("tr")][1:]
    assert cells == [["Games", "Chess", "2"], ["", "Cards & <dice>", "1"], ["Travel", "Flights", "1"]]
    pieces = [title.text for title in section.iter("title")]
    assert {"Games: 3", "Travel: 1", "Games / Chess: 2", "Travel / Flights: 1"} <= set(pieces)
    assert "4 environments in 2 classes of the first level, 3 of the second" in "".join(section.itertext())


def test_it_stands_in_the_report_and_is_left_out_where_nothing_has_a_class():
    page = render(Story("t", taxonomy=PATHS))
    ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>\n"))
    assert "What the environments are about" in page
    assert "What the environments are about" not in render(Story("t"))
