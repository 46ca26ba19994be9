"""What is to be trained, on how many ranks: the planner's input."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rankhouse.kernels.optimizer_settings import Adagrad, OptimizerSettings
from rankhouse.training.errors import PlanError
from rankhouse.training.exchange.wire_format import WIRE_DTYPES, WireDtype
from rankhouse.training.models.synthetic_models import ID_EXPONENT, SyntheticModel
from rankhouse.training.plan import TableSpec
from rankhouse.training.planner.hardware import HardwareProfile
from rankhouse.training.planner.unique_ids import expected_unique
from rankhouse.training.tables.row_dtypes import RowDtype

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class TableLoad:
    """A table and how a step uses it.

    Attributes:
        table: The table.
        num_inputs: Inputs that look rows up in it; each gives a pooled row for every sample.
        id_exponent: Exponent of the power law of its ids, the most frequent one first; 0 is uniform.
        unique_ratio: Measured share of different ids among those of a rank's batch, in (0, 1]; instead of the exponent.
    """

    table: TableSpec
    num_inputs: int = 1
    id_exponent: float = 0.0
    unique_ratio: float | None = None

    def __post_init__(self) -> None:
        name = self.table.name
        if self.num_inputs < 1:
            raise PlanError(f"table {name!r} has num_inputs = {self.num_inputs}; expected at least 1")
        if not (math.isfinite(self.id_exponent) and self.id_exponent >= 0):
            raise PlanError(f"table {name!r} has id_exponent = {self.id_exponent}; expected a number of at least 0")
        if self.unique_ratio is not None and not 0 < self.unique_ratio <= 1:
            raise PlanError(f"table {name!r} has unique_ratio = {self.unique_ratio}; expected a share above 0, up to 1")

    @cached_property
    def nameless(self) -> "TableLoad":
        """The same without a name: tables that are equal so cost the same, and are looked at once."""
        return replace(self, table=replace(self.table, name=""))

    def unique_rows(self, num_ids: float, rows: tuple[int, int] | None = None) -> float:
        """Returns how many different rows `num_ids` ids have, of all or of a range of rows."""
        first, last = rows or (0, self.table.num_rows)
        if self.unique_ratio is not None:
            share = (last - first) / self.table.num_rows
            return min(self.unique_ratio * num_ids * share, last - first)
        return expected_unique(self.table.num_rows, num_ids, self.id_exponent, (first, last))


@dataclass(frozen=True)
class DenseLoad:
    """The dense part of a model, for one sample.

    Attributes:
        flops: Floating-point operations forward, two for each multiply-add.
        num_parameters: Weights and biases.
        activations: Numbers that are kept for the backward pass.
        num_layers: Layers.
        precision: What matrix products are made in.
    """

    flops: float = 0.0
    num_parameters: float = 0.0
    activations: float = 0.0
    num_layers: int = 0
    precision: Literal["float32", "bfloat16"] = "float32"


def dense_load(widths: Sequence[int], precision: Literal["float32", "bfloat16"] = "float32") -> DenseLoad:
    """Returns what fully connected layers cost; `widths` go from what goes in to what comes out."""
    pairs = list(pairwise(widths))
    return DenseLoad(
        flops=float(sum(2 * before * after for before, after in pairs)),
        num_parameters=float(sum((before + 1) * after for before, after in pairs)),
        activations=float(sum(widths)),
        num_layers=len(pairs),
        precision=precision,
    )


@dataclass(frozen=True)
class Workload:
    """A model's training step.

    Attributes:
        tables: Its tables, with unique names.
        batch_size: Samples of a step, over all ranks together.
        dense: Its dense part.
        optimizer: What updates the tables, and how much it remembers.
        forward_wire: What rows travel in, where a plan says nothing else.
        backward_wire: What their gradients travel in.
        auto_wire: What a planner may have rows and gradients of a table travel in instead, where that is faster;
            float32 allows nothing.
        ids_at_owner: Whether ids already lie where their table does (distributed-embeddings' dp_input=False), so that
            none travel; here they always do.
    """

    tables: tuple[TableLoad, ...]
    batch_size: int
    dense: DenseLoad = field(default_factory=DenseLoad)
    optimizer: OptimizerSettings = field(default_factory=Adagrad)
    forward_wire: WireDtype = "float32"
    backward_wire: WireDtype = "float32"
    auto_wire: WireDtype = "float32"
    ids_at_owner: bool = False

    def __post_init__(self) -> None:
        if not self.tables:
            raise PlanError("there are no embedding tables to place; expected at least one")
        if self.batch_size < 1:
            raise PlanError(f"batch_size is {self.batch_size}; expected at least 1")
        names = [load.table.name for load in self.tables]
        for name in {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else ():
            raise PlanError(f"{names.count(name)} tables are named {name!r}; give each table its own name")
        for name in ("forward_wire", "backward_wire", "auto_wire"):
            check_dtype("the workload", name, getattr(self, name))

    @cached_property
    def output_dim(self) -> int:
        """The summed widths of all inputs."""
        return sum(load.num_inputs * load.table.dim for load in self.tables)

    @property
    def may_lie_on_host(self) -> bool:
        """Whether the optimizer leaves rows alone that a step does not touch: those that are not cached have to be."""
        return getattr(self.optimizer, "kind", "lazy") == "lazy"

    def held_as(self, dtypes: Mapping[str, RowDtype]) -> "Workload":
        """Returns the same with the rows of some tables, by name, held in these dtypes."""
        tables = [
            replace(load, table=replace(load.table, dtype=dtypes.get(load.table.name, load.table.dtype)))
            for load in self.tables
        ]
        return replace(self, tables=tuple(tables))

    def table_bytes(self, table: TableSpec) -> float:
        """Returns the bytes of a whole table and of what the optimizer keeps for it."""
        return table.weight_bytes + self.slot_bytes(table.num_rows, table.dim)

    def slot_bytes(self, num_rows: int, dim: int) -> float:
        """Returns the bytes that the optimizer keeps for rows: its slots, and the step that last wrote each row."""
        numbers = len(self.optimizer.slot_names) * math.prod(self.optimizer.slot_shape(1, dim))
        last_steps = 2 if self.optimizer.is_exact else 1
        return 4.0 * num_rows * (numbers + last_steps)


@dataclass(frozen=True)
class Cluster:
    """The ranks that train.

    Attributes:
        num_ranks: How many.
        hardware: What each achieves.
        memory_bytes: What each may use; None is the hardware's.
        usable_share: Share of the memory that tensors can take; the rest is the framework's, and lost between tensors.
    """

    num_ranks: int
    hardware: HardwareProfile
    memory_bytes: float | None = None
    usable_share: float = 0.9

    def __post_init__(self) -> None:
        if self.num_ranks < 1:
            raise PlanError(f"cannot place tables on {self.num_ranks} ranks; expected at least 1")
        if self.memory_bytes is not None and not self.memory_bytes > 0:
            raise PlanError(f"memory_bytes is {self.memory_bytes}; expected a number above 0")
        if not 0 < self.usable_share <= 1:
            raise PlanError(f"usable_share is {self.usable_share}; expected a share above 0, up to 1")

    @property
    def usable_bytes(self) -> float:
        """Bytes of a rank that tensors can take."""
        return self.usable_share * (self.memory_bytes or self.hardware.memory_bytes)

    @property
    def node_share(self) -> float:
        """Share of the other ranks' part of an exchange that stays on the machine, of all it sends."""
        return (min(self.num_ranks, self.hardware.ranks_per_node) - 1) / self.num_ranks

    @property
    def network_share(self) -> float:
        """Share of an exchange that goes to other machines."""
        return max(0, self.num_ranks - self.hardware.ranks_per_node) / self.num_ranks

    def exchange_seconds(self, num_bytes: Vector) -> Vector:
        """Returns the time of all-to-all exchanges in which a rank sends so many bytes, its own part included."""
        if self.num_ranks == 1:
            return 0 * num_bytes
        return self._latency_seconds + num_bytes * self.exchange_byte_seconds

    def sum_seconds(self, num_bytes: Vector) -> Vector:
        """Returns the time to sum so many bytes over all ranks."""
        if self.num_ranks == 1:
            return 0 * num_bytes
        return (num_bytes > 0) * self._latency_seconds + num_bytes * self.sum_byte_seconds

    @property
    def exchange_byte_seconds(self) -> float:
        """Time of each byte of an exchange. What stays on the machine and what leaves it move side by side."""
        intra, inter = self.hardware.intra.bandwidth, self.hardware.inter.bandwidth
        return max(self.node_share / intra, self.network_share / inter)

    @property
    def sum_byte_seconds(self) -> float:
        """Time of each byte that is summed: a ring sends nearly twice as many from each rank.

        Between machines each rank of a machine sends its part of them.
        """
        per_byte = 1 / self.hardware.intra.sum_bandwidth
        if self.network_share:
            per_byte = max(per_byte, 1 / (self.hardware.ranks_per_node * self.hardware.inter.sum_bandwidth))
        return 2 * (self.num_ranks - 1) / self.num_ranks * per_byte

    @property
    def _latency_seconds(self) -> float:
        return (self.hardware.inter if self.network_share else self.hardware.intra).latency_seconds


def synthetic_workload(
    model: SyntheticModel,
    *,
    batch_size: int = 65536,
    optimizer: OptimizerSettings | None = None,
    ids_at_owner: bool = False,
) -> Workload:
    """Returns what a step of a synthetic model does."""
    inputs = dict.fromkeys((table.name for table in model.tables), 0)
    for item in model.inputs:
        inputs[item.table] += 1
    dense = dense_load(model.layer_widths)
    return Workload(
        tables=tuple(TableLoad(table, inputs[table.name], ID_EXPONENT) for table in model.tables),
        batch_size=batch_size,
        dense=dense,
        optimizer=optimizer or Adagrad(),
        ids_at_owner=ids_at_owner,
    )


def check_dtype(what: str, name: str, dtype: str) -> None:
    """Raises PlanError where a dtype is none of those that rows can travel in."""
    if dtype not in WIRE_DTYPES:
        raise PlanError(f"{what} has {name} = {dtype!r}; expected one of {', '.join(WIRE_DTYPES)}")
