"""Who holds which embedding table: a pure function of the tables and the number of ranks.

A table is either data-parallel (every rank holds a copy, and the copies' gradients are summed) or table-wise (one rank
holds it, and the others send it their ids and get rows back). Planning knows neither Horovod nor TensorFlow.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rankhouse.training.errors import PlanError

Mode = Literal["data_parallel", "table_wise"]

# Summing a data-parallel table moves every row there and back once per step, whatever the batch; exchanging moves a row
# there and a gradient back for every sample. The two break even where a table has as many rows as a rank has samples in
# a step, and that is some thousands.
DATA_PARALLEL_THRESHOLD_ROWS = 2048


@dataclass(frozen=True)
class TableSpec:
    """An embedding table, as the planner sees it.

    Attributes:
        name: Unique name.
        num_rows: Rows, at least 1.
        dim: Width of a row, at least 1.
        lookups_per_sample: How many ids a sample looks up in it, over all features that share it.
    """

    name: str
    num_rows: int
    dim: int
    lookups_per_sample: float = 1.0

    def __post_init__(self) -> None:
        for field in ("num_rows", "dim"):
            if getattr(self, field) < 1:
                raise PlanError(f"table {self.name!r} has {field} = {getattr(self, field)}; expected at least 1")
        if not (math.isfinite(self.lookups_per_sample) and self.lookups_per_sample >= 0):
            raise PlanError(
                f"table {self.name!r} has lookups_per_sample = {self.lookups_per_sample}; "
                "expected a finite number, at least 0"
            )

    @property
    def weight_bytes(self) -> int:
        """Bytes of the float32 weights; Adagrad's accumulator takes as much again."""
        return 4 * self.num_rows * self.dim


@dataclass(frozen=True)
class Placement:
    """Where one table lies.

    Attributes:
        table: The table's name.
        mode: "data_parallel" (a copy on every rank) or "table_wise" (whole, on one rank).
        rank: The owner of a table-wise table; 0 for a data-parallel one.
        reason: Why, as a sentence.
    """

    table: str
    mode: Mode
    rank: int
    reason: str = ""


@dataclass(frozen=True)
class Plan:
    """Where every table lies.

    Attributes:
        tables: The tables, in the caller's order.
        placements: One for each table, in the same order.
        num_ranks: Number of ranks.
    """

    tables: tuple[TableSpec, ...]
    placements: tuple[Placement, ...]
    num_ranks: int

    def placement(self, table: str) -> Placement:
        """Returns where a table lies."""
        for placement in self.placements:
            if placement.table == table:
                return placement
        raise PlanError(f"the plan has no table {table!r}; it has {', '.join(spec.name for spec in self.tables)}")

    def tables_of(self, rank: int) -> tuple[TableSpec, ...]:
        """Returns the tables whose weights a rank holds: its own table-wise ones and all data-parallel ones."""
        return tuple(
            table
            for table, placement in zip(self.tables, self.placements, strict=True)
            if placement.mode == "data_parallel" or placement.rank == rank
        )

    def bytes_of(self, rank: int) -> int:
        """Returns the bytes of the weights that a rank holds."""
        return sum(table.weight_bytes for table in self.tables_of(rank))

    def explain(self) -> str:
        """Returns the plan as text: bytes for each rank, and where each table lies and why."""
        lines = [f"{len(self.tables)} tables on {self.num_ranks} rank{'s' if self.num_ranks > 1 else ''}"]
        for rank in range(self.num_ranks):
            lines.append(self.explain_rank(rank))
        lines += [f"{placement.table}: {placement.reason}" for placement in self.placements]
        return "\n".join(lines)

    def explain_rank(self, rank: int) -> str:
        """Returns as a line what a rank holds."""
        own = [p.table for p in self.placements if p.mode == "table_wise" and p.rank == rank]
        held = ", ".join(own) if own else "no table of its own"
        return f"rank {rank}: {self.bytes_of(rank) / 2**20:,.2f} MiB of weights; owns {held}"

    def document(self) -> dict[str, Any]:
        """Returns the plan as plain data, for reports and checkpoints."""
        return asdict(self)


def make_plan(
    tables: Sequence[TableSpec],
    *,
    num_ranks: int,
    data_parallel_threshold_rows: int = DATA_PARALLEL_THRESHOLD_ROWS,
) -> Plan:
    """Places every table: small ones on all ranks, each other one whole on the least loaded rank, largest first.

    A rank's load is its share of all table-wise bytes plus its share of all table-wise traffic (ids times width), so
    memory and time balance together. Greedy by falling size is within 4/3 of the best (Graham 1969) for one of them.
    The same input gives the same plan.

    Args:
        tables: The tables, with unique names.
        num_ranks: How many ranks train.
        data_parallel_threshold_rows: Tables with fewer rows are data-parallel; 0 makes every table table-wise.

    Raises:
        PlanError: No tables, two of one name, or a number of ranks below 1 or a threshold below 0.
    """
    _check(tables, num_ranks, data_parallel_threshold_rows)
    small = {table.name for table in tables if table.num_rows < data_parallel_threshold_rows}
    large = sorted((table for table in tables if table.name not in small), key=lambda t: (-t.weight_bytes, t.name))
    owners = _balance(large, num_ranks)
    placements = []
    for table in tables:
        if table.name in small:
            reason = f"on every rank: {table.num_rows:,} rows are fewer than {data_parallel_threshold_rows:,}"
            placements.append(Placement(table.name, "data_parallel", 0, reason))
        else:
            owner = owners[table.name]
            reason = f"on rank {owner}: {table.weight_bytes / 2**20:,.2f} MiB, to the least loaded rank, largest first"
            placements.append(Placement(table.name, "table_wise", owner, reason))
    return Plan(tuple(tables), tuple(placements), num_ranks)


def _check(tables: Sequence[TableSpec], num_ranks: int, threshold: int) -> None:
    if not tables:
        raise PlanError("there are no embedding tables to place; expected at least one categorical feature")
    if num_ranks < 1:
        raise PlanError(f"cannot place tables on {num_ranks} ranks; expected at least 1")
    if threshold < 0:
        raise PlanError(f"data_parallel_threshold_rows is {threshold}; expected 0 or more")
    names = [table.name for table in tables]
    for name in names:
        if names.count(name) > 1:
            raise PlanError(f"{names.count(name)} tables are named {name!r}; give each table its own name")


def _balance(large: Sequence[TableSpec], num_ranks: int) -> dict[str, int]:
    total_bytes = sum(table.weight_bytes for table in large) or 1
    total_traffic = sum(table.lookups_per_sample * table.dim for table in large) or 1.0
    load = [0.0] * num_ranks
    owners = {}
    for table in large:
        owner = min(range(num_ranks), key=lambda rank: (load[rank], rank))
        load[owner] += table.weight_bytes / total_bytes + table.lookups_per_sample * table.dim / total_traffic
        owners[table.name] = owner
    return owners
