import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from rankhouse.training.auc import GroupedAuc, grouped_auc, roc_auc
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


def test_within_groups_it_is_the_mean_of_their_areas() -> None:
    generator = np.random.default_rng(3)
    groups = generator.integers(-40, 40, 2000)  # some of one class alone
    groups[:3] = 1000, 1001, 1001
    labels = generator.integers(0, 2, 2000).astype(np.float32)
    labels[:3] = 1, 0, 0
    scores = np.round(generator.normal(size=2000) + 0.3 * labels + groups, 1).astype(np.float32)
    found = grouped_auc(labels, scores, groups, ranks=ALONE)
    parts = [groups == group for group in np.unique(groups) if 0 < labels[groups == group].mean() < 1]
    areas = [roc_auc_score(labels[part], scores[part]) for part in parts]
    sizes = [part.sum() for part in parts]
    assert abs(found.value - np.average(areas, weights=sizes)) < 1e-12
    assert (found.num_groups, found.num_samples) == (len(parts), sum(sizes))
    shuffled = generator.permutation(2000)
    assert grouped_auc(labels[shuffled], scores[shuffled], groups[shuffled], ranks=ALONE) == found


@pytest.mark.parametrize("labels", [[], [1.0], [0.0, 1.0]])
def test_groups_of_one_class_have_no_area(labels: list[float]) -> None:
    groups = np.arange(len(labels))
    assert grouped_auc(np.array(labels), groups * 1.0, groups, ranks=ALONE) == GroupedAuc(None, 0, 0)


def test_refuses_groups_of_another_shape_and_scores_that_are_none() -> None:
    labels, scores = np.array([0.0, 1.0]), np.array([0.1, np.nan])
    with pytest.raises(AucUndefinedError, match=r"labels have shape \(2,\), groups \(1,\)"):
        grouped_auc(labels, labels, np.array([1]), ranks=ALONE)
    with pytest.raises(AucUndefinedError, match="1 of 2 samples have a label"):
        grouped_auc(labels, scores, np.array([1, 1]), ranks=ALONE)
