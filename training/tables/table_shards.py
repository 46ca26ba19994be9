"""The parts of tables that one rank holds."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import tensorflow as tf

from rankhouse.training.errors import EmbeddingError
from rankhouse.training.plan import Placement, Plan, ShardSpec, check_plan
from rankhouse.training.tables.host_rows import HostRows, HostRowsStats
from rankhouse.training.tables.learnt_rows import LearntRows
from rankhouse.training.tables.row_maps import RowMap
from rankhouse.training.tables.specs import EmbeddingSpec


@dataclass(frozen=True)
class TableShard:
    """A rectangle of one table that this rank holds: rows [row_start, row_stop), columns [column_start, column_stop).

    Attributes:
        table: The table's name.
        variable: [rows, columns] of the rectangle, in the table's dtype.
        replicated: Whether every rank holds the same (data-parallel).
        row_start: Its first row in the table.
        row_stop: One behind its last row.
        column_start: Its first column in the table.
        column_stop: One behind its last column.
        host_rows: Of a table on the host, what brings its rows; `variable` is [cached rows, columns] then.
        learnt: Of a table that learns its keys, what says which of its rows hold which keys; on the host as well.
    """

    table: str
    variable: tf.Variable
    replicated: bool
    row_start: int
    row_stop: int
    column_start: int
    column_stop: int
    host_rows: HostRows | None = None
    learnt: LearntRows | None = None

    @classmethod
    def of(
        cls, placement: Placement, rectangle: ShardSpec, variable: tf.Variable, *, learnt: LearntRows | None = None
    ) -> "TableShard":
        """Makes the rectangle of a placed table from a variable with as many rows as `variable_rows` says.

        Raises:
            HostRowsError: The folder of a table on the host cannot hold it.
        """
        rows = (rectangle.row_start, rectangle.row_stop)
        host_rows = None
        if placement.device == "host":
            # What learns its keys gives them rows of the rectangle, from 0 on.
            sizes = {"first_row": 0 if learnt else rows[0], "num_rows": rectangle.num_rows}
            host_rows = HostRows(placement.table, variable, **sizes, folder=placement.host_folder)
        replicated = placement.mode == "data_parallel"
        columns = (rectangle.column_start, rectangle.column_stop)
        return cls(placement.table, variable, replicated, *rows, *columns, host_rows, learnt)

    @property
    def row_map(self) -> RowMap | None:
        """What stands between an id and its row; None: nothing."""
        return self.learnt or self.host_rows

    def rectangle(self, rank: int) -> ShardSpec:
        """Returns it as the plan has it."""
        return ShardSpec(rank, self.row_start, self.row_stop, self.column_start, self.column_stop)


def variable_rows(placement: Placement, rectangle: ShardSpec) -> int:
    """Returns how many rows the variable of a rectangle has."""
    return min(rectangle.num_rows, placement.cache_rows or rectangle.num_rows)


def host_stats(shards: Iterable[TableShard]) -> dict[str, HostRowsStats]:
    """Returns what was moved so far, by table, of those that lie on the host."""
    stats: dict[str, HostRowsStats] = {}
    for shard in shards:
        if shard.host_rows is not None:
            stats[shard.table] = stats.get(shard.table, HostRowsStats()) + shard.host_rows.stats
    return stats


def rows_taken(shards: Iterable[TableShard], *, rank: int) -> Counter[str]:
    """Returns how many rows have a key, by table that learns its keys; what several ranks hold the first one counts."""
    taken: Counter[str] = Counter()
    for shard in shards:
        if shard.learnt is not None and shard.column_start == 0 and (rank == 0 or not shard.replicated):
            taken[shard.table] += int(shard.learnt.vocabulary.size())
    return taken


def check_tables(plan: Plan, specs: Sequence[EmbeddingSpec], *, num_ranks: int) -> None:
    """Checks that a plan places these tables on so many ranks.

    Raises:
        EmbeddingError: It is for other ones.
        PlanError: It is none.
    """
    if plan.num_ranks != num_ranks:
        raise EmbeddingError(f"the plan is for {plan.num_ranks} ranks, but {num_ranks} train; make it for {num_ranks}")
    check_plan(plan)
    planned = {table.name: f"{table.num_rows} rows of width {table.dim} held as {table.dtype}" for table in plan.tables}
    for spec in specs:
        own = f"{spec.input_dim} rows of width {spec.output_dim} held as {spec.dtype}"
        if planned.get(spec.name) != own:
            raise EmbeddingError(
                f"table {spec.name!r} has {own}, but the plan has {planned.get(spec.name, 'no such table')}; make the "
                "plan of the same tables"
            )


def check_copies(plan: Plan) -> None:
    """Checks that the copies of a table stay equal where rows lag behind, and are caught up before they are looked up.

    Raises:
        EmbeddingError: They are rounded then, on each rank in another step.
    """
    if plan.narrow_copies:
        raise EmbeddingError(
            f"table {plan.narrow_copies[0]!r} of 16 bits lies on every rank, and an optimizer whose rows lag behind "
            'would round each copy in other steps; take its kind "lazy" or "dense", hold the table as float32, or on '
            "one rank"
        )
