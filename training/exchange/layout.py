"""Which rank looks up what for whom: worked out once for a plan, before any tensor is at hand.

Every input goes one of three ways, together with all inputs of its table:

    local     its table lies on this rank whole: nothing travels
    pooled    each owner of a part of its table pools the bags of the global batch, and sends back pooled columns
    rows      the unique ids go to the ranks that have their rows, and the rows are pooled where they were asked for

An input without a combiner has nothing to pool, so its table's rows are always looked up once for each unique id, also
where the plan says "pooled", or where nothing travels.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from rankhouse.training.exchange.wire_format import WireFormat
from rankhouse.training.plan import Plan, ShardSpec
from rankhouse.training.tables.specs import Input


@dataclass(frozen=True)
class Feature:
    """An input in one rectangle of its table.

    Attributes:
        number: The input's position among all inputs.
        table: The table's name.
        shard: The rectangle, which has all rows.
        wire: How its rows travel.
    """

    number: int
    table: str
    shard: ShardSpec
    wire: WireFormat


@dataclass(frozen=True)
class PooledGroup:
    """What one rank pools for all ranks.

    Attributes:
        numbers: The inputs whose ids it gets, each once.
        features: What it pools: of an input as many as it has slices of the table; narrow ones first, so that those of
            one width lie side by side.
    """

    numbers: tuple[int, ...] = ()
    features: tuple[Feature, ...] = ()

    @property
    def blocks(self) -> list[tuple[int, int, WireFormat]]:
        """The runs of features of one width and format: (how many, width, format)."""
        runs = groupby(self.features, key=lambda feature: (feature.shard.dim, feature.wire))
        return [(len(list(run)), *key) for key, run in runs]


@dataclass(frozen=True)
class RowsTable:
    """A table whose rows are looked up once for each unique id.

    Attributes:
        table: Its name.
        num_rows: Rows of the whole table.
        numbers: Its inputs.
        shards: Its rectangles that have rows, in rising order: ranges of rows, or slices of columns.
        wire: How its rows travel.
        by_key: Whether it is looked up by any keys. Where it is cut by rows, a hash says which rectangle a key is in.
    """

    table: str
    num_rows: int
    numbers: tuple[int, ...]
    shards: tuple[ShardSpec, ...]
    wire: WireFormat
    by_key: bool = False

    @property
    def is_cut_by_rows(self) -> bool:
        """Whether it lies in several ranges of rows."""
        return self.shards[0].num_rows < self.num_rows

    def shards_of(self, rank: int) -> tuple[ShardSpec, ...]:
        """Returns the rectangles on a rank: at most one range of rows, or some slices of columns."""
        return tuple(shard for shard in self.shards if shard.rank == rank)


@dataclass(frozen=True)
class Layout:
    """Which way every input goes.

    Attributes:
        local: The inputs that one lookup on this rank serves, in their order.
        local_rows: The tables on this rank of which each unique row is looked up once.
        pooled: By rank, what it pools.
        rows: The tables whose rows travel.
    """

    local: tuple[Feature, ...]
    local_rows: tuple[RowsTable, ...]
    pooled: tuple[PooledGroup, ...]
    rows: tuple[RowsTable, ...]

    @property
    def travels(self) -> bool:
        """Whether anything is exchanged."""
        return bool(self.rows) or self.pools

    @property
    def pools(self) -> bool:
        """Whether any rank pools for others."""
        return any(group.numbers for group in self.pooled)

    def rows_of(self, rank: int) -> list[RowsTable]:
        """Returns the tables whose rows a rank is asked for."""
        return [table for table in self.rows if table.shards_of(rank)]

    def serves(self, rank: int) -> bool:
        """Whether a rank is asked for anything."""
        return bool(self.pooled[rank].numbers) or bool(self.rows_of(rank))


class Layouts:
    """The layouts of one layer.

    They depend on the combiners of a call: an input with one id for each sample needs none. Any thread may call it.
    """

    def __init__(
        self,
        inputs: Sequence[Input],
        plan: Plan,
        wires: Mapping[str, WireFormat],
        *,
        rank: int,
        by_key: Collection[str] = (),
    ) -> None:
        """Takes the inputs, where their tables lie, how rows travel, and which tables are looked up by any keys."""
        self._inputs = tuple(inputs)
        self._plan = plan
        self._wires = wires
        self._rank = rank
        self._by_key = frozenset(by_key)
        self._made: dict[tuple[str | None, ...], Layout] = {}

    def of(self, combiners: Sequence[str | None]) -> Layout:
        """Returns the layout for one combiner for each input."""
        key = tuple(combiners)
        if key not in self._made:
            self._made[key] = self._make(key)
        return self._made[key]

    def _make(self, combiners: tuple[str | None, ...]) -> Layout:
        local: list[Feature] = []
        pooled: list[Feature] = []
        local_rows, rows = [], []
        for table in self._plan.tables:
            numbers = tuple(i for i, item in enumerate(self._inputs) if item.table == table.name)
            if not numbers:
                continue
            wire, by_key = self._wires[table.name], table.name in self._by_key
            placement = self._plan.placement(table.name)
            shards = tuple(shard for shard in placement.shards if shard.num_rows)
            apart = any(combiners[number] is None for number in numbers)
            if placement.mode == "data_parallel" or (self._plan.num_ranks == 1 and len(shards) == 1):
                own = tuple(shard for shard in shards if shard.rank == self._rank)
                if apart:
                    local_rows.append(RowsTable(table.name, table.num_rows, numbers, own, wire, by_key))
                else:
                    local += [Feature(number, table.name, own[0], wire) for number in numbers]
            elif apart or placement.exchange == "rows":
                rows.append(RowsTable(table.name, table.num_rows, numbers, shards, wire, by_key))
            else:
                pooled += [Feature(number, table.name, shard, wire) for number in numbers for shard in shards]
        groups = [self._group(pooled, rank) for rank in range(self._plan.num_ranks)]
        local.sort(key=lambda feature: feature.number)
        return Layout(tuple(local), tuple(local_rows), tuple(groups), tuple(rows))

    def _group(self, features: Sequence[Feature], rank: int) -> PooledGroup:
        own = [feature for feature in features if feature.shard.rank == rank]
        formats = list(dict.fromkeys(self._wires.values()))
        own.sort(key=lambda f: (f.shard.dim, formats.index(f.wire), f.number, f.shard.column_start))
        return PooledGroup(tuple(sorted({feature.number for feature in own})), tuple(own))
