import numpy as np
import pytest

from rankhouse.training.tables.initializers import keyed_bits, table_key, uniform_rows

KEY = table_key(0, "table")


@pytest.mark.parametrize("dim", [1, 3, 16])
def test_rows_do_not_depend_on_how_they_are_asked_for(dim: int) -> None:
    whole = uniform_rows(KEY, bound=0.5, dim=dim, start=0, stop=20_000)
    for start, stop in [(0, 1), (7, 8), (8191, 8200), (19_999, 20_000), (5, 5)]:
        part = uniform_rows(KEY, bound=0.5, dim=dim, start=start, stop=stop)
        assert part.shape == (stop - start, dim)
        assert np.array_equal(part, whole[start:stop])


@pytest.mark.parametrize("columns", [(0, 1), (2, 3), (1, 7), (0, 7)])
def test_columns_do_not_depend_on_how_they_are_asked_for(columns: tuple[int, int]) -> None:
    whole = uniform_rows(KEY, bound=0.5, dim=7, start=3, stop=500)
    part = uniform_rows(KEY, bound=0.5, dim=7, start=3, stop=500, columns=columns)
    assert np.array_equal(part, whole[:, slice(*columns)])


def test_values_are_uniform_and_uncorrelated() -> None:
    values = uniform_rows(KEY, bound=1, dim=16, start=0, stop=50_000)
    assert -1 < values.min() < -0.9999
    assert 0.9999 < values.max() < 1
    counts, _ = np.histogram(values, 64, (-1, 1))
    assert np.abs(counts / counts.mean() - 1).max() < 0.05
    correlations = np.corrcoef(values, rowvar=False) - np.eye(16)
    assert np.abs(correlations).max() < 0.02
    assert abs(np.corrcoef(values[:-1, 0], values[1:, 0])[0, 1]) < 0.02


def test_seeds_and_tables_differ() -> None:
    keys = {table_key(seed, table) for seed in (0, 1, 10) for table in ("a", "b", "0/a")}
    assert len(keys) == 9
    a, b = (uniform_rows(table_key(seed, "a"), bound=1, dim=4, start=0, stop=1000) for seed in (0, 1))
    assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.05


def test_values_never_change() -> None:
    """A release that drew other values would train other models: these were drawn by the first one."""
    drawn = uniform_rows(table_key(7, "C1"), bound=0.25, dim=3, start=41, stop=43)
    recorded = [
        [-0.1529569774866104, 0.0745467096567154, 0.20017872750759125],
        [0.1864609569311142, -0.1389814168214798, 0.19177521765232086],
    ]
    assert np.array_equal(drawn, np.array(recorded, np.float32))


def test_rows_of_keys_depend_on_key_and_column_alone() -> None:
    keys = np.array([0, 1, -1, 2**61, 2**62, -(2**63)])
    whole = keyed_bits(KEY, keys, (0, 8))
    assert np.array_equal(keyed_bits(KEY, keys[::-1], (3, 6)), whole[::-1, 3:6])
    assert len(np.unique(whole)) == whole.size
    many = keyed_bits(KEY, np.arange(10_000), (0, 4)) / 2**32
    assert abs(many.mean() - 0.5) < 0.005
    assert np.abs(np.corrcoef(many.T) - np.eye(4)).max() < 0.05
    assert not np.array_equal(keyed_bits(table_key(0, "other"), keys, (0, 8)), whole)
