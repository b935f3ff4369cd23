"""A soak of the driver: many conversations at a time, cancelled and timed out at random, each checked.

    python tests/model/soak_driver.py [--minutes 20] [--episodes 64] [--slots 48] [--policy model/base]

Each of ``--episodes`` threads plays one conversation after the other: a prompt, turns, and a "tool" that
takes 0 to 50 ms and whose message depends on what was sampled. One turn in ten is cancelled after a chunk,
one tool in ten runs into its time limit (its message then says so), one conversation in twenty is dropped
in the middle. There are fewer slots than conversations, so idle ones lose theirs all the time. Every
hundredth of the finished conversations is played again in a driver of its own, alone, and must be the same
to the bit. Prints one JSON object; exit code 1 when a slot was lost, an answer differed or memory grew.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

from model.driver import Driver
from model.engine import Engine
from model.hf import load_policy

Turn = tuple[list[int], list[float]]
LATE = [7, 7, 7]  # what a tool that ran into its time limit says


def memory() -> int:
    """Resident memory of this process, in MB, without what glibc keeps of freed pages for its 64 threads."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 // 2**20


class Script:
    """One conversation: everything in it but the timing comes from its number."""

    def __init__(self, number: int):
        rng = self.rng = random.Random(number)
        self.number = number
        self.prompt = [rng.randrange(20, 500) for _ in range(rng.randrange(20, 400))]
        self.late = [rng.random() < 0.1 for _ in range(5)]
        self.cancelled = [rng.random() < 0.1 for _ in range(5)]
        self.dropped = rng.random() < 0.05

    def message(self, turn: int, sampled: list[int]) -> list[int]:
        rng = random.Random(f"{self.number}/{turn}/{sampled}")
        return LATE if self.late[turn] else [rng.randrange(20, 500) for _ in range(rng.randrange(1, 60))]


def play(driver: Driver, script: Script, turns: int, *, alone: bool) -> list[Turn] | None:
    """The turns of a conversation; None when it was dropped or cancelled, as time decides what it says."""
    out: list[Turn] = []
    with driver.session(script.number) as session:
        message = script.prompt
        for turn in range(turns):
            session.append(message)
            handle = session.generate(24)
            if not alone and script.cancelled[turn]:
                next(iter(handle), None)
                handle.cancel()
                handle.result(600)
                return None
            result = handle.result(600)
            if not alone and script.dropped and turn == 1:
                return None
            out.append((result.tokens, result.logprobs))
            message = script.message(turn, result.tokens)
            if not alone:
                time.sleep(0.02 if script.late[turn] else random.random() * 0.05)
    return out


def soak(policy: str, minutes: float, episodes: int, slots: int, turns: int = 5) -> dict[str, Any]:
    """Run it; see the module's docstring."""
    config, params, tokenizer = load_policy(policy)
    engine = Engine(config, params, slots=slots, max_len=1024, eos_id=tokenizer.eos_id, shard=slots // 2)
    until = time.monotonic() + 60 * minutes
    lock, counter = threading.Lock(), iter(range(10**9))
    kept: dict[int, list[Turn]] = {}
    ended = {"finished": 0, "broken_off": 0, "failed": 0}
    resident: list[int] = []

    with Driver(engine) as driver:

        def work() -> None:
            while time.monotonic() < until:
                with lock:
                    number = next(counter)
                try:
                    out = play(driver, Script(number), turns, alone=False)
                except Exception as err:
                    print(f"conversation {number}: {err!r}", file=sys.stderr)
                    ended["failed"] += 1
                    continue
                with lock:
                    ended["finished" if out else "broken_off"] += 1
                    if out and ended["finished"] % max(1, int(100 * min(1.0, minutes / 20))) == 0:
                        kept[number] = out

        threads = [threading.Thread(target=work) for _ in range(episodes)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(min(5.0, 6 * minutes))
            resident.append(memory())
        time.sleep(1)
        stats = driver.stats()
    with Driver(engine) as driver:
        differ = [n for n, out in kept.items() if play(driver, Script(n), turns, alone=True) != out]
    quarter = max(1, len(resident) // 4)
    return {
        "name": "soak_driver",
        "minutes": minutes,
        "conversations": ended,
        "checked": len(kept),
        "differ": differ,
        "slots_lost": stats.slots_used,
        "sessions_left": stats.sessions,
        "memory_mb": [max(resident[quarter : 2 * quarter + 1]), max(resident[-quarter:])],
        "stats": vars(stats),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="soak the driver")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--slots", type=int, default=48)
    parser.add_argument("--policy", default="model/base")
    asked = parser.parse_args()
    result = soak(asked.policy, asked.minutes, asked.episodes, asked.slots)
    early, late = result["memory_mb"]
    bad = result["differ"] or result["slots_lost"] or result["sessions_left"] or late > 1.05 * early + 20
    result["met"] = not (bad or result["conversations"]["failed"])
    print(json.dumps(result))
    return 0 if result["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
