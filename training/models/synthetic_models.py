"""The synthetic models by which libraries for huge embedding tables are compared: seven sizes, and `criteo`.

Data alone. Configurations: NVIDIA-Merlin/distributed-embeddings, examples/benchmarks/synthetic_models/config_v3.py;
its readme publishes each model's number of tables and GiB of float32 weights. All inputs pool by sum; ids follow a
power law of exponent 1.05. The pooled rows lie side by side, are averaged over `interaction_stride` neighbours, and go
with the numerical features through the layers of `mlp` to one logit.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from rankhouse.training.errors import PlanError
from rankhouse.training.plan import TableSpec

# Exponent of the ids' power law, by default.
ID_EXPONENT = 1.05


@dataclass(frozen=True)
class TableGroup:
    """Tables that are alike.

    Attributes:
        num_tables: How many.
        hotness: The ids of a sample in each input; all these inputs look rows up in the one table.
        num_rows: Rows of each table.
        dim: Width of a row.
    """

    num_tables: int
    hotness: tuple[int, ...]
    num_rows: int
    dim: int


@dataclass(frozen=True)
class SyntheticInput:
    """One input: its table and how many ids a sample has in it."""

    table: str
    hotness: int


@dataclass(frozen=True)
class SyntheticModel:
    """A model of the suite.

    Attributes:
        name: Its name.
        groups: Its tables.
        mlp: Widths of the hidden layers; a layer of width 1, the logit, follows.
        num_numerical: Numerical features.
        interaction_stride: How many neighbouring columns of the pooled rows are averaged into one; 1 is none.
    """

    name: str
    groups: tuple[TableGroup, ...]
    mlp: tuple[int, ...]
    num_numerical: int
    interaction_stride: int = 1

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """The tables, in the configuration's order."""
        return tuple(
            TableSpec(name, group.num_rows, group.dim, float(sum(group.hotness))) for name, group in self._named()
        )

    @property
    def inputs(self) -> tuple[SyntheticInput, ...]:
        """The inputs, table by table."""
        return tuple(SyntheticInput(name, hotness) for name, group in self._named() for hotness in group.hotness)

    @property
    def num_tables(self) -> int:
        """How many tables there are."""
        return sum(group.num_tables for group in self.groups)

    @property
    def num_inputs(self) -> int:
        """How many inputs there are."""
        return sum(group.num_tables * len(group.hotness) for group in self.groups)

    @property
    def lookups_per_sample(self) -> int:
        """How many ids a sample looks up, over all inputs."""
        return sum(group.num_tables * sum(group.hotness) for group in self.groups)

    @property
    def output_dim(self) -> int:
        """The summed widths of all inputs."""
        return sum(group.num_tables * len(group.hotness) * group.dim for group in self.groups)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the float32 weights of all tables."""
        return sum(4 * group.num_tables * group.num_rows * group.dim for group in self.groups)

    @property
    def interaction_dim(self) -> int:
        """Columns that are left of the pooled rows after the interaction; the last average may be over fewer."""
        return math.ceil(self.output_dim / self.interaction_stride)

    @property
    def layer_widths(self) -> tuple[int, ...]:
        """Widths of the dense part, from what goes in to the logit."""
        return (self.interaction_dim + self.num_numerical, *self.mlp, 1)

    def _named(self) -> Iterator[tuple[str, TableGroup]]:
        numbers = iter(range(self.num_tables))
        return ((f"table_{next(numbers)}", group) for group in self.groups for _ in range(group.num_tables))


def synthetic_model(name: str) -> SyntheticModel:
    """Returns a model of the suite.

    Raises:
        PlanError: There is none of this name; the nearest is named.
    """
    if name not in SYNTHETIC_MODELS:
        near = get_close_matches(name, SYNTHETIC_MODELS, n=1, cutoff=0)[0]
        known = ", ".join(SYNTHETIC_MODELS)
        raise PlanError(f"there is no synthetic model {name!r}; did you mean {near!r}? Known are {known}")
    return SYNTHETIC_MODELS[name]


_K, _M, _B = 1_000, 1_000_000, 1_000_000_000

SYNTHETIC_MODELS = {
    model.name: model
    for model in (
        SyntheticModel("criteo", (TableGroup(26, (1,), 100 * _K, 128),), (512, 256, 128), 13),
        SyntheticModel(
            "tiny",
            (
                TableGroup(1, (1, 10), 10 * _K, 8),
                TableGroup(1, (1, 10), 1 * _M, 16),
                TableGroup(1, (1, 10), 25 * _M, 16),
                TableGroup(1, (1,), 25 * _M, 16),
                TableGroup(16, (1,), 10, 8),
                TableGroup(10, (1,), 1 * _K, 8),
                TableGroup(4, (1,), 10 * _K, 8),
                TableGroup(2, (1,), 100 * _K, 16),
                TableGroup(19, (1,), 1 * _M, 16),
            ),
            (256, 128),
            10,
        ),
        SyntheticModel(
            "small",
            (
                TableGroup(5, (1, 30), 10 * _K, 16),
                TableGroup(3, (1, 30), 4 * _M, 32),
                TableGroup(1, (1, 30), 50 * _M, 32),
                TableGroup(1, (1,), 50 * _M, 32),
                TableGroup(30, (1,), 10, 16),
                TableGroup(30, (1,), 1 * _K, 16),
                TableGroup(5, (1,), 10 * _K, 16),
                TableGroup(5, (1,), 100 * _K, 32),
                TableGroup(27, (1,), 4 * _M, 32),
            ),
            (512, 256, 128),
            10,
        ),
        SyntheticModel(
            "medium",
            (
                TableGroup(20, (1, 50), 100 * _K, 64),
                TableGroup(5, (1, 50), 10 * _M, 64),
                TableGroup(1, (1, 50), 100 * _M, 128),
                TableGroup(1, (1,), 100 * _M, 128),
                TableGroup(80, (1,), 10, 32),
                TableGroup(60, (1,), 1 * _K, 32),
                TableGroup(80, (1,), 100 * _K, 64),
                TableGroup(24, (1,), 200 * _K, 64),
                TableGroup(40, (1,), 10 * _M, 64),
            ),
            (1024, 512, 256, 128),
            25,
            7,
        ),
        SyntheticModel(
            "large",
            (
                TableGroup(40, (1, 100), 100 * _K, 64),
                TableGroup(16, (1, 100), 15 * _M, 64),
                TableGroup(1, (1, 100), 200 * _M, 128),
                TableGroup(1, (1,), 200 * _M, 128),
                TableGroup(100, (1,), 10, 32),
                TableGroup(100, (1,), 10 * _K, 32),
                TableGroup(160, (1,), 100 * _K, 64),
                TableGroup(50, (1,), 500 * _K, 64),
                TableGroup(144, (1,), 15 * _M, 64),
            ),
            (2048, 1024, 512, 256),
            100,
            8,
        ),
        SyntheticModel(
            "jumbo",
            (
                TableGroup(50, (1, 200), 100 * _K, 128),
                TableGroup(24, (1, 200), 20 * _M, 128),
                TableGroup(1, (1, 200), 400 * _M, 256),
                TableGroup(1, (1,), 400 * _M, 256),
                TableGroup(100, (1,), 10, 32),
                TableGroup(200, (1,), 10 * _K, 64),
                TableGroup(350, (1,), 100 * _K, 128),
                TableGroup(80, (1,), 1 * _M, 128),
                TableGroup(216, (1,), 20 * _M, 128),
            ),
            (2048, 1024, 512, 256),
            200,
            20,
        ),
        SyntheticModel(
            "colossal",
            (
                TableGroup(100, (1, 300), 100 * _K, 128),
                TableGroup(50, (1, 300), 40 * _M, 256),
                TableGroup(1, (1, 300), 2 * _B, 256),
                TableGroup(1, (1,), 1 * _B, 256),
                TableGroup(100, (1,), 10, 32),
                TableGroup(400, (1,), 10 * _K, 128),
                TableGroup(100, (1,), 100 * _K, 128),
                TableGroup(800, (1,), 1 * _M, 128),
                TableGroup(450, (1,), 40 * _M, 256),
            ),
            (4096, 2048, 1024, 512, 256),
            500,
            30,
        ),
    )
}
