import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rankhouse.serving.analysis.rank_agreement import average_ranks, spearman, top_k_overlap

SCORES = st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 1.0]), min_size=2, max_size=30)


@given(SCORES)
def test_ranks_are_those_of_scipy_with_ties(scores: list[float]) -> None:
    np.testing.assert_array_equal(average_ranks(np.array(scores, np.float32)), stats.rankdata(scores))


@given(st.data())
def test_spearman_is_that_of_scipy(data: st.DataObject) -> None:
    one = data.draw(SCORES)
    other = data.draw(st.permutations(one))
    if len(set(one)) > 1:
        expected = stats.spearmanr(one, other).statistic
        assert spearman(np.array(one), np.array(other)) == pytest.approx(expected, abs=1e-12)


def test_spearman_without_an_order_is_agreement_only_if_neither_has_one() -> None:
    flat, rising = np.full(4, 0.5), np.arange(4.0)
    assert spearman(flat, flat) == 1
    assert spearman(flat, rising) == 0


def test_top_k_overlap_counts_common_candidates_and_breaks_ties_by_place() -> None:
    one = np.array([0.9, 0.8, 0.1, 0.0], np.float32)
    assert top_k_overlap(one, one[::-1], 2) == 0
    assert top_k_overlap(one, np.array([0.9, 0.0, 0.8, 0.1], np.float32), 2) == 0.5
    assert top_k_overlap(one, np.full(4, 0.3, np.float32), 2) == 1  # Equal ones stand in their order.
