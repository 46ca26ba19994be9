"""The planted teacher of synthetic logs: what values look like, and how likely a click is given them.

Its probabilities are a function of the raw values alone, so their AUC is the best that any model can reach. What
makes it learnable and yet hard for a linear model:

- Frequent ids carry the signal: small features weigh more, weights fall with an id's popularity rank, and beyond the
  first 65,536 they are 0.
- Half of the logit's variance are interactions: dot products of low-rank factors of pairs of features (a factorization
  machine, Rendle 2010), and numbers times factors. Factors are centred, so a linear model sees nothing of them.
- Numbers act through their logarithm, which is what the usual preprocessing gives a model.

Days: numbers shift, the click rate moves, and in large features ids die and new ones take their place in popularity,
each with weights of its own.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_KNOWN_RANKS = 65_536
_CHURNING_CARDINALITY = 1_000
_RANK_BITS = 24  # An id is its popularity rank below its generation; both fit 32 bits.
_FADING_RANKS = 20.0
_FACTORS = 2
_INTERACTING = ("C6", "C14", "C17", "C22", "C23")
_NUMBER_INTERACTIONS = (("I8", "C9"), ("I2", "C20"))

# Shares of the logit's variance, and the whole: together they set the best AUC (about 0.8).
_CATEGORY_VARIANCE = 0.65
_NUMBER_VARIANCE = 0.25
_FACTOR_VARIANCE = 1.0
_NUMBER_FACTOR_VARIANCE = 0.15
_BIAS = -1.45


@dataclass(frozen=True)
class CategoricalColumn:
    """A categorical column.

    Attributes:
        name: Its name in Criteo's layout.
        cardinality: Ids alive on any day.
        exponent: Of the Zipf distribution of the ids.
        missing_rate: Share of rows without a value.
    """

    name: str
    cardinality: int
    exponent: float = 1.1
    missing_rate: float = 0.0

    def ranks(self, uniform: Floats) -> Ints:
        """Draws popularity ranks from 0 by inverting a continuous power law cut at the cardinality."""
        power = 1.0 - self.exponent
        span = (self.cardinality + 1.0) ** power - 1.0
        ranks = ((1.0 + uniform * span) ** (1.0 / power)).astype(np.int64) - 1
        clipped: Ints = np.clip(ranks, 0, self.cardinality - 1)
        return clipped

    def probabilities(self) -> Floats:
        """The chances of the most popular ranks, up to 65,536 of them."""
        power = 1.0 - self.exponent
        edges = np.arange(1, min(self.cardinality, _KNOWN_RANKS) + 2, dtype=np.float64) ** power
        chances: Floats = np.diff(edges) / ((self.cardinality + 1.0) ** power - 1.0)
        return chances


@dataclass(frozen=True)
class IntegerColumn:
    """A column of counts: a rounded log-normal number.

    Attributes:
        name: Its name in Criteo's layout.
        location: Mean of the logarithm.
        spread: Standard deviation of the logarithm.
        missing_rate: Share of rows without a value.
        offset: Added after rounding; below 0 some values are negative, as in Criteo's I2.
    """

    name: str
    location: float
    spread: float
    missing_rate: float = 0.0
    offset: int = 0


# Cardinalities as in Criteo's Kaggle data set.
CATEGORICAL = tuple(
    CategoricalColumn(f"C{index}", cardinality, missing_rate=missing_rate)
    for index, (cardinality, missing_rate) in enumerate(
        [
            (1_461, 0), (584, 0), (10_131_227, 0.03), (2_202_608, 0.03), (306, 0), (24, 0.02), (12_518, 0), (634, 0),
            (3, 0), (93_146, 0), (5_684, 0), (8_351_593, 0.03), (3_195, 0), (28, 0), (14_993, 0), (5_461_306, 0.03),
            (11, 0), (5_653, 0), (2_173, 0.44), (4, 0), (7_046_547, 0.03), (18, 0), (16, 0), (286_181, 0.03), (105, 0),
            (142_572, 0.44),
        ],
        start=1,
    )
)  # fmt: skip
INTEGERS = (
    IntegerColumn("I1", 1.0, 1.2, 0.45),
    IntegerColumn("I2", 2.0, 1.8, 0.0, offset=-3),
    IntegerColumn("I3", 2.0, 1.2, 0.21),
    IntegerColumn("I4", 1.8, 0.8, 0.22),
    IntegerColumn("I5", 7.0, 2.0, 0.03),
    IntegerColumn("I6", 4.0, 1.3, 0.22),
    IntegerColumn("I7", 1.8, 1.3, 0.04),
    IntegerColumn("I8", 2.2, 1.0, 0.0),
    IntegerColumn("I9", 4.0, 1.3, 0.04),
    IntegerColumn("I10", 0.0, 0.6, 0.45),
    IntegerColumn("I11", 1.0, 0.9, 0.04),
    IntegerColumn("I12", 0.0, 0.9, 0.76),
    IntegerColumn("I13", 1.8, 1.0, 0.22),
)


@dataclass(frozen=True)
class Sample:
    """n rows of one day.

    Attributes:
        integers: int64 [13, n].
        integers_missing: bool [13, n].
        ids: uint32 [26, n]; their hexadecimal text is the raw value.
        ids_missing: bool [26, n].
        logits: float64 [n], of the true probability of a click.
        labels: bool [n].
    """

    integers: Ints
    integers_missing: npt.NDArray[np.bool_]
    ids: npt.NDArray[np.uint32]
    ids_missing: npt.NDArray[np.bool_]
    logits: Floats
    labels: npt.NDArray[np.bool_]


class Teacher:
    """Draws rows of one day. Deterministic: the same numbers from the generator give the same rows.

    Args:
        day: The day, from 0 to 255.
    """

    def __init__(self, day: int) -> None:
        self._day = day

    def sample(self, random: np.random.Generator, num_rows: int) -> Sample:
        """Draws rows."""
        columns = {column.name: self._draw_ids(random, column, num_rows) for column in CATEGORICAL}
        ranks = {name: np.where(missing, -1, drawn) for name, (drawn, missing) in columns.items()}
        integers, integers_missing = zip(
            *(self._draw_integers(random, each, num_rows) for each in INTEGERS), strict=True
        )
        numbers = {
            column.name: _standardized(column, values, missing)
            for column, values, missing in zip(INTEGERS, integers, integers_missing, strict=True)
        }
        logits = self._logits(ranks, numbers)
        return Sample(
            integers=np.stack(integers),
            integers_missing=np.stack(integers_missing),
            ids=np.stack([self._ids(index, columns[column.name][0]) for index, column in enumerate(CATEGORICAL)]),
            ids_missing=np.stack([columns[column.name][1] for column in CATEGORICAL]),
            logits=logits,
            labels=random.random(num_rows) < 1.0 / (1.0 + np.exp(-logits)),
        )

    def _draw_ids(
        self, random: np.random.Generator, column: CategoricalColumn, num_rows: int
    ) -> tuple[Ints, npt.NDArray[np.bool_]]:
        return column.ranks(random.random(num_rows)), _missing(random, column.missing_rate, num_rows)

    def _draw_integers(
        self, random: np.random.Generator, column: IntegerColumn, num_rows: int
    ) -> tuple[Ints, npt.NDArray[np.bool_]]:
        location = column.location + 0.02 * self._day
        values = np.exp(location + column.spread * random.standard_normal(num_rows))
        return values.astype(np.int64) + column.offset, _missing(random, column.missing_rate, num_rows)

    def _logits(self, ranks: dict[str, Ints], numbers: dict[str, Floats]) -> Floats:
        logits = np.full(len(ranks["C1"]), _BIAS + 0.1 * math.sin(self._day), dtype=np.float64)
        for name, table in self._weights.items():
            logits += _looked_up(table, ranks[name])
        for index, values in enumerate(numbers.values()):
            sign = 1.0 if index % 2 else -1.0
            logits += sign * math.sqrt(_NUMBER_VARIANCE / len(numbers)) * values
        factors = [_looked_up(self._factors[name], ranks[name]) for name in _INTERACTING]
        # Rendle 2010, lemma 3.1: all pairs in linear time.
        logits += 0.5 * (np.square(sum(factors)).sum(axis=1) - sum(np.square(each).sum(axis=1) for each in factors))
        for number, name in _NUMBER_INTERACTIONS:
            logits += numbers[number] * _looked_up(self._slopes[name], ranks[name])
        return logits

    @cached_property
    def _weights(self) -> dict[str, Floats]:
        """For each feature the weight of each of its popular ids, [ranks]."""
        shares = np.array([1.0 / math.log(column.cardinality) for column in CATEGORICAL])
        scales = np.sqrt(_CATEGORY_VARIANCE * shares / shares.sum())
        return {
            column.name: scale * self._popular(column, 1)[:, 0]
            for column, scale in zip(CATEGORICAL, scales, strict=True)
        }

    @cached_property
    def _factors(self) -> dict[str, Floats]:
        """For each interacting feature the factors of each of its popular ids, [ranks, 4]."""
        num_pairs = len(_INTERACTING) * (len(_INTERACTING) - 1) / 2
        scale = (_FACTOR_VARIANCE / num_pairs / _FACTORS) ** 0.25
        columns = [column for column in CATEGORICAL if column.name in _INTERACTING]
        return {column.name: scale * self._popular(column, 2, _FACTORS) for column in columns}

    @cached_property
    def _slopes(self) -> dict[str, Floats]:
        """For each feature that interacts with a number the slope of each of its popular ids, [ranks]."""
        scale = math.sqrt(_NUMBER_FACTOR_VARIANCE / len(_NUMBER_INTERACTIONS))
        names = [name for _, name in _NUMBER_INTERACTIONS]
        return {column.name: scale * self._popular(column, 3)[:, 0] for column in CATEGORICAL if column.name in names}

    def _popular(self, column: CategoricalColumn, purpose: int, width: int = 1) -> Floats:
        """Weights of the popular ranks, [ranks, width]: mean 0 and variance 1 over the rows of day 0."""
        index = CATEGORICAL.index(column)
        chances = column.probabilities()
        ranks = np.arange(len(chances))
        fading = 1.0 / np.sqrt(1.0 + ranks / _FADING_RANKS)

        def drawn(day: int) -> Floats:
            ids = ranks | _generations(index, ranks, day) << _RANK_BITS
            columns = [fading * _normals(ids, (index, purpose, part)) for part in range(width)]
            return np.stack(columns, axis=1)

        first = drawn(0)
        mean = chances @ first / chances.sum()
        deviation = np.sqrt(chances @ np.square(first - mean) / chances.sum())
        weights: Floats = (drawn(self._day) - mean) / deviation
        return weights

    def _ids(self, index: int, ranks: Ints) -> npt.NDArray[np.uint32]:
        """Names ranks of this day: a bijection of 32 bits, so that no two ids of a feature look the same."""
        ids = (ranks | _generations(index, ranks, self._day) << _RANK_BITS).astype(np.uint32)
        ids ^= np.uint32(0x9E3779B9 * (index + 1) & 0xFFFFFFFF)
        # The finalizer of MurmurHash3.
        for shift, multiplier in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            ids ^= ids >> np.uint32(shift)
            ids *= np.uint32(multiplier)
        return ids ^ ids >> np.uint32(16)


def _generations(index: int, ranks: Ints, day: int) -> Ints:
    """How often each rank's id has been replaced by this day: in a large feature, every 5 to 60 days."""
    if day == 0 or CATEGORICAL[index].cardinality <= _CHURNING_CARDINALITY:
        return np.zeros(len(ranks), dtype=np.int64)
    lifetimes = 5.0 + 55.0 * _uniforms(ranks, (index, 10))
    generations: Ints = np.floor(day / lifetimes + _uniforms(ranks, (index, 11))).astype(np.int64)
    return generations


def _standardized(column: IntegerColumn, values: Ints, missing: npt.NDArray[np.bool_]) -> Floats:
    numbers = (np.log1p(np.maximum(values, 0)) - column.location) / column.spread
    return np.where(missing, 0.0, numbers)


def _missing(random: np.random.Generator, rate: float, num_rows: int) -> npt.NDArray[np.bool_]:
    return random.random(num_rows) < rate if rate else np.zeros(num_rows, dtype=np.bool_)


def _looked_up(table: Floats, ranks: Ints) -> Floats:
    """Rows of a table of popular ranks; missing ids (-1) and rare ones have zeros."""
    known = (ranks >= 0) & (ranks < len(table))
    rows = table[np.where(known, ranks, 0)]
    looked_up: Floats = rows * (known if rows.ndim == 1 else known[:, None])
    return looked_up


def _uniforms(keys: Ints, stream: tuple[int, ...]) -> Floats:
    """Numbers in [0, 1) that depend on nothing but key and stream (SplitMix64, Steele et al. 2014)."""
    state = keys.astype(np.uint64)
    for part in (0x52616E6B, *stream):
        state += np.uint64(part + 1) * np.uint64(0x7F4A7C15)
        state = (state ^ state >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ state >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    uniforms: Floats = (state >> np.uint64(11)).astype(np.float64) / 2.0**53
    return uniforms


def _normals(keys: Ints, stream: tuple[int, ...]) -> Floats:
    """Standard normal numbers (Box and Muller 1958)."""
    radius = np.sqrt(-2.0 * np.log1p(-_uniforms(keys, (*stream, 1))))
    normals: Floats = radius * np.cos(2.0 * np.pi * _uniforms(keys, (*stream, 2)))
    return normals
