from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import tf_keras

from rankhouse.training.tables.distributions import distribution_of, normal_quantile
from rankhouse.training.tables.initializers import table_key

KEY = table_key(0, "table")
KERAS = tf_keras.initializers


class Halved(tf_keras.initializers.RandomNormal):  # type: ignore[misc]
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return super().__call__(*arguments, **options) / 2


def draw(initializer: Any, *, num_rows: int = 20_000, dim: int = 8) -> np.ndarray:
    found = distribution_of(initializer, num_rows=num_rows, dim=dim)
    assert found is not None
    return found.rows(KEY, dim=dim, start=0, stop=num_rows, columns=(0, dim))


@pytest.mark.parametrize("share", [2.0**-33, 1e-6, 0.074, 0.0750001, 0.3, 0.5, 0.77, 0.93, 1 - 1e-6, 1 - 2.0**-33])
def test_quantiles_are_those_of_the_standard_library(share: float) -> None:
    assert normal_quantile(np.array([share]))[0] == pytest.approx(NormalDist().inv_cdf(share), rel=1e-13, abs=1e-15)


@pytest.mark.parametrize(
    "initializer",
    [
        KERAS.RandomUniform(-0.3, 0.1),
        KERAS.RandomNormal(0.5, 2.0),
        KERAS.TruncatedNormal(0.5, 2.0),
        KERAS.GlorotUniform(),
        KERAS.GlorotNormal(),
        KERAS.HeUniform(),
        KERAS.HeNormal(),
        KERAS.LecunNormal(),
        KERAS.VarianceScaling(3.0, "fan_out", "untruncated_normal"),
        KERAS.Zeros(),
        KERAS.Ones(),
        KERAS.Constant(0.25),
    ],
    ids=lambda initializer: type(initializer).__name__,
)
def test_has_the_distribution_of_keras(initializer: Any) -> None:
    ours, theirs = draw(initializer), initializer((20_000, 8)).numpy()
    assert ours.mean() == pytest.approx(theirs.mean(), abs=0.02 * theirs.std() + 1e-7)
    assert ours.std() == pytest.approx(theirs.std(), rel=0.02, abs=1e-7)
    shares = np.linspace(0.001, 0.999, 50)
    expected = np.quantile(theirs, shares)
    np.testing.assert_allclose(np.quantile(ours, shares), expected, atol=0.15 * theirs.std() + 1e-7)


@pytest.mark.parametrize("initializer", [None, KERAS.RandomNormal(), KERAS.TruncatedNormal(), KERAS.Constant(3.0)])
def test_a_rectangle_does_not_depend_on_how_it_is_asked_for(initializer: Any) -> None:
    found = distribution_of(initializer, num_rows=100, dim=5)
    assert found is not None
    whole = found.rows(KEY, dim=5, start=0, stop=100, columns=(0, 5))
    part = found.rows(KEY, dim=5, start=7, stop=60, columns=(1, 4))
    assert np.array_equal(part, whole[7:60, 1:4])


@pytest.mark.parametrize(
    "initializer",
    [
        KERAS.RandomNormal(seed=3),
        KERAS.Orthogonal(),
        KERAS.Constant(np.zeros((4, 2))),
        Halved(),
        lambda shape, dtype: 0,
    ],
)
def test_leaves_other_values_to_keras(initializer: Any) -> None:
    assert distribution_of(initializer, num_rows=4, dim=2) is None
