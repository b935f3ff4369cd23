"""Options of a pipeline: a few of our own, and Beam's, passed through as they are.

Ours (:class:`JobOptions`): ``--retry-dead``, ``--attempts N``, ``--element-timeout SECONDS``.

The default runner is Beam's FnApiRunner in memory, chosen by name. Beam's own ``DirectRunner`` is a
switch that tries Prism first, a Go program that it may want to download, and falls back by
catching the failure; here ``DirectRunner`` therefore means the FnApiRunner that it falls back
to. Everything else (``DataflowRunner``, ``PortableRunner``, a full class path) reaches Beam unchanged.

Two workers on one machine: ``--direct_running_mode=multi_processing --direct_num_workers=2``
(about 2.5 s more to start, ours, measured); their log goes to ``<run>/logs/<stage>-workers.log``.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from beam_jobs.store import LocalStore, Store
from beam_jobs.workers import Workers
from synth.errors import CallerError

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.runner import PipelineRunner

DASK_BUNDLES = 32  # ours: DaskRunner's own default puts 128 elements into one bundle, which is one worker's
LOCAL = ("directrunner", "direct", "fnapirunner", "fnapi")


@dataclass(frozen=True)
class JobOptions:
    """Options of ours that go beside Beam's; None leaves what the stage says.

    Attributes:
        retry_dead: try the elements again that died of their content.
        attempts: for an infrastructure error.
        element_timeout: seconds for one attempt at one element.
    """

    retry_dead: bool = False
    attempts: int | None = None
    element_timeout: float | None = None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise CallerError(f"options: {message}")


def split_options(words: Sequence[str]) -> tuple[JobOptions, list[str]]:
    """Our options, and the words that are left for Beam.

    Raises:
        CallerError: a bad value.
    """

    def above_zero(kind: Callable[[str], float]) -> Callable[[str], float]:
        def parse(text: str) -> float:
            value = kind(text)
            if not value > 0:
                raise argparse.ArgumentTypeError(f"{text} is not above 0")
            return value

        return parse

    parser = _Parser(allow_abbrev=False, add_help=False)
    parser.add_argument("--retry-dead", "--retry_dead", action="store_true")
    parser.add_argument("--attempts", type=above_zero(int))
    parser.add_argument("--element-timeout", "--element_timeout", type=above_zero(float))
    found, left = parser.parse_known_args(list(words))
    return JobOptions(**vars(found)), left


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Beam's own log below ERROR off the screen, also the warnings that it utters on import.

    A handler is lent to the root logger, because a bare ``logging.warning`` would otherwise
    install one for good. The user's ``--default_sdk_harness_log_level`` isn't touched.
    """
    root, beam_logger = logging.getLogger(), logging.getLogger("apache_beam")
    lent, level = logging.NullHandler(), beam_logger.level

    def keep(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR or "apitools" not in record.getMessage()

    root.addHandler(lent)
    root.addFilter(keep)
    beam_logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.removeHandler(lent)
        root.removeFilter(keep)
        beam_logger.setLevel(level)


def build_options(args: Sequence[str]) -> PipelineOptions:
    """Beam's options from command line words.

    Raises:
        CallerError: a word that Beam doesn't know (Beam itself would drop it in silence), or a bad value.
    """
    from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions, _BeamArgumentParser

    class Parser(_BeamArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise CallerError(f"Beam options: {message}")

    parser = Parser(allow_abbrev=False, add_help=False, argument_default=argparse.SUPPRESS)
    for kind in {str(k): k for k in PipelineOptions.__subclasses__()}.values():
        kind._add_argparse_args(parser)
    _, unknown = parser.parse_known_args(list(args))
    if unknown:
        raise CallerError(f"Beam options: {unknown[0]} is not an option that Beam knows")
    options = PipelineOptions(list(args))
    standard = options.view_as(StandardOptions)
    if (standard.runner or "direct").lower() in LOCAL:
        standard.runner = "FnApiRunner"
    return options


def spread(options: PipelineOptions, elements: int) -> None:
    """Cut the work for DaskRunner into bundles of few elements, unless the user says how."""
    from apache_beam.options.pipeline_options import StandardOptions

    if not str(options.view_as(StandardOptions).runner).lower().endswith("daskrunner"):
        return
    try:
        from apache_beam.runners.dask.dask_runner import DaskOptions
    except ImportError:
        return  # make_runner says so
    dask = options.view_as(DaskOptions)
    if not dask.npartitions and not dask.partition_size:
        dask.npartitions = max(1, min(elements, DASK_BUNDLES))


def make_runner(options: PipelineOptions, store: Store, stage: str) -> tuple[PipelineRunner, Workers | None]:
    """The runner that the options name, and its worker processes when they are ours to watch.

    Args:
        options: from :func:`build_options`.
        store: the run folder; the worker processes of ``multi_processing`` write what they say below
            ``logs/`` there, or nowhere when it is not a local folder.
        stage: names that log.

    Raises:
        CallerError: the runner is unknown, or its package isn't installed.
    """
    from apache_beam.options.pipeline_options import StandardOptions
    from apache_beam.runners.runner import create_runner

    name = str(options.view_as(StandardOptions).runner)
    if name == "FnApiRunner":
        local = isinstance(store, LocalStore)
        return _local_runner(options, store.root / "logs" / f"{stage}-workers.log" if local else None)
    try:
        return create_runner(name), None
    except (ImportError, AttributeError, ValueError) as err:
        raise CallerError(f"--runner={name}: {err}") from None


def _local_runner(options: PipelineOptions, log: Path | None) -> tuple[PipelineRunner, Workers | None]:
    """FnApiRunner as DirectRunner would set it up, and with the workers' noise sent to a file."""
    from apache_beam.options.pipeline_options import DirectOptions
    from apache_beam.portability.api import beam_provision_api_pb2
    from apache_beam.runners.portability.fn_api_runner import fn_runner
    from apache_beam.runners.portability.portable_runner import JobServiceHandle
    from apache_beam.transforms.environments import SubprocessSDKEnvironment

    encoded = JobServiceHandle.encode_pipeline_options(options.get_all_options())
    info = fn_runner.ExtendedProvisionInfo(beam_provision_api_pb2.ProvisionInfo(pipeline_options=encoded))
    direct = options.view_as(DirectOptions)
    if direct.direct_running_mode != "multi_processing":
        return fn_runner.FnApiRunner(provision_info=info), None
    direct.direct_running_mode = "in_memory"  # or the runner would replace the environment below
    workers = Workers(log, direct.direct_num_workers or os.cpu_count() or 1)  # 0 means all, to Beam
    environment = SubprocessSDKEnvironment.from_command_string(workers.command())
    return fn_runner.FnApiRunner(default_environment=environment, provision_info=info), workers
