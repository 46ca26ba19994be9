import numpy as np
import pytest
from scipy import stats

from rankhouse.serving.analysis.outcomes import Outcomes
from rankhouse.serving.analysis.summary import Summary


def simulated(
    rng: np.random.Generator, num_requests: int, *, user_effect: float
) -> tuple[Summary, np.ndarray, np.ndarray]:
    log_odds = user_effect * rng.normal(size=(num_requests, 1)) + rng.normal(-2.5, 0.8, (num_requests, 10))
    chances = 1 / (1 + np.exp(-log_odds))
    # What the model does not know of a user makes the labels of one request dependent.
    hidden = 1 / (1 + np.exp(-log_odds - user_effect * rng.normal(size=(num_requests, 1))))
    labels = rng.random(chances.shape) < hidden
    summary = Summary()
    for row in range(num_requests):
        summary.observe_outcomes(chances[row], labels[row])
    return summary, chances, labels


def test_numbers_are_those_of_all_impressions() -> None:
    summary, scores, labels = simulated(np.random.default_rng(0), 400, user_effect=0.5)
    outcomes = Outcomes(summary.events["click"])
    assert (outcomes.num_impressions, outcomes.num_requests) == (4000, 400)
    assert outcomes.rate.value == labels.mean()
    area = stats.mannwhitneyu(scores[labels], scores[~labels]).statistic / (labels.sum() * (~labels).sum())
    assert outcomes.auc.value == pytest.approx(area, abs=5e-4)
    assert np.exp(outcomes.predicted_over_observed.value) == pytest.approx(scores.sum() / labels.sum())


def test_the_variance_of_a_rate_is_that_over_requests() -> None:
    summary, _, labels = simulated(np.random.default_rng(1), 500, user_effect=1.0)
    rate = Outcomes(summary.events["click"]).rate
    by_request = labels.sum(axis=1)
    exact = ((by_request - rate.value * 10) ** 2).sum() / labels.size**2
    assert rate.variance == pytest.approx(exact)
    assert rate.variance > 1.5 * rate.value * (1 - rate.value) / labels.size  # As if independent, it would be too sure.


@pytest.mark.parametrize("name", ["rate", "auc", "predicted_over_observed"])
def test_estimates_scatter_as_their_variances_say(name: str) -> None:
    rng = np.random.default_rng(2)
    found = []
    for _ in range(150):
        summary, _, _ = simulated(rng, 150, user_effect=0.8)
        found.append(getattr(Outcomes(summary.events["click"]), name))
    scatter = np.var([estimate.value for estimate in found])
    assert np.mean([estimate.variance for estimate in found]) == pytest.approx(scatter, rel=0.4)


def test_calibration_by_groups_of_scores() -> None:
    summary, scores, _ = simulated(np.random.default_rng(3), 2000, user_effect=0.0)
    curve = Outcomes(summary.events["click"]).calibration_curve()
    assert sum(size for _, _, size in curve) == scores.size
    assert [mean for mean, _, _ in curve] == sorted(mean for mean, _, _ in curve)
    for mean, share, size in curve:
        assert abs(mean - share) < 5 * np.sqrt(mean / size)


def test_scores_that_say_nothing_have_numbers_too() -> None:
    summary = Summary()
    for row in range(200):
        summary.observe_outcomes(np.zeros(4), np.arange(4) == row % 4)
    outcomes = Outcomes(summary.events["click"])
    assert outcomes.auc.value == 0.5
    assert np.isfinite(outcomes.predicted_over_observed.value)


def test_a_summary_without_feedback_has_no_outcomes() -> None:
    assert not Summary().events
