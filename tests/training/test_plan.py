import json

import pytest

from rankhouse.training.errors import PlanError
from rankhouse.training.plan import TableSpec, make_plan


def table(name: str, num_rows: int, dim: int = 16, lookups: float = 1.0) -> TableSpec:
    return TableSpec(name, num_rows, dim, lookups)


def test_small_tables_lie_everywhere_and_large_ones_somewhere() -> None:
    plan = make_plan([table("small", 2047), table("large", 2048)], num_ranks=2)
    assert [placement.mode for placement in plan.placements] == ["data_parallel", "table_wise"]
    owner = plan.placement("large").rank
    assert [spec.name for spec in plan.tables_of(owner)] == ["small", "large"]
    assert [spec.name for spec in plan.tables_of(1 - owner)] == ["small"]


def test_bytes_are_balanced() -> None:
    tables = [table(f"t{rows}", 10_000 * rows) for rows in range(1, 27)]
    plan = make_plan(tables, num_ranks=4)
    sizes = [plan.bytes_of(rank) for rank in range(4)]
    assert max(sizes) < 1.1 * min(sizes)
    assert sum(sizes) == sum(spec.weight_bytes for spec in tables)


def test_lookups_count_as_much_as_bytes() -> None:
    tables = [table("hot", 50_000, lookups=100), *(table(f"t{i}", 50_000) for i in range(3))]
    plan = make_plan(tables, num_ranks=2)
    hot = plan.placement("hot").rank
    assert [plan.placement(f"t{i}").rank for i in range(3)] == [1 - hot] * 3


def test_the_same_tables_give_the_same_plan_in_any_order() -> None:
    tables = [table(name, 50_000) for name in "abcdef"]
    one, other = make_plan(tables, num_ranks=3), make_plan(tables[::-1], num_ranks=3)
    assert {name: one.placement(name) for name in "abcdef"} == {name: other.placement(name) for name in "abcdef"}


def test_more_ranks_than_tables_leaves_ranks_without() -> None:
    plan = make_plan([table("a", 50_000)], num_ranks=3)
    assert [len(plan.tables_of(rank)) for rank in range(3)] == [1, 0, 0]
    assert "rank 2: 0.00 MiB of weights; owns no table of its own" in plan.explain()


def test_threshold_zero_keeps_every_table_whole() -> None:
    plan = make_plan([table("tiny", 1), table("large", 10_000)], num_ranks=2, data_parallel_threshold_rows=0)
    assert {placement.mode for placement in plan.placements} == {"table_wise"}


def test_a_plan_explains_itself_and_is_plain_data() -> None:
    plan = make_plan([table("small", 100), table("large", 65_536)], num_ranks=2)
    text = plan.explain()
    assert "small: on every rank: 100 rows are fewer than 2,048" in text
    assert "large: on rank 0: 4.00 MiB" in text
    assert json.loads(json.dumps(plan.document()))["placements"][1]["table"] == "large"


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
    ],
)
def test_refuses_impossible_tables(arguments: tuple, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        TableSpec(*arguments)


def test_an_unknown_table_is_named_beside_the_known() -> None:
    with pytest.raises(PlanError, match="no table 'b'; it has a"):
        make_plan([table("a", 1)], num_ranks=1).placement("b")
