import json

import numpy as np
import pytest

from rankhouse.embedding_cache.format.errors import ManifestError
from rankhouse.embedding_cache.format.score_bins import NUM_SCORE_BINS, score_bins
from rankhouse.embedding_cache.format.statistics import TrainingStatistics


def statistics() -> TrainingStatistics:
    rng = np.random.default_rng(0)
    scores = rng.random(1000) * 0.2
    labels = rng.random(1000) < scores
    counts = [np.bincount(score_bins(scores[chosen]), minlength=NUM_SCORE_BINS) for chosen in (labels, ~labels)]
    return TrainingStatistics(
        "valid", *counts, float(scores.sum()), 0.1, 0.02, {"user": 0.25, "item": 0.0}, {"item": 0.01}
    )


def through_json(document: object) -> dict[str, object]:
    return {"statistics": json.loads(json.dumps(document, allow_nan=False))}


def test_what_is_written_is_read() -> None:
    written = statistics()
    read = TrainingStatistics.of(through_json(written.document()), version="000001-00000000")
    assert read is not None
    np.testing.assert_array_equal(read.positives, written.positives)
    np.testing.assert_array_equal(read.negatives, written.negatives)
    assert (read.split, read.num_rows, read.score_sum) == ("valid", 1000, written.score_sum)
    assert (read.missing_rate, read.unknown_rate) == (0.1, 0.02)
    assert (read.missing_rates, read.unknown_rates) == ({"user": 0.25}, {"item": 0.01})  # 0 is not written.
    assert len(json.dumps(written.document())) < 5000


def test_an_older_version_has_none() -> None:
    assert TrainingStatistics.of({"auc": 0.7}, version="000001-00000000") is None


def test_other_bins_are_no_baseline() -> None:
    document = {**statistics().document(), "bins": {"first_log_odds": -8.0, "per_unit": 4, "count": 66}}
    assert TrainingStatistics.of(through_json(document), version="000001-00000000") is None


def test_no_rows_are_none() -> None:
    nothing = np.zeros(NUM_SCORE_BINS, np.int64)
    empty = TrainingStatistics("valid", nothing, nothing, 0.0, 0.0, 0.0)
    read = TrainingStatistics.of(through_json(empty.document()), version="000001-00000000")
    assert read is not None
    assert read.num_rows == 0


@pytest.mark.parametrize(
    "change",
    [
        {"positives": [-1, [1]]},
        {"positives": [0, [-1]]},
        {"positives": [0, [0.5]]},
        {"positives": [NUM_SCORE_BINS, [1]]},
        {"positives": 3},
        {"score_sum": "much"},
        {"missing_rates": {"user": 1.5}},
        {"unknown_rate": -0.1},
        {"missing_rates": [0.5]},
        {"more": 1},
    ],
    ids=str,
)
def test_malformed_ones_are_refused(change: dict[str, object]) -> None:
    document = {**statistics().document(), **change}
    with pytest.raises(ManifestError, match="000001-00000000"):
        TrainingStatistics.of(through_json(document), version="000001-00000000")


def test_what_lacks_a_key_is_refused() -> None:
    document = statistics().document()
    del document["split"]
    with pytest.raises(ManifestError, match="split"):
        TrainingStatistics.of(through_json(document), version="000001-00000000")
