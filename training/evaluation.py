"""Scoring a held-out split over all ranks."""

import math
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from rankhouse.embedding_cache.format.vocabulary import UNKNOWN_ID
from rankhouse.training.auc import grouped_auc, roc_auc
from rankhouse.training.data.loader import BatchLoader
from rankhouse.training.data.rows import Batch
from rankhouse.training.errors import DivergedError
from rankhouse.training.models.ranking_model import RankingModel
from rankhouse.training.ranks import Ranks
from rankhouse.training.runs.observers import EvaluationMetrics


class Evaluator:
    """Scores a split with the model as it is at the moment."""

    def __init__(self, model: RankingModel, loader: BatchLoader, *, ranks: Ranks, group: int | None = None) -> None:
        """Prepares to score.

        Args:
            model: The model.
            loader: Of the split; it has every sample once.
            ranks: Who trains together.
            group: The number of a feature, of `feature_number`, within whose values the AUC is reported as well.
        """
        self._loader = loader
        self._ranks = ranks
        self._score = _make_score(model)
        self._group = group

    def evaluate(self, step: int) -> EvaluationMetrics:
        """Scores every sample once. Collective.

        Args:
            step: Steps done so far, for the record.

        Raises:
            DivergedError: The loss is not a number.
        """
        start = time.perf_counter()
        labels, logits, loss = [np.zeros(0, np.float32)], [np.zeros(0, np.float32)], 0.0
        groups = [np.zeros(0, np.int64)]
        for batch in self._loader.batches():
            batch_logits, batch_loss = self._score(batch.dense, batch.ids, batch.lengths, batch.labels)
            labels.append(batch.labels)
            logits.append(batch_logits.numpy())
            loss += float(batch_loss)
            if self._group is not None:
                groups.append(_values_of(batch, self._group))
        own_labels, own_logits = np.concatenate(labels), np.concatenate(logits)
        parts = self._ranks.exchange_json([loss, float(own_labels.sum())], name="evaluation")
        valid_loss = sum(part[0] for part in parts) / self._loader.num_rows
        if not math.isfinite(valid_loss):
            raise DivergedError(
                f"the loss on the held-out split is {valid_loss} after step {step}; lower the learning rate"
            )
        has_both_classes = 0 < sum(part[1] for part in parts) < self._loader.num_rows
        return EvaluationMetrics(
            step=step,
            auc=roc_auc(own_labels, own_logits, ranks=self._ranks) if has_both_classes else None,
            valid_loss=valid_loss,
            grouped_auc=None if self._group is None else self._within(own_labels, own_logits, np.concatenate(groups)),
            evaluation_seconds=time.perf_counter() - start,
        )

    def _within(
        self, labels: npt.NDArray[np.float32], logits: npt.NDArray[np.float32], groups: npt.NDArray[np.int64]
    ) -> float | None:
        known = groups > UNKNOWN_ID  # What is missing or unknown is not one user, and stands before all values.
        return grouped_auc(labels[known], logits[known], groups[known], ranks=self._ranks).value


def _values_of(batch: Batch, number: int) -> npt.NDArray[np.int64]:
    """Returns the ids [b] of a feature with one in each sample."""
    start = int(batch.lengths[:number].sum())
    return batch.ids[start : start + batch.num_samples]


def _make_score(model: RankingModel) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
    """Returns a function of a batch: logits [B], and the sum of the binary cross-entropies."""

    @tf.function(input_signature=model.batch_signature, autograph=False)  # type: ignore[untyped-decorator]
    def score(dense: tf.Tensor, ids: tf.Tensor, lengths: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        logits = model.logits(dense, ids, lengths)
        return logits, tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))

    return score  # type: ignore[no-any-return]
