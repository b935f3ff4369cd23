"""A row counts when one place of its source holds all its values; everything else is an invention."""

import json
import random

import lake_world as world
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.author.library import FolderCorpus, Library
from synth.author.online.tracing import trace
from synth.author.web import Document, NotFound, html_text
from synth.errors import CallerError

COLUMNS = ["name", "country", "kind", "depth_m", "area_km2"]
ROWS = [
    [n, c, k, int(d), float(a)]
    for n, c, k, d, a in (line.split(",") for line in world.LAKES.splitlines()[1:])
]


def document(text, kind="text/plain"):
    return Document("file:x", "x", kind, text, "0", "CC0-1.0", "2026-01-01", "file:x")


LAKES = document(world.LAKES, "text/csv")


def test_every_real_row_is_found_at_its_record():
    assert trace(ROWS, COLUMNS, LAKES).where == tuple(f"record {n}" for n in range(1, 13))


@given(st.integers(0, 11), st.integers(0, 4), st.randoms(use_true_random=False))
def test_a_row_with_one_false_cell_is_refused(row, column, rng):
    """The false value is another lake's, so it does stand in the file."""
    others = sorted({r[column] for r in ROWS} - {ROWS[row][column]})
    false = [*ROWS[row][:column], rng.choice(others), *ROWS[row][column + 1 :]]
    traced = trace([*ROWS[:row], false, *ROWS[row + 1 :]], COLUMNS, LAKES)
    assert [i for i, where in enumerate(traced.where) if where is None] == (
        [row] if false not in ROWS else []
    )
    assert len(traced.problems) == 1
    assert repr(false[column]) in traced.problems[0]


def test_swapped_fields_are_refused_although_all_values_stand_together():
    text = "name,won,lost\n" + "\n".join(f"Team {c},{n},{n + 7}" for n, c in enumerate("ABCDEF"))
    rows = [[f"Team {c}", n, n + 7] for n, c in enumerate("ABCDEF")]
    rows[2] = [rows[2][0], rows[2][2], rows[2][1]]
    traced = trace(rows, ["name", "won", "lost"], document(text, "text/csv"))
    assert [w is None for w in traced.where] == [False, False, True, False, False, False]
    assert "stands in another field" in traced.problems[0]


@pytest.mark.parametrize(
    ("text", "kind", "row"),
    [
        ("| Lake | Depth |\n|---|---|\n| **Vanern** | 1,106 m |\n", "text/markdown", ["Vanern", 1106]),
        (
            "<table><tr><td>Vanern</td><td>106&nbsp;m</td></tr></table><script>7</script>",
            "text/html",
            ["vanern", 106],
        ),
        ("Vanern is 106 metres deep,\nand lies in Sweden.\n", "text/plain", ["Vanern", 106, "Sweden"]),
        (
            json.dumps({"lakes": [{"n": "Vanern", "at": {"m": 106.27}}]}),
            "application/json",
            ["Vanern", 106.27],
        ),
        ('{"n": "Vanern", "m": null}\n', "application/jsonl", ["Vanern", None]),
        ("n,m\nVanern,-12.5\n", "text/csv", ["Vanern", -12.5]),
        ("Vanern: 106.274\n", "text/plain", ["Vanern", 106.27]),
    ],
)
def test_forms_of_documents_and_values(text, kind, row):
    assert trace([row], ["a", "b", "c"][: len(row)], document(text, kind)).problems == ()


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("Vanern is deep.\n\nVattern has 128 m.\n", ["Vanern", 128]),  # two paragraphs
        ("| Vanern | 106 |\n| Vattern | 128 |\n", ["Vanern", 128]),  # two rows
        ("Vanern 1060\n", ["Vanern", 106]),  # part of a number
        ("Vanernsee 106\n", ["Vanern", 106]),  # part of a word
        ("Vanern 106\n", ["Vanern", 106.01]),
        ("Vanern 106\n", [None, None]),  # nothing is said
    ],
)
def test_what_does_not_stand_together_is_refused(text, row):
    assert len(trace([row], ["a", "b"], document(text)).problems) == 1


# --- the folder as the only web -------------------------------------------------------------------


def test_search_finds_the_file_that_speaks_of_it(tmp_path):
    corpus = Library([FolderCorpus(world.write_corpus(tmp_path))])
    assert corpus.search("depth of glacial lakes")[0].url == "file:lakes.csv"
    assert corpus.search("population continent")[0].url == "file:countries.md"
    assert corpus.search("fishing office")[0].url == "file:about.html"
    assert corpus.search('"AND OR ( *') == []


def test_only_files_of_the_folder_are_read(tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    corpus = FolderCorpus(world.write_corpus(tmp_path / "web"))
    for url in ("file:../secret.txt", f"file:{tmp_path}/secret.txt", "file:sources.jsonl", "http://x/"):
        with pytest.raises(NotFound):
            corpus.fetch(url)


def test_the_digest_follows_the_bytes(tmp_path):
    before = FolderCorpus(world.write_corpus(tmp_path)).digest
    assert FolderCorpus(tmp_path).digest == before
    (tmp_path / "about.html").write_text("other")
    assert FolderCorpus(tmp_path).digest != before


def test_a_bad_folder_or_listing_is_the_callers_mistake(tmp_path):
    with pytest.raises(CallerError, match="no such folder"):
        FolderCorpus(tmp_path / "none")
    with pytest.raises(CallerError, match="no documents"):
        FolderCorpus(tmp_path)
    world.write_corpus(tmp_path)
    (tmp_path / "sources.jsonl").write_text('{"license": "x"}\n')
    with pytest.raises(CallerError, match=r"sources\.jsonl:1"):
        FolderCorpus(tmp_path)


def test_html_text_keeps_rows_apart_and_hides_code():
    page = "<head><title>t</title></head><p>One <b>two</b></p><tr><td>a<td>b</tr><style>x</style>"
    assert html_text(page) == "One two\na | b"


def test_tracing_four_hundred_rows_stays_quick():
    rng = random.Random(0)
    rows = [[f"Lake {i}", rng.randint(1, 999)] for i in range(400)]
    text = "n,m\n" + "\n".join(f"{n},{m}" for n, m in rows)
    assert trace(rows, ["n", "m"], document(text, "text/csv")).problems == ()
