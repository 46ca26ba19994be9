"""`DistEmbeddingStrategy`: which rank holds which table, by the rules of distributed-embeddings.

Sizes and thresholds are counted in elements, rows times width. Tables are sorted into three groups by size: small ones
are data-parallel, large ones are cut by rows over all ranks, and those between lie on one rank each ("table-parallel"),
where those above a threshold are cut by columns first. The result is one of Rankhouse's plans.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from itertools import accumulate
from typing import Any

from rankhouse.training.errors import CompatError
from rankhouse.training.plan import Placement, Plan, ShardSpec, TableSpec, check_plan, place
from rankhouse.training.tables.row_dtypes import row_dtype_of

STRATEGIES = ("basic", "memory_balanced", "memory_optimized")

Config = dict[str, Any]


class DistEmbeddingStrategy:
    """Which rank holds which table; a pure function of its arguments, the same on every rank.

    "Position" below is that of a table or input in its group. Here every table is a variable of its own, so the lists
    that say how tables lie in joint variables are trivial: each group has one table, and no id is moved.

    Attributes:
        strategy: How table-parallel tables are dealt out; "basic" on one rank.
        global_configs: The configuration of each layer, and its class as `layer_type`.
        table_groups: The tables that are data-parallel, table-parallel, and cut by rows.
        input_groups: The inputs of each of these groups.
        map_groups: For each of these inputs, the position of its table.
        rev_group_ids: For each input, where it stands in the three groups put together.
        dp_configs: The configurations of the data-parallel tables.
        row_sliced_configs: By rank, those of its ranges of rows.
        row_inputs_offsets: By rank, minus the first row of each of these ranges.
        table_ids: By rank, the positions of the table-parallel tables of which it holds columns.
        local_configs: By rank, their configurations, `output_dim` being the columns it holds, and `cpu_offload`.
        input_ids_list: By rank, the positions of the inputs that look up there: the order of inputs where the layer
            takes those of its own tables (`dp_input=False`).
        local_maps: For each of these, which of the rank's tables.
        local_input_offsets: For each of these, what is added to its ids: 0.
        local_group_list: By rank, for each variable the tables in it: one.
        local_weight_offsets: By rank, for each variable where these begin and end: [0, rows].
        widths_list_flat: The widths of all ranks' outputs, in the order of `input_ids_list`.
        rev_tp_ids: Where the outputs of each table-parallel input stand among these.
        sliced_out_ranges: For each input of a table that is cut by columns, [its position, that plus its slices].
    """

    def __init__(
        self,
        embeddings: Sequence[Any],
        world_size: int,
        strategy: str = "basic",
        input_table_map: Sequence[int] | None = None,
        column_slice_threshold: int | None = None,
        row_slice_threshold: int | None = None,
        data_parallel_threshold: int | None = None,
        gpu_embedding_size: int | None = None,
    ) -> None:
        """Deals the tables out.

        Args:
            embeddings: Embedding layers.
            world_size: The number of ranks.
            strategy: "basic": in turn. "memory_balanced": by size, forth and back over the ranks, so that numbers of
                tables are even. "memory_optimized": by size, each to the rank with the fewest elements.
            input_table_map: The table of each input; by default one for each table, in turn.
            column_slice_threshold: Larger table-parallel tables are cut by columns into the fewest slices, a power of
                2, that are not. By default only where there are fewer tables than ranks, so that each rank has some.
            row_slice_threshold: Tables as large or larger are cut by rows over all ranks.
            data_parallel_threshold: Tables as small or smaller are data-parallel.
            gpu_embedding_size: The elements of a rank's table-parallel tables that shall lie on its GPU, smallest
                first; the others get `cpu_offload`. All tables lie in main memory here, so this is bookkeeping.

        Raises:
            CompatError: The strategy is unknown, or an input names no table (also a ValueError).
        """
        _check_strategy(strategy)
        self.strategy = "basic" if world_size == 1 else strategy
        self.column_slice_threshold = column_slice_threshold
        self.row_slice_threshold = row_slice_threshold
        self.data_parallel_threshold = data_parallel_threshold
        self.gpu_embedding_size = gpu_embedding_size
        self.global_configs: list[Config] = [{**e.get_config(), "layer_type": type(e)} for e in embeddings]
        self._dtypes = [row_dtype_of(embedding) for embedding in embeddings]
        self._world_size = world_size
        self.input_table_map = _check_map(input_table_map, len(self.global_configs))
        self.table_groups = self._group_tables()
        self._group_inputs()
        self.dp_configs = [self.global_configs[table] for table in self.table_groups[0]]
        self._cut_rows()
        slices = self._cut_columns()
        self._deal_out(slices)
        self._list_outputs(slices)

    def make_plan(self, names: Sequence[str]) -> Plan:
        """Returns where every table lies, as a plan of tables of these names.

        Raises:
            PlanError: Two names are equal.
        """
        tables = tuple(
            TableSpec(
                *(name, config["input_dim"], config["output_dim"], float(self.input_table_map.count(number))),
                dtype=self._dtypes[number],
            )
            for number, (name, config) in enumerate(zip(names, self.global_configs, strict=True))
        )
        plan = Plan(tables, tuple(self._place(number, table) for number, table in enumerate(tables)), self._world_size)
        check_plan(plan)
        return plan

    def _place(self, number: int, table: TableSpec) -> Placement:
        elements = f"{table.num_rows * table.dim:,} elements"
        if number in self.table_groups[0]:
            reason = f"on every rank: {elements}, at most {self.data_parallel_threshold:,}"
            return place(table, "data_parallel", num_ranks=self._world_size, reason=reason)
        if number in self.table_groups[2]:
            reason = f"by rows over all ranks: {elements}, at least {self.row_slice_threshold:,}"
            return place(table, "row_wise", num_ranks=self._world_size, reason=reason)
        shards, column = [], 0
        position = self.table_groups[1].index(number)
        for rank, (held, configs) in enumerate(zip(self.table_ids, self.local_configs, strict=True)):
            if position in held:
                stop = column + configs[held.index(position)]["output_dim"]
                shards.append(ShardSpec(rank, 0, table.num_rows, column, stop))
                column = stop
        if len(shards) == 1:
            reason = f"on rank {shards[0].rank}: {elements}, by the strategy {self.strategy!r}"
            return Placement(table.name, "table_wise", tuple(shards), reason=reason)
        reason = f"by columns over {len(shards)} ranks: {elements}, by the strategy {self.strategy!r}"
        return Placement(table.name, "column_wise", tuple(shards), reason=reason)

    def _group_tables(self) -> list[list[int]]:
        groups: list[list[int]] = [[], [], []]
        for number, config in enumerate(self.global_configs):
            elements = _elements(config)
            if self.data_parallel_threshold and elements <= self.data_parallel_threshold:
                groups[0].append(number)
            elif self.row_slice_threshold and elements >= self.row_slice_threshold:
                groups[2].append(number)
            else:
                groups[1].append(number)
        return groups

    def _group_inputs(self) -> None:
        self.input_groups = [
            [item for item, table in enumerate(self.input_table_map) if table in group] for group in self.table_groups
        ]
        self.map_groups = [
            [group.index(self.input_table_map[item]) for item in items]
            for group, items in zip(self.table_groups, self.input_groups, strict=True)
        ]
        self.rev_group_ids = _sorted_positions([item for items in self.input_groups for item in items])

    def _cut_rows(self) -> None:
        configs = [self.global_configs[table] for table in self.table_groups[2]]
        heights = [_even_parts(config["input_dim"], self._world_size) for config in configs]
        starts = [[0, *accumulate(parts)] for parts in heights]
        ranks = range(self._world_size)
        self.row_sliced_configs: list[list[Config]] = [
            [{**config, "input_dim": parts[rank]} for config, parts in zip(configs, heights, strict=True)]
            for rank in ranks
        ]
        self.row_inputs_offsets = [[-start[rank] for start in starts] for rank in ranks]

    def _cut_columns(self) -> list[list[int]]:
        """Returns the widths of the slices of each table-parallel table."""
        configs = [self.global_configs[table] for table in self.table_groups[1]]
        threshold = self.column_slice_threshold
        if threshold is None:
            threshold = _threshold_for_all_ranks([_elements(config) for config in configs], self._world_size)
        return [
            _even_parts(config["output_dim"], _num_slices(config, threshold, self._world_size)) for config in configs
        ]

    def _deal_out(self, slices: Sequence[Sequence[int]]) -> None:
        """Gives each rank its slices, those of one table put together, and notes which inputs look up there."""
        configs = [self.global_configs[table] for table in self.table_groups[1]]
        sized = [
            (config["input_dim"] * width, table)
            for table, (config, widths) in enumerate(zip(configs, slices, strict=True))
            for width in widths
        ]
        remaining = [list(widths) for widths in slices]
        self.table_ids: list[list[int]] = []
        self.local_configs: list[list[Config]] = []
        for dealt in _DEALERS[self.strategy](sized, self._world_size):
            widths: dict[int, int] = {}
            for table in dealt:
                widths[table] = widths.get(table, 0) + remaining[table].pop(0)
            self.table_ids.append(list(widths))
            held = [{**configs[table], "output_dim": width} for table, width in widths.items()]
            self.local_configs.append(self._with_offload(held))
        inputs = [
            [
                (item, held)
                for held, table in enumerate(tables)
                for item, mapped in enumerate(self.map_groups[1])
                if mapped == table
            ]
            for tables in self.table_ids
        ]
        self.input_ids_list = [[item for item, _ in own] for own in inputs]
        self.local_maps = [[held for _, held in own] for own in inputs]
        self.local_input_offsets = [[0] * len(own) for own in inputs]
        self.local_group_list = [[[held] for held in range(len(held_configs))] for held_configs in self.local_configs]
        self.local_weight_offsets = [
            [[0, config["input_dim"]] for config in held_configs] for held_configs in self.local_configs
        ]

    def _with_offload(self, configs: Sequence[Config]) -> list[Config]:
        order = sorted(range(len(configs)), key=lambda number: _elements(configs[number]))
        filled = accumulate(_elements(configs[number]) for number in order)
        limit = float("inf") if self.gpu_embedding_size is None else self.gpu_embedding_size
        offload = {number: total > limit for number, total in zip(order, filled, strict=True)}
        return [{**config, "cpu_offload": offload[number]} for number, config in enumerate(configs)]

    def _list_outputs(self, slices: Sequence[Sequence[int]]) -> None:
        self.widths_list_flat = [
            configs[held]["output_dim"]
            for configs, own in zip(self.local_configs, self.local_maps, strict=True)
            for held in own
        ]
        self.rev_tp_ids = _sorted_positions([item for own in self.input_ids_list for item in own])
        holders = [sum(table in held for held in self.table_ids) for table in range(len(slices))]
        self.sliced_out_ranges = [
            [item, item + holders[table]] for item, table in enumerate(self.map_groups[1]) if len(slices[table]) > 1
        ]


def _in_turn(sized: Sequence[tuple[int, int]], world_size: int) -> list[list[int]]:
    tables = [table for _, table in sized]
    return [tables[rank::world_size] for rank in range(world_size)]


def _forth_and_back(sized: Sequence[tuple[int, int]], world_size: int) -> list[list[int]]:
    tables = [table for _, table in sorted(sized, reverse=True)]
    twice = 2 * world_size
    return [tables[rank::twice] + tables[twice - 1 - rank :: twice] for rank in range(world_size)]


def _to_the_emptiest(sized: Sequence[tuple[int, int]], world_size: int) -> list[list[int]]:
    loads: list[tuple[int, list[int]]] = [(0, []) for _ in range(world_size)]
    for elements, table in sorted(sized, reverse=True):
        loads.sort()
        load, tables = loads[0]
        loads[0] = (load + elements, [*tables, table])
    return [tables for _, tables in sorted(loads)]


_DEALERS = {"basic": _in_turn, "memory_balanced": _forth_and_back, "memory_optimized": _to_the_emptiest}


def _check_strategy(strategy: str) -> None:
    if strategy not in STRATEGIES:
        near = get_close_matches(str(strategy), STRATEGIES, n=1, cutoff=0)[0]
        raise CompatError(
            f"Unsupported shard strategy {strategy!r}: expected one of {', '.join(STRATEGIES)}; did you mean {near!r}?"
        )


def _check_map(input_table_map: Sequence[int] | None, num_tables: int) -> list[int]:
    tables = list(range(num_tables)) if input_table_map is None else list(input_table_map)
    for item, table in enumerate(tables):
        if not 0 <= table < num_tables:
            raise CompatError(
                f"input_table_map[{item}] is {table}: expected the position of one of the {num_tables} embeddings"
            )
    return tables


def _threshold_for_all_ranks(sizes: Sequence[int], world_size: int) -> int | None:
    """Returns the largest threshold that makes a slice for each rank: the largest table is halved until there are."""
    sizes, threshold = list(sizes), None
    while sizes and len(sizes) < world_size:
        sizes.sort()
        largest = sizes.pop()
        threshold = largest - 1
        sizes += [largest // 2, largest // 2]
    return threshold


def _num_slices(config: Config, threshold: int | None, world_size: int) -> int:
    most = min(world_size, int(config["output_dim"]))
    slices = 1
    while threshold is not None and _elements(config) > threshold * slices and slices < most:
        slices *= 2
    return min(slices, most)


def _even_parts(length: int, num_parts: int) -> list[int]:
    whole, more = divmod(length, num_parts)
    return [whole + (part < more) for part in range(num_parts)]


def _elements(config: Config) -> int:
    return int(config["input_dim"]) * int(config["output_dim"])


def _sorted_positions(items: Sequence[int]) -> list[int]:
    """Returns where items stand, in the order of the items; equal ones in the order in which they stand."""
    return sorted(range(len(items)), key=lambda at: items[at])
