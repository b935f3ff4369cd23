"""The body of ``agent-world export``: a policy, or what a training has reached, as a Hugging Face folder.

In: a policy folder (with a LoRA adapter, if given), or ``RUN/train/NAME`` with its ``policy/`` or its newest
checkpoint. Out: a folder that ``transformers`` loads, see :mod:`model.hf`.
"""

from __future__ import annotations

import json
from pathlib import Path

from arena.measure import load_policy
from beam_jobs.mirror import fetched, named, on_disk
from model.checkpoint import Checkpoints
from model.hf import load_policy as load_folder
from rl.adapters import trained_part
from rl.learner import Learner
from rl.policy import Policy
from rl.train import GRPOConfig
from synth.errors import CallerError


def run_export(
    source: Path,
    out: Path,
    base: Path | None = None,
    adapter: Path | None = None,
    dtype: str = "float32",
    as_json: bool = False,
) -> int:
    """See :func:`arena.cli_model.export`.

    Raises:
        CallerError: there is no policy in ``source``, the adapter doesn't fit, or ``out`` holds other files.
    """
    on_disk(out)
    with fetched(source) as local:
        policy, from_ = read_policy(local, base, adapter)
    from_ = from_.replace(str(local), named(source))
    try:
        policy.save(out, dtype)
    except FileExistsError as err:
        raise CallerError(str(err)) from None
    if as_json:
        shown = {"policy": str(out), "from": from_, "version": policy.version, "dtype": dtype}
        print(json.dumps(shown | {"parameters": policy.config.parameters, "family": policy.config.family}))
    else:
        print(
            f"{out}: {policy.config.family}, {policy.config.parameters:,} parameters, {dtype}, from {from_}"
        )
    return 0


def read_policy(source: Path, base: Path | None, adapter: Path | None) -> tuple[Policy, str]:
    """The policy that ``source`` stands for, and in words where it was found."""
    if (source / "policy").is_dir():
        source = source / "policy"
    if (source / "checkpoints").is_dir():
        if adapter is not None:
            raise CallerError(f"{source}: --adapter is for a policy folder, this is a training")
        return _reached(source, base)
    if adapter is None:
        return load_policy(source), str(source)
    try:
        return Policy.make(*load_folder(source, adapter=adapter)), f"{source} with {adapter}"
    except FileNotFoundError as err:
        raise CallerError(f"{source} with adapter {adapter}: {err}") from None
    except ValueError as err:
        raise CallerError(str(err)) from None


def _reached(training: Path, base: Path | None) -> tuple[Policy, str]:
    """The newest checkpoint of a training that hasn't finished."""
    try:
        config = GRPOConfig.model_validate(json.loads((training / "config.json").read_text())["config"])
    except (FileNotFoundError, ValueError, KeyError) as err:
        raise CallerError(f"{training / 'config.json'}: not the config of a training: {err}") from None
    start = load_policy(base)
    learner = Learner(start.score, config.learner, config.steps * config.batch.minibatches)
    part, full = trained_part(config.lora, start.params, config.seed)
    try:
        with Checkpoints(training / "checkpoints") as checkpoints:
            saved = checkpoints.restore_latest(learner.init(part))
    except ValueError as err:
        where = f"started from another policy than {base or 'the base policy'}; name it with --policy"
        raise CallerError(f"{training}: {where}: {str(err).splitlines()[0]}") from None
    if saved is None:
        raise CallerError(f"{training}: no step has finished yet")
    params = full(saved.state.params, start.params)
    return start.with_params(params, start.version + saved.step), f"{training}, step {saved.step}"
