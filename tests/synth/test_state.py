"""States are compared by content: digests, differences, and differences apart from ids and times."""

from __future__ import annotations

import sqlite3

import pytest
from fixtures.make import library, parking
from hypothesis import given
from hypothesis import strategies as st

from synth.env.state import State, build_state, canonical, diff, digest, normalized_diff, rows
from synth.errors import EnvironmentFault
from synth.types import Column, ForeignKey, Table

AUDIT = ("lookup",)


def after(state: State, *statements: str) -> State:
    db = sqlite3.connect(":memory:")
    db.deserialize(state.tables)
    for statement in statements:
        db.execute(statement)
    db.commit()
    return State(db.serialize(), state.files)


@pytest.fixture(scope="module")
def state():
    return build_state(library().database)


def test_the_digest_does_not_depend_on_row_order_or_on_bytes(state):
    shuffled = after(
        state,
        "CREATE TABLE keep AS SELECT * FROM member",
        "DELETE FROM member",
        "INSERT INTO member SELECT * FROM keep ORDER BY name DESC",
        "DROP TABLE keep",
    )
    assert shuffled.tables != state.tables
    assert rows(shuffled, "member") != rows(state, "member")
    assert digest(shuffled) == digest(state)


def test_the_digest_sees_every_value_type_and_file(state):
    seen = {digest(state)}
    for statement in (
        "UPDATE book SET copies = 9 WHERE book_id = 'B-1'",
        "UPDATE book SET price = NULL WHERE book_id = 'B-1'",
        "UPDATE book SET title = '19.5' WHERE book_id = 'B-1'",
        "DELETE FROM loan",
        "CREATE TABLE extra (x)",
        "UPDATE book SET title = x'00ff' WHERE book_id = 'B-1'",
    ):
        seen.add(digest(after(state, statement)))
    seen.add(digest(State(state.tables, {"a": b"1"})))
    seen.add(digest(State(state.tables, {"a": b"2"})))
    assert len(seen) == 9


def test_audit_tables_do_not_count(state):
    asked = after(state, "INSERT INTO lookup (at, book_id) VALUES ('now', 'B-1')")
    assert digest(asked, AUDIT) == digest(state, AUDIT)
    assert digest(asked) != digest(state)


def test_a_diff_says_what_was_added_removed_and_changed(state):
    changed = after(
        state,
        "UPDATE book SET copies = 1, genre = 'history' WHERE book_id = 'B-1'",
        "DELETE FROM loan WHERE loan_id = 'LN-0002'",
        "INSERT INTO member VALUES ('M-4', 'Rui')",
    )
    assert diff(state, changed) == {
        "book": {
            "added": [],
            "removed": [],
            "changed": [
                {"key": "B-1", "copies": {"old": 2, "new": 1}, "genre": {"old": "travel", "new": "history"}}
            ],
        },
        "loan": {"added": [], "removed": [rows(state, "loan")[1]], "changed": []},
        "member": {"added": [{"member_id": "M-4", "name": "Rui"}], "removed": [], "changed": []},
    }
    assert diff(state, state) == {}


def test_files_are_part_of_a_diff(state):
    change = diff(state, State(state.tables, {"a.md": b"x"}))
    assert [row["path"] for row in change["(files)"]["added"]] == ["a.md"]


def test_two_loans_made_at_other_times_under_other_ids_are_the_same_change(state):
    def lend(number, when, member="M-2"):
        return after(
            state,
            "UPDATE book SET copies = copies - 1 WHERE book_id = 'B-1'",
            f"INSERT INTO loan VALUES ('LN-{number}', 'B-1', '{member}', '{when}', 'open')",
            f"INSERT INTO lookup (at, book_id) VALUES ('{when}', 'B-1')",
        )

    tables = library().database.tables
    first = normalized_diff(diff(state, lend(9001, "2026-01-05")), tables)
    assert first == normalized_diff(diff(state, lend(9007, "2026-02-01")), tables)
    assert first != normalized_diff(diff(state, lend(9001, "2026-01-05", member="M-3")), tables)
    assert first["loan"]["added"][0]["loan_id"] == "*"
    assert "lookup" not in first


def test_keys_of_rows_that_were_there_before_stay():
    state, tables = build_state(parking().database), parking().database.tables

    def stop(session, when):
        statement = f"UPDATE session SET ended_at = '{when}' WHERE session_id = '{session}'"
        return normalized_diff(diff(state, after(state, statement)), tables)

    assert stop("PS-0001", "10:00") == stop("PS-0001", "11:00")
    assert stop("PS-0001", "10:00") != stop("PS-0002", "10:00")
    removed = after(state, "DELETE FROM session WHERE session_id = 'PS-0001'")
    assert normalized_diff(diff(state, removed), tables)["session"]["removed"][0]["session_id"] == "PS-0001"


def test_references_to_minted_ids_are_masked_too():
    def column(name, minted=False):
        return Column(name=name, type="text", role="text", label=name, minted=minted)

    def table(name, *columns, refs=()):
        key = columns[0].name
        return Table(
            name=name,
            singular=name,
            plural=name,
            kind="ledger",
            columns=columns,
            primary_key=key,
            foreign_keys=refs,
        )

    ref = ForeignKey(column="order_id", table="order", ref_column="id")
    tables = (
        table("order", column("id", minted=True)),
        table("line", column("id", minted=True), column("order_id"), refs=(ref,)),
    )
    changes = {
        "order": {"added": [{"id": "O-9001"}], "removed": [], "changed": []},
        "line": {
            "added": [{"id": "L-9002", "order_id": "O-9001"}, {"id": "L-9003", "order_id": "O-0007"}],
            "removed": [],
            "changed": [{"key": "L-1", "order_id": {"old": "O-0001", "new": "O-9001"}}],
        },
    }
    masked = normalized_diff(changes, tables)["line"]
    assert masked["added"] == [{"id": "*", "order_id": "*"}, {"id": "*", "order_id": "O-0007"}]
    assert masked["changed"] == [{"key": "L-1", "order_id": {"old": "O-0001", "new": "*"}}]


value = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text())


@given(st.lists(value, min_size=1, max_size=6))
def test_any_value_survives_and_counts(values):
    database = library().database
    columns = tuple(
        Column(name=f"c{i}", type="text", role="text", label="x", nullable=True) for i in range(len(values))
    )
    key = Column(name="id", type="integer", role="key", label="id")
    table = database.tables[1].model_copy(
        update={"name": "t", "columns": (key, *columns), "primary_key": "id"}
    )
    made = database.model_copy(update={"tables": (table,), "rows": {"t": [[1, *values]]}})
    try:
        state = build_state(made)
    except EnvironmentFault:
        assert any(isinstance(v, str) for v in values)  # lone surrogates are no text
        return
    empty = build_state(made.model_copy(update={"rows": {"t": []}}))
    assert digest(state) == digest(after(state)) != digest(empty)
    assert len(diff(empty, state)["t"]["added"]) == 1


@pytest.mark.parametrize(
    ("table", "row", "message"),
    [
        ("book", ["B-1", "Again", "travel", 1, 1.0], "UNIQUE"),
        ("book", ["B-9", None, "travel", 1, 1.0], "NOT NULL"),
        ("book", ["B-9", "Short"], "2 supplied"),
        ("book", ["B-9", "Odd", "travel", [1], 1.0], "row 5"),
        ("loan", ["LN-3", "B-404", "M-1", "x", "open"], "refers to a row that book does not have"),
    ],
)
def test_rows_that_do_not_fit_are_named(table, row, message):
    database = library().database
    made = {**database.rows, table: [*database.rows[table], row]}
    with pytest.raises(EnvironmentFault, match=message) as caught:
        build_state(database.model_copy(update={"rows": made}))
    assert f"table {table}" in str(caught.value)


def test_foreign_bytes_are_an_environment_fault_not_a_crash():
    for tables in (b"", b"nonsense", b"SQLite format 3\0" + b"\xff" * 5000):
        with pytest.raises(EnvironmentFault):
            digest(State(tables))


def test_a_snapshot_packs_and_unpacks():
    state = State(b"tables", {"b": b"", "a": b"xyz"})
    assert State.unpack(*state.pack()) == state


def test_canonical_json_is_the_same_for_equal_values():
    assert (
        canonical({"b": 1, "a": [1.5, "é"]})
        == canonical({"a": [1.5, "é"], "b": 1})
        == '{"a":[1.5,"é"],"b":1}'
    )
