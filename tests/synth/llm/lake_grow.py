"""What the scripted endpoint says when an environment over lakes grows: fees on permits, and tools over them.

The first designs are wrong in one way each: a program without the new gap closed, a tool over old tables only,
code with a column that is not there. Everything is told back and mended.
"""

# ruff: noqa: E501 (code of tools)

import re

from lake_world import column, new_table, parameter, result, tool

PROGRAM = """
def build(tables, rng):
    fees = []
    for i, permit in enumerate(tables["permits"]):
        over = permit["status"] in ("closed", "withdrawn")
        fees.append([f"FEE-{301 + i}", permit["permit_id"], rng.randint(2, 9), "paid" if over else "billed"])
    return {"permit_fees": fees}
"""
FEES = new_table(
    "permit_fees", "permit fee", "permit fees", "ledger", "fee_id", "follow-ups",
    [
        column("fee_id", "text", "key", "fee number", minted=True),
        column("permit_id", "text", "ref", "permit", refers_to="permits"),
        column("amount", "integer", "measure", "amount"),
        column("state", "text", "status", "state", values=["billed", "paid", "waived"]),
    ],
)  # fmt: skip
NOTES = new_table(
    "kind_notes", "note", "notes", "dimension", "kind", "follow-ups",
    [column("kind", "text", "key", "kind", refers_to="kind_totals"), column("lakes", "integer", "measure", "lakes")],
)  # fmt: skip
NOTES_PROGRAM = """
def build(tables, rng):
    return {"kind_notes": [[r["kind"], r["lake_count"] + 1] for r in tables["kind_totals"]]}
"""


def enrich(_user, turn, _seed):
    """After the malformed reply: a table that closes nothing, then the fees."""
    if turn <= 1:
        return {"program": NOTES_PROGRAM, "tables": [NOTES]}
    return {"program": PROGRAM, "tables": [FEES]}


ITEMS = {
    "type": "object",
    "properties": {"total": {"type": "integer"}, "items": {"type": "array"}},
    "required": ["total", "items"],
}
LIST_TOOL = tool(
    "list_fees", "The fees of a permit, by number: number, amount and state.", "list", "permit_fees",
    [parameter("permit_id", "entity", "permits.permit_id")], ITEMS,
    {"$.items[].fee_id": "permit_fees.fee_id"}, ["not_found"],
)  # fmt: skip
PAY_TOOL = tool(
    "pay_fee", "Takes in a fee that is billed.", "confirm", "permit_fees",
    [parameter("fee_id", "line", "permit_fees.fee_id")],
    result(fee_id="string", amount="integer", state="string"), {"$.fee_id": "permit_fees.fee_id"},
    ["not_found", "not_allowed"], read_only=False,
)  # fmt: skip
OLD_TOOL = tool(
    "count_kind", "How many lakes are of a kind.", "aggregate", "lakes",
    [parameter("kind", "eq", "lakes.kind")], result(lakes="integer"), {}, [],
)  # fmt: skip


def tool_design(_user, turn, _seed):
    return {"tools": [LIST_TOOL, PAY_TOOL, *([OLD_TOOL] if turn == 0 else [])]}


LIST_CODE = """
def list_fees(ctx, *, permit_id):
    if ctx.db.execute("SELECT 1 FROM permits WHERE permit_id = ?", (permit_id,)).fetchone() is None:
        raise ToolError("not_found", "no such permit")
    rows = ctx.db.execute(
        "SELECT fee_id, amount, state FROM permit_fees WHERE permit_id = ? ORDER BY fee_id LIMIT 20", (permit_id,)
    ).fetchall()
    return {"total": len(rows), "items": [dict(r) for r in rows]}
"""
LIST_CASES = """
def cases(tables):
    made = []
    for permit in tables["permits"][:4]:
        mine = sorted((r for r in tables["permit_fees"] if r["permit_id"] == permit["permit_id"]), key=lambda r: r["fee_id"])
        items = [{k: r[k] for k in ("fee_id", "amount", "state")} for r in mine]
        made.append({"arguments": {"permit_id": permit["permit_id"]}, "expect": {"total": len(items), "items": items}})
    return made + [{"arguments": {"permit_id": "PER-0"}, "error": "not_found"}]
"""
PAY_CODE = """
def pay_fee(ctx, *, fee_id):
    row = ctx.db.execute("SELECT amount, state FROM permit_fees WHERE fee_id = ?", (fee_id,)).fetchone()
    if row is None:
        raise ToolError("not_found", "no such fee")
    if row[1] != "billed":
        raise ToolError("not_allowed", "it is over")
    ctx.db.execute("UPDATE permit_fees SET state = 'paid' WHERE fee_id = ?", (fee_id,))
    return {"fee_id": fee_id, "amount": row[0], "state": "paid"}
"""
PAY_CASES = """
def cases(tables):
    made = []
    for r in tables["permit_fees"][:6]:
        arguments = {"fee_id": r["fee_id"]}
        if r["state"] == "billed":
            expect = {"fee_id": r["fee_id"], "amount": r["amount"], "state": "paid"}
            made.append({"arguments": arguments, "expect": expect, "changes": {"permit_fees": 1}})
        else:
            made.append({"arguments": arguments, "error": "not_allowed"})
    return made + [{"arguments": {"fee_id": "FEE-0"}, "error": "not_found"}]
"""
CODE = {"list_fees": (LIST_CODE, LIST_CASES), "pay_fee": (PAY_CODE, PAY_CASES)}


def plays(prompt, user):
    """Whether a request is about an environment that grows."""
    asked = {
        "enrich": r"^- follow-ups:",
        "tool_design": r"already:\n- ",
        "tool_code": f'"name": "({"|".join(CODE)})"',
    }
    return prompt in asked and re.search(asked[prompt], user, flags=re.M) is not None


def tool_code(user, turn, _seed):
    name = re.search(r'"name": "(\w+)"', user)[1]
    code, cases = CODE[name]
    if name == "list_fees" and turn == 0:  # a column that is not there: mended from the real error
        code = code.replace("SELECT fee_id, amount", "SELECT fee_id, price")
    return {"code": code, "cases": cases}
