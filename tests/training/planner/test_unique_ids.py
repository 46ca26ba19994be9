import numpy as np
import pytest

from rankhouse.training.errors import PlanError
from rankhouse.training.planner.unique_ids import expected_unique
from tests.training.planner.small_workload import load


def drawn(num_rows: int, num_ids: int, exponent: float) -> np.ndarray:
    """Ids as the synthetic models' generator draws them."""
    uniform, power = np.random.default_rng(0).random(num_ids), 1 - exponent
    return (((num_rows + 1.0) ** power - 1) * uniform + 1) ** (1 / power) // 1 - 1


@pytest.mark.parametrize(("num_rows", "num_ids"), [(1000, 5000), (1000, 100_000), (1_000_000, 65_536)])
def test_agrees_with_ids_that_are_drawn(num_rows: int, num_ids: int) -> None:
    ids = drawn(num_rows, num_ids, 1.05)
    assert expected_unique(num_rows, num_ids, 1.05, (0, num_rows)) == pytest.approx(len(np.unique(ids)), rel=0.03)
    half = np.unique(ids[ids < num_rows // 2])
    assert expected_unique(num_rows, num_ids, 1.05, (0, num_rows // 2)) == pytest.approx(len(half), rel=0.03)


def test_ranges_add_up_and_uniform_ids_are_exact() -> None:
    whole = expected_unique(999, 5000, 1.05, (0, 999))
    assert sum(expected_unique(999, 5000, 1.05, rows) for rows in ((0, 10), (10, 700), (700, 999))) == pytest.approx(
        whole
    )
    assert expected_unique(100, 50, 0.0, (0, 100)) == pytest.approx(100 * (1 - 0.99**50))
    assert expected_unique(1, 50, 0.0, (0, 1)) == 1
    assert expected_unique(100, 50, 1.05, (7, 7)) == 0


def test_a_measured_ratio_replaces_the_law() -> None:
    assert load("a", 1000, unique_ratio=0.25).unique_rows(400) == 100
    assert load("a", 1000, unique_ratio=0.25).unique_rows(1e6) == 1000
    with pytest.raises(PlanError, match=r"table 'a' has unique_ratio = 1\.5; expected a share above 0"):
        load("a", 1000, unique_ratio=1.5)
