"""A tau2-bench domain becomes an environment; its layout is tau2's, every line of content is made up here."""

from __future__ import annotations

import json

import pytest
from synth_sandbox import bubblewrap_works

from synth.env.bundle import read_bundle
from synth.env.mcp_client import McpEnvServer
from synth.errors import CallerError
from synth.importers import tau2
from synth.importers.base import publish

MODELS = """
from typing import Dict, List, Literal, Optional
from pydantic import BaseModel, Field
from tau2.domains.bakery.utils import BAKERY_DB_PATH
from tau2.environment.db import DB

Size = Literal["small", "large"]

class Line(BaseModel):
    bread: str
    pieces: int = Field(description="How many", default=1)

class Order(BaseModel):
    order_id: str
    owner: str
    lines: List[Line] = Field(description="What was ordered")
    size: Size = "small"

class BakeryDB(DB):
    orders: Dict[str, Order]
    owners: Dict[str, dict]
"""
TOOLS = '''
import uuid
from typing import List, Optional
from loguru import logger
from tau2.domains.bakery.data_model import BakeryDB, Line, Order, Size
from tau2.environment.toolkit import ToolKitBase, ToolType, is_tool

class BakeryTools(ToolKitBase):
    db: BakeryDB

    def __init__(self, db: BakeryDB) -> None:
        super().__init__(db)

    @is_tool(ToolType.READ)
    def get_order(self, order_id: str) -> Order:
        """
        Show an order.

        Args:
            order_id: Such as 'o-1'.
        """
        if order_id not in self.db.orders:
            raise ValueError(f"Order {order_id} not found")
        return self.db.orders[order_id]

    @is_tool(ToolType.WRITE)
    def place_order(self, owner: str, lines: List[Line | dict], size: Optional[Size] = "small") -> Order:
        """Order bread."""
        logger.info("ordering")
        lines = [Line(**line) if isinstance(line, dict) else line for line in lines]
        order = Order(order_id=uuid.uuid4().hex[:8], owner=owner, lines=lines, size=size)
        self.db.orders[order.order_id] = order
        return order

    def assert_orders(self, number: int) -> bool:
        return len(self.db.orders) == number
'''
UTILS = "from tau2.utils.utils import DATA_DIR\nBAKERY_DB_PATH = DATA_DIR / 'db.json'\n"
ORDERS = {f"o-{n}": {"order_id": f"o-{n}", "owner": f"p-{n}", "lines": [{"bread": "rye", "pieces": n}]}
          for n in range(1, 9)}  # fmt: skip
DATABASE = {"orders": ORDERS, "owners": {f"p-{n}": {"name": f"Ada {n}"} for n in range(1, 9)}}
LOOK = {"action_id": "0", "name": "get_order", "arguments": {"order_id": "o-7"}}
PLACE = {"action_id": "1", "name": "place_order",
         "arguments": {"owner": "p-2", "lines": [{"bread": "spelt", "pieces": 3}]}}  # fmt: skip


def task(number, text, actions, **other):
    told = {
        "task_instructions": "Be brief.",
        "reason_for_call": text,
        "known_info": "I am p-7.",
    }
    initial = other.pop("initial_state", None)
    criteria = {"actions": actions, "communicate_info": [], "nl_assertions": None, **other}
    return {"id": str(number), "user_scenario": {"instructions": told}, "initial_state": initial,
            "evaluation_criteria": criteria}  # fmt: skip


TASKS = [
    task(0, "How many pieces of bread are in the order o-7?", [LOOK], communicate_info=["7"]),
    task(1, "Order three pieces of spelt bread for p-2.", [LOOK, PLACE], nl_assertions=["is polite"]),
    task(2, "Order nothing.", []),
    task(3, "Order spelt.", [PLACE], initial_state={"message_history": [{"role": "user"}]}),
    task(4, "Restart the oven.", [{**PLACE, "requestor": "user"}]),
]


@pytest.fixture(scope="module")
def bakery(tmp_path_factory):
    root = tmp_path_factory.mktemp("tau2")
    sources, data = root / "bakery", root / "data"
    sources.mkdir()
    data.mkdir()
    for name, text in (("data_model.py", MODELS), ("tools.py", TOOLS), ("utils.py", UTILS)):
        (sources / name).write_text(text)
    (data / "db.json").write_text(json.dumps(DATABASE))
    (data / "tasks.json").write_text(json.dumps(TASKS))
    (data / "policy.md").write_text("Bread is never sold on Sundays.")
    return sources, data, root / "b"


def test_schemas_are_read_without_running_anything(bakery):
    look, place = tau2.read(*bakery[:2]).tools  # assert_orders is no tool
    assert [tool["annotations"]["readOnlyHint"] for tool in (look, place)] == [True, False]
    assert look["inputSchema"]["properties"]["order_id"] == {
        "type": "string",
        "description": "Such as 'o-1'.",
    }
    line = place["inputSchema"]["properties"]["lines"]["items"]
    assert (line["properties"], line["required"]) == (
        {"bread": {"type": "string"}, "pieces": {"type": "integer"}}, ["bread"],
    )  # fmt: skip
    assert place["inputSchema"]["properties"]["size"]["anyOf"] == [
        {"enum": ["small", "large"]},
        {"type": "null"},
    ]
    assert place["inputSchema"]["required"] == ["owner", "lines"]


def test_a_smaller_database_keeps_what_the_tasks_need_and_what_that_names(bakery):
    kept = json.loads(tau2.read(*bakery[:2], rows=2).state["init.json"])
    assert set(kept["orders"]) == {"o-7", "o-1"}
    assert set(kept["owners"]) == {"p-7", "p-2"}


@pytest.mark.skipif(not bubblewrap_works(), reason="imported sources run in bubblewrap")
def test_each_task_is_kept_changed_or_refused_with_a_reason(bakery):
    sources, data, out = bakery
    done = publish(tau2.read(sources, data), out)
    assert done.report is not None
    assert {n: r["effect"] for n, r in done.report.tools.items()} == {
        "get_order": "read",
        "place_order": "write",
    }
    assert [row.outcome for row in done.rows] == ["kept", "changed", "refused", "refused", "refused"]
    for row, why in zip(done.rows[1:], ["in prose", "no calls", "of its own", "user's side"], strict=True):
        assert why in row.why, row
    assert done.tasks[0].reference_answer == 7
    assert "never for training" in read_bundle(out / "tau2_bakery").manifest.theme.description
    with McpEnvServer(out / "tau2_bakery") as server:
        made = []
        for seed in (3, 3, 4):  # ids come from the episode's seed
            with server.open(seed) as episode:
                made.append(episode.call("place_order", PLACE["arguments"]).value["order_id"])
                assert made[-1] in json.loads(episode.snapshot().files["object.json"])["db"]["orders"]
                assert episode.call("get_order", {"order_id": "o-99"}).error_message == "Order o-99 not found"
    assert made[0] == made[1] != made[2]


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [("tasks.json", "{}", "must be a JSON list"), ("db.json", "[]", "must be an object of collections"),
     ("tasks.json", '[{"id": 1}]', "item 0: KeyError 'user_scenario'")],
)  # fmt: skip
def test_a_file_of_another_shape_is_named(bakery, tmp_path, name, text, line):
    for path in bakery[1].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / name).write_text(text)
    with pytest.raises(CallerError, match=line) as err:
        tau2.read(bakery[0], tmp_path)
    assert name in str(err.value)


def test_sources_without_a_toolkit_are_refused(bakery, tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    for name in ("data_model.py", "tools.py"):
        (folder / name).write_text("x = 1")
    with pytest.raises(CallerError, match="no class with @is_tool methods"):
        tau2.read(folder, bakery[1])
