import json
from dataclasses import replace
from typing import Any

import pytest

from rankhouse.training.errors import PlanError
from rankhouse.training.exchange.wire_format import WireDtypes
from rankhouse.training.plan import Mode, Placement, Plan, ShardSpec, TableSpec, check_plan, make_plan, place
from rankhouse.training.tables.specs import EmbeddingSpec


def table(name: str, num_rows: int, dim: int = 16, lookups: float = 1.0) -> TableSpec:
    return TableSpec(name, num_rows, dim, lookups)


def test_small_tables_lie_everywhere_and_large_ones_somewhere() -> None:
    plan = make_plan([table("small", 2047), table("large", 2048)], num_ranks=2)
    assert [placement.mode for placement in plan.placements] == ["data_parallel", "table_wise"]
    owner = plan.placement("large").ranks[0]
    assert [name for name, _ in plan.shards_of(owner)] == ["small", "large"]
    assert [name for name, _ in plan.shards_of(1 - owner)] == ["small"]


def test_bytes_are_balanced() -> None:
    tables = [table(f"t{rows}", 10_000 * rows) for rows in range(1, 27)]
    plan = make_plan(tables, num_ranks=4)
    sizes = [plan.bytes_of(rank) for rank in range(4)]
    assert max(sizes) < 1.1 * min(sizes)
    assert sum(sizes) == sum(spec.weight_bytes for spec in tables)


def test_lookups_count_as_much_as_bytes() -> None:
    tables = [table("hot", 50_000, lookups=100), *(table(f"t{i}", 50_000) for i in range(3))]
    plan = make_plan(tables, num_ranks=2)
    hot = plan.placement("hot").ranks[0]
    assert [plan.placement(f"t{i}").ranks for i in range(3)] == [(1 - hot,)] * 3


def test_the_same_tables_give_the_same_plan_in_any_order() -> None:
    tables = [table(name, 50_000) for name in "abcdef"]
    one, other = make_plan(tables, num_ranks=3), make_plan(tables[::-1], num_ranks=3)
    assert {name: one.placement(name) for name in "abcdef"} == {name: other.placement(name) for name in "abcdef"}


def test_more_ranks_than_tables_leaves_ranks_without() -> None:
    plan = make_plan([table("a", 50_000)], num_ranks=3)
    assert [len(plan.shards_of(rank)) for rank in range(3)] == [1, 0, 0]
    assert "rank 2: 0.00 MiB of weights; owns no table of its own" in plan.explain()


def test_threshold_zero_keeps_every_table_whole() -> None:
    plan = make_plan([table("tiny", 1), table("large", 10_000)], num_ranks=2, data_parallel_threshold_rows=0)
    assert {placement.mode for placement in plan.placements} == {"table_wise"}


def test_a_plan_explains_itself_and_is_plain_data() -> None:
    plan = make_plan([table("small", 100), table("large", 65_536)], num_ranks=2)
    text = plan.explain()
    assert "small: on every rank: 100 rows are fewer than 2,048" in text
    assert "large: on rank 0: 4.00 MiB" in text
    assert Plan.from_document(json.loads(json.dumps(plan.document()))) == plan


@pytest.mark.parametrize(
    ("tables", "options", "message"),
    [
        ([], {"num_ranks": 1}, "no embedding tables"),
        ([table("a", 1), table("a", 2)], {"num_ranks": 1}, "2 tables are named 'a'"),
        ([table("a", 1)], {"num_ranks": 0}, "on 0 ranks"),
        ([table("a", 1)], {"num_ranks": 1, "data_parallel_threshold_rows": -1}, "is -1; expected 0 or more"),
    ],
)
def test_refuses_what_cannot_be_placed(tables: list[TableSpec], options: dict[str, int], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make_plan(tables, **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", 0, 16), "table 'a' has num_rows = 0"),
        (("a", 1, 0), "table 'a' has dim = 0"),
        (("a", 1, 1, float("nan")), "lookups_per_sample = nan"),
        (("a", 1, 1, 1.0, "int8"), "rows of dtype 'int8'; expected one of float32, bfloat16, float16"),
    ],
)
def test_refuses_impossible_tables(arguments: tuple, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        TableSpec(*arguments)


def test_refuses_what_is_no_table_and_says_what_gives_one() -> None:
    embedding = EmbeddingSpec(5, 3, "a", dtype="bfloat16")
    with pytest.raises(PlanError, match=r"made of TableSpecs; got EmbeddingSpec.*'a'.*table_spec\(\) returns one"):
        make_plan([embedding], num_ranks=1)  # type: ignore[list-item]
    assert embedding.table_spec(2.0) == TableSpec("a", 5, 3, 2.0, "bfloat16")


def test_slices_are_even_and_their_names_say_what_they_are() -> None:
    spec = table("a", 5, dim=3)
    rows = place(spec, "row_wise", num_ranks=3)
    assert [(shard.rank, shard.row_start, shard.row_stop) for shard in rows.shards] == [(0, 0, 2), (1, 2, 4), (2, 4, 5)]
    assert (rows.exchange, rows.held_by) == ("rows", "ranks 0, 1, 2 by rows")
    columns = place(spec, "column_wise", num_ranks=2, ranks=[1], num_slices=2)
    assert [(shard.rank, shard.column_start, shard.column_stop) for shard in columns.shards] == [(1, 0, 2), (1, 2, 3)]
    assert "owns a[:, 0:2], a[:, 2:3]" in Plan((spec,), (columns,), 2).explain_rank(1)
    assert "owns a[2:4]" in Plan((spec,), (rows,), 3).explain_rank(1)


def test_a_table_with_fewer_rows_than_ranks_leaves_ranks_without() -> None:
    spec = table("a", 2)
    plan = Plan((spec,), (place(spec, "row_wise", num_ranks=3),), 3)
    assert [len(plan.shards_of(rank)) for rank in range(3)] == [1, 1, 0]
    assert plan.placements[0].ranks == (0, 1)
    assert Plan.from_document(plan.document()) == plan


def test_a_plan_says_on_which_device_a_table_lies_and_in_what_it_travels() -> None:
    spec, small = table("a", 5, dim=3), table("small", 2)
    hosted = replace(
        place(spec, "row_wise", num_ranks=2),
        device="host",
        cache_rows=2,
        host_folder="/scratch",
        wire=WireDtypes("bfloat16", "int8"),
    )
    plan = Plan((spec, small), (hosted, place(small, "data_parallel", num_ranks=2)), 2)
    read = Plan.from_document(json.loads(json.dumps(plan.document())))
    assert read == plan
    assert read.wires == {"a": WireDtypes("bfloat16", "int8")}
    assert hosted.held_by == "ranks 0, 1 by rows, on the host with 2 rows cached"


def test_rows_of_16_bits_take_half_the_bytes() -> None:
    tables = [
        replace(table("a", 10_000), dtype="bfloat16"),
        table("b", 10_000),
        replace(table("c", 9), dtype="float16"),
    ]
    plan = make_plan(tables, num_ranks=2)
    assert [spec.weight_bytes for spec in tables] == [2 * 16 * 10_000, 4 * 16 * 10_000, 2 * 16 * 9]
    assert plan.shard_bytes_of(0) == [("b", 640_000), ("c", 288)]
    assert (plan.bytes_of(0), plan.bytes_of(1)) == (640_288, 320_288)
    assert plan.narrow_copies == ("c",)
    assert make_plan(tables, num_ranks=1).narrow_copies == ()
    assert Plan.from_document(json.loads(json.dumps(plan.document()))) == plan
    assert plan.dtypes == {"a": "bfloat16", "b": "float32", "c": "float16"}


def test_reads_the_documents_of_plans_that_say_nothing_of_devices_wires_and_dtypes() -> None:
    plan = make_plan([table("small", 100), table("large", 65_536)], num_ranks=2)
    document = plan.document()
    for spec in document["tables"]:
        del spec["dtype"]
    for item in document["placements"]:
        for later in ("device", "cache_rows", "wire"):
            del item[later]
    assert Plan.from_document(document) == plan


@pytest.mark.parametrize(
    ("mode", "values", "message"),
    [
        ("table_wise", {"device": "disk"}, "'a' .table_wise. has device = 'disk'; expected 'device' or 'host'"),
        ("table_wise", {"device": "host"}, "on the host with cache_rows = None; expected at least 1"),
        ("table_wise", {"device": "host", "cache_rows": 0}, "cache_rows = 0; expected at least 1"),
        ("table_wise", {"cache_rows": 8}, "has cache_rows = 8; only tables with device = 'host' have a cache"),
        ("table_wise", {"host_folder": "/scratch"}, "has a host_folder, but does not lie on the host"),
        ("data_parallel", {"device": "host", "cache_rows": 8}, "every rank computes with its own copy"),
        ("data_parallel", {"wire": WireDtypes("bfloat16")}, "has a wire format, but none of its rows travel"),
        ("row_wise", {"wire": WireDtypes("float32", "int4")}, "travels as 'int4'; expected one of float32"),  # type: ignore[arg-type]
    ],
)
def test_refuses_devices_caches_and_wires_that_make_no_sense(mode: Mode, values: dict[str, Any], message: str) -> None:
    spec = table("a", 5, dim=3)
    placement = replace(place(spec, mode, num_ranks=2), **values)
    with pytest.raises(PlanError, match=message):
        check_plan(Plan((spec,), (placement,), 2))


def test_reads_the_documents_of_plans_of_whole_tables() -> None:
    document = make_plan([table("small", 100), table("large", 65_536)], num_ranks=2).document()
    for item in document["placements"]:
        item["rank"] = item.pop("shards")[0]["rank"]
        del item["exchange"]
    assert Plan.from_document(document) == make_plan([table("small", 100), table("large", 65_536)], num_ranks=2)


@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [
        ("table_wise", {"ranks": [2]}, "'a' .table_wise. has a shard on rank 2; expected one of the 2 ranks"),
        ("table_wise", {"ranks": [0, 1]}, "expected one rank"),
        ("table_wise", {"ranks": []}, "no rank or no slice"),
        ("data_parallel", {"ranks": [0]}, r"lies on the ranks \[0\]; expected once on each of the 2 ranks"),
        ("column_wise", {"num_slices": 4}, "slice without a column; make at most 3 slices"),
        ("data_parallel", {"exchange": "rows"}, "exchanges 'rows'; expected pooled"),
        ("row_wise", {"ranks": [1, 1]}, "two ranges of rows on one of the ranks"),
        ("row_wise", {"exchange": "pooled"}, "exchanges 'pooled'; expected rows"),
        ("diagonal", {}, "mode 'diagonal'; expected one of data_parallel, table_wise, column_wise, row_wise"),
    ],
)
def test_refuses_to_place_a_table_so(mode: Mode, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        place(table("a", 5, dim=3), mode, num_ranks=2, **options)


@pytest.mark.parametrize(
    ("mode", "shards", "message"),
    [
        ("row_wise", [(0, 0, 2, 0, 3), (1, 3, 5, 0, 3)], "'a' .row_wise. by rows leaves a gap at 2:3"),
        ("row_wise", [(0, 0, 3, 0, 3), (1, 2, 5, 0, 3)], "by rows has shards that overlap or do not rise at 2:3"),
        ("row_wise", [(0, 0, 4, 0, 3)], "leaves a gap at 4:5"),
        ("row_wise", [(0, 0, 6, 0, 3)], "at 5:6; shards must cover 0:5"),
        ("row_wise", [(0, 0, 3, 0, 3), (1, 3, 5, 0, 2)], "by columns has the shard 0:2; expected 0:3"),
        ("column_wise", [(0, 0, 5, 0, 1), (0, 0, 5, 2, 3)], "by columns leaves a gap at 1:2"),
        ("column_wise", [(0, 0, 4, 0, 3)], "by rows has the shard 0:4; expected 0:5"),
    ],
)
def test_refuses_shards_that_do_not_make_up_the_table(
    mode: Mode, shards: list[tuple[int, int, int, int, int]], message: str
) -> None:
    exchange = "rows" if mode == "row_wise" else "pooled"
    placement = Placement("a", mode, tuple(ShardSpec(*shard) for shard in shards), exchange)
    with pytest.raises(PlanError, match=message):
        check_plan(Plan((table("a", 5, dim=3),), (placement,), 2))


@pytest.mark.parametrize("document", [{}, {"tables": [], "num_ranks": 1, "placements": [3]}, {"tables": [{"x": 1}]}])
def test_refuses_documents_that_are_no_plans(document: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="is no plan"):
        Plan.from_document(document)


def test_a_plan_without_a_placement_for_each_table_is_refused() -> None:
    with pytest.raises(PlanError, match=r"has the tables \['a'\], but places \[\]"):
        check_plan(Plan((table("a", 5),), (), 1))


def test_an_unknown_table_is_named_beside_the_known() -> None:
    with pytest.raises(PlanError, match="no table 'b'; it has a"):
        make_plan([table("a", 1)], num_ranks=1).placement("b")
