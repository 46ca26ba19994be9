"""The area under the ROC curve: exact, with ties, over the samples of all ranks.

The area is the chance that a positive sample scores above a negative one, a tie counting half (Hanley and McNeil 1982).
It is counted here in whole numbers, so it does not depend on how the samples lie on the ranks.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from rankhouse.training.errors import AucUndefinedError
from rankhouse.training.ranks import Ranks


def roc_auc(labels: npt.NDArray[Any], scores: npt.NDArray[Any], *, ranks: Ranks) -> float:
    """Returns the exact area over the samples of all ranks; the same on every rank. Collective.

    Every rank gathers all samples: 9 bytes a sample travel, and about 40 bytes a sample of memory sort them, so 100
    million samples want 4 GB on every rank.

    Args:
        labels: [n], 0 or 1, this rank's samples; n may differ between ranks and may be 0.
        scores: [n], float32 or float64, any monotone score.
        ranks: The ranks that hold the samples.

    Raises:
        AucUndefinedError: There are no samples, only one class, labels other than 0 and 1, or scores that are not
            numbers.
    """
    if labels.shape != scores.shape or labels.ndim != 1:
        raise AucUndefinedError(f"labels have shape {labels.shape}, scores {scores.shape}; expected two vectors [n]")
    # Faults travel as NaN, so that all ranks refuse together instead of one leaving the others waiting.
    valid = np.isin(labels, (0, 1)) & np.isfinite(scores)
    checked = np.where(valid, scores, np.nan).astype(np.float64)
    all_scores = ranks.allgather(tf.constant(checked), name="auc_scores").numpy()
    all_labels = ranks.allgather(tf.constant(labels == 1), name="auc_labels").numpy()
    if num_invalid := int(np.isnan(all_scores).sum()):
        raise AucUndefinedError(
            f"{num_invalid} of {all_scores.size} samples have a label other than 0 and 1, or a score that is not a "
            "finite number; has the training diverged?"
        )
    return _area(all_labels, all_scores)


def _area(positive: npt.NDArray[np.bool_], scores: npt.NDArray[np.float64]) -> float:
    num_positive = int(positive.sum())
    num_negative = positive.size - num_positive
    if not num_positive or not num_negative:
        raise AucUndefinedError(
            f"the {positive.size} samples have {num_positive} positives and {num_negative} negatives; expected both"
        )
    order = np.argsort(scores)
    scores, positive = scores[order], positive[order]
    group_ends = np.append(np.flatnonzero(np.diff(scores)), scores.size - 1)
    negatives_to = np.cumsum(~positive, dtype=np.int64)[group_ends]
    positives_in = np.diff(np.cumsum(positive, dtype=np.int64)[group_ends], prepend=0)
    # A positive beats the negatives of lower groups and ties with those of its own: twice that count is a whole number.
    negatives_below = np.append(0, negatives_to[:-1])
    twice = int(np.dot(positives_in, negatives_below + negatives_to))
    return twice / (2 * num_positive * num_negative)
