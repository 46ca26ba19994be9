"""A feature as raw rows carry it and as the compiled transform treats it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["continuous", "categorical"]
RawType = Literal["int64", "float64", "text"]


@dataclass(frozen=True)
class DenseSteps:
    """How a continuous feature becomes a number of the model: the steps in the order of the fields.

    Attributes:
        fill: The number that stands for a missing value.
        clip_min: Smaller numbers become this one; None leaves them.
        clip_max: Larger numbers become this one; None leaves them.
        log: Whether log(1 + x) is taken, in float32.
        mean: What is subtracted; None where the feature is not normalized.
        std: What is divided by, unless it is 0; None where the feature is not normalized.
    """

    fill: float = 0.0
    clip_min: float | None = None
    clip_max: float | None = None
    log: bool = False
    mean: float | None = None
    std: float | None = None


@dataclass(frozen=True)
class Feature:
    """One feature of a model.

    Attributes:
        name: Its name in raw rows.
        kind: Continuous features make `dense`, categorical ones make `ids`.
        dtype: The type of its raw values.
        is_list: Whether a row holds a list of values (multi-hot).
        steps: For a continuous feature: the way to its number.
        table: For a categorical feature: the table that its ids point into.
        dim: For a categorical feature: the width of that table.
        combiner: For a categorical feature: how the rows of a bag are pooled, "sum" or "mean".
    """

    name: str
    kind: Kind
    dtype: RawType
    is_list: bool = False
    steps: DenseSteps | None = None
    table: str | None = None
    dim: int | None = None
    combiner: str | None = None

    @classmethod
    def parse(cls, entry: Mapping[str, Any]) -> "Feature":
        """Reads a feature as it stands in JSON.

        Raises:
            KeyError, TypeError: A key is missing or unknown.
        """
        steps = entry["steps"]
        return cls(**{**entry, "steps": None if steps is None else DenseSteps(**steps)})
