"""A run's result, read back from its checkpoint: what export needs, without ranks or whole tables in memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rankhouse.training.checkpoint.files import Checkpoint
from rankhouse.training.checkpoint.learnt_keys import LearntKeys
from rankhouse.training.data.prepared import PreparedDataset
from rankhouse.training.errors import ModelError, RunFolderError
from rankhouse.training.models.dlrm import DLRM
from rankhouse.training.models.ranking_model import build_dense
from rankhouse.training.runs.folder import RunFolder


@dataclass(frozen=True)
class TrainedModel:
    """A trained model.

    Attributes:
        run: The run that trained it.
        dataset: The prepared dataset that it learnt from.
        checkpoint: The state; `checkpoint.rows(table)` yields a table's rows block by block, mapped from its files.
        dense: The dense layers with the trained weights: (dense [B, num_dense], embeddings [B, E]) -> logits [B].
        learnt: The keys of the tables that learn theirs, by name.
    """

    run: RunFolder
    dataset: PreparedDataset
    checkpoint: Checkpoint
    dense: DLRM
    learnt: Mapping[str, LearntKeys]

    def gather(self, table: str, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Copies the rows float32 [n, dim] that ids [n] have in a version, without verifying files.

        Raises:
            CheckpointError: The table or an id is unknown, or a row is in none of the files.
        """
        learnt = self.learnt.get(table)
        return self.checkpoint.gather(table, ids) if learnt is None else learnt.gather(ids)


def load_trained_model(run_folder: str | Path, *, checkpoint: str | Path | None = None) -> TrainedModel:
    """Loads a trained model.

    Args:
        run_folder: The run's folder.
        checkpoint: A checkpoint's folder; None is the run's newest.

    Raises:
        RunFolderError: There is no run, or it has no checkpoint yet.
        DatasetError: The run's dataset is gone.
        CheckpointError: The checkpoint is corrupt.
        ModelError: The checkpoint is of another model than the run's configuration.
    """
    run = RunFolder.open(run_folder)
    path = Path(checkpoint) if checkpoint is not None else run.latest_checkpoint
    if path is None:
        raise RunFolderError(
            f"{run.path} has no checkpoint yet: train it with `rankhouse train`, or wait for its first"
        )
    dataset = PreparedDataset.open(run.dataset)
    opened = Checkpoint.open(path)
    dense = build_dense(run.config, dataset)
    weights = opened.dense()
    for name, variable in dense.named_variables().items():
        if name not in weights or weights[name].shape != tuple(variable.shape):
            found = f"has shape {weights[name].shape}" if name in weights else "is not there"
            raise ModelError(f"{path}: {name} {found}; expected {tuple(variable.shape)}, by {run.config_file}")
        variable.assign(weights[name])
    learnt = {table: LearntKeys.of(opened, table) for table in dataset.spec.learnt_tables}
    return TrainedModel(run, dataset, opened, dense, learnt)
