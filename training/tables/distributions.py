"""Which distribution a table's initial values have, and any rectangle of them.

Keras' initializers draw a whole variable from one seed, so their values depend on what a rank holds. Those without a
seed whose distribution is known keep that distribution, but are drawn by position (`initializers.py`): the same on any
number of ranks and under any plan. Where numbers are not exact, nothing here calls a library's logarithm: values are
made by operations that IEEE 754 rounds correctly, so that they are the same on every machine.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tf_keras

from rankhouse.training.tables.initializers import centred, centred_rows, random_bits

Columns = tuple[int, int]
Rows = npt.NDArray[np.float32]

# Of a normal distribution cut off at two standard deviations: its standard deviation, and the shares cut off and kept.
_TRUNCATED_STDDEV = 0.87962566103423978
_CUT_OFF, _KEPT = 0.022750131948179212, 0.9544997361036416


class Distribution(Protocol):
    """Draws any rectangle of a table's initial values."""

    def rows(self, key: int, *, dim: int, start: int, stop: int, columns: Columns) -> Rows:
        """Draws rows [start, stop) and the given columns of a table of width `dim` under its key."""

    def of_bits(self, bits: npt.NDArray[np.uint32]) -> Rows:
        """Makes values of 32 random bits each, as `rows` does."""


@dataclass(frozen=True)
class Uniform:
    """Uniform between two bounds."""

    low: float
    high: float

    def rows(self, key: int, *, dim: int, start: int, stop: int, columns: Columns) -> Rows:
        """See `Distribution`."""
        return self._scaled(centred_rows(key, dim=dim, start=start, stop=stop, columns=columns))

    def of_bits(self, bits: npt.NDArray[np.uint32]) -> Rows:
        """See `Distribution`."""
        return self._scaled(centred(bits))

    def _scaled(self, values: Rows) -> Rows:
        values *= np.float32((self.high - self.low) / 2 * 2.0**-23)
        if self.low != -self.high:
            values += np.float32((self.low + self.high) / 2)
        return values


@dataclass(frozen=True)
class Normal:
    """Normal; truncated: within two standard deviations of the mean."""

    mean: float
    stddev: float
    truncated: bool = False

    def rows(self, key: int, *, dim: int, start: int, stop: int, columns: Columns) -> Rows:
        """See `Distribution`."""
        return self.of_bits(random_bits(key, dim=dim, start=start, stop=stop, columns=columns))

    def of_bits(self, bits: npt.NDArray[np.uint32]) -> Rows:
        """See `Distribution`."""
        share = (bits.astype(np.float64) + 0.5) * 2.0**-32
        if self.truncated:
            share = _CUT_OFF + _KEPT * share
        return (self.mean + self.stddev * normal_quantile(share)).astype(np.float32)


@dataclass(frozen=True)
class Constant:
    """One value everywhere."""

    value: float

    def rows(self, key: int, *, dim: int, start: int, stop: int, columns: Columns) -> Rows:
        """See `Distribution`."""
        return np.full((stop - start, columns[1] - columns[0]), self.value, np.float32)

    def of_bits(self, bits: npt.NDArray[np.uint32]) -> Rows:
        """See `Distribution`."""
        return np.full(bits.shape, self.value, np.float32)


def distribution_of(initializer: Any, *, num_rows: int, dim: int) -> Distribution | None:
    """Returns the distribution of a table's initial values.

    Args:
        initializer: A Keras initializer; None is DLRM's own, uniform in ±1/sqrt(num_rows).
        num_rows: Rows of the whole table.
        dim: Width of a row.

    Returns:
        None for an initializer that has a seed, or whose distribution is not known: its values are its own.
    """
    keras = tf_keras.initializers
    if initializer is None:
        return Uniform(-1 / math.sqrt(num_rows), 1 / math.sqrt(num_rows))
    # A class that someone has derived from Keras' may draw what it likes.
    if not type(initializer).__module__.startswith("tf_keras."):
        return None
    if isinstance(initializer, keras.Zeros | keras.Ones):
        return Constant(float(isinstance(initializer, keras.Ones)))
    if isinstance(initializer, keras.Constant) and isinstance(initializer.value, int | float):
        return Constant(initializer.value)
    if getattr(initializer, "seed", None) is not None:
        return None
    if isinstance(initializer, keras.RandomUniform) and initializer.maxval is not None:
        return Uniform(initializer.minval, initializer.maxval)
    if isinstance(initializer, keras.TruncatedNormal):
        return Normal(initializer.mean, initializer.stddev, truncated=True)
    if isinstance(initializer, keras.RandomNormal):
        return Normal(initializer.mean, initializer.stddev)
    if isinstance(initializer, keras.VarianceScaling):
        return _scaled(initializer, num_rows, dim)
    return None


def normal_quantile(share: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns below which value a share of the standard normal distribution lies, for shares within (0, 1).

    Algorithm AS 241 (PPND16; Wichura, Applied Statistics 37, 1988): relative error about 1e-16.
    """
    central: npt.NDArray[np.float64] = share - 0.5
    quantile = central * _ratio(0.180625 - central * central, _CENTRAL)
    tail = np.abs(central) > 0.425
    if tail.any():
        distance: npt.NDArray[np.float64] = np.sqrt(-_log(np.where(central[tail] < 0, share[tail], 1 - share[tail])))
        value = np.where(distance <= 5, _ratio(distance - 1.6, _TAIL), _ratio(distance - 5, _FAR_TAIL))
        quantile[tail] = np.copysign(value, central[tail])
    return quantile


def _scaled(initializer: Any, num_rows: int, dim: int) -> Distribution:
    fans = {"fan_in": num_rows, "fan_out": dim, "fan_avg": (num_rows + dim) / 2}
    variance = initializer.scale / max(1.0, fans[initializer.mode])
    if initializer.distribution == "uniform":
        return Uniform(-math.sqrt(3 * variance), math.sqrt(3 * variance))
    if initializer.distribution == "untruncated_normal":
        return Normal(0.0, math.sqrt(variance))
    return Normal(0.0, math.sqrt(variance) / _TRUNCATED_STDDEV, truncated=True)


def _log(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns natural logarithms, by the series of the inverse hyperbolic tangent."""
    mantissa, exponent = np.frexp(values)
    low = mantissa < math.sqrt(0.5)
    mantissa, exponent = np.where(low, 2 * mantissa, mantissa), exponent - low
    ratio = (mantissa - 1) / (mantissa + 1)
    square, total = ratio * ratio, np.zeros_like(ratio)
    for term in range(23, 0, -2):
        total = total * square + 1 / term
    return 2 * ratio * total + exponent * math.log(2)


def _ratio(at: npt.NDArray[np.float64], coefficients: tuple[tuple[float, ...], ...]) -> npt.NDArray[np.float64]:
    above, below = (np.zeros_like(at), np.zeros_like(at))
    for numerator, denominator in zip(*(row[::-1] for row in coefficients), strict=True):
        above, below = above * at + numerator, below * at + denominator
    return above / below


# The coefficients of AS 241, by rising power.
_CENTRAL = (
    (
        *(3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4),
        *(4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3),
    ),
    (
        *(1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3),
        *(2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3),
    ),
)
_TAIL = (
    (
        *(1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0),
        *(1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4),
    ),
    (
        *(1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1),
        *(1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9),
    ),
)
_FAR_TAIL = (
    (
        *(6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0, 2.96560571828504891230e-1),
        *(2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7),
    ),
    (
        *(1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2),
        *(7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15),
    ),
)
