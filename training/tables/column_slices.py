"""Means over whole rows of tables that are cut by columns: what an optimizer with one number for each row needs.

All slices of a table see the same ids in the same order, whichever ranks hold them. So what they sum up over their own
columns aligns. The sums are added up in the order of the slices, on every rank that has one: all get the same bits, and
keep the same number for a row for ever. Between slices of one rank nothing travels; those of all other tables of a
layer share one exchange.
"""

from collections.abc import Hashable, Mapping, Sequence
from functools import reduce
from itertools import chain

import tensorflow as tf

from rankhouse.training.errors import OptimizerError
from rankhouse.training.plan import Plan
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.table_shards import TableShard

_MARK = "rankhouse_column_slices"

# What the slices of tables have summed up, by the table's name and the number of the slice.
_Sums = dict[str, dict[int, tf.Tensor]]


class ColumnSlices:
    """The tables of one layer that are cut by columns."""

    def __init__(self, plan: Plan, shards: Sequence[TableShard], *, ranks: Ranks, name: str) -> None:
        """Takes the plan, what this rank holds of it, the ranks, and the name of the exchange."""
        self._ranks = ranks
        self._name = name
        self._dims = {table.name: table.dim for table in plan.tables}
        self._holders: dict[str, list[int]] = {}  # By table the ranks of its slices, from left to right.
        self._own: dict[Hashable, tuple[str, int]] = {}  # By variable the table, and the number of the slice.
        for table in plan.cut_by_columns:
            slices = sorted(plan.placement(table).shards, key=lambda shard: shard.column_start)
            numbers = {shard.column_start: number for number, shard in enumerate(slices)}
            self._holders[table] = [shard.rank for shard in slices]
            own = [shard for shard in shards if shard.table == table]
            self._own |= {shard.variable.ref(): (table, numbers[shard.column_start]) for shard in own}
        # Of a rank without slices all that it sends is constant, but for this: TensorFlow would make the exchange once,
        # while it optimizes a graph, and never again.
        with tf.init_scope():
            self._nothing = tf.Variable(0, trainable=False)

    def mark(self, variables: Sequence[tf.Variable]) -> None:
        """Has variables of the layer know it, if a table is cut: not only slices, as ranks without any join as well."""
        for variable in variables if self._holders else ():
            setattr(variable, _MARK, self)

    def has(self, variable: tf.Variable) -> bool:
        """Whether a variable is a slice."""
        return variable.ref() in self._own

    def means(self, sums: Mapping[Hashable, tf.Tensor]) -> dict[Hashable, tf.Tensor]:
        """Makes means over whole rows of sums over the columns of slices; collective.

        Args:
            sums: By a slice's variable (its `ref()`) a number for each row of a step, float32 [U]; of the same tables
                on all ranks, as far as they hold some of them.

        Returns:
            By variable the means, the same for all slices of a table.

        Raises:
            OptimizerError: Some slices of a table are there, and others are not.
        """
        own: _Sums = {}
        for ref, (table, number) in self._own.items():
            if ref in sums:
                own.setdefault(table, {})[number] = sums[ref]
        for table, parts in own.items():
            here = self._holders[table].count(self._ranks.rank)
            if len(parts) != here:
                raise OptimizerError(
                    f"{len(parts)} of the {here} slices of table {table!r} have a gradient; update them all together, "
                    "as an optimizer with one number for each row needs whole rows"
                )
        every = self._gather(own)
        means = {
            table: reduce(tf.add, [parts[number] for number in sorted(parts)]) / self._dims[table]
            for table, parts in every.items()
        }
        return {ref: means[self._own[ref][0]] for ref in sums}

    def _gather(self, own: _Sums) -> _Sums:
        """Returns the sums of all slices of the tables of which this rank has any."""
        if all(len(set(holders)) == 1 for holders in self._holders.values()):
            return own
        me, others = self._ranks.rank, range(self._ranks.size)
        shared = [[table for table in own if rank != me and rank in self._holders[table]] for rank in others]
        send = [[part for table in tables for part in own[table].values()] for tables in shared]
        splits = [tf.add_n([tf.size(part) for part in parts]) if parts else tf.constant(0) for parts in send]
        message = tf.concat([tf.zeros([0]), *chain(*send)], axis=0)
        # That it is counted keeps it in the graph of a rank that gets nothing, and must join all the same.
        arrived, _ = self._ranks.alltoall(message, tf.stack(splits) + self._nothing, name=self._name)
        coming = [
            (table, number)
            for rank, tables in enumerate(shared)
            for table in tables
            for number, holder in enumerate(self._holders[table])
            if holder == rank
        ]
        every = {table: dict(parts) for table, parts in own.items()}
        if coming:
            sizes = [tf.size(next(iter(own[table].values()))) for table, _ in coming]
            for (table, number), part in zip(coming, tf.split(arrived, sizes, num=len(coming)), strict=True):
                every[table][number] = part
        return every


def column_slices_of(variable: tf.Variable) -> ColumnSlices | None:
    """Returns the cut tables of a variable's layer; None of a layer without any, and of other variables."""
    return getattr(variable, _MARK, None)
