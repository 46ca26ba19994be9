import numpy as np
import pytest
from scipy import stats

from rankhouse.embedding_cache.format.score_bins import NUM_SCORE_BINS, bin_edges, bin_scores, score_bins
from rankhouse.serving.analysis.distribution_shift import (
    Sample,
    kolmogorov_smirnov,
    ks_interval,
    population_stability_index,
    psi_interval,
)
from rankhouse.serving.analysis.sequential_tests import Levels

LEVELS = Levels(0.05, 0.05)


def scores_of(rng: np.random.Generator, num: int, mean: float = -3.0) -> np.ndarray:
    return 1 / (1 + np.exp(-rng.normal(mean, 1, num)))


def counted(scores: np.ndarray) -> np.ndarray:
    return np.bincount(score_bins(scores), minlength=NUM_SCORE_BINS)


def test_bins_are_what_their_edges_say() -> None:
    edges = bin_edges()
    scores = np.concatenate([[0.0, 1.0], scores_of(np.random.default_rng(0), 1000)])
    np.testing.assert_array_equal(score_bins(scores), np.searchsorted(edges, scores, side="right"))
    assert (np.diff(edges) > 0).all()
    inner = bin_scores()[1:-1]
    assert (edges[:-1] < inner).all()
    assert (inner < edges[1:]).all()


def test_scores_outside_0_to_1_are_counted_at_the_ends() -> None:
    assert score_bins(np.array([-0.1, 1.1])).tolist() == [0, NUM_SCORE_BINS - 1]


def test_ks_is_that_of_scipy() -> None:
    rng = np.random.default_rng(1)
    one, other = scores_of(rng, 3000), scores_of(rng, 2000, mean=-2.7)
    exact = stats.ks_2samp(one, other).statistic
    # Between two edges it may be more, by no more than the largest bin.
    largest = max(counted(one).max() / 3000, counted(other).max() / 2000)
    assert exact - largest <= kolmogorov_smirnov(counted(one), counted(other)) <= exact


def test_psi_is_its_definition_over_tenths() -> None:
    rng = np.random.default_rng(2)
    one, other = scores_of(rng, 100_000), scores_of(rng, 100_000, mean=-2.5)
    edges = np.quantile(one, np.linspace(0.1, 0.9, 9))
    p, q = (np.bincount(np.searchsorted(edges, scores), minlength=10) / len(scores) for scores in (one, other))
    expected = float(((p - q) * np.log(p / q)).sum())
    assert population_stability_index(counted(one), counted(other)) == pytest.approx(expected, rel=0.05)


def test_samples_of_one_distribution_have_next_to_no_psi() -> None:
    rng = np.random.default_rng(3)
    assert population_stability_index(counted(scores_of(rng, 5000)), counted(scores_of(rng, 5000))) < 0.01


def test_few_distinct_scores_make_fewer_groups() -> None:
    same = counted(np.full(100, 0.02))
    assert population_stability_index(same, same) == 0
    assert psi_interval(Sample(same, 100), Sample(same, 100), LEVELS, scale=0.1).low == 0


@pytest.mark.parametrize(("shift", "is_large"), [(0.0, False), (0.8, True)])
def test_bounds_tell_a_shift_from_none(shift: float, is_large: bool) -> None:
    rng = np.random.default_rng(4)
    one, other = (Sample(counted(scores_of(rng, 20_000, mean)), 20_000) for mean in (-3.0, -3.0 + shift))
    psi, ks = psi_interval(one, other, LEVELS, scale=0.1), ks_interval(one, other, LEVELS)
    assert (psi.low > 0.1, ks.low > 0.1) == (is_large, is_large)
    assert (psi.high < 0.1, ks.high < 0.1) == (not is_large, not is_large)


def test_bounds_of_psi_hold_the_truth() -> None:
    rng = np.random.default_rng(5)
    # Shifts of a normal distribution by d have a symmetric divergence of d ** 2, of which ten groups see nearly all.
    wrong = 0
    for _ in range(100):
        one, other = np.zeros(NUM_SCORE_BINS, int), np.zeros(NUM_SCORE_BINS, int)
        for _ in range(10):
            one += counted(scores_of(rng, 500))
            other += counted(scores_of(rng, 100, mean=-2.5))
            found = psi_interval(Sample(one, one.sum()), Sample(other, other.sum()), LEVELS, scale=0.1)
            if not found.low <= 0.235 <= found.high:
                wrong += 1
                break
    assert wrong <= stats.binom.ppf(1 - 1e-6, 100, 0.1)
