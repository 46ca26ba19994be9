"""Scoring a held-out split over all ranks."""

import math
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from rankhouse.training.auc import roc_auc
from rankhouse.training.data.loader import BatchLoader
from rankhouse.training.errors import DivergedError
from rankhouse.training.models.ranking_model import RankingModel
from rankhouse.training.ranks import Ranks
from rankhouse.training.runs.observers import EvaluationMetrics


class Evaluator:
    """Scores a split with the model as it is at the moment."""

    def __init__(self, model: RankingModel, loader: BatchLoader, *, ranks: Ranks) -> None:
        self._loader = loader
        self._ranks = ranks
        self._score = _make_score(model)

    def evaluate(self, step: int) -> EvaluationMetrics:
        """Scores every sample once. Collective.

        Args:
            step: Steps done so far, for the record.

        Raises:
            DivergedError: The loss is not a number.
        """
        start = time.perf_counter()
        labels, logits, loss = [np.zeros(0, np.float32)], [np.zeros(0, np.float32)], 0.0
        for batch in self._loader.batches():
            batch_logits, batch_loss = self._score(batch.dense, batch.ids, batch.lengths, batch.labels)
            labels.append(batch.labels)
            logits.append(batch_logits.numpy())
            loss += float(batch_loss)
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
            evaluation_seconds=time.perf_counter() - start,
        )


def _make_score(model: RankingModel) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
    """Returns a function of a batch: logits [B], and the sum of the binary cross-entropies."""

    @tf.function(input_signature=model.batch_signature, autograph=False)  # type: ignore[untyped-decorator]
    def score(dense: tf.Tensor, ids: tf.Tensor, lengths: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        logits = model.logits(dense, ids, lengths)
        return logits, tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))

    return score  # type: ignore[no-any-return]
