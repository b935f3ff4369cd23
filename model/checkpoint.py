"""Training state on disk, through Orbax: params, optimizer state and a little JSON.

    folder/<step>/state/    the pytree of arrays
    folder/<step>/meta/     JSON: whatever else the trainer needs to go on (counters, data position)

Orbax writes a step into a temporary folder and renames it, so a step is whole or absent; what a
killed process left half-written is ignored and cleaned away by the next one. It writes while the
trainer goes on: a save copies the arrays off the devices, the disk is waited for by the next save. The
newest ``keep`` steps stay. In a run of several processes all of them save and restore, each the parts of
its devices, in one folder that they share. Used by the trainer to resume with identical results; a
finished policy is shipped by :mod:`model.hf`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp
from etils import epath
from jax.sharding import NamedSharding

KEEP = 2  # ours: the newest, and one in case a disk fails under it


class Restored(NamedTuple):
    """One saved step."""

    step: int
    state: Any
    meta: dict[str, Any]


class Checkpoints:
    """The steps of one run. Close it, or use it as a context manager.

    Args:
        folder: made if missing.
        keep: how many steps stay.
    """

    def __init__(self, folder: str | Path, keep: int = KEEP):
        root = epath.Path(folder) if "://" in str(folder) else epath.Path(folder).absolute()
        if jax.process_index() == 0:
            _drop_broken(root)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, create=True, cleanup_tmp_directories=True, enable_async_checkpointing=True
        )
        self._manager = ocp.CheckpointManager(root, options=options)
        self._whole = self._manager.latest_step()

    def save(self, step: int, state: Any, meta: dict[str, Any] | None = None) -> None:
        """Begin to write a step: its arrays may change or be donated when this returns.

        It is on disk after :meth:`wait` or :meth:`close`; a later save waits for it, too.

        Args:
            step: larger than any saved before.
            state: a pytree of arrays, such as ``{"params": params, "opt_state": opt_state}``.
            meta: JSON values.

        Raises:
            ValueError: the step exists, or a later one does.
            OSError: the save before couldn't be written.
        """
        self.wait()
        latest = self.latest_step()
        if latest is not None and step <= latest:
            raise ValueError(f"step {step} must be after the last saved step, {latest}")
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(_plain(state)), meta=ocp.args.JsonSave(dict(meta or {}))
        )
        self._manager.save(step, args=args, force=True)

    def wait(self) -> None:
        """Until the last save is on disk.

        Raises:
            OSError: it couldn't be written.
        """
        self._manager.wait_until_finished()
        self._whole = self._manager.latest_step()

    def latest_step(self) -> int | None:
        """The newest step known to be whole, or None: not the one that is being written."""
        return self._whole

    def restore_latest(self, like: Any) -> Restored | None:
        """Read the newest step; None when there is none.

        Args:
            like: a pytree of the same structure, of arrays or :class:`jax.ShapeDtypeStruct`. What lies on a
                mesh there comes back on that mesh, wherever it was when it was saved.

        Raises:
            ValueError: the saved arrays have another structure, shape or dtype.
        """
        self.wait()
        step = self.latest_step()
        if step is None:
            return None
        abstract = {path: _shape_of(leaf) for path, leaf in _plain(like).items()}
        args = ocp.args.Composite(state=ocp.args.StandardRestore(abstract), meta=ocp.args.JsonRestore())
        saved = self._manager.restore(step, args=args)
        leaves = [saved["state"][key] for key in _plain(like)]  # in the order of the structure's leaves
        return Restored(step, jax.tree.unflatten(jax.tree.structure(like), leaves), saved["meta"])

    def close(self) -> None:
        """Wait, and let go of Orbax's threads."""
        self._manager.close()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _drop_broken(root: epath.Path) -> None:
    """Remove step folders without Orbax's mark of completion (an interrupted copy, say)."""
    if root.exists():
        for step in root.iterdir():
            if step.name.isdigit() and not (step / "_CHECKPOINT_METADATA").exists():
                step.rmtree()


def _plain(tree: Any) -> dict[str, Any]:
    """Leaves under their paths: the same on disk whatever containers the libraries use this year."""
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in _leaves(tree)}


def _leaves(tree: Any) -> list[tuple[Any, Any]]:
    return jax.tree_util.tree_flatten_with_path(tree)[0]


def _shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None)
    on_mesh = sharding if isinstance(sharding, NamedSharding) else None
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=on_mesh)
