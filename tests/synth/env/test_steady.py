"""Clock, ids and randomness of foreign programs: the same for the same seed, whatever they ask."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import synth.env

STEADY = Path(synth.env.__path__[0]) / "steady"
CLOCK = "2026-03-01T10:20:30Z"

IN_PYTHON = """
import datetime, json, os, random, secrets, time, uuid
from datetime import date, datetime as moment
print(json.dumps({
    "clock": [time.time(), time.time_ns() // 10**9, moment.now().isoformat(), moment.utcnow().isoformat(),
              datetime.datetime.now(datetime.UTC).isoformat(), date.today().isoformat(),
              time.strftime("%F %T"), time.gmtime()[:6], time.ctime()],
    "chance": [uuid.uuid4().hex, uuid.uuid1().hex, random.random(), random.SystemRandom().random(),
               secrets.token_hex(8), secrets.choice(range(10**9)), os.urandom(8).hex()],
}))
"""
IN_NODE = """
import crypto, { randomUUID } from "crypto";
console.log(JSON.stringify({
    clock: [Date.now(), new Date().toISOString(), Date()],
    chance: [Math.random(), randomUUID(), crypto.randomBytes(8).toString("hex"), crypto.randomInt(1e9),
             crypto.randomFillSync(Buffer.alloc(8)).toString("hex"), globalThis.crypto.randomUUID(),
             Buffer.from(globalThis.crypto.getRandomValues(new Uint8Array(8))).toString("hex")],
}))
"""


def in_python(seed):
    given = {"PYTHONPATH": str(STEADY), "AGENT_WORLD_SEED": seed, "AGENT_WORLD_CLOCK": CLOCK, "TZ": "UTC"}
    return said([sys.executable, "-s", "-c", IN_PYTHON], given)


def in_node(seed):
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node")
    given = {"AGENT_WORLD_SEED": seed, "AGENT_WORLD_CLOCK": CLOCK, "TZ": "UTC"}
    return said([node, f"--require={STEADY}/steady.js", "--input-type=module", "-e", IN_NODE], given)


def said(command, environment):
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("ask", [in_python, in_node])
def test_a_seed_decides_every_id_and_draw_and_the_clock_stands(ask):
    one, again, other = (ask(seed) for seed in ("5", "5", "6"))
    assert one == again
    assert one["clock"] == other["clock"]
    same = [a for a, b in zip(one["chance"], other["chance"], strict=True) if a == b]
    assert not same
    assert all("2026" in str(value) for value in one["clock"] if isinstance(value, str))
