"""What the trainer saw of held-out rows, so that serving can tell when live traffic has become another.

It lies in a version's manifest among the metrics, as `statistics`; versions of older releases have none (FORMAT.md).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.errors import ManifestError
from rankhouse.embedding_cache.format.files import check_keys
from rankhouse.embedding_cache.format.score_bins import BINS_PER_UNIT, FIRST_LOG_ODDS, NUM_SCORE_BINS

STATISTICS = "statistics"

_KEYS = (
    *("split", "bins", "positives", "negatives", "score_sum"),
    *("missing_rate", "unknown_rate", "missing_rates", "unknown_rates"),
)
_BINS = {"first_log_odds": FIRST_LOG_ODDS, "per_unit": BINS_PER_UNIT, "count": NUM_SCORE_BINS}


@dataclass(frozen=True)
class TrainingStatistics:
    """What the trainer saw of some held-out rows.

    Attributes:
        split: The split that they are of.
        positives: int64 [NUM_SCORE_BINS], scores of rows with label 1 by bin (score_bins.py).
        negatives: int64 [NUM_SCORE_BINS], scores of rows with label 0.
        score_sum: The sum of all scores.
        missing_rate: The share of values that are missing, over all features.
        unknown_rate: The share of ids that their vocabulary did not have, over all categorical features.
        missing_rates: For each feature the share of rows without a value; one that is not named has 0.
        unknown_rates: For each categorical feature the share of ids that its vocabulary did not have; likewise.
    """

    split: str
    positives: npt.NDArray[np.int64]
    negatives: npt.NDArray[np.int64]
    score_sum: float
    missing_rate: float
    unknown_rate: float
    missing_rates: Mapping[str, float] = field(default_factory=dict)
    unknown_rates: Mapping[str, float] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        """How many rows were scored."""
        return int(self.positives.sum() + self.negatives.sum())

    def document(self) -> dict[str, Any]:
        """What the manifest says."""
        return {
            "split": self.split,
            "bins": _BINS,
            "positives": _without_ends(self.positives),
            "negatives": _without_ends(self.negatives),
            "score_sum": self.score_sum,
            "missing_rate": self.missing_rate,
            "unknown_rate": self.unknown_rate,
            "missing_rates": {name: rate for name, rate in self.missing_rates.items() if rate},
            "unknown_rates": {name: rate for name, rate in self.unknown_rates.items() if rate},
        }

    @classmethod
    def of(cls, metrics: Mapping[str, Any], *, version: str) -> "TrainingStatistics | None":
        """Reads them from a version's metrics.

        Args:
            metrics: `Version.metrics`.
            version: The version's name, for messages.

        Returns:
            None where the version has none, or they are counted in other bins than this release's.

        Raises:
            ManifestError: They are malformed.
        """
        document = metrics.get(STATISTICS)
        if document is None:
            return None
        try:
            check_keys(Path(version), document, _KEYS)
            if document["bins"] != _BINS:
                return None
            return cls(
                split=document["split"],
                positives=_counts(document["positives"]),
                negatives=_counts(document["negatives"]),
                score_sum=float(document["score_sum"]),
                **_rates({name: document[name] for name in ("missing_rate", "unknown_rate")}),
                missing_rates=_rates(document["missing_rates"]),
                unknown_rates=_rates(document["unknown_rates"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as exc:
            raise ManifestError(
                f"version {version} has malformed training statistics ({exc!r}); export the version again"
            ) from exc


def _without_ends(counts: npt.NDArray[np.int64]) -> list[Any]:
    """The first bin that is not empty, and the counts from there to the last one."""
    places = np.flatnonzero(counts)
    if not len(places):
        return [0, []]
    return [int(places[0]), counts[places[0] : places[-1] + 1].tolist()]


def _counts(value: Sequence[Any]) -> npt.NDArray[np.int64]:
    first, found = value
    if type(first) is not int or any(type(count) is not int or count < 0 for count in found):
        raise ValueError("counts are whole numbers from 0")
    if not 0 <= first <= NUM_SCORE_BINS - len(found):
        raise ValueError(f"{len(found)} bins from {first} on are more than {NUM_SCORE_BINS}")
    counts = np.zeros(NUM_SCORE_BINS, np.int64)
    counts[first : first + len(found)] = found
    return counts


def _rates(value: Mapping[str, Any]) -> dict[str, float]:
    rates = {str(name): float(rate) for name, rate in value.items()}
    if not all(math.isfinite(rate) and 0 <= rate <= 1 for rate in rates.values()):
        raise ValueError(f"rates are from 0 to 1, not {rates}")
    return rates
