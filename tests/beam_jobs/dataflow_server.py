"""A local server that speaks the part of Dataflow's REST API that a client needs, and really runs the job.

It takes a job as the service would, fetches the pipeline proto that the client staged on GCS, and runs it
on Beam's own runner in this process: what was staged is what is run, nothing else.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fixtures.http_server import Handler, served


class Dataflow:
    """``jobs`` are job descriptions as they came, ``protos`` the staged pipelines, ``states`` by job id."""

    def __init__(self) -> None:
        self.jobs: list[dict[str, Any]] = []
        self.protos: list[Any] = []
        self.states: dict[str, str] = {}
        self.faults: list[str] = []

    def create(self, job: dict[str, Any]) -> dict[str, Any]:
        job = {**job, "id": f"job-{len(self.jobs)}"}
        self.jobs.append(job)
        self.states[job["id"]] = "JOB_STATE_RUNNING"
        threading.Thread(target=self.run, args=(job,), daemon=True).start()
        return self.describe(job)

    def describe(self, job: dict[str, Any]) -> dict[str, Any]:
        kept = {k: job[k] for k in ("id", "name", "projectId", "location", "clientRequestId") if k in job}
        return {**kept, "currentState": self.states[job["id"]]}

    def run(self, job: dict[str, Any]) -> None:
        try:
            self.states[job["id"]] = "JOB_STATE_DONE" if self.work(job) == "DONE" else "JOB_STATE_FAILED"
        except Exception as err:
            self.faults.append(repr(err))
            self.states[job["id"]] = "JOB_STATE_FAILED"

    def work(self, job: dict[str, Any]) -> str:
        from apache_beam.io.filesystems import FileSystems
        from apache_beam.options.pipeline_options import PipelineOptions
        from apache_beam.portability import python_urns
        from apache_beam.portability.api import beam_runner_api_pb2
        from apache_beam.runners.portability.fn_api_runner import fn_runner

        options = job["environment"]["sdkPipelineOptions"]["options"]
        with FileSystems.open(options["pipelineUrl"]) as file:
            proto = beam_runner_api_pb2.Pipeline.FromString(file.read())
        self.protos.append(beam_runner_api_pb2.Pipeline.FromString(proto.SerializeToString()))
        for environment in proto.components.environments.values():
            environment.urn, environment.payload = python_urns.EMBEDDED_PYTHON, b""
            del environment.dependencies[:]
        result = fn_runner.FnApiRunner().run_via_runner_api(proto, PipelineOptions([]))
        return str(result.wait_until_finish())


@contextmanager
def serve() -> Iterator[tuple[Dataflow, str]]:
    """The service and its endpoint."""
    dataflow = Dataflow()

    class Service(Handler):
        def do_POST(self) -> None:
            job = json.loads(self.body())
            place = re.fullmatch(
                r"/v1b3/projects/([^/]+)/locations/([^/]+)/jobs", self.path.partition("?")[0]
            )
            assert place is not None, self.path
            self.say(dataflow.create(job | {"projectId": place[1], "location": place[2]}))

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            found = re.search(r"/jobs/([^/]+)(/messages|/metrics)?$", path)
            if found is None:
                return self.say({"jobs": [dataflow.describe(job) for job in dataflow.jobs]})
            if found[2]:
                return self.say({})
            self.say(dataflow.describe(next(job for job in dataflow.jobs if job["id"] == found[1])))

    with served(Service) as address:
        yield dataflow, address.replace("127.0.0.1", "localhost")
