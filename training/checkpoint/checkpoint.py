"""Saving and loading the state of a training run.

All ranks write what they own at the same time; then rank 0 commits the manifest, and only then does the checkpoint
exist. So a run that dies at any point leaves the older checkpoints as they were. The folder must be one that all ranks
share.
"""

import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from rankhouse.embedding_cache.format.errors import FormatError
from rankhouse.embedding_cache.format.files import MANIFEST_NAME, commit_manifest
from rankhouse.training.checkpoint.files import (
    KEY_ARRAYS,
    KIND,
    TOUCHED,
    WEIGHTS,
    Checkpoint,
    complete_checkpoints,
    incomplete_checkpoints,
    step_folder,
)
from rankhouse.training.checkpoint.learnt_rows import load_learnt_rows
from rankhouse.training.checkpoint.part import KeptLayer, Part, Written, arrays, table_arrays
from rankhouse.training.data.fit import Fit
from rankhouse.training.distributed_embedding import DistributedEmbedding
from rankhouse.training.errors import CheckpointError, TrainingError
from rankhouse.training.optimizers.optimizers import Optimizer
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.table_shards import TableShard
from rankhouse.training.tables.variable_rows import read_rows_at, write_rows, write_rows_at

# Rows are copied in blocks of this many bytes, so loading a table takes no second one in memory.
_BLOCK_BYTES = 64 << 20

# Of tables that learn their keys: what the steps of the keys count.
_NUM_LOOKUPS = "num_lookups"


@dataclass(frozen=True)
class TrainingState:
    """What a checkpoint holds of a run.

    Attributes:
        embedding: The tables.
        dense: All other variables by names that do not depend on the process, such as "top_mlp/0/kernel".
        optimizer: Of the tables and all of `dense` that is trained.
        initial_rows: How many rows each table had when its first run began, where it has grown since.
        lineage: (id, iterations) of the checkpoints that led to the state, oldest first: saving adds one, loading
            replaces all.
        vocabularies: Layers that learn keys, such as `DynamicVocabulary`, by name; they know the same on all ranks.
    """

    embedding: DistributedEmbedding
    dense: Mapping[str, tf.Variable]
    optimizer: Optimizer
    initial_rows: Mapping[str, int] = field(default_factory=dict)
    lineage: list[tuple[str, int]] = field(default_factory=list)
    vocabularies: Mapping[str, KeptLayer] = field(default_factory=dict)

    def part(self, rank: int) -> Part:
        """Returns what a rank writes of it."""
        return Part(self.embedding, self.dense, self.optimizer, rank=rank, vocabularies=self.vocabularies)


def save_checkpoint(
    root: Path | str,
    state: TrainingState,
    *,
    ranks: Ranks,
    step: int,
    document: Mapping[str, Any],
    fit: Fit | None = None,
    keep: int | None = None,
) -> Path:
    """Saves a run's state; collective. A step that was saved already is left as it is.

    Args:
        root: The run's `checkpoints` folder, which all ranks share.
        state: What to save.
        ranks: The ranks that train.
        step: The number of training steps that the run has done, at least 0.
        document: What else to keep: epoch, seed, metrics; JSON values, the same on all ranks.
        fit: What inputs stand for in the dataset; None where nobody will go on from the checkpoint.
        keep: How many of the latest checkpoints to keep, at least 1; None keeps all.

    Returns:
        The checkpoint's folder.

    Raises:
        CheckpointError: Some rank could not write; raised on every rank, naming it. Older checkpoints are untouched.
    """
    check_keep(keep)
    saving = begin_saving(root, state, ranks=ranks, step=step, document=document, fit=fit)
    if saving.is_saved:
        return saving.folder
    part = state.part(ranks.rank)
    found = together(ranks, lambda: part.write(saving.folder).document(), name="checkpoint_write")
    written = [Written.parse(document) for document in found]
    together(ranks, lambda: saving.commit(written, keep=keep), only_rank=0, name="checkpoint_commit")
    state.lineage[:] = saving.lineage
    return saving.folder


@dataclass(frozen=True)
class Saving:
    """A checkpoint that is being saved.

    Attributes:
        folder: Its folder, which has no manifest yet.
        is_saved: Whether the step was saved before; then there is nothing to do.
        manifest: What the manifest will say, but for pieces and files.
        lineage: The state's, once the checkpoint is there.
    """

    folder: Path
    is_saved: bool
    manifest: Mapping[str, Any]
    lineage: list[tuple[str, int]]

    def commit(self, written: Sequence[Written], *, keep: int | None) -> None:
        """Makes the checkpoint exist; on rank 0 alone, when all ranks have written their parts.

        Args:
            written: What each rank has written.
            keep: How many of the latest checkpoints to keep; None keeps all.

        Raises:
            FormatError, OSError: A file is missing, or the manifest cannot be written.
        """
        pieces = [piece for part in written for piece in part.pieces]
        pieces.sort(key=lambda item: (item["table"], item["array"], item["start"], item.get("column_start", 0)))
        files = {name: record for part in written for name, record in part.files.items()}
        commit_manifest(self.folder, kind=KIND, document={**self.manifest, "row_ranges": pieces}, files=files)
        for old in complete_checkpoints(self.folder.parent)[:-keep] if keep else []:
            # The manifest goes first: what is half removed must not look complete.
            (old / MANIFEST_NAME).unlink()
            shutil.rmtree(old)


def begin_saving(
    root: Path | str,
    state: TrainingState,
    *,
    ranks: Ranks,
    step: int,
    document: Mapping[str, Any],
    fit: Fit | None = None,
) -> Saving:
    """Makes a checkpoint's folder, and brings all rows to the same step; collective. The arguments: `save_checkpoint`.

    Raises:
        CheckpointError: Rank 0 could not make the folder; raised on every rank.
    """
    folder = step_folder(Path(root), step)
    identifier = together(ranks, lambda: _prepare(folder), only_rank=0, name="checkpoint_prepare")[0]
    if identifier is None:
        return Saving(folder, True, {}, [])
    lineage = [*state.lineage, (identifier, int(state.optimizer.iterations.numpy()))]
    # All rows are then at the same step, which needs no saving.
    state.optimizer.catch_up_all()
    manifest = {
        **_manifest(state, ranks, document),
        "step": step,
        "lineage": lineage,
        **(fit.document() if fit is not None else {}),
    }
    return Saving(folder, False, manifest, lineage)


def check_keep(keep: int | None) -> None:
    """Refuses to keep less than one checkpoint.

    Raises:
        CheckpointError: It is below 1.
    """
    if keep is not None and keep < 1:
        raise CheckpointError(f"keep is {keep}; expected at least 1, or None to keep all checkpoints")


def load_checkpoint(path: Path | str, state: TrainingState, *, ranks: Ranks) -> Checkpoint:
    """Puts a checkpoint's state into the run's variables; collective. Any number of ranks under any plan can load it.

    Each rank reads the rows that it holds, and verifies the files that have them.

    Args:
        path: The checkpoint's folder.
        state: What to overwrite.
        ranks: The ranks that train now.

    Returns:
        The checkpoint, with the step and the document that was saved.

    Raises:
        CheckpointError: The checkpoint is corrupt or of another model; raised on every rank.
    """
    return _load_together(Path(path), state, ranks, freed=None)


def continue_checkpoint(
    path: Path | str, state: TrainingState, *, ranks: Ranks, freed: Mapping[str, npt.NDArray[np.int64]]
) -> Checkpoint:
    """Puts a checkpoint's state into the variables of a new model, whose tables may have grown; collective.

    Rows that the checkpoint does not have, and those whose ids were freed, keep their values and slots; they count as
    written by the next step.

    Args:
        path: The checkpoint's folder.
        state: What to overwrite, with all its initial values.
        ranks: The ranks that train now.
        freed: Sorted ids by table, whose rows start anew, as they stand for other values now.

    Returns:
        The checkpoint.

    Raises:
        CheckpointError: As of `load_checkpoint`; or a table has become smaller.
    """
    return _load_together(Path(path), state, ranks, freed=freed)


def together(ranks: Ranks, work: Callable[[], Any], *, name: str, only_rank: int | None = None) -> list[Any]:
    """Does work on every rank, or on one of them; if it fails anywhere, raises everywhere.

    Args:
        ranks: The ranks.
        work: Returns a JSON value.
        name: Name of the exchange.
        only_rank: The rank that works; the others wait for it.

    Returns:
        What the work returned, by rank; None where a rank did nothing.

    Raises:
        CheckpointError: It failed on some rank.
    """
    answer: dict[str, Any] = {}
    cause: Exception | None = None
    if only_rank is None or ranks.rank == only_rank:
        try:
            answer["value"] = work()
        except (FormatError, OSError, TrainingError) as exc:
            answer["error"], cause = str(exc), exc
        except Exception as exc:  # Whatever it is: the other ranks are going to wait for this one.
            answer["error"], cause = repr(exc), exc
    answers = ranks.exchange_json(answer, name=name)
    for rank, other in enumerate(answers):
        if "error" in other:
            message = other["error"] if ranks.size == 1 else f"rank {rank}: {other['error']}"
            raise CheckpointError(message) from cause
    return [other.get("value") for other in answers]


def _prepare(folder: Path) -> str | None:
    """Makes the folder and clears away what dead saves left; returns an id, or None if the step was saved before."""
    if folder in complete_checkpoints(folder.parent):
        return None
    for leftover in incomplete_checkpoints(folder.parent):
        shutil.rmtree(leftover)
    (folder / "tables").mkdir(parents=True)
    return secrets.token_hex(16)


def _optimizer_name(state: TrainingState) -> str:
    return type(state.optimizer.settings).__name__


def _manifest(state: TrainingState, ranks: Ranks, document: Mapping[str, Any]) -> dict[str, Any]:
    lookups = state.embedding.num_lookups
    names = [WEIGHTS, *state.optimizer.slot_names, TOUCHED]
    return {
        "num_ranks": ranks.size,
        "plan": state.embedding.plan.document(),
        "optimizer": {"name": _optimizer_name(state), "iterations": int(state.optimizer.iterations.numpy())},
        "tables": {
            spec.name: {
                "num_rows": spec.input_dim,
                "dim": spec.output_dim,
                "arrays": names if spec.vocabulary is None else [*names, *KEY_ARRAYS],
                "initial_rows": state.initial_rows.get(spec.name, spec.input_dim),
            }
            for spec in state.embedding.specs
        },
        "learnt_vocabularies": sorted(state.vocabularies),
        **({} if lookups is None else {_NUM_LOOKUPS: int(lookups.numpy())}),
        "training": dict(document),
    }


def _load_together(
    path: Path, state: TrainingState, ranks: Ranks, *, freed: Mapping[str, npt.NDArray[np.int64]] | None
) -> Checkpoint:
    together(ranks, lambda: _load(path, state, freed), name="checkpoint_load")
    checkpoint = Checkpoint.open(path)
    state.lineage[:] = checkpoint.lineage
    return checkpoint


def _load(path: Path, state: TrainingState, freed: Mapping[str, npt.NDArray[np.int64]] | None) -> None:
    checkpoint = Checkpoint.open(path)
    _check_fits(checkpoint, state, may_grow=freed is not None)
    for shard in state.embedding.shards:
        ids = (freed or {}).get(shard.table, np.empty(0, np.int64))
        if shard.learnt is None:
            _load_table(checkpoint, shard, state.optimizer, ids)
        else:
            placement = state.embedding.plan.placement(shard.table)
            load_learnt_rows(checkpoint, shard, placement, table_arrays(shard.variable, state.optimizer))
    if state.embedding.num_lookups is not None:
        state.embedding.num_lookups.assign(checkpoint.manifest[_NUM_LOOKUPS])
    for array in (WEIGHTS, *state.optimizer.slot_names):
        for name, value in checkpoint.dense(array).items():
            arrays(state.dense[name], state.optimizer)[array].assign(value)
    for name, kept in checkpoint.vocabularies().items():
        state.vocabularies[name].load_own_variables(kept)
    state.optimizer.set_iterations(checkpoint.iterations)


def _load_table(checkpoint: Checkpoint, shard: TableShard, optimizer: Optimizer, freed: npt.NDArray[np.int64]) -> None:
    """Overwrites the rows of a shard that the checkpoint has, but for those whose ids were freed."""
    saved = checkpoint.tables[shard.table]
    own = freed[(freed >= shard.row_start) & (freed < shard.row_stop)] - shard.row_start
    end = max(min(saved.num_rows, shard.row_stop), shard.row_start)
    touched_steps = optimizer.touched_steps(shard.variable)
    for array, variable in table_arrays(shard.variable, optimizer).items():
        if array not in saved.arrays:
            continue
        initial = read_rows_at(variable, own)
        # A row counts as written where any slice of it was.
        columns = (0, saved.dim) if array == TOUCHED else (shard.column_start, shard.column_stop)
        for block in checkpoint.rows(
            shard.table, array, start=shard.row_start, stop=end, column_start=columns[0], column_stop=columns[1]
        ):
            step = max(1, _BLOCK_BYTES // block.rows[:1].nbytes)
            for at in range(0, len(block.rows), step):
                write_rows(variable, block.start - shard.row_start + at, block.rows[at : at + step])
        if len(own):
            write_rows_at(variable, own, initial)
    if TOUCHED not in saved.arrays:
        num_rows = shard.row_stop - shard.row_start
        write_rows(touched_steps, 0, np.full(num_rows, checkpoint.iterations, np.int32))
    new = np.concatenate([own, np.arange(end, shard.row_stop) - shard.row_start])
    write_rows_at(touched_steps, new, np.full(new.shape, checkpoint.iterations + 1, np.int32))


def _check_fits(checkpoint: Checkpoint, state: TrainingState, *, may_grow: bool) -> None:
    """Compares everything before anything is overwritten."""
    path, optimizer = checkpoint.path, _optimizer_name(state)
    saved_by = checkpoint.manifest["optimizer"]["name"]
    if saved_by != optimizer:
        raise CheckpointError(f"{path}: was trained with {saved_by}, this run uses {optimizer}; use the same optimizer")
    saved = {name: _shape(info.num_rows, info.dim, info.is_by_key) for name, info in checkpoint.tables.items()}
    wanted = {
        spec.name: _shape(spec.input_dim, spec.output_dim, spec.vocabulary is not None)
        for spec in state.embedding.specs
    }
    if may_grow:
        saved = {name: wanted[name] if _has_grown(shape, wanted.get(name)) else shape for name, shape in saved.items()}
    _check_shapes(path, "table", saved, wanted)
    dense = {name: tuple(value.shape) for name, value in checkpoint.dense().items()}
    _check_shapes(path, "variable", dense, {name: tuple(value.shape) for name, value in state.dense.items()})
    there = dict.fromkeys(checkpoint.manifest.get("learnt_vocabularies", []), "there")
    _check_shapes(path, "vocabulary", there, dict.fromkeys(state.vocabularies, "there"))


def _shape(num_rows: int, dim: int, is_by_key: bool) -> tuple[Any, int]:
    """Returns what must agree: of a table that learns its keys another number of rows will do, where they fit."""
    return ("any key", dim) if is_by_key else (num_rows, dim)


def _has_grown(saved: tuple[Any, int], wanted: tuple[Any, int] | None) -> bool:
    if wanted is None or not isinstance(saved[0], int) or not isinstance(wanted[0], int):
        return False
    return wanted[0] >= saved[0] and wanted[1] == saved[1]


def _check_shapes(path: Path, what: str, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name in sorted(saved.keys() | wanted.keys()):
        if saved.get(name) != wanted.get(name):
            raise CheckpointError(
                f"{path}: {what} {name!r} is {saved.get(name, 'absent')} in the checkpoint and "
                f"{wanted.get(name, 'absent')} in the model; load a checkpoint of the same model and data"
            )
