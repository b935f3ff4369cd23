"""The small world of the scripted endpoint: a folder of documents about lakes, and what each role says.

The functions are named after the prompts; they get the user message, how many times the model has answered
already, and the request's seed. Depths and areas are those of real lakes, rounded.
"""

# ruff: noqa: E501 (code of tools)

import json
import re

from synth.types import Theme

THEME = Theme(
    id="lake_permits",
    source="prd",
    name="Lake permits",
    description="An office that knows the lakes of some countries and gives out fishing permits.",
    license="Apache-2.0",
)
LAKES = """name,country,kind,depth_m,area_km2
Lake Baikal,Russia,rift,1642,31722.5
Lake Ladoga,Russia,glacial,230,17891.0
Lake Onega,Russia,glacial,127,9894.0
Lake Tanganyika,Tanzania,rift,1470,32600.0
Lake Malawi,Tanzania,rift,706,29600.0
Lake Victoria,Tanzania,tectonic,81,59947.0
Great Bear Lake,Canada,glacial,446,31153.0
Great Slave Lake,Canada,glacial,614,27200.0
Lake Winnipeg,Canada,glacial,36,24514.0
Vanern,Sweden,glacial,106,5650.0
Vattern,Sweden,rift,128,1893.0
Malaren,Sweden,glacial,64,1120.5
"""
COUNTRIES = """# Countries with great lakes

| Country | Continent | Population (millions) |
|---|---|---|
| Russia | Asia | 143.4 |
| Tanzania | Africa | 67.4 |
| Canada | America | 40.1 |
| Sweden | Europe | 10.5 |

Lake Victoria lies in three countries.
"""
LISTING = [
    {
        "path": "lakes.csv",
        "license": "CC0-1.0",
        "origin": "https://lakes.example/lakes.csv",
        "retrieved": "2026-11-02",
    },
    {
        "path": "countries.md",
        "license": "CC-BY-4.0",
        "origin": "https://lakes.example/c",
        "retrieved": "2026-11-03",
    },
]


def write_corpus(folder):
    """The only web there is."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lakes.csv").write_text(LAKES)
    (folder / "countries.md").write_text(COUNTRIES)
    (folder / "about.html").write_text("<html><body><h1>Fishing</h1><p>Ask the office.</p></body></html>")
    (folder / "sources.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LISTING))
    return folder


def column(name, type_, role, label, **more):
    return {"name": name, "type": type_, "role": role, "label": label, **more}


# --- mining ---------------------------------------------------------------------------------------

COUNTRY_TABLE = {
    "name": "countries",
    "singular": "country",
    "plural": "countries",
    "primary_key": "country",
    "description": "Countries with great lakes.",
    "columns": [
        column("country", "text", "name", "country"),
        column("continent", "text", "category", "continent"),
        column("population_m", "real", "measure", "population in millions"),
    ],
    "sources": [
        {
            "url": "file:countries.md",
            "rows": [
                ["Russia", "Asia", 143.4],
                ["Tanzania", "Africa", 67.4],
                ["Canada", "America", 40.1],
                ["Sweden", "Europe", 10.5],
            ],
        }
    ],
}
EXTRACT = """
import csv, io
result = [
    [r["name"], r["country"], r["kind"], int(r["depth_m"]), float(r["area_km2"])]
    for r in csv.DictReader(io.StringIO(files["file:lakes.csv"]))
]
"""
LAKE_TABLE = {
    "name": "lakes",
    "singular": "lake",
    "plural": "lakes",
    "primary_key": "lake_id",
    "description": "Great lakes.",
    "columns": [
        column("lake_id", "text", "key", "lake number", generated="LK"),
        column("name", "text", "name", "name"),
        column("country", "text", "ref", "country", refers_to="countries.country"),
        column("kind", "text", "category", "kind of lake"),
        column("depth_m", "integer", "measure", "depth in metres"),
        column("area_km2", "real", "measure", "area in square kilometres"),
    ],
    "sources": [{"url": "file:lakes.csv", "extract": EXTRACT}],
}
FALSE_ROW = ["Lake Ladoga", "Russia", "glacial", 231, 17891.0]  # one cell is off by one


def mining(turn):
    invented = [["Lake Baikal", "Russia", "rift", 1642, 31722.5], FALSE_ROW]
    planted = {**LAKE_TABLE, "sources": [{"url": "file:lakes.csv", "rows": invented}]}
    return [
        [("search", {"query": "depth and area of lakes"})],
        [("browse", {"url": "file:lakes.csv"}), ("browse", {"url": "file:countries.md"})],
        [("python", {"code": "result = len(files['file:lakes.csv'].splitlines())"})],
        [("shell", {"command": "cut -d, -f2 01-lakes.csv | sort | uniq -c | sort -rn"})],
        [("submit_table", COUNTRY_TABLE)],
        [("submit_table", planted)],
        [("submit_table", LAKE_TABLE)],
        [("finish", {})],
    ][turn]


# --- complexification -----------------------------------------------------------------------------

PROGRAM = """
def build(tables, rng):
    kinds = sorted({r["kind"] for r in tables["lakes"]})
    totals, rules = [], []
    for kind in kinds:
        depths = [r["depth_m"] for r in tables["lakes"] if r["kind"] == kind]
        totals.append([kind, len(depths), round(sum(depths) / len(depths), 2)])
        rules.append([kind, rng.randint(4, 9)])
    permits = []
    for i in range(30):
        lake = rng.choice(tables["lakes"])
        status = ("asked", "granted", "closed", "withdrawn")[i % 4]
        permits.append([f"PER-{101 + i}", lake["lake_id"], rng.randint(1, 4), status,
                        f"2025-{rng.randint(7, 12):02d}-{rng.randint(1, 28):02d}"])
    return {"kind_totals": totals, "permit_rules": rules, "permits": permits}
"""


def new_table(name, singular, plural, kind, key, closes, columns):
    fields = {"name": name, "singular": singular, "plural": plural, "kind": kind, "primary_key": key}
    why = f"the {singular} was missing"
    return {**fields, "columns": columns, "closes": closes, "why": why, "description": f"The {plural}."}


ENRICHED = {
    "program": PROGRAM,
    "links": [{"table": "lakes", "column": "kind", "refers_to": "kind_totals"}],
    "tables": [
        new_table(
            "kind_totals",
            "kind of lake",
            "kinds of lakes",
            "aggregate",
            "kind",
            "totals",
            [
                column("kind", "text", "key", "kind of lake"),
                column("lake_count", "integer", "measure", "number of lakes"),
                column("mean_depth", "real", "measure", "mean depth in metres"),
            ],
        ),
        new_table(
            "permit_rules",
            "permit rule",
            "permit rules",
            "constraint",
            "kind",
            "constraints",
            [
                column("kind", "text", "key", "kind of lake", refers_to="kind_totals"),
                column("max_anglers", "integer", "measure", "most anglers for one permit"),
            ],
        ),
        new_table(
            "permits",
            "permit",
            "permits",
            "ledger",
            "permit_id",
            "history",
            [
                column("permit_id", "text", "key", "permit number", minted=True),
                column("lake_id", "text", "ref", "lake", refers_to="lakes"),
                column("anglers", "integer", "measure", "anglers"),
                column(
                    "status", "text", "status", "status", values=["asked", "granted", "closed", "withdrawn"]
                ),
                column("opened", "text", "date", "opening date", minted=True),
            ],
        ),
    ],
}


def enrich(_user, turn, _seed):
    if turn == 1:  # after the malformed reply: a program that fails in the sandbox
        return {**ENRICHED, "program": PROGRAM.replace('r["depth_m"]', 'r["depth"]')}
    return ENRICHED


# --- tools ----------------------------------------------------------------------------------------


def parameter(name, op, col="", type_="string", required=True, **more):
    return {
        "name": name,
        "type": type_,
        "required": required,
        "op": op,
        **({"column": col} if col else {}),
        **more,
    }


def result(**properties):
    return {
        "type": "object",
        "properties": {n: {"type": t} for n, t in properties.items()},
        "required": list(properties),
    }


def tool(name, description, kind, table, parameters, output, outputs, errors, read_only=True):
    return {
        "name": name,
        "description": description,
        "kind": kind,
        "table": table,
        "read_only": read_only,
        "parameters": parameters,
        "output_schema": output,
        "outputs": outputs,
        "errors": [{"code": e, "when": "so"} for e in errors],
    }


LIST = {
    "type": "object",
    "properties": {"total": {"type": "integer"}, "items": {"type": "array"}},
    "required": ["total", "items"],
}
DESIGN = {
    "tools": [
        tool(
            "find_lake",
            "Finds a lake by its name: number, country, kind and depth.",
            "find",
            "lakes",
            [parameter("name", "name", "lakes.name")],
            result(lake_id="string", country="string", kind="string", depth_m="integer"),
            {"$.lake_id": "lakes.lake_id", "$.country": "countries.country", "$.kind": "kind_totals.kind"},
            ["not_found"],
        ),
        tool(
            "list_permits",
            "The permits of a lake, by number: number, anglers and status.",
            "list",
            "permits",
            [parameter("lake_id", "entity", "lakes.lake_id")],
            LIST,
            {"$.items[].permit_id": "permits.permit_id"},
            ["not_found"],
        ),
        tool(
            "count_lakes",
            "How many lakes a country has and how deep the deepest is.",
            "aggregate",
            "lakes",
            [parameter("country", "eq", "countries.country")],
            result(lakes="integer", deepest_m="integer"),
            {},
            ["not_found"],
        ),
        tool(
            "book_permit",
            "Asks for a permit for a number of anglers at a lake, within the rule of its kind.",
            "create",
            "permits",
            [
                parameter("lake_id", "entity", "lakes.lake_id"),
                parameter("anglers", "amount", type_="integer"),
            ],
            result(permit_id="string", anglers="integer", status="string"),
            {"$.permit_id": "permits.permit_id"},
            ["not_found", "limit_exceeded"],
            read_only=False,
        ),
        tool(
            "withdraw_permit",
            "Withdraws a permit that is asked or granted.",
            "cancel",
            "permits",
            [parameter("permit_id", "line", "permits.permit_id")],
            result(permit_id="string", anglers="integer"),
            {"$.permit_id": "permits.permit_id"},
            ["not_found", "not_allowed"],
            read_only=False,
        ),
        tool(
            "mean_depth",
            "The mean depth of the lakes of a kind.",
            "aggregate",
            "kind_totals",
            [parameter("kind", "eq", "kind_totals.kind")],
            result(mean_depth="number"),
            {},
            [],
        ),
    ]
}


def tool_design(_user, _turn, _seed):
    return DESIGN


FIND = """
def find_lake(ctx, *, name):
    row = ctx.db.execute("SELECT lake_id, country, kind, depth_m FROM lakes WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise ToolError("not_found", "no such lake")
    return dict(row)
"""
FIND_CASES = """
def cases(tables):
    keys = ("lake_id", "country", "kind", "depth_m")
    found = [{"arguments": {"name": r["name"]}, "expect": {k: r[k] for k in keys}} for r in tables["lakes"][:4]]
    return found + [{"arguments": {"name": "Nowhere"}, "error": "not_found"}]
"""
LIST_CODE = """
def list_permits(ctx, *, lake_id):
    if ctx.db.execute("SELECT 1 FROM lakes WHERE lake_id = ?", (lake_id,)).fetchone() is None:
        raise ToolError("not_found", "no such lake")
    rows = ctx.db.execute(
        "SELECT permit_id, anglers, status FROM permits WHERE lake_id = ? ORDER BY permit_id LIMIT 20", (lake_id,)
    ).fetchall()
    return {"total": len(rows), "items": [dict(r) for r in rows]}
"""
LIST_CASES = """
def cases(tables):
    made = []
    for lake in tables["lakes"][:4]:
        mine = sorted((r for r in tables["permits"] if r["lake_id"] == lake["lake_id"]), key=lambda r: r["permit_id"])
        items = [{k: r[k] for k in ("permit_id", "anglers", "status")} for r in mine]
        made.append({"arguments": {"lake_id": lake["lake_id"]}, "expect": {"total": len(items), "items": items}})
    return made + [{"arguments": {"lake_id": "LK-0"}, "error": "not_found"}]
"""
COUNT = """
def count_lakes(ctx, *, country):
    row = ctx.db.execute("SELECT count(*), max(depth_m) FROM lakes WHERE country = ?", (country,)).fetchone()
    if not row[0]:
        raise ToolError("not_found", "no lakes there")
    return {"lakes": row[0], "deepest_m": row[1]}
"""
COUNT_CASES = """
def cases(tables):
    made = []
    for country in sorted({r["country"] for r in tables["lakes"]}):
        depths = [r["depth_m"] for r in tables["lakes"] if r["country"] == country]
        made.append({"arguments": {"country": country}, "expect": {"lakes": len(depths), "deepest_m": max(depths)}})
    return made + [{"arguments": {"country": "Atlantis"}, "error": "not_found"}]
"""
BOOK = """
def book_permit(ctx, *, lake_id, anglers):
    row = ctx.db.execute(
        "SELECT max_anglers FROM lakes JOIN permit_rules USING (kind) WHERE lake_id = ?", (lake_id,)
    ).fetchone()
    if row is None:
        raise ToolError("not_found", "no such lake")
    if anglers > row[0]:
        raise ToolError("limit_exceeded", "too many anglers")
    key = ctx.new_id("PER")
    ctx.db.execute("INSERT INTO permits VALUES (?, ?, ?, 'asked', ?)", (key, lake_id, anglers, ctx.now()[:10]))
    return {"permit_id": key, "anglers": anglers, "status": "asked"}
"""
BOOK_CASES = """
def cases(tables):
    most = {r["kind"]: r["max_anglers"] for r in tables["permit_rules"]}
    made = []
    for lake in tables["lakes"][:3]:
        arguments = {"lake_id": lake["lake_id"], "anglers": 2}
        expect = {"permit_id": "PER-9001", "anglers": 2, "status": "asked"}
        made.append({"arguments": arguments, "expect": expect, "changes": {"permits": 1}})
    too_many = {"lake_id": lake["lake_id"], "anglers": most[lake["kind"]] + 1}
    return made + [{"arguments": too_many, "error": "limit_exceeded"},
                   {"arguments": {"lake_id": "LK-0", "anglers": 1}, "error": "not_found"}]
"""
WITHDRAW = """
def withdraw_permit(ctx, *, permit_id):
    row = ctx.db.execute("SELECT anglers, status FROM permits WHERE permit_id = ?", (permit_id,)).fetchone()
    if row is None:
        raise ToolError("not_found", "no such permit")
    if row[1] not in ("asked", "granted"):
        raise ToolError("not_allowed", "it is over")
    ctx.db.execute("UPDATE permits SET status = 'withdrawn' WHERE permit_id = ?", (permit_id,))
    return {"permit_id": permit_id, "anglers": row[0]}
"""
WITHDRAW_CASES = """
def cases(tables):
    made = []
    for r in tables["permits"][:6]:
        arguments = {"permit_id": r["permit_id"]}
        if r["status"] in ("asked", "granted"):
            expect = {"permit_id": r["permit_id"], "anglers": r["anglers"]}
            made.append({"arguments": arguments, "expect": expect, "changes": {"permits": 1}})
        else:
            made.append({"arguments": arguments, "error": "not_allowed"})
    return made + [{"arguments": {"permit_id": "PER-0"}, "error": "not_found"}]
"""
MEAN = """
def mean_depth(ctx, *, kind):
    row = ctx.db.execute("SELECT mean_depth FROM kind_totals WHERE kind = ?", (kind,)).fetchone()
    return {"mean_depth": row[0]}
"""
MEAN_CASES = """
def cases(tables):
    rows = tables["kind_totals"]
    return [{"arguments": {"kind": r["kind"]}, "expect": {"mean_depth": r["mean_depth"] + 1}} for r in rows + rows]
"""
CODE = {
    "find_lake": (FIND, FIND_CASES),
    "list_permits": (LIST_CODE, LIST_CASES),
    "count_lakes": (COUNT, COUNT_CASES),
    "book_permit": (BOOK, BOOK_CASES),
    "withdraw_permit": (WITHDRAW, WITHDRAW_CASES),
    "mean_depth": (MEAN, MEAN_CASES),  # its tests are wrong, and stay so
}


def tool_code(user, turn, _seed):
    name = re.search(r'"name": "(\w+)"', user)[1]
    code, cases = CODE[name]
    if name == "book_permit" and turn == 0:  # a column that is not there: mended from the real error
        code = code.replace("max_anglers FROM", "most_anglers FROM")
    return {"code": code, "cases": cases}


# --- tasks ----------------------------------------------------------------------------------------


def word_chain(user, turn, _seed):
    """A question for any chain: says what must be said, asks for a value that it does not say."""
    calls = user[user.index("Calls:") :]
    said = [json.loads(v) for v in re.findall(r": (.*) \(say\)$", calls, flags=re.M)]
    results = [json.loads(r) for r in re.findall(r"^   result: (.*)$", calls, flags=re.M)]
    last = results[-1]
    places = [(f"$.{k}", v) for k, v in last.items() if isinstance(v, str | int | float)]
    places = [(p, v) for p, v in places if v not in said and "id" not in p] or places
    spoken = ", ".join(map(str, said))
    asked = places[-1][0][2:].replace("_", " ").replace(" m", "")
    deeds = " Then do what was spoken about." if re.search("ithdraws|Asks|Takes in", calls) else ""
    text = f"It is about {spoken}.{deeds} Which {asked} comes out in the end, after {len(results)} looks?"
    if turn == 0 and len(results) == 2:
        text = f"Use find_lake for {spoken} and tell me what comes out."  # a leak, told back
    return {"sensible": True, "instruction": text, "answer": [{"step": len(results), "path": places[-1][0]}]}


READ_SOLUTION = """
def solve(call):
    total = 0
    for name in {names!r}:
        if call("find_lake", name=name)["depth_m"] > {limit}:
            total += 1
    return total
"""
READ_VERIFIER = """
def verify(initial, final, answer):
    expected = sum(1 for r in initial.rows("lakes") if r["name"] in {names!r} and r["depth_m"] > {limit})
    right = isinstance(answer, int) and not isinstance(answer, bool) and answer == expected
    return [("answer", right, repr(answer)), ("nothing changed", not initial.diff(final), "")]
"""
WRITE_SOLUTION = """
def solve(call):
    freed = 0
    lake = call("find_lake", name={name!r})["lake_id"]
    for item in call("list_permits", lake_id=lake)["items"]:
        if item["status"] in ("asked", "granted"):
            freed += call("withdraw_permit", permit_id=item["permit_id"])["anglers"]
    return freed
"""
WRITE_VERIFIER = """
def verify(initial, final, answer):
    lake = next(r["lake_id"] for r in initial.rows("lakes") if r["name"] == {name!r})
    due = [r for r in initial.rows("permits") if r["lake_id"] == lake and r["status"] in ("asked", "granted")]
    after = {{r["permit_id"]: r for r in final.rows("permits")}}
    diff = initial.diff(final)
    right = isinstance(answer, int) and not isinstance(answer, bool) and answer == sum(r["anglers"] for r in due)
    others = len(diff.get("permits", {{}}).get("changed", [])) == len(due) and set(diff) <= {{"permits"}}
    return [("answer", right, repr(answer)), ("others", others, ""),
            ("withdrawn", all(after[r["permit_id"]]["status"] == "withdrawn" for r in due), "")]
"""
WEAK = """
def verify(initial, final, answer):
    return [("answer", answer is not None, "")]
"""


def write_program(user, turn, seed):
    rows = [line.split(",") for line in LAKES.splitlines()[1:]]
    names = [r[0] for r in rows]
    if "must be changed" in user:
        name = names[seed % len(names)]
        text = f"Call back all permits of {name} that are still running. How many anglers lose theirs?"
        return program(text, [name], WRITE_SOLUTION, WRITE_VERIFIER, name=name)
    picked = [names[(seed + k) % len(names)] for k in (0, 3, 5)]
    limit = (75, 115, 300)[seed % 3]
    text = f"How many of {', '.join(picked)} are deeper than {limit} metres? Give a number."
    verifier = WEAK if turn == 0 else READ_VERIFIER
    return program(text, [*picked, limit], READ_SOLUTION, verifier, names=picked, limit=limit)


def program(text, given, solution, verifier, **values):
    judge = verifier if verifier is WEAK else verifier.format(**values)
    return {
        "instruction": text,
        "given": given,
        "solution": solution.format(**values),
        "verifier": judge,
    }
