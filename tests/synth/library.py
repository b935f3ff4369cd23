"""A lending library of six books: an environment small enough to hold in the head, and three tasks over it.

The tests of admission, solver and verifier break it in one place at a time. Nothing here is mined; the
rows are made up for the tests.
"""

import hashlib
from contextlib import contextmanager
from types import SimpleNamespace

from synth.env.bundle import read_bundle, write_bundle
from synth.env.episode import EnvServer, VerifierServer
from synth.types import (
    Column,
    Criterion,
    Database,
    Difficulty,
    Edge,
    Environment,
    ForeignKey,
    Link,
    Program,
    Provenance,
    Rubric,
    Table,
    Task,
    Theme,
    Tool,
    ToolCase,
    ToolGraph,
    ToolStep,
)

BOOKS = [
    ["B01", "Winter Tales", 1942, "on shelf"],
    ["B02", "The Long Harbour", 1942, "on loan"],
    ["B03", "Salt and Iron", 1958, "on shelf"],
    ["B04", "A Field of Clocks", 1958, "on shelf"],
    ["B05", "Northern Bread", 1971, "on shelf"],
    ["B06", "Glass Rivers", 1971, "in repair"],
]
LOANS = [["LN-0001", "B02", "Ada Brandt", "2025-12-01T10:00:00Z"]]


def _column(name, type_, role, label, **more):
    return Column(name=name, type=type_, role=role, label=label, **more)


TABLES = (
    Table(
        name="books",
        singular="book",
        plural="books",
        kind="mined",
        primary_key="book_id",
        columns=(
            _column("book_id", "text", "key", "book number"),
            _column("title", "text", "name", "title"),
            _column("year", "integer", "measure", "year"),
            _column("status", "text", "status", "status", values=("on shelf", "on loan", "in repair")),
        ),
    ),
    Table(
        name="loans",
        singular="loan",
        plural="loans",
        kind="ledger",
        primary_key="loan_id",
        columns=(
            _column("loan_id", "text", "key", "loan number", minted=True),
            _column("book_id", "text", "ref", "book"),
            _column("reader", "text", "name", "reader"),
            _column("lent_at", "text", "date", "time of lending", minted=True),
        ),
        foreign_keys=(ForeignKey(column="book_id", table="books", ref_column="book_id"),),
    ),
)


def _schema(required=(), **properties):
    return {
        "type": "object",
        "properties": {name: {"type": type_} for name, type_ in properties.items()},
        "required": list(required),
        "additionalProperties": False,
    }


BOOK = _schema(book_id="string", title="string", year="integer", status="string")

FIND_BOOKS = Tool(
    name="find_books",
    description="Books, all or of one year, ordered by number.",
    input_schema=_schema(year="integer"),
    output_schema={"type": "array", "items": BOOK},
    read_only=True,
    code="""
def find_books(ctx, *, year=None):
    rows = ctx.db.execute("SELECT * FROM books WHERE ? IS NULL OR year = ? ORDER BY book_id", (year, year))
    return [dict(row) for row in rows]
""",
    cases=(
        ToolCase(
            arguments={"year": 1942},
            expect=[dict(zip(BOOK["properties"], row, strict=True)) for row in BOOKS[:2]],
        ),
        ToolCase(arguments={"year": 1900}, expect=[]),
        ToolCase(arguments={"year": "old"}, error="invalid_arguments"),
    ),
    meta={"kind": "search", "table": "books", "inputs": {"year": "books.year"}},
)

GET_BOOK = Tool(
    name="get_book",
    description="One book by its number.",
    input_schema=_schema(["book_id"], book_id="string"),
    output_schema=BOOK,
    read_only=True,
    code="""
def get_book(ctx, *, book_id):
    row = ctx.db.execute("SELECT * FROM books WHERE book_id = ?", (book_id,)).fetchone()
    if row is None:
        raise ToolError("not_found", "there is no such book")
    return dict(row)
""",
    cases=(
        ToolCase(
            arguments={"book_id": "B03"},
            expect={"book_id": "B03", "title": "Salt and Iron", "year": 1958.0, "status": "on shelf"},
        ),
        ToolCase(arguments={"book_id": "B99"}, error="not_found"),
    ),
    meta={"kind": "get", "table": "books", "inputs": {"book_id": "books.book_id"}},
)

LEND_BOOK = Tool(
    name="lend_book",
    description="Lend a book that is on the shelf.",
    input_schema=_schema(["book_id", "reader"], book_id="string", reader="string"),
    output_schema=_schema(["loan_id"], loan_id="string", lent_at="string"),
    read_only=False,
    code="""
def lend_book(ctx, *, book_id, reader):
    row = ctx.db.execute("SELECT status FROM books WHERE book_id = ?", (book_id,)).fetchone()
    if row is None:
        raise ToolError("not_found", "there is no such book")
    if row["status"] != "on shelf":
        raise ToolError("not_available", "the book is not on the shelf")
    loan = (ctx.new_id("LN"), book_id, reader, ctx.now())
    ctx.db.execute("INSERT INTO loans VALUES (?, ?, ?, ?)", loan)
    ctx.db.execute("UPDATE books SET status = 'on loan' WHERE book_id = ?", (book_id,))
    return {"loan_id": loan[0], "lent_at": loan[3]}
""",
    cases=(
        ToolCase(
            arguments={"book_id": "B01", "reader": "Jo Weber"},
            expect={"loan_id": "LN-9001", "lent_at": "2026-01-05T09:00:00Z"},
            changes={"books": 1, "loans": 1},
        ),
        ToolCase(arguments={"book_id": "B02", "reader": "Jo Weber"}, error="not_available"),
        ToolCase(arguments={"book_id": "B99", "reader": "Jo Weber"}, error="not_found"),
    ),
    meta={"kind": "create", "table": "loans", "inputs": {"book_id": "books.book_id"}},
)

TOOLS = (FIND_BOOKS, GET_BOOK, LEND_BOOK)
GRAPH = ToolGraph(
    nodes=("find_books", "get_book", "lend_book"),
    edges=(
        Edge(
            source="find_books",
            target="get_book",
            kind="strong",
            weight=3,
            links=(Link(path="$[].book_id", parameter="book_id"),),
        ),
        Edge(source="get_book", target="lend_book", kind="weak", weight=2),
    ),
)


def _provenance(table):
    return Provenance(
        target=table,
        origin="made up for the tests",
        license="CC0-1.0",
        sha256=hashlib.sha256(table.encode()).hexdigest(),
        retrieved="2026-01-05",
    )


def environment(**changes):
    """The library; ``changes`` replace fields of the Environment."""
    env = Environment(
        env_id="library",
        theme=Theme(
            id="library", source="prd", name="Library", description="Lends books.", license="CC0-1.0"
        ),
        database=Database(
            theme_id="library",
            tables=TABLES,
            rows={"books": BOOKS, "loans": LOANS},
            provenance=(_provenance("books"), _provenance("loans")),
        ),
        tools=TOOLS,
        graph=GRAPH,
        taxonomy=("culture", "libraries"),
    )
    return env.model_copy(update=changes)


@contextmanager
def opened(folder, env=None):
    """The library on disk and in use: ``bundle``, ``server``, ``verifier``."""
    path = folder / "library"
    write_bundle(env or environment(), path)
    with EnvServer(path) as server, VerifierServer() as verifier:
        yield SimpleNamespace(path=path, bundle=read_bundle(path), server=server, verifier=verifier)


# --- tasks ------------------------------------------------------------------------------------------


def read_task(bundle, **changes):
    """Two calls, an answer read off the second one, nothing written."""
    return _task(
        bundle,
        id="status-of-salt",
        route="graph",
        instruction="Of the books from 1958, what is the state of the one called Salt and Iron?",
        reference_answer="on shelf",
        verifier=Rubric(criteria=(Criterion(field="answer", check="text", expected="on shelf"),)),
        chain=(_step("find_books", year=1958), _step("get_book", book_id="B03")),
        difficulty=Difficulty(steps=2, tools=2),
        changes_state=False,
        pattern="search-get",
    ).model_copy(update=changes)


LOAN_DIFF = {
    "books": {
        "added": [],
        "removed": [],
        "changed": [{"key": "B01", "status": {"old": "on shelf", "new": "on loan"}}],
    },
    "loans": {
        "added": [{"loan_id": "*", "book_id": "B01", "reader": "Jo Weber", "lent_at": "*"}],
        "removed": [],
        "changed": [],
    },
}


def write_task(bundle, **changes):
    """Look up and lend; the rubric wants the loan in the database and the year as the answer."""
    return _task(
        bundle,
        id="lend-winter-tales",
        route="graph",
        instruction="Lend Winter Tales to Jo Weber and tell me the year it is from.",
        reference_answer=1942,
        verifier=Rubric(
            criteria=(
                Criterion(field="answer", check="number", expected=1942),
                Criterion(field="state", check="diff", expected=LOAN_DIFF),
            )
        ),
        chain=(
            _step("find_books"),
            _step("get_book", book_id="B01"),
            _step("lend_book", book_id="B01", reader="Jo Weber"),
        ),
        difficulty=Difficulty(steps=3, tools=3, writes=1),
        changes_state=True,
        pattern="search-get-create",
    ).model_copy(update=changes)


SOLUTION = """
def solve(call):
    count = 0
    for book in call("find_books", year=1958):
        if book["status"] == "on shelf":
            call("lend_book", book_id=book["book_id"], reader="Jo Weber")
            count += 1
    return count
"""
VERIFY = """
def verify(initial, final, answer):
    before = {row["loan_id"] for row in initial.rows("loans")}
    new = [row for row in final.rows("loans") if row["loan_id"] not in before]
    lent = sorted(row["book_id"] for row in new if row["reader"] == "Jo Weber")
    touched = sorted(row["key"] for row in initial.diff(final).get("books", {}).get("changed", []))
    right = isinstance(answer, int) and not isinstance(answer, bool) and answer == 2
    return [
        ("answer", right, f"got {answer}"),
        ("loans", lent == ["B03", "B04"], f"got {lent}"),
        ("books", touched == ["B03", "B04"], f"got {touched}"),
    ]
"""


def program_task(bundle, **changes):
    """A loop with a branch over two books, judged by a program."""
    return _task(
        bundle,
        id="lend-all-of-1958",
        route="program",
        instruction="Lend every book from 1958 that is on the shelf to Jo Weber. How many were there?",
        reference_answer=2,
        verifier=Program(code=VERIFY),
        chain=(
            _step("find_books", year=1958),
            _step("lend_book", book_id="B03", reader="Jo Weber"),
            _step("lend_book", book_id="B04", reader="Jo Weber"),
        ),
        solution=SOLUTION,
        difficulty=Difficulty(steps=3, tools=2, writes=2, branch=True, loop=True),
        changes_state=True,
        pattern="loop-create",
    ).model_copy(update=changes)


def _step(tool, **arguments):
    return ToolStep(tool=tool, arguments=arguments)


def _task(bundle, **fields):
    return Task(env_id=bundle.manifest.env_id, env_digest=bundle.manifest.digest, seed=7, **fields)
