"""The area under the ROC curve: exact, with ties, over the samples of all ranks.

The area is the chance that a positive sample scores above a negative one, a tie counting half (Hanley and McNeil 1982).
It is counted here in whole numbers, so it does not depend on how the samples lie on the ranks.

Within groups, such as the samples of a user, it says how well each one's samples are ordered: the mean of their areas,
each weighed by its samples (Zhou et al., "Deep Interest Network", KDD 2018, section 6.3; others call it GAUC).
"""

from dataclasses import dataclass
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
    positive, all_scores = _gather(labels, scores, ranks)
    return _area(positive, all_scores)


@dataclass(frozen=True)
class GroupedAuc:
    """The area within groups.

    Attributes:
        value: The mean of the groups' areas, weighed by their samples; None where no group has both classes.
        num_groups: How many groups have both classes, and so an area.
        num_samples: How many samples those have.
    """

    value: float | None
    num_groups: int
    num_samples: int


def grouped_auc(
    labels: npt.NDArray[Any], scores: npt.NDArray[Any], groups: npt.NDArray[Any], *, ranks: Ranks
) -> GroupedAuc:
    """Returns the exact area within each group, over the samples of all ranks; the same on every rank. Collective.

    A group may lie on several ranks. Those of one class have no area and are left out.

    Args:
        labels: As of `roc_auc`.
        scores: As of `roc_auc`.
        groups: [n], integers, the group of each sample.
        ranks: The ranks that hold the samples.

    Raises:
        AucUndefinedError: As of `roc_auc`, but neither for no samples nor for one class.
    """
    if groups.shape != labels.shape:
        raise AucUndefinedError(f"labels have shape {labels.shape}, groups {groups.shape}; expected two vectors [n]")
    positive, all_scores = _gather(labels, scores, ranks)
    all_groups = ranks.allgather(tf.constant(groups.astype(np.int64)), name="auc_groups").numpy()
    order = np.lexsort((all_scores, all_groups))
    positive, all_scores, all_groups = positive[order], all_scores[order], all_groups[order]
    ends = np.append(np.flatnonzero((np.diff(all_groups) != 0) | (np.diff(all_scores) != 0)), len(order) - 1)
    if not len(order):
        return GroupedAuc(None, 0, 0)
    # By run of equal scores within a group; as in `_area`, twice the pairs in order are a whole number.
    positives = np.diff(np.cumsum(positive, dtype=np.int64)[ends], prepend=0)
    negatives_to = np.cumsum(~positive, dtype=np.int64)[ends]
    negatives = np.diff(negatives_to, prepend=0)
    starts = np.append(0, np.flatnonzero(np.diff(all_groups[ends])) + 1)
    runs = np.diff(np.append(starts, len(ends)))
    negatives_before_group = np.repeat(negatives_to[starts] - negatives[starts], runs)
    twice = positives * (2 * (negatives_to - negatives_before_group) - negatives)
    ordered, num_positive, num_negative = (np.add.reduceat(each, starts) for each in (twice, positives, negatives))
    both = (num_positive > 0) & (num_negative > 0)
    sizes = (num_positive + num_negative)[both]
    if not len(sizes):
        return GroupedAuc(None, 0, 0)
    areas = ordered[both] / (2 * num_positive[both] * num_negative[both])
    return GroupedAuc(float(np.average(areas, weights=sizes)), len(sizes), int(sizes.sum()))


def _gather(
    labels: npt.NDArray[Any], scores: npt.NDArray[Any], ranks: Ranks
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64]]:
    """Returns which samples of all ranks are positive, and their scores."""
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
    return all_labels, all_scores


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
