from typing import Any

import pytest
import tf_keras

from rankhouse.training.compat.distributed_embeddings import DistEmbeddingStrategy, DistributedEmbedding
from rankhouse.training.errors import CompatError

# 40, 80, 12, 200 and 14 elements.
SIZES = [(10, 4), (20, 4), (3, 4), (50, 4), (7, 2)]


def deal(world_size: int, strategy: str = "basic", sizes: Any = SIZES, **options: Any) -> DistEmbeddingStrategy:
    layers = [tf_keras.layers.Embedding(*size) for size in sizes]
    return DistEmbeddingStrategy(layers, world_size, strategy, **options)


@pytest.mark.parametrize(
    ("strategy", "table_ids"),
    [
        ("basic", [[0, 2, 4], [1, 3]]),
        ("memory_balanced", [[3, 2, 4], [1, 0]]),
        ("memory_optimized", [[1, 0, 4, 2], [3]]),
    ],
)
def test_tables_are_dealt_out_as_there(strategy: str, table_ids: list[list[int]]) -> None:
    dealt = deal(2, strategy)
    assert dealt.table_ids == dealt.input_ids_list == table_ids
    in_worker_order = [table for own in table_ids for table in own]
    assert [in_worker_order[at] for at in dealt.rev_tp_ids] == [0, 1, 2, 3, 4]
    assert dealt.widths_list_flat == [SIZES[table][1] for table in in_worker_order]
    placed = dealt.make_plan(list("abcde"))
    owners = {table: rank for rank, own in enumerate(table_ids) for table in own}
    assert [placement.ranks for placement in placed.placements] == [(owners[table],) for table in range(5)]


def test_one_rank_holds_everything_in_the_order_of_the_tables() -> None:
    dealt = deal(1, "memory_balanced", input_table_map=[0, 1, 0], column_slice_threshold=5)
    assert dealt.strategy == "basic"
    assert (dealt.table_ids, dealt.input_ids_list) == ([[0, 1, 2, 3, 4]], [[0, 2, 1]])
    assert dealt.local_maps == [[0, 0, 1]]


def test_thresholds_in_elements_sort_tables_and_inputs_into_groups() -> None:
    options = {"data_parallel_threshold": 14, "row_slice_threshold": 200, "input_table_map": [0, 1, 2, 3, 4, 0]}
    dealt = deal(3, **options)
    assert dealt.table_groups == [[2, 4], [0, 1], [3]]
    assert dealt.input_groups == [[2, 4], [0, 1, 5], [3]]
    assert dealt.map_groups == [[0, 1], [0, 1, 0], [0]]
    assert dealt.rev_group_ids == [2, 3, 0, 5, 1, 4]
    assert [config["input_dim"] for config in dealt.dp_configs] == [3, 7]
    assert [[config["input_dim"] for config in configs] for configs in dealt.row_sliced_configs] == [[17], [17], [16]]
    assert dealt.row_inputs_offsets == [[0], [-17], [-34]]
    # Two tables for three ranks: the larger one is cut, and each of its slices is as large as the other table.
    assert dealt.table_ids == [[0], [1], [1]]
    assert dealt.input_ids_list == [[0, 2], [1], [1]]
    assert [config["output_dim"] for configs in dealt.local_configs for config in configs] == [4, 2, 2]
    assert dealt.sliced_out_ranges == [[1, 3]]
    assert dealt.rev_tp_ids == [0, 2, 3, 1]
    modes = [placement.mode for placement in dealt.make_plan(list("abcde")).placements]
    assert modes == ["table_wise", "column_wise", "data_parallel", "row_wise", "data_parallel"]


def test_slices_of_one_table_on_one_rank_are_one() -> None:
    sizes = [(100, 8), (5, 8), (10, 8), (25, 4)]
    dealt = deal(4, "memory_balanced", sizes, column_slice_threshold=45)
    for own in dealt.table_ids:
        assert len(own) == len(set(own))
    plan = dealt.make_plan(list("abcd"))
    for table, placement in zip(plan.tables, plan.placements, strict=True):
        assert len(placement.shards) == len(placement.ranks)
        assert sum(shard.dim for shard in placement.shards) == table.dim
    # Three slices over two ranks cannot be of one width where they lie together.
    shards = deal(3, "basic", [(9, 7)], column_slice_threshold=21).make_plan(["a"]).placements[0].shards
    assert [(shard.column_start, shard.column_stop) for shard in shards] == [(0, 3), (3, 5), (5, 7)]


@pytest.mark.parametrize("threshold", [0, 1])
def test_a_table_is_cut_into_as_many_slices_as_ranks_or_columns_at_most(threshold: int) -> None:
    dealt = deal(4, sizes=[(10, 2), (10, 8)], column_slice_threshold=threshold)
    widths = [[c["output_dim"] for c in configs] for configs in dealt.local_configs]
    assert sum(sum(own) for own in widths) == 10
    assert [len(placement.shards) for placement in dealt.make_plan(["a", "b"]).placements] == [2, 4]


def test_tables_beyond_the_gpu_are_marked_smallest_first() -> None:
    dealt = deal(1, gpu_embedding_size=66)
    assert [config["cpu_offload"] for config in dealt.local_configs[0]] == [False, True, False, True, False]
    assert not any(config["cpu_offload"] for config in deal(1).local_configs[0])


def test_no_two_tables_share_a_variable() -> None:
    dealt = deal(2)
    assert dealt.local_input_offsets == [[0, 0, 0], [0, 0]]
    assert dealt.local_group_list == [[[0], [1], [2]], [[0], [1]]]
    assert dealt.local_weight_offsets == [[[0, 10], [0, 3], [0, 7]], [[0, 20], [0, 50]]]
    assert dealt.local_maps == [[0, 1, 2], [0, 1]]


@pytest.mark.parametrize("make", [lambda **options: deal(2, **options), lambda **options: _layer(**options)])
def test_an_unknown_strategy_is_named(make: Any) -> None:
    with pytest.raises(
        ValueError, match=r"Unsupported shard strategy 'memory_balance'.*did you mean 'memory_balanced'"
    ):
        make(strategy="memory_balance")


def test_an_input_without_a_table_is_named() -> None:
    with pytest.raises(CompatError, match=r"input_table_map\[1\] is 5: expected the position of one of the 5"):
        deal(2, input_table_map=[0, 5])


def _layer(**options: Any) -> DistributedEmbedding:
    return DistributedEmbedding([tf_keras.layers.Embedding(3, 2)], **options)
