"""Bounds against truths: the formulas where they have a closed form, and how often they are ever wrong."""

import math

import numpy as np
import pytest
from scipy import special, stats

from rankhouse.serving.analysis import sequential_tests
from rankhouse.serving.analysis.latency_bins import LATENCY_EDGES, NUM_LATENCY_BINS, latency_bins, latency_quantile
from rankhouse.serving.analysis.sequential_tests import (
    Levels,
    Share,
    compare_quantiles,
    compare_shares,
    difference,
    distribution_radius,
    mean_radius,
    quantile_interval,
    ratio,
    vector_radius,
)

LEVELS = Levels(0.05, 0.05)


def most_allowed(num: int, chance: float) -> int:
    """How many of `num` may be wrong if each is with this chance: exceeded in one of a million cases."""
    return int(stats.binom.ppf(1 - 1e-6, num, chance))


def test_log_gamma_is_that_of_scipy() -> None:
    values = np.array([0.01, 0.5, 1.0, 3.3, 99.5, 1e6, 1e9])
    np.testing.assert_allclose(sequential_tests._log_gamma(values), special.gammaln(values), rtol=1e-12, atol=1e-10)


def test_evidence_is_the_mixture_likelihood_ratio() -> None:
    prior = stats.beta(0.5, 0.5)
    mixture = prior.expect(lambda p: p**3 * (1 - p) ** 17)
    found = Share(3, 20).evidence_against(np.array([0.4]))[0]
    assert found == pytest.approx(math.log(mixture / (0.4**3 * 0.6**17)), abs=1e-6)


def test_an_interval_ends_where_the_evidence_does() -> None:
    share = Share(7, 300)
    for bound in share.interval(LEVELS):
        assert share.evidence_against(np.array([bound]))[0] == pytest.approx(math.log(20), abs=1e-4)


def test_nothing_observed_bounds_nothing() -> None:
    nothing, something = Share(0, 0), Share(5, 50)
    assert nothing.interval(LEVELS) == (0, 1)
    assert nothing.mean is None
    low, high = compare_shares(nothing, something, LEVELS, difference)
    assert low < 0
    assert high > 0.9
    assert compare_shares(something, nothing, LEVELS, ratio).high == math.inf
    empty = np.zeros(NUM_LATENCY_BINS, np.int64)
    assert quantile_interval(empty, 0.5, LEVELS) == (0, math.inf)
    assert compare_quantiles(empty, empty, 0.5, LEVELS) == (0, math.inf)
    assert latency_quantile(empty, 0.5) is None


def test_comparisons_are_narrower_than_two_intervals_side_by_side() -> None:
    candidate, stable = Share(60, 1000), Share(50, 1000)
    found = compare_shares(candidate, stable, LEVELS, difference)
    (low, high), (stable_low, stable_high) = candidate.interval(LEVELS), stable.interval(LEVELS)
    assert low - stable_high < found.low < 0.01 < found.high < high - stable_low


def test_a_ratio_of_shares_is_found() -> None:
    low, high = compare_shares(Share(3000, 10_000), Share(1000, 10_000), LEVELS, ratio)
    assert 2.5 < low < 3 < high < 3.6


@pytest.mark.parametrize("rate", [0.001, 0.05, 0.5])
def test_bounds_of_shares_are_ever_wrong_no_more_often_than_stated(rate: float) -> None:
    rng = np.random.default_rng(1)
    looks = np.unique(np.geomspace(1, 3000, 60).astype(int))
    wrong = 0
    for _ in range(200):
        totals = np.cumsum(rng.random(3000) < rate)
        # The truth is refuted at some look; no interval has to be found for that.
        wrong += any(
            Share(float(totals[look - 1]), int(look)).evidence_against(np.array([rate]))[0] > math.log(10)
            for look in looks
        )
    assert wrong <= most_allowed(200, 0.1)


def test_bounds_of_a_mean_of_values_between_0_and_1_hold_too() -> None:
    rng = np.random.default_rng(2)
    wrong = 0
    for _ in range(200):
        totals = np.cumsum(rng.beta(0.2, 0.6, 2000))
        wrong += any(
            Share(float(totals[look - 1]), look).evidence_against(np.array([0.25]))[0] > math.log(10)
            for look in range(10, 2000, 40)
        )
    assert wrong <= most_allowed(200, 0.1)


def test_bounds_of_a_difference_are_ever_wrong_no_more_often_than_stated() -> None:
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(60):
        candidate, stable = np.cumsum(rng.random(1000) < 0.02), np.cumsum(rng.random(9000) < 0.02)
        for look in range(20, 1000, 70):
            low, high = compare_shares(
                Share(float(candidate[look]), look + 1),
                Share(float(stable[9 * look]), 9 * look + 1),
                LEVELS,
                difference,
            )
            if low > 0 or high < 0:
                wrong += 1
                break
    assert wrong <= most_allowed(60, 0.1)


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_a_ratio_of_quantiles_holds_the_truth(share: float) -> None:
    rng = np.random.default_rng(4)
    wrong = 0
    for _ in range(60):
        arms = [np.zeros(NUM_LATENCY_BINS, np.int64) for _ in range(2)]
        is_wrong = False
        for _ in range(12):
            for arm, num, slowness in zip(arms, (200, 1500), (1.3, 1.0), strict=True):
                seconds = 0.01 * slowness * np.exp(0.5 * rng.normal(size=num))
                arm += np.bincount(latency_bins(seconds), minlength=NUM_LATENCY_BINS)
            low, high = compare_quantiles(arms[0], arms[1], share, LEVELS)
            is_wrong |= not low <= 1.3 <= high
        wrong += is_wrong
    assert wrong <= most_allowed(60, 0.1)
    assert low > 1  # And it knows that the candidate is slower by then.


def test_a_quantile_is_read_to_a_per_cent() -> None:
    seconds = 0.02 * np.exp(0.7 * np.random.default_rng(5).normal(size=5000))
    counts = np.bincount(latency_bins(seconds), minlength=NUM_LATENCY_BINS)
    for share in (0.01, 0.5, 0.9, 0.99):
        exact = float(np.quantile(seconds, share, method="inverted_cdf"))
        assert latency_quantile(counts, share) == pytest.approx(exact, rel=0.01)
        low, high = quantile_interval(counts, share, LEVELS)
        assert low < exact < high


def test_latencies_beyond_all_bins_are_counted_at_the_ends() -> None:
    assert latency_bins(np.array([0.0, 1e-9, 1e-5, 1e6])).tolist() == [0, 0, 1, NUM_LATENCY_BINS - 1]
    assert LATENCY_EDGES[-1] >= 100


def test_the_radius_of_a_mean_is_that_of_the_paper() -> None:
    # Waudby-Smith et al., one-sided, with unit variance, t = 500 and rho = 0.2: variance 1 / t, scale rho.
    t, rho, alpha = 500, 0.2, 0.05
    paper = math.sqrt(2 * (t * rho**2 + 1) / (t * rho) ** 2 * math.log(1 + math.sqrt(t * rho**2 + 1) / (2 * alpha)))
    assert mean_radius(1 / t, alpha, scale=rho) == pytest.approx(paper)


@pytest.mark.parametrize("num_dims", [1, 9])
def test_a_walk_leaves_its_radius_no_more_often_than_stated(num_dims: int) -> None:
    rng = np.random.default_rng(6)
    steps = 2000
    walks = np.cumsum(rng.normal(size=(400, steps, num_dims)), axis=1) / np.arange(1, steps + 1)[None, :, None]
    if num_dims == 1:
        radii = np.array([mean_radius(1 / t, 0.1, scale=0.1) for t in range(1, steps + 1)])
        wrong = (walks[:, :, 0] > radii).any(axis=1).sum()
    else:
        radii = np.array([vector_radius(t, num_dims, 0.1, scale=0.3) for t in range(1, steps + 1)])
        wrong = (np.sqrt((walks**2).sum(axis=2)) > radii).any(axis=1).sum()
    assert wrong <= most_allowed(400, 0.1)
    assert wrong > 0  # It is no wider than it has to be by orders of magnitude.


def test_a_distribution_function_leaves_its_radius_no_more_often_than_stated() -> None:
    rng = np.random.default_rng(7)
    wrong = 0
    for _ in range(100):
        values = rng.random(1500)
        wrong += any(
            stats.kstest(values[:num], "uniform").statistic > distribution_radius(num, 0.1)
            for num in (1, 5, 20, 100, 400, 1500)
        )
    assert wrong <= most_allowed(100, 0.1)
    assert distribution_radius(0, 0.1) == 1
