import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from rankhouse.training.auc import roc_auc
from rankhouse.training.errors import AucUndefinedError
from rankhouse.training.ranks import Ranks

ALONE = Ranks(0, 1)


@pytest.mark.parametrize("num_levels", [2, 10, 1000, 0])
@pytest.mark.parametrize("num_samples", [5, 100, 20_000])
def test_equals_scikit_learn(num_samples: int, num_levels: int) -> None:
    generator = np.random.default_rng(num_samples + num_levels)
    scores = generator.normal(size=num_samples)
    if num_levels:
        scores = np.round(scores * num_levels / 6)  # ties
    labels = (generator.normal(size=num_samples) + 0.5 * scores > 0.3).astype(np.float32)
    labels[:2] = 0, 1
    area = roc_auc(labels, scores, ranks=ALONE)
    assert abs(area - roc_auc_score(labels, scores)) < 1e-12


def test_order_of_samples_does_not_matter() -> None:
    generator = np.random.default_rng(0)
    labels, scores = generator.integers(0, 2, 1000), generator.integers(0, 30, 1000).astype(np.float32)
    shuffled = generator.permutation(1000)
    assert roc_auc(labels, scores, ranks=ALONE) == roc_auc(labels[shuffled], scores[shuffled], ranks=ALONE)


def test_bounds_and_pure_ties() -> None:
    labels = np.array([0, 0, 1, 1])
    assert roc_auc(labels, np.array([1.0, 2.0, 3.0, 4.0]), ranks=ALONE) == 1
    assert roc_auc(labels, np.array([4.0, 3.0, 2.0, 1.0]), ranks=ALONE) == 0
    assert roc_auc(labels, np.zeros(4), ranks=ALONE) == 0.5


@pytest.mark.parametrize(
    ("labels", "scores", "message"),
    [
        ([1.0, 1.0], [0.1, 0.2], "2 positives and 0 negatives"),
        ([0.0], [0.1], "0 positives and 1 negatives"),
        ([], [], "0 samples"),
        ([0.0, 2.0], [0.1, 0.2], "1 of 2 samples have a label other than 0 and 1"),
        ([0.0, 1.0], [0.1, np.inf], "not a finite number; has the training diverged"),
        ([0.0, 1.0], [0.1], r"labels have shape \(2,\), scores \(1,\)"),
    ],
)
def test_refuses_what_has_no_area(labels: list[float], scores: list[float], message: str) -> None:
    with pytest.raises(AucUndefinedError, match=message):
        roc_auc(np.array(labels), np.array(scores), ranks=ALONE)
