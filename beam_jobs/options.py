"""Beam options: passed through as they are, with a default runner that needs nothing but this process.

The default is Beam's FnApiRunner in memory, chosen by name. Beam's own ``DirectRunner`` is a
switch that tries Prism first, a Go program that it may want to download, and falls back by
catching the failure; here ``DirectRunner`` therefore means the FnApiRunner that it falls back
to. Everything else (``DataflowRunner``, ``PortableRunner``, a full class path) reaches Beam unchanged.

Two workers on one machine: ``--direct_running_mode=multi_processing --direct_num_workers=2``
(about 2.5 s more to start, ours, measured); their log goes to ``<run>/logs/<stage>-workers.log``.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from synth.errors import CallerError

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.runner import PipelineRunner

LOCAL = ("directrunner", "direct", "fnapirunner", "fnapi")
WORKER = "apache_beam.runners.worker.sdk_worker_main"


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


def make_runner(options: PipelineOptions, log: Path) -> PipelineRunner:
    """The runner that the options name.

    Args:
        options: from :func:`build_options`.
        log: where the worker processes of ``multi_processing`` write what they say.

    Raises:
        CallerError: the runner is unknown, or its package isn't installed.
    """
    from apache_beam.options.pipeline_options import StandardOptions
    from apache_beam.runners.runner import create_runner

    name = str(options.view_as(StandardOptions).runner)
    if name == "FnApiRunner":
        return _local_runner(options, log)
    try:
        return create_runner(name)
    except (ImportError, AttributeError, ValueError) as err:
        raise CallerError(f"--runner={name}: {err}") from None


def _local_runner(options: PipelineOptions, log: Path) -> PipelineRunner:
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
        return fn_runner.FnApiRunner(provision_info=info)
    direct.direct_running_mode = "in_memory"  # or the runner would replace the environment below
    log.parent.mkdir(parents=True, exist_ok=True)
    command = f"exec {shlex.quote(sys.executable)} -m {WORKER} >>{shlex.quote(str(log))} 2>&1"
    environment = SubprocessSDKEnvironment.from_command_string(command)
    return fn_runner.FnApiRunner(default_environment=environment, provision_info=info)
