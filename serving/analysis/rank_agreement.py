"""How far two versions agree on the order of one request's candidates."""

from typing import Any

import numpy as np
import numpy.typing as npt


def average_ranks(scores: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Ranks scores from 1, equal ones sharing the mean of their ranks: float64 [n]."""
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    ranks = np.empty(len(scores))
    if (ordered[1:] > ordered[:-1]).all():
        ranks[order] = np.arange(1.0, len(scores) + 1)
        return ranks
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:] > ordered[:-1]]))
    counts = np.diff(np.append(begins, len(scores)))
    ranks[order] = np.repeat(begins + (counts + 1) / 2, counts)
    return ranks


def spearman(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    """Spearman's rank correlation of two versions' scores, equal scores sharing ranks.

    Args:
        one: [n], one version's scores, n of 2 or more.
        other: [n], the other's, of the same candidates.

    Returns:
        From -1 to 1. Where a version gives all candidates one score, the coefficient is undefined: 1 if both do, as
        they agree that there is no order, else 0.
    """
    ranks_one, ranks_other = average_ranks(one), average_ranks(other)
    ranks_one -= ranks_one.mean()
    ranks_other -= ranks_other.mean()
    size = float(np.sqrt(np.dot(ranks_one, ranks_one) * np.dot(ranks_other, ranks_other)))
    if size == 0:
        return float(not ranks_one.any() and not ranks_other.any())
    return float(np.dot(ranks_one, ranks_other)) / size


def top_k_overlap(one: npt.NDArray[Any], other: npt.NDArray[Any], k: int) -> float:
    """The share of one version's k highest candidates that are among the other's.

    Equal scores stand in the order of the request, as in answers.
    """
    best_one = np.argsort(-one, kind="stable")[:k].tolist()
    best_other = np.argsort(-other, kind="stable")[:k].tolist()
    return len(set(best_one).intersection(best_other)) / k
