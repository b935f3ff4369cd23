"""Beam's portable runner with everything apart: a job service, a pool of workers, and us, each a process.

What a pipeline needs must then really travel: the job service gets a proto, the workers get pickled
functions, and neither shares a module with the process that built the pipeline.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

JOBS = "apache_beam.runners.portability.local_job_service_main"
POOL = "apache_beam.runners.worker.worker_pool_main"


@contextmanager
def portable(room: Path) -> Iterator[list[str]]:
    """Start both services; gives the options that send a pipeline there."""
    room.mkdir(parents=True, exist_ok=True)
    pool_port, job_port = _free_port(), room / "port"
    # the pool starts workers as "python", so that name must mean this interpreter
    (room / "bin").mkdir()
    (room / "bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (room / "bin/python").chmod(0o755)
    environment = {**os.environ, "PATH": f"{room / 'bin'}:{os.environ['PATH']}"}
    jobs = [JOBS, f"--port_file={job_port}", f"--staging_dir={room / 'staging'}"]
    commands = [jobs, [POOL, f"--service_port={pool_port}"]]
    with open(room / "log", "w") as log:
        processes = [
            subprocess.Popen([sys.executable, "-m", *command], env=environment, stdout=log, stderr=log)
            for command in commands
        ]
        try:
            _wait(lambda: job_port.exists() and job_port.read_text().strip(), processes, room / "log")
            _wait(lambda: _answers(pool_port), processes, room / "log")
            yield [
                "--runner=PortableRunner",
                f"--job_endpoint=localhost:{job_port.read_text().strip()}",
                "--environment_type=EXTERNAL",
                f"--environment_config=localhost:{pool_port}",
            ]
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                try:
                    process.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _wait(ready, processes: list[subprocess.Popen], log: Path) -> None:
    deadline = time.monotonic() + 120
    while not ready():
        assert time.monotonic() < deadline, log.read_text()
        assert all(process.poll() is None for process in processes), log.read_text()
        time.sleep(0.1)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("localhost", port)) == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
